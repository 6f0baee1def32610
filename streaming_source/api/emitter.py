"""From what a fetch brought to the output of a split, and the state that is moved on by it (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from streaming_source.api.records import RecordBlock
from streaming_source.api.split import SourceSplit
from streaming_source.exceptions import SourceError

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

        For a dataclass that has a field `position`; a split that keeps more than that overrides this.

        Raises
        ------
        SourceError
            If the split is no such dataclass.
        """
        if self.position == self.split.position:
            return self.split
        if is_dataclass(self.split) and "position" in self.split.__dataclass_fields__:
            return cast("SplitT", replace(cast("Any", self.split), position=self.position))
        raise SourceError(
            f"split {self.split.split_id!r} of type {type(self.split).__name__} is no dataclass with a field position: "
            "override SplitState.to_split, and SourceReaderBase.initialized_state to return that state"
        )


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
