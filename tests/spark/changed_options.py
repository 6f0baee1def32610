"""Which options may change between two runs of a query: the table of docs/reliability.md, and a case for each option.

`python -m tests.spark.changed_options` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.kafka.broker import PASSWORD, USER

__all__ = ["DATAGEN", "FILES", "FRAME", "KAFKA", "NOT_BY_HAND", "STRATEGY", "Change", "table"]

Given: TypeAlias = dict[str, str]


@dataclass(frozen=True)
class Change:
    """One option, given in one way in the first run and in another in the second.

    Attributes
    ----------
    before, after
        Options of the two runs, beside those that a connector's test gives to both.
    state
        What becomes of the state.
    refused
        What the error says; empty if the second run goes on.
    """

    option: str
    before: Given
    after: Given
    state: str
    refused: str = ""

    @property
    def label(self) -> str:
        """For a test's name."""
        return "-".join([self.option, *self.after.values()])


_POSITIONS = "kept: the second run goes on from the positions"
_WATERMARKS = "positions and watermarks stay, and no watermark goes back"
_FINISHED = "files that are finished are known again only as they were written down"
_ROWS = "positions mean nothing in other records"
_OTHER = "is of another source .* has changed"
NOT_BY_HAND: Final = {
    *("availableNowCheckpoint", "lateRecordsOf", "lateRecordsFrom", "repairDelay", "repairRead"),
    *("noDataMicroBatches", "textInNames", "reportLocation", "watermarkFrom", "claimDelay"),
}
"""One is of Spark before 4.2, `late_records` and `repair` give four, two come from the session; of the formats Kafka
alone takes `reportLocation`; the last two need a table that a query writes."""


def no_secrets() -> dict[str, str]:
    """Credentials for a store that takes none."""
    return {}


def _may(option: str, before: str | None, after: str | None, state: str = _POSITIONS, **both: str) -> Change:
    return Change(
        option,
        both if before is None else {**both, option: before},
        both if after is None else {**both, option: after},
        state,
    )


def _refused(option: str, before: str | None, after: str | None, why: str, says: str = "", **both: str) -> Change:
    change = _may(option, before, after, why, **both)
    return Change(change.option, change.before, change.after, why, says or option)


_MEANING = "watermarks are of other event times, and would make records late that are not"
_RANGE = "records outside of the range were passed by, and are not read again"

_FROM_NOW_ON = "kept; it counts from the first micro-batch on that is planned or read again"
_BEHIND_ALL = "3000-01-01T00:00:00Z"

STRATEGY: Final = (
    _refused("eventTimeColumn", "t", "u", _MEANING),
    _refused("timestampUnit", "us", "ms", _MEANING, eventTimeColumn="n"),
    _refused("timePattern", "(.*)", "([^,]*)", _MEANING, eventTimeColumn="s"),
    _refused("timeZone", "UTC", "Europe/Berlin", f"where the event time may say no zone: {_MEANING}"),
    _refused("eventTimeFrom", None, "1970-01-02T00:00:00Z", _RANGE),
    _refused("eventTimeUntil", "3000-01-01T00:00:00Z", "3001-01-01T00:00:00Z", _RANGE),
    _may("overlap", "drop", "fail", _FROM_NOW_ON, eventTimeUntil=_BEHIND_ALL),
    _refused("overlap", "drop", "keep", f"to or from `keep`: {_RANGE}", eventTimeUntil=_BEHIND_ALL),
    _may(
        "maxOutOfOrderness",
        "5 seconds",
        "1 hour",
        f"with a longer one: {_WATERMARKS}; one that would be earlier waits until it is not",
    ),
    _may(
        "maxOutOfOrderness",
        "1 hour",
        None,
        f"with a shorter one, or none: {_WATERMARKS}; they go on with the next plan",
    ),
    _may(
        "idleTimeout",
        "1 minute",
        "none",
        f"{_WATERMARKS}; a split is idle by the new timeout, from since it was silent",
    ),
    _may("idleTimeout", "none", "1 ms", f"{_WATERMARKS}; a split is idle by the new timeout, from since it was silent"),
    _may("maxDrift", "10 seconds", "1 hour", f"{_WATERMARKS}; what is ahead waits by the new limit"),
    _may("maxDrift", "1 hour", "1 second", f"{_WATERMARKS}; what is ahead waits by the new limit"),
    _may("alignmentGroup", None, "both", f"{_WATERMARKS}; groups leave nothing in an offset", maxDrift="1 hour"),
    _may("updateInterval", "1 second", "5 seconds", "none: it is in no offset", maxDrift="1 hour"),
)

