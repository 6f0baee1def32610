"""Sources that can list their splits."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

from streaming_source.api.enumerator import SplitEnumerator, own_stops
from streaming_source.api.enumerator_context import SplitEnumeratorContext
from streaming_source.api.serializer import (
    JsonSerializer,
    SimpleVersionedSerializer,
    bytes_to_json,
    check_version,
    json_to_bytes,
)
from streaming_source.api.source import Boundedness, Source
from streaming_source.api.split import RecordSplit, SourceSplit, SplitT
from streaming_source.exceptions import OffsetError, SourceError
from streaming_source.from_data import as_json


@dataclass(frozen=True, slots=True)
class DiscoveredSplits(Generic[SplitT]):
    """Checkpoint of a `DiscoveringSplitEnumerator`: splits that wait for a reader, and what is not new any more.

    `unassigned` are in the order in which they will be assigned; `known` are the ids at the last listing, sorted.
    """

    unassigned: tuple[SplitT, ...] = ()
    known: tuple[str, ...] = ()


class DiscoveredSplitsSerializer(SimpleVersionedSerializer[DiscoveredSplits[SplitT]]):
    """The `known` ids, the `unassigned` splits as their own serializer writes them, and its version, as JSON."""

    version = 1

    def __init__(self, split_serializer: SimpleVersionedSerializer[SplitT]) -> None:
        self._splits = split_serializer

    def serialize(self, value: DiscoveredSplits[SplitT]) -> bytes:
        unassigned = [bytes_to_json(self._splits.serialize(split)) for split in value.unassigned]
        state = {"known": value.known, "unassigned": unassigned, "unassigned_v": self._splits.version}
        return json.dumps(state, separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> DiscoveredSplits[SplitT]:
        check_version(version, self.version, "discovered splits")
        try:
            state = as_json(data)
            read, splits_version = self._splits.deserialize, int(state["unassigned_v"])
            unassigned = tuple(read(splits_version, json_to_bytes(split)) for split in state["unassigned"])
            return DiscoveredSplits(unassigned, tuple(state["known"]))
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, OffsetError):
                raise
            raise OffsetError(f"damaged offset: {data!r} has no discovered splits") from error


class DiscoveringSplitEnumerator(SplitEnumerator[SplitT, DiscoveredSplits[SplitT]]):
    """Lists the splits again and again, and assigns each new one to the next reader that requests one.

    A split is known by its id: it is new if the discovery before did not find it. What is not found is forgotten, so
    what is remembered is bounded by what is there.

    Parameters
    ----------
    discover
        Lists all splits there are, each as it is before its first record is read. Runs on a worker thread. An error
        fails the query.
    period_seconds
        How often to list; None for once: no split is added afterwards, not even after a restart.
    checkpoint
        Of the offset at a restart; None at a fresh start.
    end_positions
        See `SplitEnumerator`; by default the splits' own stops.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[SplitT],
        discover: Callable[[], Iterable[SplitT]],
        *,
        period_seconds: float | None,
        checkpoint: DiscoveredSplits[SplitT] | None = None,
        end_positions: Callable[[Sequence[SplitT]], Sequence[int | None]] | None = None,
    ) -> None:
        self._context = context
        self._discover = discover
        self._end_positions = end_positions
        self._period_seconds = period_seconds
        self._is_complete = checkpoint is not None and period_seconds is None
        self._unassigned = deque(checkpoint.unassigned if checkpoint else ())
        self._known = frozenset(checkpoint.known if checkpoint else ())
        # One entry a reader, in the order of their requests.
        self._asking: OrderedDict[int, None] = OrderedDict()

    def start(self) -> None:
        if not self._is_complete:
            self._context.call_async(self._list, self._on_discovered, period_seconds=self._period_seconds)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """See `SplitEnumerator`. Served when the next split is found, if there is none now."""
        self._asking[subtask_id] = None
        self._assign()

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        self._unassigned.extendleft(reversed(splits))
        self._assign()

    def end_positions(self, splits: Sequence[SplitT]) -> Sequence[int | None]:
        return super().end_positions(splits) if self._end_positions is None else self._end_positions(splits)

    def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[SplitT]:
        return DiscoveredSplits(tuple(self._unassigned), tuple(sorted(self._known)))

    def _list(self) -> list[SplitT]:
        """On a worker."""
        listed = self._discover()
        splits = list(listed) if isinstance(listed, Iterable) else [listed]
        wrong = [one for one in splits if not (isinstance(one, SourceSplit) and isinstance(one.split_id, str))]
        if wrong:
            raise SourceError(
                f"the discovery of splits returned {wrong[0]!r}: it returns an iterable of splits, whose split_id is a "
                "text; an empty one where there is none"
            )
        by_id: dict[str, SplitT] = {}
        for split in splits:
            if by_id.setdefault(split.split_id, split) != split:
                raise SourceError(
                    f"the discovery of splits returned two of the id {split.split_id!r}, {by_id[split.split_id]} and "
                    f"{split}: ids are unique in a source; give each split an id of its own"
                )
        return list(by_id.values())

    def _on_discovered(self, splits: list[SplitT] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert splits is not None
        new = {split.split_id: split for split in splits if split.split_id not in self._known}
        self._unassigned.extend(new.values())
        self._known = frozenset(split.split_id for split in splits)
        self._is_complete = self._period_seconds is None
        self._assign()

    def _assign(self) -> None:
        if not (self._unassigned or self._is_complete):
            return
        registered = self._context.registered_readers()
        while self._asking and (self._unassigned or self._is_complete):
            subtask_id, _ = self._asking.popitem(last=False)
            if subtask_id not in registered:
                continue
            if self._unassigned:
                self._context.assign_split(self._unassigned.popleft(), subtask_id)
            else:
                self._context.signal_no_more_splits(subtask_id)


class DiscoveringSource(Source[RecordSplit, DiscoveredSplits[RecordSplit]]):
    """A source that can list its splits, each of which has a name and no more: all but the reading is done here.

    A bounded one lists its splits once; each of them must have a `stop`, or be finished by its
    `SplitReader`.
    """

    discovery_interval_seconds: float = 1.0
    """Seconds between two listings of splits, unless the source is bounded."""

    split_serializer = JsonSerializer(RecordSplit)
    enumerator_checkpoint_serializer = DiscoveredSplitsSerializer(split_serializer)

    @abstractmethod
    def discover(self) -> Iterable[RecordSplit]:
        """All splits there are, each as it is before its first record is read. Runs on a worker thread."""

    def end_positions(self, splits: Sequence[RecordSplit]) -> Sequence[int | None]:
        """Return where the records of each split end now; needed for `indexing=off` alone, see `SplitEnumerator`."""
        return own_stops(self, splits)

    def create_enumerator(
        self, context: SplitEnumeratorContext[RecordSplit]
    ) -> DiscoveringSplitEnumerator[RecordSplit]:
        return self._enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[RecordSplit], checkpoint: DiscoveredSplits[RecordSplit]
    ) -> DiscoveringSplitEnumerator[RecordSplit]:
        return self._enumerator(context, checkpoint)

    def _enumerator(
        self, context: SplitEnumeratorContext[RecordSplit], checkpoint: DiscoveredSplits[RecordSplit] | None
    ) -> DiscoveringSplitEnumerator[RecordSplit]:
        period = None if self.boundedness is Boundedness.BOUNDED else self.discovery_interval_seconds
        return DiscoveringSplitEnumerator(
            context, self.discover, period_seconds=period, checkpoint=checkpoint, end_positions=self.end_positions
        )
