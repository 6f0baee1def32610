"""Taking over the checkpoint of a query that read an Iceberg table with Spark's own source."""

from __future__ import annotations

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.checkpoint.source_offsets import parsed
from streaming_source.cli.copied_checkpoint import GIVE_NUMBER
from streaming_source.cli.take_over_table import TakenOverTable, Unread, take_over_table, unread_files
from streaming_source.connectors import IcebergSource  # first: its error names the extra that is missing
from streaming_source.connectors.iceberg.catalog import DEFAULT_CATALOG, CatalogProperties
from streaming_source.connectors.iceberg.chain import BEFORE_ALL
from streaming_source.connectors.iceberg.spark_offset import SparkIcebergOffset
from streaming_source.exceptions import OffsetError

__all__ = ["take_over_iceberg"]


def take_over_iceberg(
    checkpoint: str, new_checkpoint: str, *, table: str, catalog: CatalogProperties = DEFAULT_CATALOG, source: int = 0
) -> TakenOverTable:
    """Copy the checkpoint of a stopped query, with offsets of `aligned_iceberg` for those of Iceberg's own source.

    Numbers of micro-batches, the query's id, its watermark and its state are kept, so that sinks recognise what they
    have. The old checkpoint is not changed. The query had neither branch nor tag.

    Parameters
    ----------
    checkpoint, new_checkpoint
        A path each, or a URI that `pyarrow.fs` knows; the new checkpoint must not exist yet.
    table, catalog
        The table, as the new query loads it: the checkpoint names only its snapshots.
    source
        Number of the query's source, counted from 0 as in its progress.

    Raises
    ------
    OptionError
        If there is no such checkpoint, the new one exists, or the table cannot be loaded.
    OffsetError
        If the checkpoint is of no query over Spark's Iceberg source, or its last micro-batch was not committed, or the
        table has no such snapshot (any more).
    UnsupportedOperationError
        If more than 500 files of a snapshot are unread: our offsets cannot hold the order in which Spark reads them.
    """
    iceberg = IcebergSource(table, catalog=catalog)
    # Bounds of event times are not needed: files that are not all read are in work.
    lister = iceberg.open_lister(iceberg.schema(), RecordTimestampAssigner())

    def unread(text: str) -> Unread:
        place = parsed(SparkIcebergOffset.parse, text, "an offset of Spark's own Iceberg source", GIVE_NUMBER)
        if place.snapshot_id == BEFORE_ALL:
            return Unread(lister.table_id, BEFORE_ALL, [])
        if not lister.has_snapshot(place.snapshot_id):
            raise OffsetError(
                f"checkpoint {checkpoint!r} is at snapshot {place.snapshot_id}, which {iceberg.title} has not: it has "
                "expired, or the query reads another table. Give that one, or start the new query with another "
                "checkpointLocation"
            )
        listed = lister.snapshot(place.snapshot_id) if place.reads_all else lister.added_by(place.snapshot_id)
        files = unread_files(iceberg.title, place.snapshot_id, listed, place.position)
        return Unread(lister.table_id, place.snapshot_id, files)

    return take_over_table(checkpoint, new_checkpoint, source, iceberg, unread)