_NO_STATE = "none: it is in no offset"

FRAME: Final = (
    _may("eventTimeAs", None, "happened", "none here; Spark refuses other columns where its own state has them"),
    _may("lateness", "bounded", "none", f"{_WATERMARKS}; the new rule counts from the next plan on"),
    _may("lateness", "none", "bounded", f"{_WATERMARKS}; the new rule counts from the next plan on"),
    _may("late", "keep", "drop", f"{_FROM_NOW_ON}; a micro-batch whose offset says that it is routed stays routed"),
    _may(
        "late",
        "route",
        "keep",
        f"{_FROM_NOW_ON}; a micro-batch whose offset says that it is routed stays routed",
        lateLocation="{tmp}/late",
    ),
    _may(
        "lateLocation",
        "{tmp}/one",
        "{tmp}/two",
        f"{_FROM_NOW_ON}; move the files that are there, which `late_records` looks for at the new place",
        late="route",
    ),
    _may("invalidTimestamp", "fail", "drop", _FROM_NOW_ON),
    _may("maxFutureSkew", None, "1 hour", f"{_FROM_NOW_ON}; of a micro-batch read again its offset has the limit"),
    _refused(
        "watermarkRows",
        None,
        "true",
        "from a plain `withWatermark` to the exact watermark: Spark's own may be ahead of it",
        "checkpoint is of a query with a plain withWatermark",
    ),
    _may("watermarkRows", "true", None, f"from the exact to a plain `withWatermark`: {_WATERMARKS}"),
    _may("includeMetadata", "true", "true", "none here; Spark refuses other columns where its own state has them"),
    _may("alignmentScope", None, "query", _NO_STATE, alignmentGroup="both", maxDrift="1 hour"),
    _may("alignmentLocation", None, "{tmp}/groups", _NO_STATE, alignmentGroup="both", maxDrift="1 hour"),
    _may("maxRowsPerTrigger", "5", "2", _NO_STATE),
    _may("maxRowsPerTrigger", "5", None, _NO_STATE),
    _may("minRowsPerTrigger", None, "2", _NO_STATE),
    _may("maxTriggerDelay", "15 minutes", "1 minute", _NO_STATE),
    _may(
        "numReaders",
        "1",
        "7",
        f"{_NO_STATE}; a micro-batch read again is cut for the new number, its records are the same",
    ),
    _may(
        "numReaders",
        "7",
        "1",
        f"{_NO_STATE}; a micro-batch read again is cut for the new number, its records are the same",
    ),
    _may("allowUnalignedSourceSplits", "false", "true", _NO_STATE),
    _may("gatewayHost", None, "127.0.0.1", _NO_STATE),
    _may("gatewayPort", None, "0", _NO_STATE),
    Change("gatewayCertificate", {}, {"gatewayCertificate": "c.pem", "gatewayKey": "k.pem"}, _NO_STATE),
    Change("gatewayKey", {}, {"gatewayCertificate": "c.pem", "gatewayKey": "k.pem"}, _NO_STATE),
    _may("warnAfter", None, "none", _NO_STATE),
    _may("eventLog", None, "{tmp}/events", _NO_STATE),
)

_IDENTITY = "the offset has a digest of it: " + _ROWS
_FILE = {"splitBy": "file"}
_OTHER_COLUMNS = "Spark refuses other columns where its own state has them"
_COLUMNS = f"none here; {_OTHER_COLUMNS}"
_CSV = {"fileFormat": "csv", "dataSchema": "t timestamp, n bigint, u timestamp", "path": "{csv}"}
_JSON = {"fileFormat": "json", "dataSchema": "t timestamp, n bigint, u timestamp", "path": "{json}"}
_READING = "kept: rows keep their numbers; what was not read yet is read in the new way"

