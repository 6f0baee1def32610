"""An audit as users get it: counts, JSON, and words: which rows were dropped, which splits pushed the watermark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from alignment.arrow_times import format_timestamp
from alignment.codec import Codec, Wire
from alignment.sentence import aligned, moment
from alignment.shown import printable, shown
from streaming_source.tools.auditing.result import COUNTS, PAIRS, AuditedQuery, Carrier, Counts, rows_of

_QUERY: Final = Codec(AuditedQuery, whole=True)
_CARRIER: Final = Codec(Carrier, whole=True)

_LISTED: Final = 20
_CARRIERS: Final = 3
_REASONS: Final = 3


def summary(audit: Counts) -> list[str]:
    """Return the sentences, one a line."""
    return [*map(shown, _sentences(audit))]


def _sentences(audit: Counts) -> Iterator[str]:
    read = audit.read
    operator = audit.query.operator
    if audit.query.undecided is not None:
        yield f"What was dropped is unknown of all {_rows(read)}: {audit.query.undecided}."
    elif operator is None:
        yield f"No row was dropped of {read:,}: the query has no stateful operator, or no watermark."
    elif (known := read - _purged(audit) - _lost(audit)) < read:
        of_known = f"of the {known:,} rows of which it is known"
        lost = f"{audit.dropped:,} {of_known} were dropped ({_share(audit.dropped, known)})" if audit.dropped else ""
        yield f"{lost or f'No row was dropped {of_known}'} by {operator}."
    elif audit.query.mode == "complete":
        given = "" if audit.query.is_mode_shown else ", as given,"
        yield f"No row was dropped of {read:,} that {operator} read: the output mode{given} is complete."
    elif not audit.dropped:
        yield f"No row was dropped of {read:,} that {operator} read."
    else:
        yield f"{audit.dropped:,} of {read:,} rows were dropped ({_share(audit.dropped, read)}) by {operator}."
    if audit.query.undecided is None and operator is not None:
        yield from _kept(audit)
        if audit.dropped:
            yield "Rows that your query filters out before this operator are included."
    if not audit.query.is_operator_shown:
        yield "Its operators are as given, and counted by the rule of Spark 3.4 and later."
    if audit.query.window is not None:
        mode = audit.query.mode or "append or update"
        shown = "" if audit.query.is_window_shown else ", as given"
        yield f"Its windows are of {audit.query.window}{shown}, and its output mode is {mode}."
    if audit.exact_from > 0:
        yield (
            f"Spark has removed the offsets of the micro-batches before {audit.exact_from}: what they dropped is "
            f"unknown ({_rows(_purged(audit))})."
        )
    yield from _gone(audit)
    yield from _carriers(audit)
    if audit.query.downstream:
        yield f"What the operators after it drop of its results is unknown: {', then '.join(audit.query.downstream)}."
    yield from audit.notes


def _kept(audit: Counts) -> Iterator[str]:
    undecided = audit.unknown - _purged(audit) - _lost(audit)
    in_what = "groups that are still open (pass --mode update if the query runs in update mode)"
    if audit.query.mode is not None:
        in_what = "sessions that may still be open"
    parts = (
        f"{audit.emitted:,} are in what was emitted" if audit.emitted or not audit.open else "",
        f"{audit.open:,} in windows that are still open" if audit.open else "",
        f"{undecided:,} in {in_what}" if undecided > 0 else "",
        f"{audit.without_time:,} have no event time, and are in no window" if audit.without_time else "",
    )
    yield ", ".join(filter(None, parts)) + "."
    if audit.has_overlaps:
        counted, dropped, emitted = (audit.count(f"windows_{name}") for name in ("read", "dropped", "emitted"))
        yield (
            f"Windows overlap: the rows count {counted:,} times in windows, of which {dropped:,} were dropped "
            f"({_share(dropped, counted)}), {emitted:,} emitted and {counted - dropped - emitted:,} are "
            f"{'open' if audit.query.mode else 'in windows that have not ended'}. A row is dropped if it lacks in "
            "one of its windows."
        )
    if audit.dropped:
        numbers = [row["batch"] for row in rows_of(audit.batches) if row["dropped"]]
        several = f"in {len(numbers)} micro-batches, {numbers[0]} to {numbers[-1]}"
        yield f"They were dropped {several if len(numbers) > 1 else f'in micro-batch {numbers[0]}'}."


def _gone(audit: Counts) -> Iterator[str]:
    gone: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(audit.reads.filter(audit.reads["gone"].is_valid())):
        gone.setdefault(row["gone"], []).append(row)
    for why, rows in list(gone.items())[:_REASONS]:
        lost = 0 if audit.query.undecided else sum(row["unknown"] for row in rows)
        its = "its" if len(rows) == 1 else "their"
        counted = f"; of {lost:,} rows it is unknown" if lost else f", and {its} rows are in no count"
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        yield f"Not all can be seen any more{counted}: {rows[0]['split']}{more}: {why}."
    if len(gone) > _REASONS:
        yield f"So it is for {len(gone) - _REASONS:,} other reasons; --json has them."


def _carriers(audit: Counts) -> Iterator[str]:
    """Yield a sentence for each carrier, by directory if there are several, as in the table."""
    by_directory = audit.directories().num_rows > 1
    others = "directories" if by_directory else "splits"
    merged: dict[str, Carrier] = {}
    for one in audit.carriers:
        name = one.directory or "." if by_directory else one.split
        before = merged.get(name)
        first = one if before is None or one.batch < before.batch else before
        merged[name] = replace(first, dropped=one.dropped + (0 if before is None else before.dropped))
    found = sorted(merged.items(), key=lambda item: -item[1].dropped)
    for name, one in found[:_CARRIERS]:
        yield (
            f"{name} pushed the watermark to {moment(one.watermark_us)} in micro-batch {one.batch}; "
            f"{_rows(one.dropped)} of other {others} were then too late."
        )
    if (more := len(found) - _CARRIERS) > 0:
        yield f"So did {more:,} more; --json has them."


def split_table(audit: Counts, most: int) -> list[tuple[str, ...]]:
    """Return titles, and the splits that lost most; directories if there are several."""
    table, name = audit.directories(), "directory"
    if table.num_rows < 2:
        table, name = audit.splits(), "split"
    rows = rows_of(table.sort_by([("dropped", "descending"), ("read", "descending")]).slice(0, most))
    unknown = _unknown_by(audit, name)
    several = len(audit.query.sources) > 1
    cells = (_row(row, name, unknown.get((row["source"], row[name]), 0), several=several) for row in rows)
    return [(name, "read", "dropped", "", "from", "to"), *cells]


def _row(row: Mapping[str, Any], name: str, unknown: int, *, several: bool) -> tuple[str, ...]:
    known = row["read"] - unknown
    dropped, share = (f"{row['dropped']:,}", _share(row["dropped"], known)) if known else ("unknown", "")
    times = ("" if row[bound] is None else moment(row[bound]) for bound in ("earliest", "latest"))
    source = f"{row['source']}: " if several else ""
    return f"{source}{row[name] or '.'}", f"{row['read']:,}", dropped, share, *times


def _unknown_by(audit: Counts, name: str) -> dict[tuple[int, str], int]:
    """Return by source and split, or directory, how many rows may have been dropped or not."""
    found: Counter[tuple[int, str]] = Counter()
    for row in rows_of(audit.reads):
        if audit.query.undecided is not None or row["batch"] is None or row["gone"] is not None:
            found[row["source"], row[name]] += row["unknown"]
    return found


def _purged(audit: Counts) -> int:
    return sum(audit.reads.filter(audit.reads["batch"].is_null())["unknown"].to_pylist())


def _lost(audit: Counts) -> int:
    gone = audit.reads.filter(pc.and_(audit.reads["gone"].is_valid(), audit.reads["batch"].is_valid()))
    return sum(gone["unknown"].to_pylist())


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _share(count: int, total: int) -> str:
    share = f"{count / total:.1%}"
    return f"{count / total:.2g}" if share == "0.0%" and count else share


@dataclass(frozen=True, slots=True)
class Audit(Counts):
    """The rows that the watermark of a query dropped, as `print` shows them.

    The counts and tables are those of `Counts`.
    """

    def __str__(self) -> str:
        table = split_table(self, _LISTED)
        if len(table) == 1:
            return "\n".join(summary(self))
        rows = self.directories().num_rows if table[0][0] == "directory" else self.splits().num_rows
        more = [f"and {rows - _LISTED:,} more"] if rows > _LISTED else []
        return "\n".join([*summary(self), "", *aligned(table), *more])

    def to_json(self) -> dict[str, Any]:
        """Return one object; durations in milliseconds as Spark has them, times as text in UTC."""
        has_pairs = self.has_overlaps
        return {
            **{_camel(name): self.count(name) for name in COUNTS + PAIRS * has_pairs},
            "exactFrom": self.exact_from,
            "scanned": self.count("scanned"),
            **_QUERY.write(self.query),
            "carriers": [*map(_CARRIER.write, self.carriers)],
            "notes": list(self.notes),
            "batches": list(_to_json(self.batches, has_pairs)),
            "splits": list(_to_json(self.splits(), has_pairs)),
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


_TO_READ_ONLY: Final = ("sourceArchiveDir", "startingVersion", "kafka.isolation.level")
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
    checkpoint: Annotated[str, Wire("-")]
    records: int | None = None
    late: int | None = None
    no_bound: Annotated[str | None, Wire("noBound")] = None

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
        return {**Codec(Fix, whole=True).write(self), "lines": str(self).splitlines()}


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
