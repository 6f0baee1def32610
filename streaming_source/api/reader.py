"""Reading splits, on the executors: the reader, and where it puts records (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from alignment.shown import log_of
from alignment.timestamps import TimestampAssigner
from alignment.watermarks import Int64Array, WatermarkOutput
from streaming_source.api.clients import KEPT_CLIENTS, KeptClients
from streaming_source.api.serializer import SourceEvent
from streaming_source.api.split import RecordBlock, SplitT
from streaming_source.exceptions import SourceError, UnsupportedOperationError

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_source.api.enumerator import SplitEnumerator

_log = log_of(__name__)

ElementT = TypeVar("ElementT")


class SourceOutput(WatermarkOutput):
    """Takes the records of one split, a block at a time.

    Its watermark and idleness calls take effect only under `WatermarkStrategy.from_source_watermarks()`, for all
    records that were collected before the call. Under any other strategy they are ignored.
    """

    @abstractmethod
    def collect(
        self, batch: pa.RecordBatch, source_timestamps: Int64Array | None = None, *, positions: int | Int64Array
    ) -> None:
        """Emit `n` records with the columns of the source's schema.

        Parameters
        ----------
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
        """The split counts again. A record has the same effect."""
        ignore("activity")


class ReaderOutput(SourceOutput):
    """A reader's output: one output for each split, so that each has a watermark of its own.

    It takes nothing itself. In Flink a reader may also emit records of no split, which then share a watermark. Here a
    micro-batch is a set of ranges of splits, so a record without a split could not be planned, nor be read again.
    """

    def collect(
        self, batch: pa.RecordBatch, source_timestamps: Int64Array | None = None, *, positions: int | Int64Array
    ) -> None:
        """Raise an `UnsupportedOperationError`: records go into the output of their split."""
        raise _of_no_split("collect")

    def emit_watermark(self, watermark: int) -> None:
        """Raise an `UnsupportedOperationError`: each split has a watermark of its own."""
        raise _of_no_split("emit_watermark")

    def mark_idle(self) -> None:
        """Raise an `UnsupportedOperationError`: each split is idle by itself."""
        raise _of_no_split("mark_idle")

    def mark_active(self) -> None:
        """Raise an `UnsupportedOperationError`: each split is active by itself."""
        raise _of_no_split("mark_active")

    @abstractmethod
    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """The output of a split; the same one at each call."""

    @abstractmethod
    def release_output_for_split(self, split_id: str) -> None:
        """Release the outputs of a split: no more records of it will be emitted."""


class SplitState(Generic[SplitT]):
    """A split while it is read, as it was added: the one mutable thing about it is its position.

    All records before the position were emitted.
    """

    __slots__ = ("position", "split")

    def __init__(self, split: SplitT) -> None:
        self.split = split
        self.position = split.position

    def to_split(self) -> SplitT:
        """The split from which a new reader would go on.

        By `SourceSplit.at`; a state that keeps more than a position overrides this.
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
    """Finds the record that ends its split.

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


def _of_no_split(method: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"{method} was called on the output of the reader: records and watermarks belong to splits. Call it on "
        "output.create_output_for_split(split_id), or on the output that emit_record is given"
    )


def ignore(what: str) -> None:
    """Something that the source emitted is not used."""
    _log.debug("the source emitted %s, which counts under WatermarkStrategy.from_source_watermarks() alone", what)


class InputStatus(Enum):
    """Answers of `SourceReader.poll_next`: whether to call it again."""

    MORE_AVAILABLE = "more_available"
    NOTHING_AVAILABLE = "nothing_available"
    END_OF_INPUT = "end_of_input"


@dataclass(slots=True)
class ReaderMetrics:
    """Counts of the records that a reader has emitted, and of whole fetches. Written on its thread only."""

    records: int = 0
    fetches: int = 0


def _no_split_requests() -> None:
    raise UnsupportedOperationError("splits cannot be requested here: this reader has no coordinator")


def _no_events(event: SourceEvent) -> None:
    raise UnsupportedOperationError(
        f"{type(event).__name__} cannot be sent to the enumerator: this reader has no coordinator"
    )


@dataclass(frozen=True, slots=True)
class SourceReaderContext:
    """Facts about the place where a reader runs, and its ways to the enumerator.

    Attributes
    ----------
    schema
        Columns to read, in Arrow's types: those that the query needs.
    index_of_subtask
        Which of the readers of the source this is, from 0.
    send_split_request, send_source_event_to_coordinator
        `send_split_request()` requests a split; the other sends an event to the enumerator.
    clients
        Where a `SplitReader` takes clients that are expensive to make, and keeps them for the next micro-batch.
    enumerator
        That of the planner which reads ahead with this reader; None on an executor.
    timestamp_assigner
        What makes event times of the records, for a reader that compares them with what was known ahead of reading.
    """

    schema: pa.Schema
    index_of_subtask: int = 0
    send_split_request: Callable[[], None] = _no_split_requests
    send_source_event_to_coordinator: Callable[[SourceEvent], None] = _no_events
    clients: KeptClients = field(default=KEPT_CLIENTS, compare=False)
    metrics: ReaderMetrics = field(default_factory=ReaderMetrics, compare=False)
    enumerator: SplitEnumerator[Any, Any] | None = field(default=None, compare=False)
    timestamp_assigner: TimestampAssigner | None = field(default=None, compare=False)


class SourceReader(ABC, Generic[SplitT]):
    """Reads its splits into an output. On Spark it lives for one micro-batch.

    One thread makes all calls, one after another; none of them blocks but `close`.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin; called once, before the first `poll_next`. Splits may have been added, and may be requested."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one block, and return whether there is more."""

    @abstractmethod
    def is_available(self) -> Future[None]:
        """Completes when `poll_next` is worth a call.

        All futures returned so far complete when something is there. A completed one does not promise a record. It is
        not to be cancelled.
        """

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Take over splits, each from its position on."""

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """No split will be added: the end of the present ones is the end of input. May be repeated."""

    @abstractmethod
    def snapshot_state(self) -> list[SplitT]:
        """The splits that are not finished, as of the records emitted."""

    def notify_checkpoint_complete(self) -> None:
        """Learn that what was emitted before the last `snapshot_state` is not read again."""

    def handle_source_events(self, event: SourceEvent) -> None:
        """Take an event from the enumerator. A reader that expects some overrides this; to others one is an error."""
        raise UnsupportedOperationError(
            f"{type(self).__name__} understands no source events, but was sent a {type(event).__name__}: "
            "override handle_source_events"
        )

    @abstractmethod
    def close(self) -> None:
        """Let go of resources; called once, at any time."""
