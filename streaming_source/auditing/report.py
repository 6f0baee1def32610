"""An audit as users get it: counts, tables, sentences, JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from alignment.arrow_times import format_timestamp
from streaming_source.auditing.result import COUNTS, PAIRS, Counts, rows_of
from streaming_source.auditing.text import report


@dataclass(frozen=True, slots=True)
class Audit(Counts):
    """The rows that the watermark of a query dropped, as `print` shows them.

    The counts and tables are those of `Counts`.
    """

    def __str__(self) -> str:
        return report(self)

    def to_json(self) -> dict[str, Any]:
        """Return one object; durations in milliseconds as Spark has them, times as text in UTC."""
        query = self.query
        return {
            **{_camel(name): self.count(name) for name in COUNTS},
            **({_camel(name): self.count(name) for name in PAIRS} if self.has_overlaps else {}),
            "exactFrom": self.exact_from,
            "scanned": self.count("scanned"),
            "checkpoint": query.checkpoint,
            "queryId": query.query_id,
            "sources": [
                {"kind": one.kind, "name": one.name, "time": one.time, "format": one.format} for one in query.sources
            ],
            "operator": query.operator,
            "window": query.window,
            "outputMode": query.mode,
            "undecided": query.undecided,
            "downstream": list(query.downstream),
            "carriers": [
                {
                    "source": one.source,
                    "split": one.split,
                    "dropped": one.dropped,
                    "batch": one.batch,
                    "watermark": format_timestamp(one.watermark_us),
                }
                for one in self.carriers
            ],
            "notes": list(self.notes),
            "batches": list(_to_json(self.batches, self.has_overlaps)),
            "splits": list(_to_json(self.splits(), self.has_overlaps)),
        }


def _to_json(table: pa.Table, has_pairs: bool) -> Iterator[dict[str, Any]]:
    times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not has_pairs:
        table = table.drop_columns([name for name in PAIRS if name in table.column_names])
    for row in rows_of(table):
        yield {
            _camel(name): format_timestamp(value) if name in times and value is not None else value
            for name, value in row.items()
        }


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.title() for part in others)
