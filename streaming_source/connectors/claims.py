"""Source watermarks of tables and directories: what a user names of their writers, and what these claim."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from alignment.arrow_times import may_lack_zone
from alignment.column_paths import fields_on_path
from alignment.durations import parse_duration_us
from alignment.time_texts import UTC
from alignment.timestamps import FieldTimestampAssigner, TimestampAssigner
from alignment.watermarks import Claim
from streaming_source.checkpoint.writer import TableWriters, declared_writers
from streaming_source.data_files.config import ClaimOptions
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError


def open_claims(
    options: ClaimOptions,
    storage: StorageOptions,
    schema: pa.Schema,
    assigner: TimestampAssigner,
    known: Iterable[Claim],
) -> TableWriters:
    """Return the writers that a user names, by claims on the column with the event times; an offset has the `known`.

    Reads a few small files of each checkpoint. A `ClaimError` if one is gone, or no claim can be had of its query; an
    `OptionError` if event times do not come from a column, or are in another zone than the claims.
    """
    assert options.watermark_from is not None
    if not isinstance(assigner, FieldTimestampAssigner):
        raise OptionError(
            "option watermarkFrom needs eventTimeColumn: claims are on a column of the table; name it, as window.end"
        )
    delay_us = None if options.claim_delay is None else parse_duration_us(options.claim_delay, name="claimDelay")
    is_local = any(may_lack_zone(field.type) for field in fields_on_path(schema, assigner.column)[-1:])
    zone = (assigner.zone or UTC) if is_local else None
    writers = declared_writers(options.watermark_from, assigner.column, delay_us, storage.opened, zone)
    found = TableWriters(writers, known)
    found.check()
    return found
