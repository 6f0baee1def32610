"""The lines of code that end the loss: the query's source, read by this library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from alignment.shown import printable
from streaming_source.auditing.result import Counts

_TO_READ_ONLY: Final = ("timePattern", "sourceArchiveDir", "startingVersion", "kafka.isolation.level")
"""Options of an audit that the formats do not have."""


@dataclass(frozen=True, slots=True)
class Fix:
    """One source of the query as a format of this library: its options, what to load, and the old query.

    With the bound `maxOutOfOrderness` of `options`, `late` of the source's present `records` would be late; None if
    that was not counted. `no_bound` is why no bound could be found.
    """

    format: str
    options: Mapping[str, str]
    path: str | None
    checkpoint: str
    records: int | None = None
    late: int | None = None
    no_bound: str | None = None

    def __str__(self) -> str:
        options = [f"    .option({_quoted(name)}, {_quoted(value)})" for name, value in self.options.items()]
        load = "    .load()" if self.path is None else f"    .load({_quoted(self.path)})"
        lines = [
            "from streaming_source import read_stream",
            "",
            "rows = (",
            f'    read_stream(spark).format("{self.format}")',
        ]
        lines += [*options, load, ")  # has its watermark: leave out withWatermark"]
        if self.format == "aligned_kafka":
            lines += [
                "",
                f"streaming-source take-over {self.checkpoint} NEW_CHECKPOINT --subscribe {self.options['subscribe']}",
            ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "format": self.format,
            "options": dict(self.options),
            "path": self.path,
            "records": self.records,
            "late": self.late,
            "noBound": self.no_bound,
            "lines": str(self).splitlines(),
        }


def _quoted(text: str) -> str:
    """Return a literal of Python: a path is out of a checkpoint, and the lines are pasted."""
    return printable(json.dumps(text, ensure_ascii=False))


def fixes(found: Counts, options: Mapping[str, str]) -> list[Fix]:
    """Return a fix for each source of a kind that this library reads; `options` are those of the audit."""
    made = []
    for source in found.query.sources:
        given = {name: value for name, value in options.items() if name not in _TO_READ_ONLY}
        if source.kind == "files":
            path = source.name.removeprefix("file://")
            chosen = {} if source.format == "parquet" else {"fileFormat": str(source.format)}
            if source.format in ("csv", "json") and not any(name.lower() == "dataschema" for name in given):
                chosen["inferSchema"] = "true"
            made.append(
                Fix("aligned_files", {"eventTimeColumn": source.time, **chosen, **given}, path, found.query.checkpoint)
            )
        elif source.kind == "kafka":
            event_time = {} if source.time == "timestamp" else {"eventTimeColumn": source.time}
            topics = {"subscribe": source.name.replace(", ", ",")}
            made.append(Fix("aligned_kafka", {**topics, **event_time, **given}, None, found.query.checkpoint))
    return made
