"""Which topics are read and how: attributes, and the options that set them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from alignment.shown import SECRET_NAMES
from streaming_source.api import Option, OptionSet
from streaming_source.api.ddl import schema_of_ddl
from streaming_source.api.options import (
    any_text,
    arguments,
    boolean,
    check_plain_types,
    choice,
    credentials_option,
    duration_field,
    durations_as_timedelta,
    flag_field,
    integer,
    option_field,
    text,
)
from streaming_source.connectors.kafka.client_config import ClientConfig, TokenProvider
from streaming_source.connectors.kafka.faults import BrokerRetries
from streaming_source.connectors.kafka.records import BinaryValues, TextValues, ValueFormat
from streaming_source.connectors.kafka.subscription import Boundary, Subscription
from streaming_source.exceptions import OptionError

if TYPE_CHECKING:
    from streaming_source.data_files.stores import StorageOptions

Indexing: TypeAlias = Literal["auto", "scan"]

_SHORTEST_US: Final = 1000


def _milliseconds(name: str, value: str) -> timedelta:
    return timedelta(milliseconds=integer(1)(name, value))


@dataclass(frozen=True)
class KafkaConfig:
    """Which partitions are read, from where to where (`end` None: without an end), and how.

    Most attributes are described by their options. Durations are given as `timedelta` or text such as `"5 seconds"`,
    and kept as `timedelta`. Raises an `OptionError` if a duration or `indexing` is wrong.
    """

    client: ClientConfig
    subscription: Subscription
    start: Boundary
    end: Boundary | None = None
    values: ValueFormat = field(default_factory=BinaryValues)
    place_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    include_headers: bool = flag_field("includeHeaders", "Add the column `headers`.")
    fail_on_data_loss: bool = flag_field(
        "failOnDataLoss", "Fail if records that were to be read no longer exist; else go on after them.", default=True
    )
    discovery_interval: timedelta | str = duration_field(
        "10 seconds", "discoveryInterval", _SHORTEST_US, "How often to look for new partitions."
    )
    broker_timeout: timedelta | str = duration_field(
        "5 minutes",
        "brokerTimeout",
        _SHORTEST_US,
        "How long the source tries brokers again that do not answer, or the leader of one partition, before the query "
        "fails.",
    )
    fetch_retries: int | None = option_field(
        None,
        "fetchOffset.numRetries",
        integer(0),
        "How often a failed request for topics or offsets is repeated, within `brokerTimeout`.",
        "as often as `brokerTimeout` allows",
    )
    fetch_retry_interval: timedelta | str | None = option_field(
        None,
        "fetchOffset.retryIntervalMs",
        _milliseconds,
        "How long to wait before that.",
        "100, twice as long each time, 5000 at most",
        minimum_us=_SHORTEST_US,
    )
    poll_timeout: timedelta | str = option_field(
        "2 minutes",
        "kafkaConsumer.pollTimeoutMs",
        _milliseconds,
        "How long a task waits for a record that must be there.",
        "120000",
        minimum_us=_SHORTEST_US,
    )
    indexing: Indexing = option_field(
        "auto",
        "indexing",
        choice("auto", "scan", "off"),
        "Event times ahead of reading: from the brokers' index if they are the records' own timestamps, else by "
        "reading the records (`auto`); or always by reading them (`scan`). Or not ahead of reading, from what the "
        "readers report (`off`).",
    )

    def __post_init__(self) -> None:
        check_plain_types(self)
        durations_as_timedelta(self)
        if self.indexing not in get_args(Indexing):
            raise OptionError(f"indexing = {self.indexing!r}: must be one of {', '.join(get_args(Indexing))}")

    @property
    def end_description(self) -> str:
        """A text that identifies the end; empty without one."""
        return "" if self.end is None else self.end.description

    @property
    def storage(self) -> StorageOptions:
        """The options of the file systems of `lateLocation`, `alignmentLocation` and `reportLocation`."""
        # Imported when it is used: few queries need it.
        from streaming_source.data_files.stores import StorageOptions

        return StorageOptions(self.place_options, self.client.credentials)

    def retry_policy(self, first_s: float = math.inf) -> BrokerRetries:
        """Return how calls of brokers are repeated; see `RetryPolicy` for `first_s`."""
        pause = self.fetch_retry_interval
        pause_s = pause.total_seconds() if isinstance(pause, timedelta) else None
        return BrokerRetries(
            self.seconds("broker_timeout"), first_s=first_s, retries=self.fetch_retries, pause_s=pause_s
        )

    def seconds(self, name: Literal["discovery_interval", "broker_timeout", "poll_timeout"]) -> float:
        duration = getattr(self, name)
        assert isinstance(duration, timedelta)
        return duration.total_seconds()


_JSON_TIMES: Final = "With `valueFormat=json`: in which pattern, in Java's letters, as in `dd.MM.yyyy HH:mm[:ss]`,"

KAFKA_OPTIONS: Final = OptionSet(
    [
        Option(
            "subscribe",
            text,
            "Topics, separated by commas. Exactly one of `subscribe`, `subscribePattern` and `assign` is required.",
        ),
        Option("subscribePattern", text, "Regular expression of Python, matched anywhere in the names of topics."),
        Option("assign", text, 'JSON of partitions, like `{"orders": [0, 1]}`.'),
        Option(
            "startingOffsets",
            text,
            'Where a new query starts: `earliest`, `latest`, or JSON like `{"orders": {"0": 23, "1": -2}, "x": '
            '"latest"}`; -2 is earliest, -1 latest. Partitions found later start at their first record.',
            None,
            "latest; earliest where reading ends",
        ),
        Option("startingTimestamp", integer(0), "Start at the first record at or after this time (ms since 1970)."),
        Option("startingOffsetsByTimestamp", text, "The same for each partition, as JSON. `startingTimestamp` wins."),
        Option(
            "startingOffsetsByTimestampStrategy",
            choice("error", "latest"),
            "What to do if no record is as late.",
            "error",
        ),
        Option("bounded", boolean, "End at the offsets that are the latest ones at the start.", False),
        Option("endingOffsets", text, "End there: `latest`, or JSON as above. Makes the source bounded."),
        Option("endingTimestamp", integer(0), "End before the first record at or after this time (ms since 1970)."),
        Option("endingOffsetsByTimestamp", text, "The same for each partition, as JSON. `endingTimestamp` wins."),
        Option(
            "valueFormat",
            choice("binary", "string", "json", "avro", "protobuf"),
            "What values are read as; `json`, `avro` and `protobuf` become a struct.",
            "binary",
        ),
        Option(
            "valueSchema",
            text,
            "With `valueFormat=json`: the fields, as in `id BIGINT, ts TIMESTAMP`. With `avro`: the reader's "
            "schema, as JSON.",
            None,
            "none; with avro the latest of the subject",
        ),
        Option("timestampFormat", any_text, f"{_JSON_TIMES} timestamps are written.", None, "ISO-8601"),
        Option("dateFormat", any_text, f"{_JSON_TIMES} dates are written.", None, "ISO-8601"),
        Option(
            "schemaRegistryUrl",
            text,
            "With `avro`, `protobuf`: the address of the registry with the schemas of the values.",
        ),
        Option(
            "schemaRegistry.*",
            text,
            "Settings of the registry's client, like `basic.auth.user.info`.",
            {},
            secret=SECRET_NAMES,
        ),
        Option(
            "valueSubject",
            text,
            "With `avro`, `protobuf`: the subject whose latest schema is that of the column.",
            None,
            "`<topic>-value`, if one topic is named",
        ),
        Option("invalidValue", choice("fail", "null"), "What to do with a value that is not of its format.", "fail"),
        *OptionSet.of(KafkaConfig),
        Option(
            "groupIdPrefix",
            text,
            "How the name of the consumer group begins, for access control. No group is joined, nothing is committed.",
            "spark-kafka-source",
        ),
        Option("maxOffsetsPerTrigger", integer(1), "Spark's name of `maxRowsPerTrigger`.", same_as="maxRowsPerTrigger"),
        Option("minOffsetsPerTrigger", integer(1), "Spark's name of `minRowsPerTrigger`.", same_as="minRowsPerTrigger"),
        Option(
            "minPartitions",
            integer(1),
            "Tasks of a micro-batch or a batch, at least, if it has as many records; default: one a partition, at "
            "most `numReaders`.",
        ),
        Option(
            "maxRecordsPerPartition",
            integer(1),
            "Records of one task, at most: there are as many tasks as that takes, also more than `numReaders`; of one "
            "partition 10,000.",
        ),
        Option(
            "tokenProvider",
            TokenProvider.of_name,
            "For OAUTHBEARER, and Amazon MSK with IAM: `module:function` that returns a token and the second since "
            "the epoch at which it expires. Called on the driver and on executors.",
        ),
        credentials_option("options `kafka.*`, `schemaRegistry.*` and `storage.*`"),
        Option(
            "storage.*",
            any_text,
            "Arguments of the file system of `lateLocation`, `alignmentLocation` and `reportLocation`, as its class in "
            "`pyarrow.fs` takes them. They are in no offset, log or error.",
            {},
            secret=re.compile(""),
        ),
        Option(
            "kafka.*",
            lambda name, value: value,
            "Settings of the clients, like `kafka.bootstrap.servers` (required): those of librdkafka, and those of "
            "the Java client that it has under another name.",
            {},
            secret=SECRET_NAMES,
        ),
    ]
)


def kafka_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parsed values of `KAFKA_OPTIONS` as keywords of a `KafkaConfig`; an `OptionError` if they contradict each other.

    Connects to nothing.
    """
    subscription = Subscription.of(values)
    client = ClientConfig.of(values["kafka.*"], values["groupIdPrefix"], values["tokenProvider"], values["credentials"])
    start, end = Boundary.start_and_end(values)
    return {
        **arguments(KafkaConfig, values),
        "client": client,
        "place_options": tuple(sorted(values["storage.*"].items())),
        "subscription": subscription,
        "start": start,
        "end": end,
        "values": _value_format(values, subscription),
        # Without an index the planner decides whether it reads ahead.
        "indexing": "auto" if values["indexing"] == "auto" else "scan",
    }


