"""The checkpoint of a streaming query, read without Spark: the one reader for all who need it. Nothing is written.

    offset_log            what is where: texts, bytes and listings; one file a micro-batch: watermark, settings, and the
                          offsets of all sources (v1, v2); the commit log beside it (v1 to v3)
    micro_batches         the micro-batches that were committed: by which watermark each dropped rows
    source_offsets        what an offset of Spark's own sources says: files, Kafka, Delta, Iceberg
    operators             the stateful operators, by what Spark keeps beside their state
    state_keys            the keys in the files of Spark's default state store
    writer                the query as the writer of a table: what it claims of its rows; all writers of a table

It reads what Spark 3.5 and later write. The state has the operators of Spark 4.0 and later.
"""

from __future__ import annotations

from typing import Final

POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
"""The setting by which Spark makes one watermark of several, `min` or `max`; a checkpoint keeps it."""

__all__: list[str] = []
