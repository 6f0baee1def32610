"""The kinds of sources that can be audited, recognized by their offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from streaming_source.api.options import boolean
from streaming_source.checkpoint.offset_log import RESTORE, Checkpoint
from streaming_source.checkpoint.source_offsets import TableOffset, kind_of, table_offset
from streaming_source.exceptions import CheckpointError, OptionError
from streaming_source.tools.auditing.sources.base import Asked, AuditedSource

# What reads a source is imported for a query that has one: each needs an extra, and files none of them.


def source_of(asked: Asked) -> AuditedSource:
    """Return the query's source of a number; raises a `CheckpointError` if it is of no kind that can be audited."""
    checkpoint, number = asked.checkpoint, asked.number
    offset = _last_offset(checkpoint, number)
    kind = kind_of(offset)
    if kind == "ours":
        raise CheckpointError(
            f"{checkpoint.path}: its source is of this library, and marks what is late itself; use "
            f"streaming-source explain {checkpoint.path}"
        )
    if kind not in _KINDS:
        raise CheckpointError(
            f"{checkpoint.path}: source {number} has offsets such as {offset[:80]}, of another kind of source; files, "
            "Delta, Iceberg and Kafka are audited"
        )
    opened, what = _KINDS[kind]
    try:
        return opened(asked)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"source {number} reads {what}, and {error.name} is not installed; pip install "
            f"'spark-watermark-alignment[{kind}]'"
        ) from None


def _files(one: Asked) -> AuditedSource:
    from streaming_source.tools.auditing.sources.files import FilesSource

    return FilesSource(one)


def _kafka(one: Asked) -> AuditedSource:
    from streaming_source.tools.auditing.sources.kafka import KafkaTopics

    return KafkaTopics(one)


def _delta(one: Asked) -> AuditedSource:
    if one.path is None:
        raise OptionError(
            f"source {one.number} reads a Delta table, and the checkpoint keeps its id, not its path; give it with "
            "--source PATH"
        )
    from streaming_source.connectors.delta import DeltaSource
    from streaming_source.tools.auditing.sources.tables import AuditedTable

    table = DeltaSource(one.path, storage=one.storage.at(one.path).storage, time_zone=one.event_time.zone)
    version = one.options.get("startingVersion")
    start = None if version is None else TableOffset(int(version) - 1, None)
    return AuditedTable(one, table, start, reads_changes=_reads_changes(one.options))


def _reads_changes(options: Mapping[str, str]) -> bool | None:
    """Return whether a query over a Delta table reads what commits that remove rows add; None if no option tells."""
    chosen = [name for name in ("skipChangeCommits", "ignoreChanges") if boolean(name, options.get(name, "false"))]
    if len(chosen) > 1:
        raise OptionError(
            "skipChangeCommits and ignoreChanges are both true: the first passes over what the second reads; give the "
            "one that the query has"
        )
    return chosen == ["ignoreChanges"] if chosen else None


def _iceberg(one: Asked) -> AuditedSource:
    if one.path is None:
        raise OptionError(
            f"source {one.number} reads an Iceberg table, and the checkpoint keeps ids of its snapshots, not its name; "
            "give it with --source db.clicks, and its catalog with -o catalog.type=rest"
        )
    from streaming_source.connectors.iceberg import IcebergSource
    from streaming_source.connectors.iceberg.catalog import properties_of
    from streaming_source.tools.auditing.sources.tables import AuditedTable

    # Spark writes down where a query starts.
    written = f"sources/{one.checkpoint.source_folders[one.number]}/offsets/0"
    start = one.checkpoint.log.text(written)
    if start is None:
        raise CheckpointError(f"{one.checkpoint.path}/{written}, where the query started, is missing; {RESTORE}")
    given = {name[len("catalog.") :]: text for name, text in one.options.items() if name.startswith("catalog.")}
    table = IcebergSource(one.path, catalog=properties_of(given))
    # It passes over snapshots that remove rows, or ends.
    return AuditedTable(one, table, table_offset("iceberg", start), reads_changes=False)


_KINDS: Final[Mapping[str | None, tuple[Callable[[Asked], AuditedSource], str]]] = {
    "files": (_files, "files"),
    "kafka": (_kafka, "Kafka"),
    "delta": (_delta, "a Delta table"),
    "iceberg": (_iceberg, "an Iceberg table"),
}


def _last_offset(checkpoint: Checkpoint, number: int) -> str:
    purged = [] if checkpoint.purged_until is None else [checkpoint.purged_until[number]]
    offsets = [*purged, *(batch.ends[number] for batch in checkpoint.batches)]
    text = next((offset for offset in reversed(offsets) if offset is not None), None)
    if text is None:
        raise CheckpointError(
            f"{checkpoint.path}: source {number} has not delivered a row yet; audit the query when it has"
        )
    return text
