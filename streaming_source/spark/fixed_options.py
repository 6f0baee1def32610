"""Options that must stay as they are as long as a checkpoint is used, since watermarks are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from alignment.timestamps import FieldTimestampAssigner, RecordTimestampAssigner, raw_field
from streaming_source.coordinator import ReadRules
from streaming_source.exceptions import OffsetError

__all__ = ["check_fixed", "fixed_options", "may_say_no_zone"]


def fixed_options(rules: ReadRules, schema: pa.Schema) -> dict[str, Any]:
    """The options by which event times are read from the columns `schema`; those that say nothing are left out."""
    assigner = rules.strategy.timestamp_assigner
    fixed: dict[str, Any] = {}
    if isinstance(assigner, FieldTimestampAssigner):
        fixed = {"eventTimeColumn": assigner.column, "timestampUnit": assigner.unit}
        no_rows = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        if may_say_no_zone(raw_field(no_rows, assigner.column).type):
            fixed["timeZone"] = assigner.zone
    elif not isinstance(assigner, RecordTimestampAssigner):
        fixed = {"eventTimeColumn": "a function"}
    fixed["watermarkRows"] = rules.announces or None
    return {name: value for name, value in fixed.items() if value is not None}


def check_fixed(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare what an offset has with what is so now.

    An `OffsetError` if event times are read in another way, or the exact watermark follows a plain one.
    """
    fix = "give it as it was, or use a new checkpointLocation"
    for name in ("eventTimeColumn", "timestampUnit", "timeZone"):
        was, is_ = before.get(name), now.get(name)
        # Where only one of them says a zone the column was of another type.
        if was != is_ and (name != "timeZone" or (was and is_)):
            raise OffsetError(
                f"option {name} is {_or_none(is_)}, and was {_or_none(was)} when the checkpoint was written: its "
                f"watermarks are of other event times, and would make records late that are not; {fix}"
            )
    if "watermarkRows" in now and "watermarkRows" not in before:
        raise OffsetError(
            "the checkpoint is of a query with a plain withWatermark: Spark's watermark in it may be ahead of the "
            "exact one, and Spark would drop records that are not late; load with spark.readStream as before, or use a "
            "new checkpointLocation"
        )


def may_say_no_zone(kind: pa.DataType) -> bool:
    """Whether times of this type may be written without a zone."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)


def _or_none(value: Any) -> str:
    return "not given" if value is None else repr(value)