def _value_format(values: Mapping[str, Any], subscription: Subscription) -> ValueFormat:
    """Return the format of values, from parsed options; raises an `OptionError` if one is missing or does not fit.

    Connects to nothing.
    """
    kind, schema, invalid = values["valueFormat"], values["valueSchema"], values["invalidValue"]
    for name in ("timestampFormat", "dateFormat"):
        if values[name] is not None and kind != "json":
            raise OptionError(f"option valueFormat = {kind!r} takes no {name}; it belongs to json, so leave it out")
    if kind in ("avro", "protobuf"):
        return _registered(kind, values, subscription)
    for name in ("schemaRegistryUrl", "valueSubject", "schemaRegistry.*"):
        if values[name]:
            raise OptionError(f"option valueFormat = {kind!r} takes no {name}; it belongs to avro and protobuf")
    if (kind == "json") != (schema is not None):
        needs = "needs valueSchema, the fields of the objects" if kind == "json" else "takes no valueSchema"
        raise OptionError(f"option valueFormat = {kind!r} {needs}")
    if schema is not None:
        # Imported when they are used: few queries have JSON.
        from streaming_source.connectors.kafka.json_values import JsonValues
        from streaming_source.data_files.formats.json import JsonFormat

        patterns = {"timestamp_format": values["timestampFormat"], "date_format": values["dateFormat"]}
        return JsonValues(schema_of_ddl("valueSchema", schema), invalid, JsonFormat(**patterns))
    return TextValues(invalid) if kind == "string" else BinaryValues()


