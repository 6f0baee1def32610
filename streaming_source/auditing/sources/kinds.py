"""The kinds of sources that can be audited, recognized by their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streaming_source.api.options import boolean
from streaming_source.auditing.sources.base import AuditedSource
from streaming_source.auditing.sources.event_time import EventTime
from streaming_source.auditing.sources.files import FilesSource
from streaming_source.checkpoint.micro_batches import Checkpoint
from streaming_source.checkpoint.source_offsets import kind_of
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import CheckpointError, OptionError

__all__ = ["source_of"]

_KNOWN: Final = "files, Delta, Iceberg and Kafka are audited"


def source_of(
    checkpoint: Checkpoint,
    place: int,
    event_time: EventTime,
    *,
    path: str | None,
    options: Mapping[str, str],
    storage: StorageOptions,
) -> AuditedSource:
    """Return the query's source at a place; raises a `CheckpointError` if it is of no kind that can be audited."""
    offset = _last_offset(checkpoint, place)
    match kind_of(offset):
        case "files":
            return FilesSource(checkpoint, place, event_time, moved_to=path, options=options, storage=storage)
        case "delta":
            return _delta(checkpoint, place, event_time, path, options, storage)
        case "iceberg":
            return _iceberg(checkpoint, place, event_time, path, options)
        case "kafka":
            return _kafka(checkpoint, place, event_time, options)
        case "ours":
            raise CheckpointError(
                f"{checkpoint.path}: its source is of this library, and marks what is late itself; use "
                f"streaming-source explain {checkpoint.path}"
            )
    raise CheckpointError(
        f"{checkpoint.path}: source {place} has offsets such as {offset[:80]}, of another kind of source; {_KNOWN}"
    )


def _delta(
    checkpoint: Checkpoint,
    place: int,
    event_time: EventTime,
    path: str | None,
    options: Mapping[str, str],
    storage: StorageOptions,
) -> AuditedSource:
    try:
        # Imported here: it needs an extra.
        from streaming_source.auditing.sources.delta import DeltaTableSource
    except ModuleNotFoundError as error:
        raise _not_installed(place, "a Delta table", error.name, "delta") from None
    return DeltaTableSource(
        checkpoint,
        place,
        event_time,
        path=path,
        starting_version=options.get("startingVersion"),
        skips_changes=_skips_changes(options),
        storage=storage,
    )


def _skips_changes(options: Mapping[str, str]) -> bool | None:
    """Return whether a query over a Delta table passes over versions that change rows; None if no option tells."""
    chosen = [name for name in ("skipChangeCommits", "ignoreChanges") if boolean(name, options.get(name, "false"))]
    if len(chosen) > 1:
        raise OptionError(
            "skipChangeCommits and ignoreChanges are both true: the first passes over what the second reads; give the "
            "one that the query has"
        )
    return chosen == ["skipChangeCommits"] if chosen else None


def _iceberg(
    checkpoint: Checkpoint, place: int, event_time: EventTime, table: str | None, options: Mapping[str, str]
) -> AuditedSource:
    try:
        # Imported here: it needs an extra.
        from streaming_source.auditing.sources.iceberg import IcebergTableSource

        return IcebergTableSource(checkpoint, place, event_time, table=table, options=options)
    except ModuleNotFoundError as error:
        raise _not_installed(place, "an Iceberg table", error.name, "iceberg") from None


def _not_installed(place: int, what: str, name: str | None, extra: str) -> OptionError:
    return OptionError(
        f"source {place} reads {what}, and {name} is not installed; pip install 'spark-watermark-alignment[{extra}]'"
    )


def _kafka(checkpoint: Checkpoint, place: int, event_time: EventTime, options: Mapping[str, str]) -> AuditedSource:
    try:
        # Imported here: a query over files needs no client of Kafka.
        from streaming_source.auditing.sources.kafka import KafkaTopics
    except ModuleNotFoundError as error:
        raise _not_installed(place, "Kafka", error.name, "kafka") from None
    return KafkaTopics(checkpoint, place, event_time, options=options)


def _last_offset(checkpoint: Checkpoint, place: int) -> str:
    purged = [] if checkpoint.purged_until is None else [checkpoint.purged_until[place]]
    offsets = [*purged, *(batch.ends[place] for batch in checkpoint.batches)]
    text = next((offset for offset in reversed(offsets) if offset is not None), None)
    if text is None:
        raise CheckpointError(
            f"{checkpoint.path}: source {place} has not delivered a row yet; audit the query when it has"
        )
    return text
