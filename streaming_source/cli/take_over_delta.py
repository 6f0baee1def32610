"""Taking over the checkpoint of a query that read a Delta table with Spark's own source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.cli.copied_checkpoint import CopiedCheckpoint, state_at
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.tables.checkpoint import TableCheckpoint
from streaming_source.connectors.tables.lister import FILES, TableFile
from streaming_source.connectors.tables.split import TableSplit
from streaming_source.connectors.tables.waiting import Progress
from streaming_source.exceptions import OffsetError, OptionError, UnsupportedOperationError
from streaming_source.spark.offsets import OffsetCodec

__all__ = ["TakenOverTable", "take_over_delta"]

_FILES: Final = 500
"""Most files, unread by Spark's source, that an offset may have; all of them are in work."""


@dataclass(frozen=True, slots=True)
class TakenOverTable:
    """Where a query continues: the number of its first micro-batch, and unread files of the last version."""

    next_batch: int
    version: int
    files: int


def take_over_delta(checkpoint: str, new_checkpoint: str, *, table: str, source: int = 0) -> TakenOverTable:
    """Copy the checkpoint of a stopped query, with offsets of `aligned_delta` in place of those of Delta's own source.

    Numbers of micro-batches, the query's id, its watermark and its state are kept, so that sinks recognise what they
    have. The old checkpoint is not changed.

    Parameters
    ----------
    checkpoint, new_checkpoint
        A path each, or a URI that `pyarrow.fs` knows; the new checkpoint must not exist yet.
    table
        Folder of the table, as the new query loads it: the checkpoint has the table's id but not its path.
    source
        Number of the query's source, counted from 0 as in its progress.

    Raises
    ------
    OptionError
        If there is no such checkpoint, the new one exists, or the table is another one.
    OffsetError
        If the checkpoint is of no query over Spark's Delta source, or its last micro-batch was not committed.
    UnsupportedOperationError
        If more than 500 files of a version are unread: our offsets cannot hold the order in which Spark reads them.
    """
    copied = CopiedCheckpoint(checkpoint, new_checkpoint, source)
    if copied.is_read_again:
        # No offset of ours has its files unread: the last one has them read, and earlier ones do not list them.
        raise OffsetError(
            f"checkpoint {checkpoint!r}: micro-batch {copied.next_batch} was planned and not committed. Start the old "
            "query with Trigger.AvailableNow, let it end, and take it over then"
        )
    delta = DeltaSource(table)
    files = _SparkFiles(delta)
    taken: list[tuple[int, int]] = []

    def encode(sequence: int, text: str, watermark_ms: int) -> object:
        place = _Place.of(text, checkpoint)
        if place.table_id != files.table_id:
            raise OptionError(
                f"table = {table!r} has the id {files.table_id}, and the checkpoint is of the table {place.table_id}; "
                "give the folder of that one"
            )
        left = files.behind(place)
        taken.append((place.after, len(left)))
        checkpoint_of_table = TableCheckpoint(place.table_id, Progress(place.after))
        return OffsetCodec(delta).encode(state_at(sequence, map(TableSplit, left), watermark_ms, checkpoint_of_table))

    copied.write(encode)
    if not taken:
        raise OffsetError(f"checkpoint {checkpoint!r} has no offset of source {source}: the query has read nothing yet")
    version, n_files = taken[-1]
    return TakenOverTable(copied.next_batch, version, n_files)


class _Place(NamedTuple):
    """The position of Spark's source: after file `number` of a version, in its snapshot or in its commit."""

    table_id: str
    version: int
    number: int
    in_snapshot: bool

    @staticmethod
    def of(text: str, checkpoint: str) -> _Place:
        """Read `{"reservoirId": .., "reservoirVersion": 7, "index": 3, "isStartingVersion": false}`."""
        try:
            found = json.loads(text)
            place = (found["reservoirId"], int(found["reservoirVersion"]), int(found["index"]))
            return _Place(*place, bool(found["isStartingVersion"]))
        except (ValueError, TypeError, LookupError):
            raise OffsetError(
                f"checkpoint {checkpoint!r} has {text[:80]!r} where an offset of Spark's own Delta source should be; "
                "give the number of that source, as it is in the query's progress"
            ) from None

    @property
    def after(self) -> int:
        """The version up to which all files are read or listed one by one; a negative `number` is before a commit."""
        return self.version if self.in_snapshot or self.number >= 0 else self.version - 1


class _SparkFiles:
    """The files of versions, in the order in which Spark's source reads them."""

    def __init__(self, source: DeltaSource) -> None:
        self._source = source
        # Bounds of event times are not needed: these files are in work.
        self._lister = source.open_lister(source.schema(), RecordTimestampAssigner())

    @property
    def table_id(self) -> str:
        return self._lister.table_id

    def behind(self, place: _Place) -> list[TableFile]:
        """Return the files of a version that Spark's source has not read."""
        if place.number < 0 and not place.in_snapshot:
            return []
        if place.in_snapshot:
            files = self._of_snapshot(place.version)
        else:
            commits = self._lister.commits(place.version - 1, place.version)
            files = [] if commits is None else _files(commits.files)
        # Negative numbers are before the first file.
        left = files[max(place.number, -1) + 1 :]
        if len(left) > _FILES:
            raise UnsupportedOperationError(
                f"{self._source.title}: {len(left)} files of version {place.version} were not read yet, and an offset "
                f"of ours takes {_FILES} of them. Let the old query read on, or start the new one with another "
                "checkpointLocation, which reads the table by event time"
            )
        return left

    def _of_snapshot(self, version: int) -> list[TableFile]:
        modified_ms = self._source.modification_times(version)
        return sorted(_files(self._lister.snapshot(version)), key=lambda file: (modified_ms[file.path], file.path))


def _files(listed: pa.Table) -> list[TableFile]:
    rows = listed.select([name for name in FILES.names if name not in ("low_us", "high_us")]).to_pylist()
    return [TableFile(**row, low_us=None, high_us=None) for row in rows]