def _registered(kind: str, values: Mapping[str, Any], subscription: Subscription) -> ValueFormat:
    # Imported when they are used: few queries have a registry.
    from streaming_source.connectors.kafka.avro_values import AvroValues
    from streaming_source.connectors.kafka.protobuf_values import ProtobufValues
    from streaming_source.connectors.kafka.registry import SchemaRegistry

    if values["schemaRegistryUrl"] is None:
        raise OptionError(
            f"option valueFormat = {kind!r} needs schemaRegistryUrl: where the schemas of values are stored"
        )
    given, subject = values["valueSchema"], values["valueSubject"]
    if kind == "protobuf" and given is not None:
        raise OptionError("option valueFormat = 'protobuf' takes no valueSchema: it is the latest one of valueSubject")
    # Its only topic gives the name of the subject, if no option does.
    if subject is None and len(subscription.topics) == 1:
        subject = f"{subscription.topics[0]}-value"
    if subject is None and given is None:
        raise OptionError(
            f"option valueFormat = {kind!r} needs valueSubject where not exactly one topic is named: the subject of "
            "which the latest schema is that of the column"
        )
    registry = SchemaRegistry.of(values["schemaRegistryUrl"], values["schemaRegistry.*"], values["credentials"])
    if kind == "protobuf":
        return ProtobufValues(registry, subject, values["invalidValue"])
    return AvroValues(registry, subject or "", values["invalidValue"], given)
