"""Fetching records of splits: the part that a connector's author writes (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from streaming_source.api.split import SourceSplit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["RecordBlock", "RecordsWithSplitIds", "SplitReader", "SplitsAddition"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Consecutive records of one split.

    Attributes
    ----------
    batch
        The records.
    positions
        Position of the first if the others follow it without a gap, else `int64[n]`.
    source_timestamps
        `int64[n]` microseconds, or None.
    """

    batch: pa.RecordBatch
    positions: int | npt.NDArray[np.int64]
    source_timestamps: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class RecordsWithSplitIds:
    """What one fetch brought: blocks by split, and the splits that end with them.

    Attributes
    ----------
    blocks
        `(split_id, block)`, blocks of a split in their order.
    finished_splits
        Splits of which nothing more will come.
    """

    blocks: Sequence[tuple[str, RecordBlock]] = ()
    finished_splits: frozenset[str] = field(default_factory=frozenset)

    def __iter__(self) -> Iterator[tuple[str, RecordBlock]]:
        return iter(self.blocks)


@dataclass(frozen=True, slots=True)
class SplitsAddition(Generic[SplitT]):
    """Splits to begin with, each from its position on."""

    splits: Sequence[SplitT]


class SplitReader(ABC, Generic[SplitT]):
    """Fetches records of the splits that it was given, in order within each split."""

    @abstractmethod
    def fetch(self) -> RecordsWithSplitIds:
        """The next records; may block. Called until every split was reported as finished."""

    @abstractmethod
    def handle_splits_changes(self, change: SplitsAddition[SplitT]) -> None:
        """Take over splits; does not block."""

    def close(self) -> None:
        """Let go of resources; called once."""
