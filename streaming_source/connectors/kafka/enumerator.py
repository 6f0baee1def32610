"""The partitions of a subscription, found in the background, with what the brokers know of their timestamps."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from alignment.timestamps import RecordTimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.api import (
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitRange,
    SplitsAssignment,
    SupportsEventTimeIndex,
)
from streaming_source.connectors.kafka.admin import KafkaAdmin, RetryPolicy
from streaming_source.connectors.kafka.config import KafkaConfig
from streaming_source.connectors.kafka.discovery import Found, PartitionDiscovery
from streaming_source.connectors.kafka.log_ends import Leaders, LogEnd, LogEnds
from streaming_source.connectors.kafka.partition_updates import Scanner
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit
from streaming_source.connectors.kafka.time_index import Looked, TimeIndex

__all__ = ["IndexedKafkaSplitEnumerator", "KafkaSplitEnumerator", "create_enumerator"]

_FIRST_CONTACT_S: Final = 10.0
_LOOK_S: Final = 0.2
_LOG_ENDS_S: Final = 2.0


def create_enumerator(
    config: KafkaConfig, context: SplitEnumeratorContext[KafkaSplit], checkpoint: KafkaCheckpoint | None
) -> KafkaSplitEnumerator:
    """With the index of the brokers, if event times are the records' own timestamps and the options do not say else."""
    patience_s = config.seconds("broker_timeout")
    # Of a query that goes on from a checkpoint the brokers were there.
    patience = config.retry_policy(_FIRST_CONTACT_S if checkpoint is None else math.inf)
    discovery = PartitionDiscovery(KafkaAdmin(config.client, patience), config, checkpoint)
    leaders = Leaders(patience_s)
    ends = LogEnds(KafkaAdmin(config.client, RetryPolicy(min(_LOG_ENDS_S, patience_s)), leaders).ends, patience_s)
    has_index = context.supports_opaque_blocks and isinstance(context.timestamp_assigner, RecordTimestampAssigner)
    if config.indexing == "scan" or not has_index:
        return KafkaSplitEnumerator(context, discovery, patience, ends, leaders)
    scanner = Scanner(config.client, fail_on_data_loss=config.fail_on_data_loss, patience_s=patience_s)
    # Two connections: plans do not wait for looks.
    looks, plans = KafkaAdmin(config.client, patience, leaders), KafkaAdmin(config.client, patience)
    index = TimeIndex(context, looks, plans, scanner, fail_on_data_loss=config.fail_on_data_loss)
    return IndexedKafkaSplitEnumerator(context, discovery, patience, ends, leaders, index, scanner)