FILES: Final = (
    _refused("path", "{in}", "{in}/a", _IDENTITY, _OTHER),
    Change("fileFormat", {}, {**_CSV, "path": "{in}"}, _IDENTITY, _OTHER),
    _refused("pathGlobFilter", None, "*.parquet", _IDENTITY, _OTHER),
    _refused("header", None, "true", _IDENTITY, _OTHER, **_CSV),
    _refused("comment", None, "#", _IDENTITY, _OTHER, **_CSV),
    _refused("multiLine", None, "true", _IDENTITY, _OTHER, **_CSV),
    _refused("multiLine", None, "true", _IDENTITY, _OTHER, **_JSON),
    _refused(
        "timeZone", "UTC", "Europe/Berlin", "with `csv` and `json` whatever the event time is: " + _ROWS, _OTHER, **_CSV
    ),
    _refused("splitBy", "directory", "file", "from `directory` to `file`, or back: other splits"),
    _may("splitBy", "auto", "directory", "from `auto`: kept, since the first start has decided"),
    _refused(
        "bounded",
        "true",
        "false",
        "from `true` to `false`: its windows are closed, and later files would never be read",
    ),
    _may(
        "bounded",
        "false",
        "true",
        "from `false` to `true`: kept, and it ends with the files that are there at the second start",
    ),
    _refused("fileOrder", "eventTime", "name", _FINISHED, **_FILE),
    _refused("fileOrder", "name", "modificationTime", _FINISHED, **_FILE),
    _refused("fileNameOnly", "false", "true", _FINISHED, **_FILE),
    _refused("fileNameOnly", "true", "false", _FINISHED, **_FILE),
    _may("stateLocation", None, "{tmp}/state", "kept: what is written down there begins with what was known", **_FILE),
    _refused("stateLocation", "{tmp}/state", None, f"from one to none: {_FINISHED}", **_FILE),
    _refused("stateLocation", "{tmp}/one", "{tmp}/two", "to a place that has not what was written down", **_FILE),
    _may("maxFileAge", "7 days", "1 ms", "kept: what is forgotten stays so", **_FILE),
    _may("maxFileAge", "1 ms", "7 days", "kept: what is forgotten stays so", **_FILE),
    _may(
        "modifiedAfter",
        None,
        "2001-01-01T00:00:00",
        "kept: other files are there from now on; one that is half read must be",
        **_FILE,
    ),
    _may(
        "modifiedBefore",
        None,
        "2100-01-01T00:00:00",
        "kept: other files are there from now on; one that is half read must be",
    ),
    _may("filesAhead", None, "2", _NO_STATE),
    _may("caseSensitive", None, "true", _FROM_NOW_ON),
    _may("ignoreSinkLog", None, "true", "kept: other files are there from now on; one that is half read must be"),
    _may("discoveryInterval", "1 second", "5 seconds", _NO_STATE),
    _may("indexing", "auto", "scan", "none: what is known ahead of reading is in no offset"),
    _may("indexing", "statistics", "auto", "none: what is known ahead of reading is in no offset"),
    _may("maxFilesPerTrigger", "1", "3", _NO_STATE, **_FILE),
    _may("maxBytesPerTrigger", "1", None, _NO_STATE, **_FILE),
    _may(
        "allowOverwrites",
        "false",
        "true",
        "kept: a file that was rewritten counts as new, or is refused, from now on",
        **_FILE,
    ),
    _may(
        "allowOverwrites",
        "true",
        "false",
        "kept: a file that was rewritten counts as new, or is refused, from now on",
        **_FILE,
    ),
    _may("cleanSource", "off", "delete", "kept: what is finished by now is cleaned at the second start"),
    Change(
        "sourceArchiveDir",
        {},
        {"cleanSource": "archive", "sourceArchiveDir": "{tmp}/archive"},
        "kept: files go there from now on",
    ),
    _may("columns", None, "t,n", _COLUMNS),
    _may("recursiveFileLookup", "false", "true", _COLUMNS),
    _may("schemaEvolution", "ignore", "addAtRestart", _COLUMNS),
    _may("fileMetadata", "false", "true", _COLUMNS),
    _may("ignoreMissingFiles", "false", "true", _POSITIONS),
    _may("ignoreCorruptFiles", "false", "true", _POSITIONS),
    _may("ignoreChangedFiles", "false", "true", _POSITIONS),
    _may("dataSchema", None, "t timestamp_ntz, n bigint, u timestamp_ntz", _COLUMNS),
    _may("latestFirst", None, "false", "none: only `false` is taken"),
    Change(
        "storage.*",
        {"path": "local://{in}"},
        {"path": "local://{in}", "storage.auto_mkdir": "true"},
        "kept, and in no offset: it may be another key, or another address of the same store",
    ),
    _may("credentials", None, "tests.spark.changed_options:no_secrets", _NO_STATE, path="local://{in}"),
    _may("inferSchema", None, "true", _COLUMNS, **_CSV),
    _may("sep", None, ",", _READING, **_CSV),
    _may("quote", None, "'", _READING, **_CSV),
    _may("escape", None, "\\", _READING, **_CSV),
    _may("nullValue", None, "NULL", _READING, **_CSV),
    _may("mode", None, "DROPMALFORMED", _READING, **_CSV),
    _may("mode", "FAILFAST", None, _READING, **_JSON),
    _may("columnNameOfCorruptRecord", None, "broken", _READING, **_CSV),
    _may("rescuedDataColumn", None, "rest", _READING, **_CSV),
    _may("timestampFormat", None, "yyyy-MM-dd HH:mm:ss", f"{_READING}; {_WATERMARKS}", **_CSV),
    _may("dateFormat", None, "dd.MM.yyyy", _READING, **_CSV),
    _may("encoding", None, "ISO-8859-1", f"{_READING}; lines must end where they did", **_CSV),
    _may("compression", None, "none", f"{_READING}; lines must end where they did", **_CSV),
)

