"""The page of a query, in one file that loads nothing: first why the watermark is where it is, then what shows it.

The design. A sentence comes first, in large type: what `explain` prints. Then a lane for each split over event time, as
in a race: its bar ends where the split is, one line through all lanes is the watermark, another the limit. Who holds
the watermark has a badge and a diamond; paused and idle splits have a hatched and an empty bar, a sign and a word:
no colour stands alone. Then charts over micro-batches, each as wide as any other, the last one too, since what
is so *now* matters most. Their ticks are round, and on one axis all in one unit. No legend and no tooltip is laid out
anew as the pointer moves: a value has its place. Twenty splits are shown, those first that hold the watermark, then the
slowest; a search finds any other. A slider, for the keyboard as well, shows what was so after an earlier micro-batch.

`page/` has the parts: ticks, charts, labels of splits, lanes and the page in JavaScript without a library. All that
comes from data is JSON, and is put into the page as text; the policy of the page allows its own script and style by
their hashes, and no other. Without JavaScript the page shows what `explain` prints.

Times in the JSON are milliseconds since the epoch and durations milliseconds, both rounded down; null is what is not
known. Of many micro-batches one point stands for several (`step`): of each group the last, but the largest drift,
backlog and state. Each split has its watermark and status at every point; where all these would be more than `_CELLS`,
those after the first `_FULL` splits have them at the points `coarse` alone. Watermarks are differences from the one
before; a status is a letter, a capital where the split holds the watermark.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from alignment.shown import shown
from streaming_source.monitoring.explained import ExplainedQuery, ExplainedSource
from streaming_source.monitoring.history import History

_POINTS: Final = 240
"""Points that a chart has at most; fewer than it is wide."""
_CELLS: Final = 60_000
"""Points of all splits together."""
_FULL: Final = 40
"""Splits that have all points, however many there are."""
_SPLITS: Final = 6_000
_HELD: Final = 5
"""Names that a point has of those that hold the watermark."""
_NONE: Final = np.iinfo(np.int64).min
_STATUSES: Final = ("active", "paused", "idle")
_ABSENT, _FINISHED = ord("-"), "finished"

_Ints: TypeAlias = npt.NDArray[np.int64]


def page_data(history: History, explained: ExplainedQuery, title: str, as_of_us: int | None = None) -> dict[str, Any]:
    """All of it, for `JSON.parse`. `explained` is the same query now, as of a time that is the clock's by default.

    O(rows of the history), in Arrow and numpy; the JSON has at most some 2 MB, whatever the query.
    """
    latest, batches = history.latest, history.batches()
    as_of_us = time.time_ns() // 1000 if as_of_us is None else as_of_us
    note = "" if explained.sources else str(explained)
    found: dict[str, Any] = {"title": shown(title), "asOf": as_of_us // 1000, "note": note, "sources": []}
    found["advice"] = [[one.option, shown(one.text)] for one in explained.advice]
    if latest is None:
        return found
    found["committed"] = latest.is_committed
    ours = [number for number, report in enumerate(latest.sources) if report is not None]
    splits = history.splits()
    for number, one in zip(ours, explained.sources, strict=True):
        of_source = splits.filter(pc.field("source") == number)
        sources = history.sources().filter(pc.field("source") == number)
        found["sources"].append(_source(one, batches, sources, of_source, has_state=number == ours[0]))
    return found


def points_of(count: int, most: int = _POINTS) -> tuple[int, _Ints]:
    """Return how many of `count` micro-batches are one point, and the last one of each point; the last of all is one.

    Examples
    --------
    >>> points_of(7, most=3)
    (3, array([0, 3, 6]))
    """
    step = max(-(-count // most), 1)
    return step, np.arange(count - 1, -1, -step, dtype=np.int64)[::-1]


def _source(
    explained: ExplainedSource, batches: pa.Table, sources: pa.Table, splits: pa.Table, *, has_state: bool
) -> dict[str, Any]:
    report = explained.report
    batches = batches.filter(pc.is_in(batches["batch"], sources["batch"]))
    step, ends = points_of(sources.num_rows)
    starts = np.append(0, ends[:-1] + 1)
    chosen = sources.take(pa.array(ends))

    def largest(column: pa.ChunkedArray) -> list[int | None]:
        values = _column(column)
        return _nullable(np.maximum.reduceat(values, starts) if len(ends) else values)

    numbers: _Ints = chosen["batch"].to_numpy()
    drawn, cells = _splits(splits, numbers)
    state = largest(batches["state_rows"]) if has_state else []
    return {
        "name": shown(report.source),
        "reads": report.explanation.reads and shown(report.explanation.reads),
        "why": shown(report.sentence),
        "cause": report.cause.value,
        "advice": [[one.option, shown(one.text)] for one in explained.advice],
        "step": step,
        "batches": numbers.tolist(),
        "at": _nullable(_column(batches["planned_at"])[ends] // 1000),
        "ended": [cause == "ended" for cause in chosen["cause"].to_pylist()],
        "watermark": _milliseconds(chosen["watermark"]),
        "limit": _milliseconds(chosen["limit"]),
        "held": [[[*map(shown, ids[:_HELD])], len(ids)] for ids in chosen["held_by"].to_pylist()],
        "drift": [None if us is None else us // 1000 for us in largest(sources["drift"])],
        "maxDrift": _milliseconds(chosen["max_drift"]),
        "behind": largest(sources["behind"]),
        "late": _nullable(_column(chosen["late"])),
        "rows": _unless_empty(largest(sources["rows"])),
        "state": _unless_empty(state),
        "splits": drawn,
        **cells,
    }


def _splits(table: pa.Table, numbers: _Ints) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of the splits, first who holds the watermark, then the slowest; and what each was at each point.

    A split that is in no micro-batch any more is `finished`, and comes after those in work.
    """
    table = table.filter(pc.is_in(table["batch"], pa.array(numbers))).combine_chunks()
    point = np.searchsorted(numbers, table["batch"].to_numpy())
    names = pc.dictionary_encode(table["split"]).combine_chunks()
    ids: list[str] = names.dictionary.to_pylist() if len(names) else []
    which = names.indices.to_numpy(zero_copy_only=False) if ids else np.zeros(0, np.int64)
    count, width = len(ids), len(numbers)
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, which, np.arange(len(which)))
    in_work = point[last] == width - 1 if count else np.zeros(0, bool)
    rows = table.take(pa.array(last))
    kinds = np.array(rows["status"].to_pylist(), dtype=object)
    watermark = _column(rows["watermark"])
    rank = np.select([~in_work, rows["holds"].to_numpy(), kinds == "idle"], [3, 0, 2], 1)
    order = np.lexsort((np.array(ids, dtype=object).astype(str) if ids else np.zeros(0), watermark, rank))[:_SPLITS]
    rows = rows.take(pa.array(order))
    drawn = {
        "id": [shown(ids[i]) for i in order],
        "status": [kinds[i] if in_work[i] else _FINISHED for i in order],
        "watermark": _milliseconds(rows["watermark"]),
        **{name: rows[name].to_pylist() for name in ("position", "behind", "late")},
        "waitsFor": rows["waits_for"].to_pylist(),
        **{name: _milliseconds(rows[column]) for name, column in _TIMES.items()},
        "total": count,
        "counts": {name: int(np.count_nonzero(in_work & (kinds == name))) for name in _STATUSES},
    }
    return drawn, _cells(table, which, point, order, width)


