"""Reading splits, on the executors (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from streaming_source.api.split import SourceSplit

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_source.api.output import ReaderOutput

__all__ = ["InputStatus", "SourceReader", "SourceReaderContext"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


class InputStatus(Enum):
    """What `SourceReader.poll_next` says of the next call."""

    MORE_AVAILABLE = "more_available"
    NOTHING_AVAILABLE = "nothing_available"
    END_OF_INPUT = "end_of_input"


@dataclass(frozen=True, slots=True)
class SourceReaderContext:
    """What a reader knows of where it runs.

    Attributes
    ----------
    schema
        Columns to read, in Arrow's types: those that the query asked the source for.
    """

    schema: pa.Schema


class SourceReader(ABC, Generic[SplitT]):
    """Reads its splits into an output. On Spark it lives for one micro-batch."""

    @abstractmethod
    def start(self) -> None:
        """Begin; called once, before the first `poll_next`."""

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Take over splits, each from its position on."""

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """No split will be added: the end of the present ones is the end of input."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one block, and say whether there is more. Does not block."""

    @abstractmethod
    def snapshot_state(self) -> list[SplitT]:
        """The splits that are not finished, as of the records emitted."""

    @abstractmethod
    def close(self) -> None:
        """Let go of resources; called once."""
