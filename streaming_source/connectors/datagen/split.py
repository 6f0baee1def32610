"""Splits of generated records, and how offsets write them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from streaming_source.api import SimpleVersionedSerializer, SourceSplit
from streaming_source.exceptions import OffsetError

__all__ = ["GeneratedSplit", "GeneratedSplitSerializer", "GeneratorCheckpoint", "GeneratorCheckpointSerializer"]

_PREFIX: Final = "split-"


@dataclass(frozen=True, slots=True)
class GeneratedSplit(SourceSplit):
    """One sequence of generated records.

    Attributes
    ----------
    number
        Which split it is, from 0.
    position
        Number of the next record.
    stop
        For a reader only: the position at which to stop.
    """

    number: int
    position: int = 0
    stop: int | None = None

    @property
    def split_id(self) -> str:
        """`split-0`, `split-1` and so on."""
        return f"{_PREFIX}{self.number}"

    def origin(self) -> GeneratedSplit:
        """See `SourceSplit`."""
        return GeneratedSplit(self.number)

    @staticmethod
    def number_of(split_id: str) -> int:
        """The number of the split with that id."""
        return int(split_id.removeprefix(_PREFIX))


class GeneratedSplitSerializer(SimpleVersionedSerializer[GeneratedSplit]):
    """`[split id, position]`."""

    @property
    def version(self) -> int:
        """See `SimpleVersionedSerializer`."""
        return 1

    def serialize(self, value: GeneratedSplit) -> bytes:
        """See `SimpleVersionedSerializer`."""
        return json.dumps([value.split_id, value.position], separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> GeneratedSplit:
        """See `SimpleVersionedSerializer`."""
        _check_version(version, self.version, "splits")
        try:
            split_id, position = json.loads(data)
            split = GeneratedSplit(GeneratedSplit.number_of(split_id), position)
        except (ValueError, TypeError, AttributeError) as error:
            raise OffsetError(f"damaged offset: {data!r} is not [split id, position]") from error
        if split.split_id != split_id or not isinstance(position, int) or min(split.number, position) < 0:
            raise OffsetError(f"damaged offset: {data!r} is not [split id, position]")
        return split


@dataclass(frozen=True, slots=True)
class GeneratorCheckpoint:
    """What is remembered beside the splits in work.

    Attributes
    ----------
    arrival_epoch_us
        When the query started first, in microseconds since 1970: the moment at which the first records arrived. None
        for a bounded source, whose records were always there.
    """

    arrival_epoch_us: int | None


class GeneratorCheckpointSerializer(SimpleVersionedSerializer[GeneratorCheckpoint]):
    """`{"arrival_epoch_us": us}`."""

    @property
    def version(self) -> int:
        """See `SimpleVersionedSerializer`."""
        return 1

    def serialize(self, value: GeneratorCheckpoint) -> bytes:
        """See `SimpleVersionedSerializer`."""
        return json.dumps({"arrival_epoch_us": value.arrival_epoch_us}, separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> GeneratorCheckpoint:
        """See `SimpleVersionedSerializer`."""
        _check_version(version, self.version, "enumerator")
        try:
            return GeneratorCheckpoint(json.loads(data)["arrival_epoch_us"])
        except (ValueError, TypeError, KeyError) as error:
            raise OffsetError(f"damaged offset: {data!r} has no arrival_epoch_us") from error


def _check_version(version: int, known: int, what: str) -> None:
    if version > known:
        raise OffsetError(
            f"the offset's {what} have version {version}, this library reads up to {known}: they were written by a "
            "newer one; upgrade spark-watermark-alignment"
        )
