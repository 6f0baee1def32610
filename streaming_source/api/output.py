"""From what a fetch brought to the output of a split (FLIP-27)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from alignment.watermarks import WatermarkOutput
from streaming_source.api.split import SourceSplit
from streaming_source.api.split_reader import RecordBlock
from streaming_source.exceptions import SourceError, UnsupportedOperationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["BlockEmitter", "ReaderOutput", "RecordEmitter", "RecordEvaluator", "SourceOutput", "SplitState"]

_log = logging.getLogger(__name__)

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")


class SourceOutput(WatermarkOutput):
    """Takes the records of one split, a block at a time.

    What it is told of watermarks and idleness counts under `WatermarkStrategy.from_source_watermarks()`: it says
    something of all records that were collected before it. Under any other strategy it is ignored.
    """

    @abstractmethod
    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        """Emit records.

        Parameters
        ----------
        batch
            `n` records with the columns of the source's schema.
        source_timestamps
            `int64[n]` microseconds since the epoch, the source record timestamps of two-step assignment;
            `NO_TIMESTAMP` where a record has none. None if the source has no such thing.
        positions
            Position of the first record if the others follow it without a gap, else `int64[n]`.
        """

    def emit_watermark(self, watermark: int) -> None:
        """No record of this split with an event time of `watermark` or less will come; in microseconds."""
        ignore("a watermark")

    def mark_idle(self) -> None:
        """The split holds nothing back, as long as it has nothing to read."""
        ignore("idleness")

    def mark_active(self) -> None:
        """The split counts again. A record says so as well."""
        ignore("activity")


class ReaderOutput(SourceOutput):
    """A reader's output: one output for each split, so that each has a watermark of its own."""

    @abstractmethod
    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """The output of a split; the same one at each call."""

    @abstractmethod
    def release_output_for_split(self, split_id: str) -> None:
        """No more records of this split will come out of this reader."""


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
    """Finds the record that says its split has ended.

    Examples
    --------
    >>> import pyarrow as pa
    >>> class Goodbye(RecordEvaluator):
    ...     def end_of_stream(self, batch):
    ...         texts = batch["text"].to_pylist()
    ...         return texts.index("bye") if "bye" in texts else None
    >>> Goodbye().end_of_stream(pa.record_batch({"text": ["hello", "bye", "never read"]}))
    1
    """

    @abstractmethod
    def end_of_stream(self, batch: pa.RecordBatch) -> int | None:
        """Row of the first record that ends the split, None if there is none.

        Neither that record nor any later one of its split is emitted.
        """


def ignore(what: str) -> None:
    """Something that the source emitted is not used."""
    _log.debug("the source emitted %s, which counts under WatermarkStrategy.from_source_watermarks() alone", what)
