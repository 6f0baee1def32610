"""Splits, and fetching their records: the part that a connector's author writes (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast

from streaming_source.exceptions import SourceError, UnsupportedOperationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class SourceSplit(ABC):
    """A part of a source that is read in order: a Kafka partition, a directory, a table.

    A split carries all state of its reading. Its *position* is where reading goes on: at the first record at or after
    it. Records have rising positions, not necessarily without gaps; after the record at `p` the position is `p + 1`.
    Splits are values: immutable, picklable, equal when they are the same state of the same split. Where one
    `is_divisible` reading may begin at any position: then several tasks can share what is read of it at once.
    """

    is_divisible: ClassVar[bool] = False

    @property
    @abstractmethod
    def split_id(self) -> str:
        """Stable over the life of the source; unique in it."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Return where reading goes on; never negative, and never lower than before."""

    @property
    def place(self) -> str:
        """The place of the next record, for a person; override it if the source has other words for places."""
        return f"position {self.position}"

    @property
    def stop(self) -> int | None:
        """Return where reading ends: at the first record at or after it. None if only the source knows the end.

        A `SplitReader` need not heed it: the base reader passes on no record from there on, and ends the split when
        it has passed on the one before, or sees one after. Where neither may come, since records can be deleted, the
        `SplitReader` ends the split itself.
        """
        return None

    def at(self, position: int) -> Self:
        """The split in the state in which `position` is next. Override it unless that is a field of a dataclass."""
        return self._with("at", "position", position)

    def until(self, stop: int) -> Self:
        """The split for a reader that shall stop there. Override it unless `stop` is a field of a dataclass."""
        return self._with("until", "stop", stop)

    def origin(self) -> Self:
        """The split before its first record was read: at position 0, unless this is overridden."""
        return self.at(0)

    def _with(self, method: str, field: str, value: int) -> Self:
        if field in getattr(self, "__dataclass_fields__", ()):
            return self if getattr(self, field) == value else cast("Self", replace(cast("Any", self), **{field: value}))
        raise UnsupportedOperationError(
            f"split {self.split_id!r} of type {type(self).__name__} is no dataclass with a field {field}: override "
            f"{type(self).__name__}.{method}"
        )


@dataclass(frozen=True, slots=True)
class RecordSplit(SourceSplit):
    """A split that is described by its name alone: enough for most sources. Subclass it to add fields.

    `start` is where reading began; by default where it goes on.

    Examples
    --------
    >>> split = RecordSplit("orders", 100)
    >>> split.at(250).until(300)
    RecordSplit(split_id='orders', position=250, stop=300, start=100)
    >>> split.at(250).origin() == split
    True
    """

    split_id: str = field()  # declared as a field: else the property of the base class is taken for its default
    position: int = 0
    stop: int | None = None
    start: int | None = None

    def __post_init__(self) -> None:
        if self.start is None:
            object.__setattr__(self, "start", self.position)

    def origin(self) -> Self:
        """See `SourceSplit`."""
        return self.at(self.start or 0)


SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Consecutive records of one split: the element that readers hand on, unless a connector has one of its own.

    `positions` is that of the first of the `n` records if the others follow it without a gap, else `int64[n]`, rising.
    `source_timestamps` are `int64[n]` microseconds since the epoch, or None.

    Examples
    --------
    >>> import pyarrow as pa
    >>> RecordBlock(pa.record_batch({"n": [1, 2, 3]}), positions=7).next_position
    10
    """

    batch: pa.RecordBatch
    positions: int | npt.NDArray[np.int64]
    source_timestamps: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.positions, int):
            return
        import numpy as np

        positions = np.asarray(self.positions)
        if positions.dtype.kind not in "iu":
            raise SourceError(
                f"RecordBlock(positions={self.positions!r}): positions are whole numbers; give that of the first "
                "record if the others follow it without a gap, else an int64 array with one for each record"
            )
        given = positions.astype(np.int64, copy=False) if positions.ndim else int(positions)
        object.__setattr__(self, "positions", given)

    @property
    def next_position(self) -> int | None:
        """Position after the last record; None if there is no record."""
        rows: int = self.batch.num_rows
        if not rows:
            return None
        first = self.positions if isinstance(self.positions, int) else int(self.positions[-1]) + 1 - rows
        return first + rows


class RecordsWithSplitIds(ABC, Generic[ElementT]):
    """The elements of one fetch, read once from front to back: split after split, element after element.

    A connector returns `RecordsBySplits` unless its elements live in buffers that it wants back.
    """

    @abstractmethod
    def next_split(self) -> str | None:
        """Go on to the next split and return its id; None after the last. The first call goes to the first split."""

    @abstractmethod
    def next_record_from_split(self) -> ElementT | None:
        """The next element of the split that `next_split` went to; None after its last."""

    @property
    @abstractmethod
    def finished_splits(self) -> Set[str]:
        """Ids of the splits of which nothing more will come after these records."""

    def recycle(self) -> None:
        """All elements are out, and none is referred to any more: buffers may be used again.

        Called once, on the reader's thread.
        """


class RecordsBySplits(RecordsWithSplitIds[ElementT]):
    """Elements in memory, by split; and the splits that end with these, which need not have any.

    Examples
    --------
    >>> records = RecordsBySplits({"a": [1, 2]}, finished_splits={"b"})
    >>> records.next_split(), records.next_record_from_split(), records.next_record_from_split()
    ('a', 1, 2)
    >>> records.next_record_from_split(), records.next_split(), sorted(records.finished_splits)
    (None, None, ['b'])
    """

    __slots__ = ("_elements", "_finished", "_splits")

    def __init__(
        self, elements: Mapping[str, Iterable[ElementT]] | None = None, finished_splits: Iterable[str] = ()
    ) -> None:
        self._splits: Iterator[tuple[str, Iterable[ElementT]]] = iter((elements or {}).items())
        self._elements: Iterator[ElementT] | None = None
        self._finished = frozenset(finished_splits)

    def next_split(self) -> str | None:
        """See `RecordsWithSplitIds`."""
        split_id, elements = next(self._splits, (None, None))
        self._elements = None if elements is None else iter(elements)
        return split_id

    def next_record_from_split(self) -> ElementT | None:
        """See `RecordsWithSplitIds`."""
        if self._elements is None:
            raise RuntimeError("next_record_from_split() needs a split: call next_split() until it returns None")
        return next(self._elements, None)

    @property
    def finished_splits(self) -> Set[str]:
        """See `RecordsWithSplitIds`."""
        return self._finished


@dataclass(frozen=True, slots=True)
class SplitsAddition(Generic[SplitT]):
    """Splits to begin with, each from its position on."""

    splits: Sequence[SplitT]


@dataclass(frozen=True, slots=True)
class SplitsRemoval(Generic[SplitT]):
    """Splits to remove, as they were added. No later fetch may return records of them."""

    splits: Sequence[SplitT]


SplitsChange: TypeAlias = SplitsAddition[SplitT] | SplitsRemoval[SplitT]


class CaughtUp(Enum):
    """A mark that all that a split has was fetched, or that there is more.

    YES: there was nothing more when the fetch began. BLOCKED: nothing more can be fetched, but there is something:
    as records of an open transaction; such a split is not idle. NO: there may be more, as where the store does not
    answer.
    """

    YES = "yes"
    BLOCKED = "blocked_splits"
    NO = "no"


class SplitReader(ABC, Generic[SplitT]):
    """Fetches records of the splits that it was given, in order within each split.

    Each has a thread of its own, which makes all calls but `wake_up`, one after another: no locks are needed beside
    those that `wake_up` needs. A reader makes a new one for each of its threads; they share nothing.
    """

    @abstractmethod
    def fetch(self) -> RecordsWithSplitIds[Any]:
        """The next records, `RecordBlock` by `RecordBlock` unless the source has an emitter of its own.

        It brings nothing only if there is nothing of any split that is not paused.

        May block; after `wake_up` it must return soon, with or without records, and a later call go on where it was
        left. Called only while a split that is not paused is there to read, until each was reported as finished. A
        split that has nothing to read is reported as well.
        """

    @abstractmethod
    def handle_splits_changes(self, change: SplitsChange[SplitT]) -> None:
        """Add or remove splits; does not block."""

    def wake_up(self) -> None:
        """Make a `fetch` that blocks return; override it where `fetch` can block.

        The only method that is called from another thread, at any time. It must not get lost: if no fetch blocks at
        the moment, the next one returns at once. A `threading.Event` that fetch waits for and clears does that.
        """

    def pause_or_resume_splits(self, to_pause: Sequence[SplitT], to_resume: Sequence[SplitT]) -> None:
        """Fetch nothing of some splits until they are resumed; override it where one fetch reads several splits.

        Called between two fetches, where the planner reads ahead: see `Source.fetching`.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} cannot pause splits: override pause_or_resume_splits, "
            "or read each split with a fetcher of its own (Fetching.per_split())"
        )

    @property
    def supports_pausing(self) -> bool:
        """True if `pause_or_resume_splits` is overridden."""
        return type(self).pause_or_resume_splits is not SplitReader.pause_or_resume_splits

    def caught_up(self, split_id: str) -> CaughtUp | None:
        """Return whether a fetch that brought nothing of this split found that there was nothing; None if unknown.

        Called for each split that is not paused, also when the fetch brought something of another one. A split is idle
        only if it has caught up. None: only a fetch that brings nothing of any split shows it, by itself or after a
        long wait from which it was woken. To know it of one split while others are busy, those are paused for a fetch.
        """
        return None

    def close(self) -> None:
        """Let go of resources; called once, last."""
