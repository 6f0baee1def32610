"""The tasks' end of a gateway."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.flight as flight

from streaming_source.api import SimpleVersionedSerializer, SourceEvent
from streaming_source.gateway import processes
from streaming_source.gateway.address import GatewayAddress
from streaming_source.gateway.breaker import CircuitBreaker
from streaming_source.gateway.messages import QUERY_KEY, TOKEN_KEY, MessageHeader
from streaming_source.gateway.refusals import Refusal
from streaming_source.gateway.task_messages import TaskMessages

__all__ = ["GatewayClient"]

_log = logging.getLogger(__name__)

_CALL_S: Final = 2.5
_FIRST_PAUSE_S: Final = 0.05
_MAX_CLIENTS: Final = 16

_OPTIONS: Final = (
    # A proxy of the machine's is none for the cluster's own network, and would see the token.
    ("grpc.enable_http_proxy", 0),
    # gRPC's own back-off would outlast a gateway's short absence; there is one here, for all of the process.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_UNREACHABLE: Final = (flight.FlightUnavailableError, flight.FlightTimedOutError)


class GatewayClient:
    """Speaks to one gateway, for all tasks that run in this process one after another.

    `of` gives the process's own, so that a connection outlives a micro-batch. What cannot be delivered is no error: a
    task spends at most 5 seconds in all on a gateway that is slow, a call at most 2.5. After a failure nobody tries for
    2 seconds, then for 4, and so on up to 64, so that a worker whose gateway hangs loses at most 2.5 seconds after each
    of these; one that nobody listens at costs next to nothing.

    Parameters
    ----------
    address
        Where the gateway is.
    clock
        Seconds, monotonic.
    sleep
        Waits for so many seconds.
    connect
        Makes a Flight client.

    Examples
    --------
    >>> from alignment.reports import RangeReport
    >>> address = GatewayAddress("127.0.0.1", 1, "0123456789abcdef", token="nobody listens at port 1")
    >>> messages = GatewayClient(address).for_task(batch=7, subtask_id=0, attempt=0)
    >>> messages.send_reports([RangeReport("orders", start=0, stop=10, rows=10)])
    False
    """

    def __init__(
        self,
        address: GatewayAddress,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        connect: Callable[[GatewayAddress], Any] | None = None,
    ) -> None:
        self.address = address
        self.clock = clock
        self._connect = connect or _connect
        self._sleep = sleep
        self._breaker = CircuitBreaker(clock)
        self._headers = [
            (TOKEN_KEY.encode(), address.token.encode()),
            (QUERY_KEY.encode(), address.query_id.encode()),
        ]
        self._lock = threading.Lock()
        self._flight: Any = None
        self._has_warned = False

    @staticmethod
    def of(address: GatewayAddress) -> GatewayClient:
        """The one of this process for an address; made when it is first asked for. O(1)."""
        return _CLIENTS.get(address)

    def for_task(
        self,
        batch: int,
        subtask_id: int,
        attempt: int,
        event_serializer: SimpleVersionedSerializer[SourceEvent] | None = None,
    ) -> TaskMessages:
        """What one attempt at a task sends.

        Parameters
        ----------
        batch
            Number of the micro-batch.
        subtask_id
            Number of the reader.
        attempt
            What tells the attempts at one task of a micro-batch apart; at least 0. Two that have the same are taken for
            one, and what the later one sends for a repetition.
        event_serializer
            Of the source's events, if it has any.
        """
        return TaskMessages(self, MessageHeader(self.address.query_id, batch, subtask_id, attempt, 0), event_serializer)

    def close(self) -> None:
        """Let go of the connection; the next call makes another one."""
        with self._lock:
            connection, self._flight = self._flight, None
        if connection is not None and processes.is_own():
            connection.close()

    def call(self, action: str, message: bytes, within_s: float, tries: int) -> list[bytes] | None:
        """Send a message, and give the answers.

        Parameters
        ----------
        action
            What it is.
        message
            Header and body.
        within_s
            Seconds for all tries together.
        tries
            How often it is sent, at most, if it does not seem to arrive.

        Returns
        -------
        answers
            None if it was not delivered.
        """
        if not processes.is_own():
            self._warn("this process was forked from one that has used it")
            return None
        if not self._breaker.allows():
            return None
        until = self.clock() + within_s
        tries = 1 if self._breaker.is_tripped else tries
        for left in reversed(range(tries)):
            try:
                answers = self._call(action, message, max(min(_CALL_S, until - self.clock()), 0.0))
            except _UNREACHABLE as error:
                self.close()
                pause_s = _FIRST_PAUSE_S
                if left and until - self.clock() > 2 * pause_s:
                    self._sleep(pause_s)
                    continue
                self._breaker.failed()
                self._warn(f"{type(error).__name__}: it is out of reach, or slow")
                return None
            except flight.FlightUnauthenticatedError:
                # It will not be let in later either: this is the gateway of another run of the query.
                self._breaker.failed()
                self._warn("it does not know this task's token")
                return None
            except Exception as error:
                return self._after_refusal(error, is_repeated=left < tries - 1)
            self._breaker.succeeded()
            return answers
        return None

    def _call(self, action: str, message: bytes, timeout_s: float) -> list[bytes]:
        with self._lock:
            if self._flight is None:
                self._flight = self._connect(self.address)
            connection = self._flight
        options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
        return [result.body.to_pybytes() for result in connection.do_action(flight.Action(action, message), options)]

    def _after_refusal(self, error: Exception, *, is_repeated: bool) -> list[bytes] | None:
        self._breaker.succeeded()
        if is_repeated and getattr(error, "extra_info", None) == Refusal.REPLAYED.name.encode():
            # The first try did arrive, and its answer did not.
            return []
        self._warn(f"it refused a message: {error}")
        return None

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the gateway at %s:%d cannot be told what is read: %s; the query goes on, its watermark may wait",
                self.address.host,
                self.address.port,
                why,
            )


def _connect(address: GatewayAddress) -> Any:
    return processes.use(
        flight.FlightClient(address.uri, tls_root_certs=address.root_certificate, generic_options=list(_OPTIONS))
    )


# ---- one for each address, in each process ----------------------------------------------------------------------


@dataclass(slots=True)
class _Clients:
    """The clients of a process; those used longest ago are closed when there are too many."""

    lock: threading.Lock
    by_address: OrderedDict[GatewayAddress, GatewayClient]

    def get(self, address: GatewayAddress) -> GatewayClient:
        with self.lock:
            client = self.by_address.get(address) or GatewayClient(address)
            self.by_address[address] = client
            self.by_address.move_to_end(address)
            surplus = [self.by_address.popitem(last=False)[1] for _ in range(len(self.by_address) - _MAX_CLIENTS)]
        for unused in surplus:
            unused.close()
        return client


_CLIENTS = _Clients(threading.Lock(), OrderedDict())


def _after_fork() -> None:
    """A parent's are of no use; and their lock may be held by a thread that the child does not have."""
    global _CLIENTS
    _CLIENTS = _Clients(threading.Lock(), OrderedDict())


os.register_at_fork(after_in_child=_after_fork)
