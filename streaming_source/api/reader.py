"""Reading splits, on the executors (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streaming_source.api.clients import KEPT_CLIENTS, KeptClients
from streaming_source.api.events import SourceEvent
from streaming_source.api.split import SourceSplit
from streaming_source.exceptions import UnsupportedOperationError

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_source.api.enumerator import SplitEnumerator
    from streaming_source.api.output import ReaderOutput

__all__ = ["InputStatus", "ReaderMetrics", "SourceReader", "SourceReaderContext"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


class InputStatus(Enum):
    """What `SourceReader.poll_next` says of the next call."""

    MORE_AVAILABLE = "more_available"
    NOTHING_AVAILABLE = "nothing_available"
    END_OF_INPUT = "end_of_input"


@dataclass(slots=True)
class ReaderMetrics:
    """What a reader has done so far. Written on its thread only.

    Attributes
    ----------
    records
        Records emitted.
    fetches
        Fetches whose records were all emitted.
    """

    records: int = 0
    fetches: int = 0


def _no_split_requests() -> None:
    raise UnsupportedOperationError("splits cannot be requested here: this reader has no coordinator behind it")


def _no_events(event: SourceEvent) -> None:
    raise UnsupportedOperationError(
        f"{type(event).__name__} cannot be sent to the enumerator: this reader has no coordinator behind it"
    )


@dataclass(frozen=True, slots=True)
class SourceReaderContext:
    """What a reader knows of where it runs, and its ways to the enumerator.

    Attributes
    ----------
    schema
        Columns to read, in Arrow's types: those that the query needs.
    index_of_subtask
        Which of the readers of the source this is, from 0.
    pauses_splits
        Whether splits will be paused while they are read: watermark alignment without an index.
    allow_unaligned_source_splits
        Whether splits that cannot be paused may run ahead. If not, such a reader refuses to start.
    send_split_request
        `send_split_request()` requests a split.
    send_source_event_to_coordinator
        `send_source_event_to_coordinator(event)` sends an event to the enumerator.
    clients
        Where a `SplitReader` takes clients that are expensive to make, and keeps them for the next micro-batch.
    metrics
        Counted by the reader.
    enumerator
        The one of the planner that reads ahead with this reader, which may ask it what it knows; None on an executor.
    """

    schema: pa.Schema
    index_of_subtask: int = 0
    pauses_splits: bool = False
    allow_unaligned_source_splits: bool = False
    send_split_request: Callable[[], None] = _no_split_requests
    send_source_event_to_coordinator: Callable[[SourceEvent], None] = _no_events
    clients: KeptClients = field(default=KEPT_CLIENTS, compare=False)
    metrics: ReaderMetrics = field(default_factory=ReaderMetrics, compare=False)
    enumerator: SplitEnumerator[Any, Any] | None = field(default=None, compare=False)


class SourceReader(ABC, Generic[SplitT]):
    """Reads its splits into an output. On Spark it lives for one micro-batch.

    One thread makes all calls, one after another; none of them blocks but `close`.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin; called once, before the first `poll_next`. Splits may have been added, and may be requested."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one block, and say whether there is more."""

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
        """What was emitted before the last `snapshot_state` will not be read again."""

    def handle_source_events(self, event: SourceEvent) -> None:
        """Take an event from the enumerator. A reader that expects some overrides this; to others one is an error."""
        raise UnsupportedOperationError(
            f"{type(self).__name__} understands no source events, but was sent a {type(event).__name__}: "
            "override handle_source_events"
        )

    def pause_or_resume_splits(self, to_pause: Sequence[str], to_resume: Sequence[str]) -> None:
        """Emit nothing of some splits until they are resumed.

        Parameters
        ----------
        to_pause, to_resume
            Ids; those of splits that are not read (yet) are fine.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} cannot pause splits: override pause_or_resume_splits")

    @abstractmethod
    def close(self) -> None:
        """Let go of resources; called once, at any time."""