_TIMES: Final = {
    "silentSince": "silent_since",
    "since": "status_since",
    "active": "time_active",
    "paused": "time_paused",
    "idle": "time_idle",
}


def _cells(table: pa.Table, which: _Ints, point: _Ints, order: _Ints, width: int) -> dict[str, Any]:
    """Return what each split of an order was at each point, or at those that are `coarse`."""
    row_of = np.full(int(which.max(initial=-1)) + 1, -1, np.int64)
    row_of[order] = np.arange(len(order))
    kept = row_of[which] >= 0
    where = (row_of[which][kept], point[kept])
    watermarks = np.full((len(order), width), _NONE, np.int64)
    watermarks[where] = (_column(table["watermark"])[kept]) // 1000
    watermarks[watermarks == _NONE // 1000] = _NONE
    letters = np.full((len(order), width), _ABSENT, np.uint8)
    kinds = pc.index_in(table["status"], pa.array(_STATUSES)).to_numpy(zero_copy_only=False)
    capital = table["holds"].to_numpy(zero_copy_only=False).astype(np.uint8) * 32
    letters[where] = (np.frombuffer(b"api", np.uint8)[kinds.astype(np.int64)] - capital)[kept]
    full = _FULL if len(order) * width > _CELLS else len(order)
    most = max((_CELLS - full * width) // max(len(order) - full, 1), 2)
    _, coarse = points_of(width, most)
    return {
        "full": full,
        "coarse": coarse.tolist(),
        "watermarks": [_steps(row) for row in (*watermarks[:full], *watermarks[full:, coarse])],
        "statuses": [_runs(row) for row in (*letters[:full], *letters[full:, coarse])],
    }


def _steps(values: _Ints) -> list[int | None]:
    """The first that is known, then the difference of each known one from the known one before."""
    steps: list[int | None] = [None] * len(values)
    known = np.flatnonzero(values != _NONE)
    for at, step in zip(known.tolist(), np.diff(values[known], prepend=0).tolist(), strict=True):
        steps[at] = step
    return steps


def _runs(letters: npt.NDArray[np.uint8]) -> str:
    """Each letter, and how often it follows itself where that is more than once.

    Examples
    --------
    >>> _runs(np.frombuffer(b"aaaApp", np.uint8))
    'a3Ap2'
    """
    runs = ((letter, sum(1 for _ in run)) for letter, run in groupby(letters.tobytes().decode()))
    return "".join(letter if times == 1 else f"{letter}{times}" for letter, times in runs)


def _column(column: pa.ChunkedArray) -> _Ints:
    values: _Ints = pc.fill_null(column.cast(pa.int64()), _NONE).to_numpy()
    return values


def _nullable(values: _Ints) -> list[int | None]:
    return [None if value <= _NONE // 1000 else value for value in values.tolist()]


def _milliseconds(column: pa.ChunkedArray) -> list[int | None]:
    return _nullable(_column(column) // 1000)


def _unless_empty(values: list[int | None]) -> list[int | None] | None:
    return values if any(value is not None for value in values) else None


_PARTS: Final = files("streaming_source.tools.pages") / "page"
_SCRIPTS: Final = ("labels.js", "lanes.js", "page.js")


def html_report(history: History, explained: ExplainedQuery, title: str, as_of_us: int | None = None) -> str:
    """The page of a history, at most some 2 MB. O(rows of the history).

    The history of a listener has rows and state, that of a checkpoint has not; `explained` is the same query now, as of
    a time in microseconds since the epoch, by default that of the clock.
    """
    return drawn_page(page_data(history, explained, title, as_of_us), str(explained))


def drawn_page(data: Mapping[str, Any], plain: str, events: str | None = None) -> str:
    """The page of `page_data`; `plain` is the text. It draws again what arrives from a URL of server-sent `events`."""
    body = Template(_part("report.html")).substitute(title=escape(data["title"]), plain=f"<pre>{escape(plain)}</pre>")
    return page_of(data["title"], body, data, [_part(name) for name in _SCRIPTS], events)


def page_of(title: str, body: str, data: Mapping[str, Any], scripts: Sequence[str], events: str | None = None) -> str:
    """A page of a body in HTML, which scripts fill from the data with what charts.js and ticks.js have."""
    style, script = _part("page.css"), "\n".join([_part("ticks.js"), _part("charts.js"), *scripts])
    policy = [
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *([] if events is None else ["connect-src 'self'"]),
    ]
    return Template(_part("page.html")).substitute(
        title=escape(title),
        live="" if events is None else f' data-events="{escape(events)}"',
        policy="; ".join(policy),
        style=style,
        body=body,
        # JSON that cannot end the element that it stands in.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        script=script,
    )


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
