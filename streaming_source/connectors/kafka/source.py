"""A source over topics of Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streaming_source.api import Boundedness, OptionSet, Source, SourceReaderContext, SplitEnumeratorContext
from streaming_source.api.credentials import Credentials, MakeCredentials
from streaming_source.connectors.kafka.admin import TopicCheck
from streaming_source.connectors.kafka.client_config import MakeToken, TokenProvider
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS, KafkaConfig, kafka_arguments
from streaming_source.connectors.kafka.records import MessageColumns, record_schema
from streaming_source.connectors.kafka.split import (
    KafkaCheckpoint,
    KafkaCheckpointSerializer,
    KafkaSplit,
    KafkaSplitSerializer,
)
from streaming_source.connectors.kafka.split_reader import KafkaSplitReader
from streaming_source.connectors.kafka.subscription import Boundary
from streaming_source.exceptions import OffsetError

if TYPE_CHECKING:
    from streaming_source.connectors.kafka.enumerator import KafkaSplitEnumerator


@dataclass(frozen=True)
class KafkaSource(KafkaConfig, Source[KafkaSplit, KafkaCheckpoint]):
    """Partitions of topics, each a split. The arguments are those of `KafkaConfig`.

    `KafkaSource.of` takes them as keywords; `from_options` takes parsed options of the format.

    Examples
    --------
    >>> KafkaSource.of("broker:9092", subscribe="orders").schema().names[:5]
    ['key', 'value', 'topic', 'partition', 'offset']
    """

    name = "aligned_kafka"
    has_source_timestamps = True
    source_timestamp_column = "timestamp"
    split_serializer = KafkaSplitSerializer()
    enumerator_checkpoint_serializer = KafkaCheckpointSerializer()

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_kafka")` in addition to those of every format."""
        return KAFKA_OPTIONS

    @classmethod
    def of(
        cls,
        bootstrap_servers: str,
        subscribe: str = "",
        *,
        token_provider: MakeToken | None = None,
        credentials: MakeCredentials | str | None = None,
        **options: Any,
    ) -> KafkaSource:
        """Make a source from options of the format as keywords, and settings of the clients as `kafka={...}`.

        Parameters
        ----------
        bootstrap_servers
            Brokers, as in `"host1:9092,host2:9092"`.
        subscribe
            Topics, separated by commas; empty if `subscribePattern` or `assign` is given.
        token_provider
            For OAUTHBEARER: returns a token, and the second since the epoch at which it expires. Called on the driver
            and on executors.
        credentials
            For secrets that expire: returns a dictionary of options such as `"kafka.sasl.password"`, or a tuple of that
            and when it expires; or its name as `"module:function"`.
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
        values = KAFKA_OPTIONS.parse(texts)
        if token_provider is not None:
            values["tokenProvider"] = TokenProvider(token_provider)
        values["credentials"] = Credentials.of(credentials)
        return cls.from_options(values)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> KafkaSource:
        """Make it from parsed values of `options`; raises an `OptionError` if they contradict each other."""
        return cls(**kafka_arguments(values))

    @property
    def identity(self) -> str:
        """The subscription. The brokers are not in it: their addresses may change."""
        return self.subscription.description

    def continues(self, checkpoint: KafkaCheckpoint) -> bool:
        """Return whether this reads all partitions that were read before, and maybe more, as in Spark's source."""
        known = [topic for topic in checkpoint.topics if topic.partitions]
        chosen = self.subscription
        return bool(known) and all(
            chosen.matches(topic.name) and len(chosen.select(topic.name, topic.partitions)) == len(topic.partitions)
            for topic in known
        )

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED if self.end is None else Boundedness.BOUNDED

    def in_zone(self, zone: str) -> KafkaSource:
        values = self.values.in_zone(zone)
        return self if values is self.values else replace(self, values=values)

    def for_batch(self) -> KafkaSource:
        """Return the source up to the present end, from the earliest records unless the options give another start.

        Raises an `OptionError` if they give the end as the start.
        """
        if self.end is not None:
            return self
        start = self.start if self.start.is_given else Boundary("startingOffsets", "earliest", is_given=False)
        return replace(self, start=start.before_the_end(), end=Boundary("endingOffsets", "latest", is_given=False))

    def for_batch_at(self, checkpoint: KafkaCheckpoint) -> tuple[KafkaSource, KafkaCheckpoint]:
        """Return where the stream began and has come to, its splits have: the batch reads all that may be between."""
        start = Boundary("startingOffsets", "earliest", is_given=False)
        return replace(self, start=start, end=None).for_batch(), checkpoint

    def schema(self) -> pa.Schema:
        return record_schema(self.values, headers=self.include_headers)

    def create_enumerator(self, context: SplitEnumeratorContext[KafkaSplit]) -> KafkaSplitEnumerator:
        return self.restore_enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[KafkaSplit], checkpoint: KafkaCheckpoint | None
    ) -> KafkaSplitEnumerator:
        # Imported when it is used, and not by tasks.
        from streaming_source.connectors.kafka.enumerator import create_enumerator

        if checkpoint is not None and checkpoint.end != self.end_description:
            was, now = (f"ended at {end}" if end else "did not end" for end in (checkpoint.end, self.end_description))
            raise OffsetError(
                f"the checkpoint is of a source that {was}, this one {now}: its splits do not end where this one's "
                "would. Give the options as they were (bounded, ending...), or use a new checkpointLocation"
            )
        return create_enumerator(self, context, checkpoint)

    def create_split_reader(self, context: SourceReaderContext) -> KafkaSplitReader:
        is_task, patience_s = context.enumerator is None, self.seconds("poll_timeout")
        return KafkaSplitReader(
            self.client,
            context.clients,
            # A task has no enumerator: where logs end knows the planner alone.
            getattr(context.enumerator, "log_ends", None),
            MessageColumns(context.schema, self.values),
            fail_on_data_loss=self.fail_on_data_loss,
            poll_timeout_s=patience_s,
            in_order=is_task,
            topics=TopicCheck(self.client, context.clients, patience_s) if is_task else None,
        )
