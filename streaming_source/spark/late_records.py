"""The side output of late records: a frame of its own for a query of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_source.spark.datasource import FORMATS, AlignedDataSource
from streaming_source.spark.loaded import loaded_from
from streaming_source.spark.watermark_rows import EMITTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["late_records"]


def late_records(df: DataFrame, checkpoint: str, *, from_batch: int | None = None) -> DataFrame:
    """The late records of a query with option `late=route`, as a streaming frame for a second query.

    The one query keeps the others, and together they have every record once, whatever restarts, in whichever order.
    This frame follows the offsets that the query has committed; what can no longer be read as it was is an error.

    Parameters
    ----------
    df
        The frame that the query was made of, as `read_stream`, `from_source`, `with_exact_watermark` or `load()` gave
        it.
    checkpoint
        The `checkpointLocation` of the query: a local path, or a URI that pyarrow opens.
    from_batch
        Number of the first micro-batch of the query to read of; by default all.

    Returns
    -------
    DataFrame
        The columns of `df`, without a watermark.

    Raises
    ------
    OptionError
        If the frame has operations on it, or not option `late=route`.

    Examples
    --------
    >>> late = late_records(events, "/checkpoints/windows")  # doctest: +SKIP
    >>> late.writeStream.option("checkpointLocation", "/checkpoints/late").start("/data/late")  # doctest: +SKIP
    """
    loaded = loaded_from(df, "late_records", may_be_exact=True)
    options = {**loaded.options, "lateRecordsOf": checkpoint}
    if loaded.is_exact:
        options["watermarkRows"] = EMITTED
    if from_batch is not None:
        options["lateRecordsFrom"] = str(from_batch)
    if loaded.format_name in FORMATS:
        # Checked here, in the user's own call; a source of the user's own is known to Spark alone.
        AlignedDataSource.of_format(loaded.format_name, options)
    return df.sparkSession.readStream.format(loaded.format_name).schema(df.schema).options(**options).load()
