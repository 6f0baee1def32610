"""Taking over the checkpoint of a query that read a Delta table with Spark's own source."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.checkpoint.source_offsets import parsed
from streaming_source.cli.copied_checkpoint import GIVE_NUMBER
from streaming_source.cli.take_over_table import TakenOverTable, Unread, take_over_table, unread_files
from streaming_source.connectors import DeltaSource  # first: its error names the extra that is missing
from streaming_source.connectors.delta.spark_offset import SparkDeltaOffset
from streaming_source.connectors.tables.files import TableFile
from streaming_source.exceptions import OptionError

__all__ = ["take_over_delta"]


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
    delta = DeltaSource(table)
    files = _SparkFiles(delta)

    def unread(text: str) -> Unread:
        place = parsed(SparkDeltaOffset.parse, text, "an offset of Spark's own Delta source", GIVE_NUMBER)
        if place.table_id != files.table_id:
            raise OptionError(
                f"table = {table!r} has the id {files.table_id}, and the checkpoint is of the table {place.table_id}; "
                "give the folder of that one"
            )
        return Unread(place.table_id, place.listed_up_to, files.behind(place))

    return take_over_table(checkpoint, new_checkpoint, source, delta, unread)


class _SparkFiles:
    """The files of versions, in the order in which Spark's source reads them."""

    def __init__(self, source: DeltaSource) -> None:
        self._source = source
        # Bounds of event times are not needed: these files are in work.
        self._lister = source.open_lister(source.schema(), RecordTimestampAssigner())

    @property
    def table_id(self) -> str:
        return self._lister.table_id

    def behind(self, place: SparkDeltaOffset) -> list[TableFile]:
        """Return the files of a version that Spark's source has not read."""
        if place.number < 0 and not place.in_snapshot:
            return []
        if place.in_snapshot:
            listed = self._of_snapshot(place.version)
        else:
            (commit,) = self._lister.commits(place.version - 1, place.version).whole()
            listed = commit.files()
        # Negative numbers are before the first file.
        return unread_files(self._source.title, place.version, listed, max(place.number, -1) + 1)

    def _of_snapshot(self, version: int) -> pa.Table:
        modified_ms = self._source.modification_times(version)
        listed = self._lister.snapshot(version)
        paths = listed["path"].to_pylist()
        order = sorted(range(len(paths)), key=lambda place: (modified_ms[paths[place]], paths[place]))
        return listed.take(pa.array(np.array(order, np.int64)))