class KafkaSplitEnumerator(SplitEnumerator[KafkaSplit, KafkaCheckpoint]):
    """Gives each partition to a reader as soon as it is found.

    `log_ends` learns what was found, and serves the readers of this planner; `patience` with the brokers is ended when
    this is closed. `leaders` are those of whoever asks for the ends of logs here.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[KafkaSplit],
        discovery: PartitionDiscovery,
        patience: RetryPolicy,
        log_ends: LogEnds,
        leaders: Leaders,
    ) -> None:
        self._context = context
        self._discovery = discovery
        self._patience = patience
        self.log_ends = log_ends
        self._leaders = leaders
        self._period_s = discovery.period_s
        self._checkpoint = discovery.checkpoint
        self._is_complete = self._has_started = False
        self._taken_back: list[KafkaSplit] = []
        # Replaced on a worker, never changed.
        self._blocked_splits: frozenset[str] = frozenset()

    def start(self) -> None:
        self._has_started = True
        # After a restart, too, where no partition is added: what was read may have been deleted, or created again.
        self._context.call_async(self._discovery.look, self._on_found, period_seconds=self._period_s)
        if self._period_s is not None:
            self._context.call_async(self.log_ends.ask_again, self._on_ends, at_each_trigger=True)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        # What was found is assigned already, but for what was taken back.
        if self._taken_back:
            taken_back, self._taken_back = self._taken_back, []
            self._assign(taken_back)
        if self._is_complete:
            self._context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[KafkaSplit], subtask_id: int) -> None:
        self._taken_back.extend(splits)

    def snapshot_state(self, checkpoint_id: int) -> KafkaCheckpoint:
        return self._checkpoint

    def end_positions(self, splits: Sequence[KafkaSplit]) -> list[int | None]:
        """None before discovery has seen a partition, and while it does not answer: `SourceError` in the end."""
        self._leaders.check()
        ends = [(split, self.log_ends.end(split.split_id)) for split in splits]
        self._blocked_splits = frozenset(
            split.split_id for split, end in ends if end is not None and end.written > end.readable
        )
        return [None if end is None else split.before_stop(end.readable) for split, end in ends]

    def blocked_splits(self) -> Collection[str]:
        return self._blocked_splits

    def unreachable_splits(self) -> Collection[str]:
        """Those of partitions whose leaders are away."""
        away = self._leaders.away
        return {i for i, part in self._checkpoint.partitions.items() if part in away} if away else ()

    def lost_splits(self) -> Collection[str]:
        """Those of topics that are gone or were created again: a `DataLossError`, unless `failOnDataLoss` is false.

        Then what is there now is read from its first record on. O(topics), one call.
        """
        lost = self._discovery.lost_splits()
        if lost and self._has_started:
            self._look_now()
        return lost

    def close(self) -> None:
        self._patience.end()

    def _look_now(self) -> None:
        self._on_found(self._discovery.look(), None)

    def _on_found(self, found: Found | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert found is not None
        for split_id in found.gone:
            self._context.abandon_split(split_id)
        self._leaders.keep(found.checkpoint.partitions.values())
        self.log_ends.update(found.checkpoint.partitions, found.gone)
        self._assign(found.splits)
        self._checkpoint = found.checkpoint
        if self._period_s is None:
            self._is_complete = True
            for subtask_id in self._context.registered_readers():
                self._context.signal_no_more_splits(subtask_id)

    def _on_ends(self, ends: Mapping[str, LogEnd] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert ends is not None
        self._leaders.check()
        self._context.expect_records({split_id: end.readable for split_id, end in ends.items()})

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        readers = sorted(self._context.registered_readers())
        by_reader: dict[int, list[KafkaSplit]] = {}
        for split in splits:
            reader = readers[zlib.crc32(split.split_id.encode()) % len(readers)]
            by_reader.setdefault(reader, []).append(split)
        self._context.assign_splits(SplitsAssignment(by_reader))


class IndexedKafkaSplitEnumerator(SupportsEventTimeIndex[KafkaSplit], KafkaSplitEnumerator):
    """Looks for partitions and for news in them in one call, so that what is idle was looked at."""

    def __init__(
        self,
        context: SplitEnumeratorContext[KafkaSplit],
        discovery: PartitionDiscovery,
        patience: RetryPolicy,
        log_ends: LogEnds,
        leaders: Leaders,
        index: TimeIndex,
        scanner: Scanner,
    ) -> None:
        super().__init__(context, discovery, patience, log_ends, leaders)
        self._index = index
        self._scanner = scanner
        # When the next look is one for partitions as well, by `time.monotonic`. Used by looks alone.
        self._discovers_at = -math.inf

    def start(self) -> None:
        self._has_started = True
        period_s = _LOOK_S if self._period_s is None else min(_LOOK_S, self._period_s)
        self._context.call_async(self._look, self._on_looked, period_seconds=period_s, at_each_trigger=True)

    def close(self) -> None:
        super().close()
        self._scanner.close()

    # ---- SupportsEventTimeIndex ----------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[KafkaSplit]) -> None:
        self._index.add(splits)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self._index.event_times(split_id, start, stop)

    def first_later(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        return self._index.first_later(split_ids, starts, stops, bound_us)

    def blocked_splits(self) -> Collection[str]:
        return self._index.blocked_splits

    def extend_snapshot(self) -> None:
        self._index.extend_snapshot()

    def split_at(self, split_id: str, position: int) -> KafkaSplit:
        return self._index.commit_plan(split_id, position)

    def ranges(self, start: KafkaSplit, end: KafkaSplit, rows_per_range: int) -> Sequence[SplitRange[KafkaSplit]]:
        """Cut by offsets: what is not there any more is noticed by the readers."""
        return SplitRange.evenly(start, end.position, rows_per_range)

    def finish_split(self, split_id: str) -> None:
        # The checkpoint remembers its partition.
        self._index.remove(split_id)

    # ---- looks ---------------------------------------------------------------------------------------------------

    def _look_now(self) -> None:
        self._discovers_at = -math.inf
        self._on_looked(self._look(), None)

    def _look(self) -> tuple[Found | None, Looked]:
        found = None
        if time.monotonic() >= self._discovers_at:
            found = self._discovery.look()
            self._discovers_at = time.monotonic() + (self._period_s or math.inf)
        return found, self._index.look(found.splits if found else (), found.gone if found else ())

    def _on_looked(self, result: tuple[Found | None, Looked] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert result is not None
        found, looked = result
        if found is not None:
            self._index.leave(found.gone)
            self._on_found(found, None)
        self._index.take(looked)
        self._leaders.check()

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        super()._assign(splits)
        self._index.add(splits)
