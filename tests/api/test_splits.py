"""Splits that are described by dataclasses."""

from __future__ import annotations

from typing import Any

import pytest

from streaming_source.api import JsonSerializer, RecordSplit
from streaming_source.connectors.files.split import FileSplit
from streaming_source.exceptions import OffsetError


@pytest.mark.parametrize("kind", [RecordSplit, FileSplit])
def test_a_split_has_no_id_unless_it_is_given_one(kind: Any) -> None:
    with pytest.raises(TypeError, match="split_id"):
        kind()


def test_a_split_that_was_written_without_an_id_is_refused() -> None:
    with pytest.raises(OffsetError, match="is no RecordSplit"):
        JsonSerializer(RecordSplit).deserialize(1, b'{"position":7}')