_JSON = {"valueFormat": "json", "valueSchema": "x int", "invalidValue": "null"}
_AVRO = {"valueFormat": "avro", "schemaRegistryUrl": "{registry}"}
_NO_SCHEMA = "none: no schema is in an offset; the registry must have schemas under the same ids"
_TESTS = "tests.kafka"
_SASL = {
    "kafka.bootstrap.servers": "{secure}",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.ssl.ca.location": "{certificate}",
}
_SCRAM = {
    **_SASL,
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": USER,
    "kafka.sasl.password": PASSWORD,
}
_END = "splits end where the first run's options say"

KAFKA: Final = (
    _refused("subscribe", "{topic}", "{topic},another", _IDENTITY, _OTHER),
    _refused("subscribePattern", "^{topic}", "^{topic}$", _IDENTITY, _OTHER, subscribe=""),
    _refused("assign", '{{"{topic}": [0]}}', '{{"{topic}": [0, 1]}}', _IDENTITY, _OTHER, subscribe=""),
    _refused("bounded", "true", None, _END, "checkpoint is of a source that ended at latest"),
    _refused(
        "endingOffsets", None, '{{"{topic}": {{"0": 9, "1": 9}}}}', _END, "checkpoint is of a source that did not end"
    ),
    _refused("endingTimestamp", "99", "100", _END, "this one ended at endingTimestamp 100"),
    _refused(
        "endingOffsetsByTimestamp",
        '{{"{topic}": {{"0": 9, "1": 9}}}}',
        '{{"{topic}": {{"0": 9, "1": 8}}}}',
        _END,
        "this one ended at endingOffsetsByTimestamp",
    ),
    _may("startingOffsets", "earliest", "latest", "kept, as with Spark's own source: it is for the first run alone"),
    _may("startingTimestamp", None, "99", "kept, as with Spark's own source: it is for the first run alone"),
    _may(
        "startingOffsetsByTimestamp",
        None,
        '{{"{topic}": {{"0": 9}}}}',
        "kept, as with Spark's own source: it is for the first run alone",
    ),
    _may(
        "startingOffsetsByTimestampStrategy",
        None,
        "latest",
        "kept, as with Spark's own source: it is for the first run alone",
    ),
    _may("valueFormat", None, "string", _COLUMNS),
    Change("valueSchema", {"valueFormat": "string"}, _JSON, _COLUMNS),
    Change("invalidValue", {}, _JSON, _FROM_NOW_ON),
    *(Change(name, _JSON, {**_JSON, name: "dd.MM.yyyy"}, _FROM_NOW_ON) for name in ("timestampFormat", "dateFormat")),
    Change("schemaRegistryUrl", _AVRO, {**_AVRO, "schemaRegistryUrl": "{moved}"}, _NO_SCHEMA),
    Change(
        "schemaRegistry.*",
        _AVRO,
        {**_AVRO, "schemaRegistryUrl": "{secured}", "schemaRegistry.basic.auth.user.info": "user:password"},
        _NO_SCHEMA,
    ),
    _may("valueSubject", None, "other", f"none: no schema is in an offset; {_OTHER_COLUMNS}", **_AVRO),
    _may("includeHeaders", None, "true", _COLUMNS),
    _may("failOnDataLoss", "true", "false", _FROM_NOW_ON),
    _may("discoveryInterval", None, "1 second", _NO_STATE),
    _may("brokerTimeout", None, "1 minute", _NO_STATE),
    _may("fetchOffset.numRetries", None, "3", _NO_STATE),
    _may("fetchOffset.retryIntervalMs", None, "10", _NO_STATE),
    _may("kafkaConsumer.pollTimeoutMs", None, "60000", _NO_STATE),
    _may("indexing", "auto", "scan", "between `auto` and `scan`: none: what is known ahead of reading is in no offset"),
    _may(
        "indexing",
        "scan",
        "off",
        f"to `off` and from it: {_WATERMARKS}; from `off` they catch up with the positions first",
        watermarkRows="true",
    ),
    _may(
        "indexing",
        "off",
        "auto",
        f"to `off` and from it: {_WATERMARKS}; from `off` they catch up with the positions first",
        watermarkRows="true",
    ),
    _may("reportLocation", None, "{tmp}/reports", _NO_STATE, indexing="off", watermarkRows="true"),
    _may("groupIdPrefix", None, "mine", _NO_STATE),
    _may(
        "minPartitions",
        None,
        "4",
        f"{_NO_STATE}; a micro-batch read again is cut for the new number, its records are the same",
    ),
    _may(
        "maxRecordsPerPartition",
        None,
        "1",
        f"{_NO_STATE}; a micro-batch read again is cut for the new number, its records are the same",
    ),
    _may("tokenProvider", f"{_TESTS}.test_secure:token", f"{_TESTS}.test_changed_options:token", _NO_STATE, **_SASL),
    _may("credentials", None, f"{_TESTS}.test_secure:login", _NO_STATE, **_SCRAM),
    _may(
        "storage.*",
        None,
        None,
        "none: it is for `lateLocation`, `alignmentLocation` and `reportLocation`, and in no offset",
    ),
    _may(
        "kafka.*",
        None,
        None,
        "kept: brokers may move; at another cluster topics have other ids, which is data loss (`failOnDataLoss`)",
    ),
)

