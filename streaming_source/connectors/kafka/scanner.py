"""Reading offsets and timestamps of records in the planner, where the brokers' index is not enough."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from alignment.watermarks import Int64Array
from streaming_source.api import KeptClients, SplitsAddition, SplitsRemoval
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.records import BinaryValues, MessageColumns
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.split_reader import KafkaSplitReader
from streaming_source.exceptions import SourceError

SeenTimes: TypeAlias = tuple[Int64Array, Int64Array]
"""Offsets in ascending order, and event times, of records of one partition."""

_SHORT_FETCHES: Final = {"fetch.message.max.bytes": "65536", "queued.min.messages": "1"}
"""Settings to fetch single records of many partitions: by default a megabyte and more of each is fetched."""

_AT_ONCE: Final = 5000
_SINGLE_AT_ONCE: Final = 1000


class Scanner:
    """Reads offsets and timestamps of many partitions at once with one consumer. Used by several threads at a time.

    See `KafkaSplitReader` for what is raised.
    """

    def __init__(self, config: ClientConfig, *, fail_on_data_loss: bool, patience_s: float) -> None:
        self._config = config
        given = {**_SHORT_FETCHES, **dict(config.settings)}
        self._for_single = replace(config, settings=tuple(sorted(given.items())))
        self._fail_on_data_loss = fail_on_data_loss
        self._patience_s = patience_s
        self._clients = KeptClients()
        self._columns = MessageColumns(pa.schema([pa.field("offset", pa.int64())]), BinaryValues())
        self._lock = threading.Lock()
        self._reading: set[KafkaSplitReader] = set()
        self._is_closed = False

    def times(self, splits: Sequence[KafkaSplit], most: Mapping[str, int]) -> dict[str, SeenTimes]:
        """Return the records of each split from its position to its stop, at most `most` by its id. O(records)."""
        none = np.empty(0, np.int64)
        parts = {split.split_id: [(none, none)] for split in splits}
        left, enough = dict(most), set[str]()
        for split_id, offsets, times in self._read(self._config, _AT_ONCE, splits, enough):
            parts[split_id].append((offsets[: left[split_id]], times[: left[split_id]]))
            left[split_id] -= offsets.size
            if left[split_id] <= 0:
                enough.add(split_id)
        return {
            split_id: (np.concatenate([offsets for offsets, _ in seen]), np.concatenate([times for _, times in seen]))
            for split_id, seen in parts.items()
        }

    def first_later(self, splits: Sequence[KafkaSplit], bound_us: int) -> dict[str, tuple[int, int]]:
        """Return offset and event time of the first record of each split that is later than a bound, if there is one.

        The records at the positions of the splits are tried first. O(records before the results).
        """
        found: dict[str, tuple[int, int]] = {}
        first = [split.until(split.position + 1) for split in splits]
        for split_id, offsets, times in self._read(self._for_single, _SINGLE_AT_ONCE, first):
            if times[0] > bound_us:
                found[split_id] = int(offsets[0]), int(times[0])
        others = [split.at(split.position + 1) for split in splits if split.split_id not in found]
        for split_id, offsets, times in self._read(self._config, _AT_ONCE, others, found):
            later = np.flatnonzero(times > bound_us)
            if later.size:
                found[split_id] = int(offsets[later[0]]), int(times[later[0]])
        return found

    def close(self) -> None:
        """End reads, and close the consumers."""
        with self._lock:
            self._is_closed = True
            reading = list(self._reading)
        for reader in reading:
            reader.wake_up()
        self._clients.close()

    def _read(
        self, config: ClientConfig, at_once: int, splits: Sequence[KafkaSplit], enough: Container[str] = ()
    ) -> Iterator[tuple[str, Int64Array, Int64Array]]:
        """Yield the records of each split, until it has reached its stop or its id is in `enough`."""
        left = {split.split_id: split for split in splits if split.stop is None or split.position < split.stop}
        if not left:
            return
        reader = KafkaSplitReader(
            config,
            self._clients,
            None,
            self._columns,
            fail_on_data_loss=self._fail_on_data_loss,
            poll_timeout_s=self._patience_s,
            at_once=at_once,
        )
        with self._lock:
            self._reading.add(reader)
        try:
            reader.handle_splits_changes(SplitsAddition(tuple(left.values())))
            while left:
                if self._is_closed:
                    raise SourceError("the planner was closed while it looked up records")
                fetched = reader.fetch()
                while (split_id := fetched.next_split()) is not None:
                    while (block := fetched.next_record_from_split()) is not None:
                        if split_id in left and split_id not in enough:
                            assert block.source_timestamps is not None
                            yield split_id, block.batch["offset"].to_numpy(), block.source_timestamps
                for split_id in fetched.finished_splits:
                    left.pop(split_id, None)
                done = tuple(left.pop(split_id) for split_id in sorted(left) if split_id in enough)
                if done and left:
                    reader.handle_splits_changes(SplitsRemoval(done))
        finally:
            with self._lock:
                self._reading.discard(reader)
            reader.close()
            if self._is_closed:
                self._clients.close()
