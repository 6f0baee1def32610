"""From what a fetch brought to the output of a split, and the state that is moved on by it (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from streaming_source.api.records import RecordBlock
from streaming_source.api.split import SourceSplit
from streaming_source.exceptions import SourceError, UnsupportedOperationError

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_source.api.output import SourceOutput

__all__ = ["BlockEmitter", "RecordEmitter", "RecordEvaluator", "SplitState"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")


class SplitState(Generic[SplitT]):
    """A split while it is read: the one mutable thing about it.

    Attributes
    ----------
    split
        The split as it was added.
    position
        Number of the next record: all before it were emitted.
    """

    __slots__ = ("position", "split")

    def __init__(self, split: SplitT) -> None:
        self.split = split
        self.position = split.position

    def to_split(self) -> SplitT:
        """The split from which a new reader would go on.

        By `SourceSplit.at`; a state that keeps more than a position overrides this.

        Raises
        ------
        SourceError
            If the split cannot be had at another position.
        """
        if self.position == self.split.position:
            return self.split
        try:
            return self.split.at(self.position)
        except UnsupportedOperationError as error:
            raise SourceError(
                f"{error}, or override SplitState.to_split, and SourceReaderBase.initialized_state to return that state"
            ) from None


class RecordEmitter(ABC, Generic[ElementT, SplitT]):
    """Makes records of elements, on the reader's thread."""

    @abstractmethod
    def emit_record(self, element: ElementT, output: SourceOutput, split_state: SplitState[SplitT]) -> None:
        """Emit the records of one element, none or any number, and move the state of its split on past them."""


class BlockEmitter(RecordEmitter[RecordBlock, SplitT]):
    """Emits blocks as they are."""

    def emit_record(self, element: RecordBlock, output: SourceOutput, split_state: SplitState[SplitT]) -> None:
        """See `RecordEmitter`."""
        position = element.next_position
        if position is not None:
            output.collect(element.batch, element.source_timestamps, positions=element.positions)
            split_state.position = position


class RecordEvaluator(ABC):
    """Finds the record that says its split has ended."""

    @abstractmethod
    def end_of_stream(self, batch: pa.RecordBatch) -> int | None:
        """Row of the first record that ends the split, None if there is none.

        Neither that record nor any later one of its split is emitted.
        """
