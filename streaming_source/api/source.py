"""The factory of everything that reads one source (FLIP-27)."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from streaming_source.api.options import OptionSet, arguments
from streaming_source.api.reader import BlockEmitter, RecordEmitter, RecordEvaluator
from streaming_source.api.split import SplitT
from streaming_source.exceptions import OptionError, UnsupportedOperationError

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_source.api.enumerator import SplitEnumerator
    from streaming_source.api.enumerator_context import SplitEnumeratorContext
    from streaming_source.api.reader import SourceReader, SourceReaderContext
    from streaming_source.api.serializer import SimpleVersionedSerializer, SourceEvent
    from streaming_source.api.split import SplitReader

CheckpointT = TypeVar("CheckpointT")


class Boundedness(Enum):
    """The two kinds of sources: those that end, and those that go on."""

    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "continuous_unbounded"


@dataclass(frozen=True, slots=True)
class Fetching:
    """The number of threads of a reader that fetch the splits of a `Source`.

    `threads` is their number; None for kinds that need none. Records of one split
    come in their order; with several threads, which split comes first may differ when a task is tried again.
    """

    kind: Literal["single_thread", "fixed_size", "per_split"]
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads = {self.threads}: a reader fetches with at least 1 thread")

    def key_of(self, split_id: str) -> str | int:
        """Splits of one key share a `SplitReader` where their number of threads is fixed: the same in every process."""
        if self.kind == "per_split":
            return split_id
        return 0 if self.kind == "single_thread" else zlib.crc32(split_id.encode()) % (self.threads or 1)

    @classmethod
    def single_thread(cls) -> Fetching:
        """One thread and one `SplitReader` for all splits: where one connection serves them all."""
        return cls("single_thread")

    @classmethod
    def fixed_size(cls, threads: int) -> Fetching:
        """So many threads; a hash of its id decides which of them reads a split, the same in every process."""
        return cls("fixed_size", threads)

    @classmethod
    def per_split(cls) -> Fetching:
        """A thread for each split: where a fetch waits for one split and must not make others wait."""
        return cls("per_split")


class Source(ABC, Generic[SplitT, CheckpointT]):
    """A picklable description of what to read, from which enumerator, readers and serializers are made.

    A source holds no connection, thread or open file: it is copied to Spark's planner and to its executors.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Return what kind of source this is, as `aligned_files`. Written into offsets.

        In a class that is registered as a format it is that format's name, and a plain attribute: `name = "sqlite"`.
        """

    @classmethod
    def options(cls) -> OptionSet:
        """The options of this source's format, without those of every format: by default those on its fields."""
        return OptionSet.of(cls) if is_dataclass(cls) else OptionSet([])

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Source[SplitT, CheckpointT]:
        """The source of parsed values of `options`.

        An `OptionError` if one is missing, or they contradict each other.
        """
        return cls(**arguments(cls, values)) if is_dataclass(cls) else cls()

    @property
    @abstractmethod
    def identity(self) -> str:
        """Return the identity among sources of its kind (a path, a topic). Offsets carry a digest of it."""

    @property
    def former_identities(self) -> tuple[str, ...]:
        """Other identities that an offset of the same data may have: as earlier versions wrote it; by default none."""
        return ()

    def continues(self, checkpoint: CheckpointT) -> bool:
        """Return whether it goes on from the enumerator's checkpoint of a source of another identity; by default not.

        A source that reads all that the other one did, and more, may: then its splits are found like any new ones.
        """
        return False

    def names_finished(self, checkpoint: CheckpointT) -> bool:
        """Return whether the enumerator's checkpoints show which splits a micro-batch finished; by default not.

        The offset then leaves these out, and after a restart `SupportsEventTimeIndex.finished_between` finds them.
        """
        return False

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """True if the source ends by itself."""

    def for_batch(self) -> Source[SplitT, CheckpointT]:
        """The source that `spark.read` reads: all that there is now, and no trace is left; by default this one."""
        return self

    def for_batch_at(self, checkpoint: CheckpointT) -> tuple[Source[SplitT, CheckpointT], CheckpointT]:
        """The source that reads in a batch what a stream has read up to a state, for `SplitEnumerator.read_at`.

        By default it is that of `for_batch`, with the enumerator's checkpoint in that state as it is. A source that
        has versions reads the one of that state.
        """
        return self.for_batch(), checkpoint

    def for_stream(self) -> Source[SplitT, CheckpointT]:
        """The source that a stream reads; by default this one. Called as the frame is loaded, before any I/O.

        An `OptionError` where an option has a meaning in batches alone.
        """
        return self

    @property
    def keeps_records(self) -> bool:
        """True if a record can be read again after its micro-batch is committed; not where this source cleans up."""
        return True

    @property
    def reads_zoneless_times(self) -> bool:
        """True if a zone has to be known before it reads, as times may lack one; by default if `in_zone` changes it."""
        return self.in_zone("UTC") is not self

    def in_zone(self, zone: str) -> Source[SplitT, CheckpointT]:
        """The source with times that are written without a zone in this one; by default it reads none of these."""
        return self

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of the records, in Arrow's types. May read the data; called once a query, before it runs."""

    @property
    def has_source_timestamps(self) -> bool:
        """True if records come with a source record timestamp, as in Kafka; if not, event times need a column."""
        return False

    @property
    def source_timestamp_column(self) -> str | None:
        """The column of `schema` that holds the source record timestamp, if one does.

        Where no other column is named it is the event time, under its own name.
        """
        return None

    @property
    def emits_watermark(self) -> bool:
        """True if its enumerator emits one watermark for all its splits: `SplitEnumeratorContext.emit_watermark`.

        By default not. Such a source has an index of event times, and `WatermarkStrategy.from_source_watermarks()`.
        """
        return False

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext[SplitT]) -> SplitEnumerator[SplitT, CheckpointT]:
        """The enumerator of a fresh start."""

    @abstractmethod
    def restore_enumerator(
        self, context: SplitEnumeratorContext[SplitT], checkpoint: CheckpointT
    ) -> SplitEnumerator[SplitT, CheckpointT]:
        """The enumerator of a restart. The splits in work are not its own any more."""

    @abstractmethod
    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[SplitT]:
        """Return what fetches the records of splits; runs on an executor, for one micro-batch.

        Called once for each thread that fetches: what it returns shares nothing with what it returned before.
        """

    def create_record_emitter(self, context: SourceReaderContext) -> RecordEmitter[Any, SplitT]:
        """Return what makes records of the elements that are fetched; by default they are `RecordBlock`s already."""
        return BlockEmitter()

    @property
    def end_of_stream(self) -> RecordEvaluator | None:
        """Finds the record that ends its split, for sources that write one; by default none does."""
        return None

    @property
    def fetching(self) -> Fetching:
        """Return how many threads of a reader fetch its splits, each with a `SplitReader` of its own; by default one.

        So it is where the planner reads ahead, too: for want of a `SupportsEventTimeIndex`. There a split is far ahead
        of others now and then: unless each split has a `SplitReader` to itself, that must be able to pause splits.
        """
        return Fetching.single_thread()

    def create_reader(self, context: SourceReaderContext) -> SourceReader[SplitT]:
        """A reader of the source's own, for one micro-batch. Not overridden, it is the base reader over the four above.

        `streaming_source.reader.create_reader(source, context)` makes the one or the other; `create_base_reader` there
        makes the base reader for an override to begin with. The planner reads ahead with the four above alone, where
        the enumerator is no `SupportsEventTimeIndex`: a reader of one's own must emit the same records.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} has no reader of its own: streaming_source.reader.create_reader(source, context) "
            "makes the reader of any source"
        )

    @property
    @abstractmethod
    def split_serializer(self) -> SimpleVersionedSerializer[SplitT]:
        """Writes splits into offsets."""

    @property
    @abstractmethod
    def enumerator_checkpoint_serializer(self) -> SimpleVersionedSerializer[CheckpointT]:
        """Writes the enumerator's checkpoint into offsets."""

    @property
    def source_event_serializer(self) -> SimpleVersionedSerializer[SourceEvent] | None:
        """Writes events that readers send to the enumerator, and its answers; None if readers send none.

        What arrives is bytes from the network: `deserialize` trusts nothing and unpickles nothing. For events that are
        frozen dataclasses there is `DataclassEventSerializer`. An event that the enumerator sends between two
        micro-batches travels inside Spark's own task, pickled, and does not need it.
        """
        return None
