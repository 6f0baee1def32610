"""A source over topics of Kafka."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.api import (
    Boundedness,
    OptionSet,
    SimpleVersionedSerializer,
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
)
from streaming_source.connectors.kafka.admin import KafkaAdmin
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS, KafkaConfig, kafka_arguments
from streaming_source.connectors.kafka.discovery import PartitionDiscovery
from streaming_source.connectors.kafka.enumerator import KafkaSplitEnumerator
from streaming_source.connectors.kafka.log_ends import LogEnds
from streaming_source.connectors.kafka.records import MessageColumns, record_schema
from streaming_source.connectors.kafka.split import (
    KafkaCheckpoint,
    KafkaCheckpointSerializer,
    KafkaSplit,
    KafkaSplitSerializer,
)
from streaming_source.connectors.kafka.split_reader import KafkaSplitReader
from streaming_source.connectors.kafka.starting import Boundary
from streaming_source.connectors.kafka.tokens import MakeToken, TokenProvider
from streaming_source.exceptions import OffsetError

__all__ = ["KafkaSource"]

_FIRST_CONTACT_S: Final = 10.0


@dataclass(frozen=True)
class KafkaSource(KafkaConfig, Source[KafkaSplit, KafkaCheckpoint]):
    """Partitions of topics, each a split. The arguments are those of `KafkaConfig`.

    `KafkaSource.of` takes what users write; `from_options` the options of the format.
    """

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_kafka")` beside those of every format."""
        return KAFKA_OPTIONS

    @classmethod
    def of(
        cls, bootstrap_servers: str, subscribe: str = "", *, token_provider: MakeToken | None = None, **options: Any
    ) -> KafkaSource:
        """From the options of the format, by keyword; the settings of the clients as `kafka={...}`.

        Parameters
        ----------
        bootstrap_servers
            Brokers, as in `"host1:9092,host2:9092"`.
        subscribe
            Topics, with commas between them; empty if `subscribePattern` or `assign` is given.
        token_provider
            For OAUTHBEARER: makes a token, and says at which second since the epoch it expires. Called on the driver
            and on executors.
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
        return cls.from_options(values)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> KafkaSource:
        """From parsed values of `options`.

        Raises
        ------
        OptionError
            If they contradict each other, or one is missing.
        """
        return cls(**kafka_arguments(values))

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
        start = self.start if self.start.is_given else Boundary("startingOffsets", "earliest", is_given=False)
        return replace(self, start=start.before_the_end(), end=Boundary("endingOffsets", "latest", is_given=False))

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
            If the checkpoint is of a source that ends elsewhere, or only one of them ends.
        """
        if checkpoint.end != self.end_description:
            was, now = (f"ended at {end}" if end else "did not end" for end in (checkpoint.end, self.end_description))
            raise OffsetError(
                f"the checkpoint is of a source that {was}, this one {now}: its splits do not end where this one's "
                "would. Give the options as they were (bounded, ending...), or use a new checkpointLocation"
            )
        return self._enumerator(context, checkpoint)

    def create_split_reader(self, context: SourceReaderContext) -> KafkaSplitReader:
        """See `Source`."""
        planner = context.enumerator
        return KafkaSplitReader(
            self.client,
            context.clients,
            planner.log_ends if isinstance(planner, KafkaSplitEnumerator) else None,
            MessageColumns(context.schema, self.values),
            fail_on_data_loss=self.fail_on_data_loss,
            poll_timeout_s=self.seconds("poll_timeout"),
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
        patience_s = self.seconds("broker_timeout")
        # Of a query that goes on from a checkpoint the brokers were there.
        patience = self.retry_policy(_FIRST_CONTACT_S if checkpoint is None else math.inf)
        discovery = PartitionDiscovery(KafkaAdmin(self.client, patience), self, checkpoint)
        ends = LogEnds.of(self.client, patience_s)
        has_index = context.supports_opaque_blocks and isinstance(context.timestamp_assigner, RecordTimestampAssigner)
        if self.indexing == "scan" or not has_index:
            return KafkaSplitEnumerator(context, discovery, patience, ends)
        # Imported when it is used, and not by tasks.
        from streaming_source.connectors.kafka.broker_index.enumerator import IndexedKafkaSplitEnumerator
        from streaming_source.connectors.kafka.broker_index.scanning import Scanner
        from streaming_source.connectors.kafka.broker_index.time_index import TimeIndex

        scanner = Scanner(
            self.client,
            fail_on_data_loss=self.fail_on_data_loss,
            patience_s=patience_s,
        )
        # Two connections: plans do not wait for looks.
        looks, plans = KafkaAdmin(self.client, patience), KafkaAdmin(self.client, patience)
        index = TimeIndex(context, looks, plans, scanner, fail_on_data_loss=self.fail_on_data_loss)
        return IndexedKafkaSplitEnumerator(context, discovery, patience, ends, index, scanner)
