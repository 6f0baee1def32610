"""The options of `readStream.format("aligned_kafka")`: those of Spark's own Kafka source, and a few more."""

from __future__ import annotations

from typing import Final

from streaming_source.api import Option, OptionSet
from streaming_source.api.options import boolean, choice, duration, integer, text

__all__ = ["KAFKA_OPTIONS"]

_SECOND_US: Final = 1_000_000

KAFKA_OPTIONS: Final = OptionSet(
    [
        Option("subscribe", text, "Topics, with commas between them. Exactly one of these three is required."),
        Option("subscribePattern", text, "Regular expression of Python, found anywhere in the names of topics."),
        Option("assign", text, 'JSON of partitions, like `{"orders": [0, 1]}`.'),
        Option(
            "startingOffsets",
            text,
            'Where a new query starts: `earliest`, `latest`, or JSON like `{"orders": {"0": 23, "1": -2}}` with -2 for '
            "earliest and -1 for latest. Partitions found later start at their first record.",
            None,
            "latest; earliest where reading ends",
        ),
        Option("startingTimestamp", integer(0), "Start at the first record at or after this time (ms since 1970)."),
        Option("startingOffsetsByTimestamp", text, "The same for each partition, as JSON. `startingTimestamp` wins."),
        Option(
            "startingOffsetsByTimestampStrategy",
            choice("error", "latest"),
            "What to do where no record is as late.",
            "error",
            "error",
        ),
        Option("bounded", boolean, "End at the offsets that are the latest at the start.", False, "false"),
        Option("endingOffsets", text, "End there: `latest`, or JSON as above. Makes the source bounded."),
        Option("endingTimestamp", integer(0), "End before the first record at or after this time (ms since 1970)."),
        Option("endingOffsetsByTimestamp", text, "The same for each partition, as JSON. `endingTimestamp` wins."),
        Option("includeHeaders", boolean, "Add the column `headers`.", False, "false"),
        Option(
            "valueFormat",
            choice("binary", "string", "json", "avro", "protobuf"),
            "What values are read as; `json`, `avro` and `protobuf` become a struct.",
            "binary",
            "binary",
        ),
        Option(
            "valueSchema",
            text,
            "With `valueFormat=json`: the fields, as in `id BIGINT, ts TIMESTAMP`. With `avro`: the reader's schema, "
            "as JSON.",
            None,
            "none; with avro the latest of the subject",
        ),
        Option(
            "schemaRegistryUrl", text, "With `avro`, `protobuf`: where the schemas are that values were written with."
        ),
        Option("schemaRegistry.*", text, "Settings of the registry's client, like `basic.auth.user.info`.", {}, "none"),
        Option(
            "valueSubject",
            text,
            "With `avro`, `protobuf`: the subject of which the latest schema is that of the column.",
            None,
            "`<topic>-value`, if one topic is named",
        ),
        Option(
            "invalidValue",
            choice("fail", "null"),
            "What to do with a value that is not of its format.",
            "fail",
            "fail",
        ),
        Option(
            "failOnDataLoss",
            boolean,
            "Fail where records that were to be read are not there any more; else go on behind them.",
            True,
            "true",
        ),
        Option("discoveryInterval", duration(1000), "How often to look for new partitions.", 10 * _SECOND_US, "10 s"),
        Option(
            "brokerTimeout",
            duration(1000),
            "For how long brokers that do not answer are asked again before the query fails.",
            300 * _SECOND_US,
            "5 minutes",
        ),
        Option(
            "kafkaConsumer.pollTimeoutMs",
            integer(1),
            "How long a task waits for a record that must be there.",
            120_000,
            "120000",
        ),
        Option(
            "groupIdPrefix",
            text,
            "Of the consumer group's name, for access control. No group is joined, nothing is committed.",
            "spark-kafka-source",
            "spark-kafka-source",
        ),
        Option(
            "indexing",
            choice("auto", "scan", "off"),
            "Event times ahead of reading: from the brokers' index if they are the records' own timestamps, else by "
            "reading the records (`auto`); or always by reading them (`scan`). Or not ahead of reading, from what the "
            "readers report (`off`).",
            "auto",
            "auto",
        ),
        Option("maxOffsetsPerTrigger", integer(1), "Spark's name of `maxRowsPerTrigger`.", same_as="maxRowsPerTrigger"),
        Option("minOffsetsPerTrigger", integer(1), "Spark's name of `minRowsPerTrigger`.", same_as="minRowsPerTrigger"),
        Option(
            "minPartitions",
            integer(1),
            "Tasks of a micro-batch or a batch, at least, if it has as many records; default: one a partition, at most "
            "`numReaders`.",
        ),
        Option("kafka.*", text, "Settings of librdkafka, like `kafka.bootstrap.servers` (required).", {}, "none"),
    ]
)
