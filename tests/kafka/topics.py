"""Topics for tests: written in every way that Kafka knows, mistreated, and read back by a plain client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.kafka.broker import KafkaBroker

__all__ = ["CODECS", "Record", "Topic", "wait_until"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_WAIT_S = 30
MS = 1_000


@dataclass(frozen=True, slots=True)
class Record:
    """One record: as it shall be written, or (with its place) as it was read."""

    time_ms: int
    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0
    offset: int = -1

    @property
    def time_us(self) -> int:
        """Its timestamp in microseconds, as event times are here."""
        return self.time_ms * MS


class Topic:
    """One topic of a broker."""

    def __init__(self, broker: KafkaBroker, name: str | None = None) -> None:
        self.broker = broker
        self.name = name or f"topic-{uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self._open: dict[Producer, set[int]] = {}

    def close(self) -> None:
        """Let go of its connections, whoever holds on to it: several hundred would be too many for `select`."""
        del self.admin

    def create(self, partitions: int = 1, **config: Any) -> Topic:
        """Create it; `segment_ms=100` is `segment.ms`. Waits while a deleted one of this name goes away."""
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}

        def created() -> bool:
            try:
                self._done(self.admin.create_topics([NewTopic(self.name, partitions, 1, config=settings)]))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or self.name in self._topics():
                    raise
                return False
            return True

        wait_until(created, f"{self.name} to be created")
        wait_until(lambda: len(self.partitions) == partitions, f"the partitions of {self.name}")
        return self

    @property
    def partitions(self) -> tuple[int, ...]:
        """Its partitions, none if there is no such topic."""
        # Asked once: between two questions a topic may go away.
        found = self._topics().get(self.name)
        return () if found is None else tuple(sorted(found.partitions))

    def delete(self) -> None:
        """Delete it, and wait until it is gone."""
        self._done(self.admin.delete_topics([self.name]))
        wait_until(lambda: not self.partitions, f"{self.name} to be gone")

    def add_partitions(self, total: int) -> None:
        """Add partitions until it has `total`."""
        self._done(self.admin.create_partitions([NewPartitions(self.name, total)]))
        wait_until(lambda: len(self.partitions) == total, f"{total} partitions of {self.name}")

    def configure(self, **config: Any) -> None:
        """Change settings of the topic."""
        entries = [
            ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        self._done(self.admin.incremental_alter_configs([resource]))

    def write(self, records: Iterable[Record], *, codec: str = "none", **config: Any) -> None:
        """Write each record to its partition, and wait until all are acknowledged."""
        with self.producer(codec=codec, **config) as producer:
            self.send(producer, records)

    def write_logs(self, logs: Mapping[int, Sequence[int]], *, first: int = 0) -> None:
        """Write event times (microseconds, whole ms) in order; values are `partition/number`, from `first`."""
        self.write(
            Record(whole_ms(int(t)), b"%d/%d" % (partition, number), partition=partition)
            for partition, times in logs.items()
            for number, t in enumerate(times, first)
        )

    @contextmanager
    def producer(self, codec: str = "none", **config: Any) -> Iterator[Producer]:
        """Give a producer whose records are all acknowledged behind the block."""
        lost: list[str] = []
        settings = {
            "bootstrap.servers": self.broker.bootstrap,
            "compression.type": codec,
            "linger.ms": 5,
            # What is sent again, as in the first moments of a topic, would else come behind what was sent after it.
            "max.in.flight": 1,
            "queue.buffering.max.messages": 10_000_000,
            "on_delivery": lambda error, _: lost.append(str(error)) if error else None,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        producer = Producer(settings)
        yield producer
        assert producer.flush(_WAIT_S) == 0, f"records for {self.name} were not acknowledged in {_WAIT_S} s"
        assert not lost, f"{len(lost)} records for {self.name} were not written, the first: {lost[0]}"

    def send(self, producer: Producer, records: Iterable[Record]) -> None:
        """Hand records to a producer."""
        for record in records:
            assert record.time_ms > 0, "the client takes the time 0 for now"
            producer.produce(
                self.name,
                value=record.value,
                key=record.key,
                headers=list(record.headers) or None,
                partition=record.partition,
                timestamp=record.time_ms,
            )

    def transaction(self, records: Iterable[Record], *, end: str) -> Producer:
        """Write records in a transaction, and `end` it: by `commit`, by `abort`, or leave it `open`.

        Returns
        -------
        Producer
            Its transaction, left open, can be ended with it, by `end`.
        """
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "transactional.id": uuid4().hex,
                "linger.ms": 0,
                "log_level": 3,  # that the coordinator is still loading is no news
            }
        )
        producer.init_transactions(_WAIT_S)
        producer.begin_transaction()
        written = list(records)
        self.send(producer, written)
        # What is not yet written when a transaction is aborted is not written at all: no gap.
        assert producer.flush(_WAIT_S) == 0
        self._open[producer] = {record.partition for record in written}
        if end != "open":
            self.end(producer, end)
        return producer

    def end(self, producer: Producer, how: str) -> None:
        """End a transaction, by `commit` or `abort`, and wait for its marks: the broker answers before."""
        ends = {partition: self.bounds(partition)[1] for partition in self._open.pop(producer)}
        getattr(producer, f"{how}_transaction")(_WAIT_S)
        wait_until(lambda: all(self.bounds(p)[1] > last for p, last in ends.items()), f"the marks in {self.name}")

    def delete_records(self, before: Mapping[int, int]) -> None:
        """Delete all records before an offset, by partition."""
        places = [TopicPartition(self.name, partition, offset) for partition, offset in before.items()]
        self._done(self.admin.delete_records(places))

    def expire(self) -> None:
        """Let retention delete all that is there and older than a second."""
        ends = {partition: self.bounds(partition)[1] for partition in self.partitions}
        self.configure(retention_ms=1000)
        wait_until(lambda: all(self.bounds(p)[0] >= end for p, end in ends.items()), f"retention in {self.name}")
        self.configure(retention_ms=-1)

    def bounds(self, partition: int, *, committed: bool = False) -> tuple[int, int]:
        """Return the first offset and the end of a partition's log, or the end of what is committed of it."""
        with self._consumer(committed=committed) as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=_WAIT_S)
            return low, high

    def read(self, *, committed: bool = True) -> dict[int, list[Record]]:
        """Read all partitions from their first record to their end, one partition after the other.

        The naive reader: what a source must deliver, in the order of offsets.
        """
        found: dict[int, list[Record]] = {}
        for partition in self.partitions:
            found[partition] = []
            with self._consumer(committed=committed) as consumer:
                # By number: a consumer asked for "the beginning" waits half a second before it asks the broker.
                first, _ = consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=_WAIT_S)
                consumer.assign([TopicPartition(self.name, partition, first)])
                while (message := consumer.poll(_WAIT_S)) is not None:
                    if message.error() is None:
                        found[partition].append(_record(message))
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        break
                    else:
                        raise KafkaException(message.error())
                else:
                    raise AssertionError(f"waited {_WAIT_S} s for {self.name}-{partition}")
        return found

    def await_compaction(self, partition: int, left: int) -> None:
        """Wait until compaction is at rest in all partitions; it has left at most `left` records in this one."""
        for number in self.partitions:
            wait_until(
                lambda number=number: self.broker.has_compacted(self.name, number),  # type: ignore[misc]
                f"compaction of {self.name}-{number}",
            )
        found = self.read()[partition]
        assert len(found) <= left, f"compaction has left {len(found)} records in {self.name}-{partition}"

    @contextmanager
    def _consumer(self, *, committed: bool) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "naive",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,  # how long the broker waits at the end of a log before it says so
                "fetch.queue.backoff.ms": 5,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def _topics(self) -> dict[str, Any]:
        return dict(self.admin.list_topics(timeout=_WAIT_S).topics)

    @staticmethod
    def _done(futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(_WAIT_S)


def whole_ms(time_us: int) -> int:
    """Milliseconds of a time that has no finer part."""
    ms, rest = divmod(time_us, MS)
    assert not rest, f"{time_us} us is no whole millisecond, and Kafka's timestamps are"
    return ms


def wait_until(condition: Callable[[], Any], what: str, seconds: float = _WAIT_S) -> Any:
    """Ask until it holds: a broker does these things when it comes to them, and tells nobody."""
    limit = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < limit, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return result


def _record(message: Message) -> Record:
    return Record(
        time_ms=message.timestamp()[1],
        value=message.value(),
        key=message.key(),
        headers=tuple(message.headers() or ()),
        partition=message.partition(),
        offset=message.offset(),
    )