DATAGEN: Final = (
    _refused("splits", "3", "4", _IDENTITY, _OTHER),
    _refused("rowsPerSecond", "10", "20", _IDENTITY, _OTHER),
    _refused("rowsPerSplit", "40", "50", _IDENTITY, _OTHER),
    _refused("skew", "1", "2", _IDENTITY, _OTHER),
    _refused("disorder", "0 seconds", "1 second", _IDENTITY, _OTHER),
    _refused("startTime", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z", _IDENTITY, _OTHER),
    _refused("idleSplits", "1", "2", _IDENTITY, _OTHER, idleAfter="5", idleFor="1 second"),
    _refused("idleAfter", "5", "6", _IDENTITY, _OTHER, idleSplits="1", idleFor="1 second"),
    _refused("idleFor", "1 second", "2 seconds", _IDENTITY, _OTHER, idleSplits="1", idleAfter="5"),
    _refused("seed", "0", "1", _IDENTITY, _OTHER),
    _refused("numKeys", "10", "11", _IDENTITY, _OTHER),
    _may("bounded", "false", "true", "kept: what was to arrive is there at once", rowsPerSecond="1000000"),
    _may("discoveryInterval", "1 second", "5 seconds", _NO_STATE),
)


def table() -> str:
    """As docs/reliability.md has it: a row for each connector, verdict and effect."""
    lines = ["| of | option | in the second run | the state |", "|---|---|---|---|"]
    parts = {"every format": (*STRATEGY, *FRAME), "files": FILES, "Kafka": KAFKA, "datagen": DATAGEN}
    for name, changes in parts.items():
        rows: dict[tuple[bool, str], dict[str, None]] = {}
        for change in sorted(changes, key=lambda change: not change.refused):
            rows.setdefault((bool(change.refused), change.state), {}).setdefault(f"`{change.option}`")
        for (refused, state), options in rows.items():
            lines.append(f"| {name} | {', '.join(options)} | {'refused' if refused else 'may differ'} | {state} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
