"""A source over topics of Kafka."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from alignment.durations import parse_duration_us
from alignment.timestamps import RecordTimestampAssigner
from streaming_source.api import (
    Boundedness,
    OptionSet,
    SimpleVersionedSerializer,
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
)
from streaming_source.api.options import duration_argument
from streaming_source.connectors.kafka.admin import KafkaAdmin, RetryPolicy
from streaming_source.connectors.kafka.config import ClientConfig
from streaming_source.connectors.kafka.discovery import PartitionDiscovery
from streaming_source.connectors.kafka.enumerator import KafkaSplitEnumerator
from streaming_source.connectors.kafka.formats import value_format
from streaming_source.connectors.kafka.indexed_enumerator import IndexedKafkaSplitEnumerator
from streaming_source.connectors.kafka.log_ends import LogEnds
from streaming_source.connectors.kafka.options import KAFKA_OPTIONS
from streaming_source.connectors.kafka.records import MessageColumns, record_schema
from streaming_source.connectors.kafka.scanning import Scanner
from streaming_source.connectors.kafka.split import (
    KafkaCheckpoint,
    KafkaCheckpointSerializer,
    KafkaSplit,
    KafkaSplitSerializer,
)
from streaming_source.connectors.kafka.split_reader import KafkaSplitReader
from streaming_source.connectors.kafka.starting import Boundary, ending, starting
from streaming_source.connectors.kafka.subscription import Subscription
from streaming_source.connectors.kafka.time_index import TimeIndex
from streaming_source.connectors.kafka.values import BinaryValues, ValueFormat
from streaming_source.exceptions import OffsetError, OptionError

__all__ = ["Indexing", "KafkaSource"]

Indexing = Literal["auto", "scan"]

_SHORTEST_US: Final = 1000
_FIRST_CONTACT_S: Final = 10.0
_ENDS_OF_LOGS: Final = "_ends_of_logs"
_CHOICES: Final = ("subscribe", "subscribePattern", "assign")
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True)
class KafkaSource(Source[KafkaSplit, KafkaCheckpoint]):
    """Partitions of topics, each a split.

    Attributes
    ----------
    config
        Settings of the clients.
    subscription
        Which partitions.
    start
        Where a new query starts.
    end
        Where it ends; None for nowhere.
    values
        How values are read.
    include_headers
        Whether there is a column `headers`.
    fail_on_data_loss
        Whether it is an error that records are not there any more which were to be read.
    discovery_interval
        How often to look for new partitions: a `timedelta`, or text such as `"5 seconds"`; at least a millisecond.
    broker_timeout
        For how long brokers that do not answer are asked again.
    poll_timeout
        How long a reader waits for a record that must be there.
    indexing
        Where event times are known from ahead of reading: `auto` asks the brokers if they are the records' timestamps,
        and reads the records if not; `scan` always reads them.

    Notes
    -----
    `KafkaSource.of` takes what users write; `from_options` the options of the format.

    Raises
    ------
    OptionError
        If a duration or `indexing` is wrong.
    """

    config: ClientConfig
    subscription: Subscription
    start: Boundary
    end: Boundary | None = None
    values: ValueFormat = field(default_factory=BinaryValues)
    include_headers: bool = False
    fail_on_data_loss: bool = True
    discovery_interval: timedelta | str = "10 seconds"
    broker_timeout: timedelta | str = "5 minutes"
    poll_timeout: timedelta | str = "2 minutes"
    indexing: Indexing = "auto"

    def __post_init__(self) -> None:
        for name in ("discovery_interval", "broker_timeout", "poll_timeout"):
            object.__setattr__(self, name, duration_argument(name, getattr(self, name), _SHORTEST_US))
        if self.indexing not in get_args(Indexing):
            raise OptionError(f"indexing = {self.indexing!r}: must be one of {', '.join(get_args(Indexing))}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _ENDS_OF_LOGS}

    # ---- from what users write -----------------------------------------------------------------------------------

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_kafka")` beside those of every format."""
        return KAFKA_OPTIONS

    @classmethod
    def of(cls, bootstrap_servers: str, subscribe: str = "", **options: Any) -> KafkaSource:
        """From the options of the format, by keyword; the settings of the clients as `kafka={...}`.

        Parameters
        ----------
        bootstrap_servers
            Brokers, as in `"host1:9092,host2:9092"`.
        subscribe
            Topics, with commas between them; empty if `subscribePattern` or `assign` is given.
        **options
            The others, such as `startingOffsets="earliest"`.

        Raises
        ------
        OptionError
            If an option is unknown or wrong.

        Examples
        --------
        >>> KafkaSource.of("localhost:9092", "orders", startingOffsets="earliest").subscription.topics
        ('orders',)
        """
        settings = {f"kafka.{name}": value for name, value in dict(options.pop("kafka", {})).items()}
        given = {**options, **settings, "kafka.bootstrap.servers": bootstrap_servers}
        if subscribe:
            given["subscribe"] = subscribe
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        return cls.from_options(KAFKA_OPTIONS.parse(texts))

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> KafkaSource:
        """From parsed values of `options`.

        Raises
        ------
        OptionError
            If they contradict each other, or one is missing.
        """
        bounded = values["bounded"] or any(values[name] is not None for name in _ENDS)
        offsets, timestamp, by_timestamp = (values[name] for name in _STARTS)
        subscription = _subscription(values)
        start = starting(offsets, timestamp, by_timestamp, values[_STRATEGY], bounded=bounded)
        return cls(
            ClientConfig.of(values["kafka.*"], values["groupIdPrefix"]),
            subscription,
            start,
            ending(*(values[name] for name in _ENDS)) if bounded else None,
            value_format(values, subscription),
            values["includeHeaders"],
            values["failOnDataLoss"],
            timedelta(microseconds=values["discoveryInterval"]),
            timedelta(microseconds=values["brokerTimeout"]),
            timedelta(milliseconds=values["kafkaConsumer.pollTimeoutMs"]),
            # Without an index the planner decides whether it reads ahead.
            "auto" if values["indexing"] == "auto" else "scan",
        )

    # ---- Source --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See `Source`."""
        return "aligned_kafka"

    @property
    def identity(self) -> str:
        """See `Source`. Not the brokers: they may move."""
        return self.subscription.description

    @property
    def boundedness(self) -> Boundedness:
        """See `Source`."""
        return Boundedness.CONTINUOUS_UNBOUNDED if self.end is None else Boundedness.BOUNDED

    @property
    def has_source_timestamps(self) -> bool:
        """See `Source`."""
        return True

    @property
    def source_timestamp_column(self) -> str:
        """See `Source`."""
        return "timestamp"

    def for_batch(self) -> KafkaSource:
        """See `Source`: to the present end, and from the earliest records unless the options say otherwise.

        Raises
        ------
        OptionError
            If the options say that it starts at its end.
        """
        if self.end is not None:
            return self
        start = self.start if self.start.is_given else starting(None, None, None, "error", bounded=True)
        return replace(self, start=start.before_the_end(), end=ending(None, None, None))

    def schema(self) -> pa.Schema:
        """The columns of Spark's own Kafka source."""
        return record_schema(self.values, headers=self.include_headers)

    def create_enumerator(self, context: SplitEnumeratorContext[KafkaSplit]) -> KafkaSplitEnumerator:
        """See `Source`."""
        return self._enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[KafkaSplit], checkpoint: KafkaCheckpoint
    ) -> KafkaSplitEnumerator:
        """See `Source`.

        Raises
        ------
        OffsetError
            If the checkpoint is of a bounded source and this one is not, or the other way round.
        """
        if checkpoint.bounded != (self.end is not None):
            was, now = ("bounded", "not") if checkpoint.bounded else ("not bounded", "bounded")
            raise OffsetError(
                f"the checkpoint is of a source that was {was}, this one is {now}: its splits do not end where this "
                "one's would. Give the options as they were (bounded, ending...), or use a new checkpointLocation"
            )
        return self._enumerator(context, checkpoint)

    def create_split_reader(self, context: SourceReaderContext) -> KafkaSplitReader:
        """See `Source`."""
        return KafkaSplitReader(
            self.config,
            context.clients,
            self.__dict__.get(_ENDS_OF_LOGS),
            MessageColumns(context.schema, self.values),
            fail_on_data_loss=self.fail_on_data_loss,
            poll_timeout_s=_seconds(self.poll_timeout),
        )

    @property
    def split_serializer(self) -> SimpleVersionedSerializer[KafkaSplit]:
        """See `Source`."""
        return KafkaSplitSerializer()

    @property
    def enumerator_checkpoint_serializer(self) -> SimpleVersionedSerializer[KafkaCheckpoint]:
        """See `Source`."""
        return KafkaCheckpointSerializer()

    def _enumerator(
        self, context: SplitEnumeratorContext[KafkaSplit], checkpoint: KafkaCheckpoint | None
    ) -> KafkaSplitEnumerator:
        # Of a query that goes on from a checkpoint the brokers were there.
        first_s = _FIRST_CONTACT_S if checkpoint is None else math.inf
        patience = RetryPolicy(_seconds(self.broker_timeout), first_s=first_s)
        discovery = PartitionDiscovery(
            KafkaAdmin(self.config, patience),
            self.subscription,
            self.start,
            self.end,
            fail_on_data_loss=self.fail_on_data_loss,
            checkpoint=checkpoint,
        )
        period = None if self.end is not None else _seconds(self.discovery_interval)
        # For the readers of the planner that hosts this enumerator, which are made by this very object.
        ends = self.__dict__[_ENDS_OF_LOGS] = LogEnds.of(self.config, _seconds(self.broker_timeout))
        is_asked = context.supports_opaque_blocks and isinstance(context.timestamp_assigner, RecordTimestampAssigner)
        if self.indexing == "scan" or not is_asked:
            return KafkaSplitEnumerator(
                context, discovery, patience, ends, period_seconds=period, checkpoint=checkpoint
            )
        scanner = Scanner(
            self.config,
            fail_on_data_loss=self.fail_on_data_loss,
            patience_s=_seconds(self.broker_timeout),
        )
        # Two connections: plans do not wait for looks.
        looks, plans = KafkaAdmin(self.config, patience), KafkaAdmin(self.config, patience)
        index = TimeIndex(context, looks, plans, scanner, fail_on_data_loss=self.fail_on_data_loss)
        return IndexedKafkaSplitEnumerator(
            context, discovery, patience, ends, index, scanner, period_seconds=period, checkpoint=checkpoint
        )


def _subscription(values: Mapping[str, Any]) -> Subscription:
    given = [name for name in _CHOICES if values[name] is not None]
    if len(given) != 1:
        which = f"options {' and '.join(given)} exclude each other" if given else "what to read is not said"
        raise OptionError(f"{which}: give exactly one of {', '.join(_CHOICES)}")
    make: dict[str, Any] = {
        "subscribe": Subscription.to_topics,
        "subscribePattern": Subscription.to_pattern,
        "assign": Subscription.to_partitions,
    }
    chosen: Subscription = make[given[0]](values[given[0]])
    return chosen


def _seconds(duration: timedelta | str) -> float:
    return parse_duration_us(duration, name="duration") / 1e6
