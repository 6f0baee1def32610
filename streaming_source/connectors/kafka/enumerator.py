"""The partitions of a subscription, found in the background."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence

from streaming_source.api import SplitEnumerator, SplitEnumeratorContext, SplitsAssignment
from streaming_source.connectors.kafka.admin import LogEnd, RetryPolicy
from streaming_source.connectors.kafka.discovery import Found, PartitionDiscovery
from streaming_source.connectors.kafka.log_ends import LogEnds
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit

__all__ = ["KafkaSplitEnumerator"]


class KafkaSplitEnumerator(SplitEnumerator[KafkaSplit, KafkaCheckpoint]):
    """Gives each partition to a reader as soon as it is found.

    Parameters
    ----------
    patience
        With the brokers; ended when this is closed.
    log_ends
        Learns what was found; an attribute for the readers of this planner.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[KafkaSplit],
        discovery: PartitionDiscovery,
        patience: RetryPolicy,
        log_ends: LogEnds,
    ) -> None:
        self._context = context
        self._discovery = discovery
        self._patience = patience
        self.log_ends = log_ends
        self._period_s = discovery.period_s
        self._checkpoint = discovery.checkpoint
        self._is_complete = self._has_started = False
        self._taken_back: list[KafkaSplit] = []
        # Replaced on a worker, never changed.
        self._blocked_splits: set[str] = set()

    def start(self) -> None:
        """See `SplitEnumerator`."""
        self._has_started = True
        # After a restart, too, where no partition is added: what was read may have been deleted, or created again.
        self._context.call_async(self._discovery.look, self._on_found, period_seconds=self._period_s)
        if self._period_s is not None:
            self._context.call_async(self.log_ends.ask_again, self._on_ends, at_each_trigger=True)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """See `SplitEnumerator`. What was found is assigned already, but for what was taken back."""
        if self._taken_back:
            taken_back, self._taken_back = self._taken_back, []
            self._assign(taken_back)
        if self._is_complete:
            self._context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[KafkaSplit], subtask_id: int) -> None:
        """See `SplitEnumerator`."""
        self._taken_back.extend(splits)

    def snapshot_state(self, checkpoint_id: int) -> KafkaCheckpoint:
        """See `SplitEnumerator`."""
        return self._checkpoint

    def end_positions(self, splits: Sequence[KafkaSplit]) -> list[int | None]:
        """See `SplitEnumerator`: None before discovery has seen a partition, and while the brokers do not answer.

        Raises
        ------
        SourceError
            If they have not answered for all the time of patience.
        """
        ends = [self.log_ends.end(split.split_id) for split in splits]
        behind = zip(splits, ends, strict=True)
        self._blocked_splits = {
            split.split_id for split, end in behind if end is not None and end.written > end.readable
        }
        stops = (split.stop for split in splits)
        return [
            None if end is None else end.readable if stop is None else min(end.readable, stop)
            for end, stop in zip(ends, stops, strict=True)
        ]

    def blocked_splits(self) -> Collection[str]:
        """See `SplitEnumerator`: those in which a transaction is open."""
        return self._blocked_splits

    def lost_splits(self) -> Collection[str]:
        """See `SplitEnumerator`: those of topics that are gone or were created again. O(topics), one call.

        Raises
        ------
        DataLossError
            Unless `failOnDataLoss` is false. Then what is there now is read from its first record on.
        """
        lost = self._discovery.lost_splits()
        if lost and self._has_started:
            self._look_now()
        return lost

    def close(self) -> None:
        """See `SplitEnumerator`."""
        self._patience.end()

    def _look_now(self) -> None:
        self._on_found(self._discovery.look(), None)

    def _on_found(self, found: Found | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert found is not None
        for split_id in found.gone:
            self._context.abandon_split(split_id)
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
        self._context.expect_records({split_id: end.readable for split_id, end in ends.items()})

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        readers = sorted(self._context.registered_readers())
        by_reader: dict[int, list[KafkaSplit]] = {}
        for split in splits:
            reader = readers[zlib.crc32(split.split_id.encode()) % len(readers)]
            by_reader.setdefault(reader, []).append(split)
        self._context.assign_splits(SplitsAssignment(by_reader))
