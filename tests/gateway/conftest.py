"""A gateway, and those who call it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streaming_source.gateway import GatewayAddress, GatewayServer
from tests.gateway.support import SERIALIZER, RecordingListener, Stranger


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def server(listener: RecordingListener) -> Iterator[GatewayServer]:
    server = GatewayServer(listener, SERIALIZER)
    yield server
    server.close()


@pytest.fixture
def address(server: GatewayServer) -> GatewayAddress:
    return server.start()


@pytest.fixture
def stranger(address: GatewayAddress) -> Iterator[Stranger]:
    stranger = Stranger(address)
    yield stranger
    stranger.close()
