"""A history on one page that needs no network: plots of each source, and why its watermark stands.

`page/` has its parts; uPlot draws. Everything that names splits or sources is escaped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from alignment.sentence import moment
from streaming_source.monitoring.explained import ExplainedQuery, ExplainedSource
from streaming_source.monitoring.history import History

__all__ = ["html_report", "page_of"]

_DRAWN: Final = 24
"""Splits that have a line."""
_LISTED: Final = 1_000
_BATCHES: Final = 2_000
_LETTERS: Final = {"active": "a", "paused": "p", "idle": "i"}
_KEYS: Final = (
    ("+", "Zoom in", "+"),
    ("-", "Zoom out", "\N{MINUS SIGN}"),
    ("ArrowLeft", "One micro-batch back", "\N{LEFTWARDS ARROW}"),
    ("ArrowRight", "One micro-batch on", "\N{RIGHTWARDS ARROW}"),
    ("0", "Show all", "All"),
)
_DRIFT: Final = (
    "How far the foremost split that counts is ahead of the slowest. Where the slowest has a gap between two records, "
    "or comes back from being idle, that may be more than maxDrift: no split waits for records that are not there."
)
_ABSENT: Final = (
    '<p class="faint">A checkpoint does not have the rows of a micro-batch, nor those in state: '
    "the report of an AlignmentListener draws these too.</p>"
)
_COLUMNS: Final = {
    "split": "split",
    "status": "status",
    "watermark": "watermark",
    "position": "position",
    "rowsBehind": "behind",
    "rowsLate": "late",
    "waitsFor": "waits for",
    "silentSince": "silent since",
}
_NUMBERS: Final = ("position", "rowsBehind", "rowsLate")


def html_report(history: History, explained: ExplainedQuery, title: str) -> str:
    """The page, of 2,000 micro-batches and of each source 24 splits at most. O(size of the history).

    The history of a listener has rows and state, that of a checkpoint has not; `explained` is the same query now.
    """
    batches = history.batches()
    batches = batches.slice(max(batches.num_rows - _BATCHES, 0))
    heading, found = "There is no micro-batch yet.", []
    if history.latest is not None:
        (first, began), (last, planned) = (
            (batches["batch"][i].as_py(), batches["planned_at"][i].value) for i in (0, -1)
        )
        heading = f"Micro-batches {first:,} to {last:,}, planned from {moment(began)} to {moment(planned)}."
        ours = [place for place, report in enumerate(history.latest.sources) if report is not None]
        found = [(*_columns(history, batches, place), one) for place, one in zip(ours, explained.sources, strict=True)]
    sections = [_section(place, *source) for place, source in enumerate(found)]
    text = "\n".join(sections) or "<p>No source of this library has planned a micro-batch of this query.</p>"
    script = (files("streaming_source.monitoring") / "page" / "page.js").read_text(encoding="utf-8")
    return page_of(title, heading, text, {"sources": [columns for columns, _, _ in found]}, script)


def page_of(title: str, heading: str, sections: str, data: Mapping[str, Any], script: str) -> str:
    """A page of HTML sections, of which a script draws the plots from the data; title and heading are escaped."""
    page = files("streaming_source.monitoring") / "page"
    style, uplot, uplot_style, template = (
        (page / name).read_text(encoding="utf-8")
        for name in ("page.css", "uPlot.iife.min.js", "uPlot.min.css", "page.html")
    )
    return Template(template).substitute(
        title=escape(title),
        heading=escape(heading),
        style=uplot_style + style,
        sections=sections,
        # JSON that cannot end the element that it stands in.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        uplot=uplot,
        script=script,
    )


def _columns(history: History, batches: pa.Table, place: int) -> tuple[dict[str, Any], int]:
    """What the page draws of one source, by micro-batch; and of how many splits."""
    numbers = batches["batch"]
    sources, splits = (
        table.filter((pc.field("source") == place) & (pc.field("batch") >= numbers[0].as_py()))
        for table in (history.sources(), history.splits())
    )
    batches = batches.filter(pc.is_in(numbers, sources["batch"]))
    index = {number: i for i, number in enumerate(sources["batch"].to_pylist())}
    columns = {
        "batches": list(index),
        "cause": sources["cause"].to_pylist(),
        "heldBy": sources["held_by"].to_pylist(),
        "state": batches["state_rows"].to_pylist(),
        **{name: _integers(sources[name]) for name in ("at", "watermark", "limit", "drift", "behind", "late", "rows")},
        "maxDrift": _integers(sources["max_drift"]),
    }
    ids = splits["split"].to_pylist()
    drawn = _drawn(ids, splits["holds"].to_pylist(), splits["status"].to_pylist())
    lines: dict[str, dict[str, Any]] = {
        split: {"id": split, "watermark": [None] * len(index), "status": ["-"] * len(index)} for split in drawn
    }
    columns_of = (splits["batch"].to_pylist(), _integers(splits["watermark"]), splits["status"].to_pylist())
    for split, number, watermark, status in zip(ids, *columns_of, strict=True):
        if split in lines:
            lines[split]["watermark"][index[number]] = watermark
            lines[split]["status"][index[number]] = _LETTERS.get(status, "-")
    columns["splits"] = [{**line, "status": "".join(line["status"])} for line in lines.values()]
    return columns, len(set(ids))


def _drawn(ids: Sequence[str], holds: Sequence[bool], statuses: Sequence[str]) -> list[str]:
    """The splits that held the watermark most often, then those that were paused or idle most often, by id."""
    held = Counter(split for split, does in zip(ids, holds, strict=True) if does)
    waited = Counter(split for split, status in zip(ids, statuses, strict=True) if status in ("paused", "idle"))
    return sorted(sorted(set(ids), key=lambda split: (-held[split], -waited[split], split))[:_DRAWN])


def _integers(column: pa.ChunkedArray) -> list[int | None]:
    values: list[int | None] = column.cast(pa.int64()).to_pylist()
    return values


def _section(place: int, columns: dict[str, Any], splits: int, explained: ExplainedSource) -> str:
    report = explained.report
    name = escape(report.source)
    advice = "".join(f"<li><strong>{escape(a.option)}</strong>: {escape(a.text)}</li>" for a in explained.advice)
    drawn = f"{_DRAWN} of {splits:,} splits are drawn: those that held the watermark most often."
    buttons = "".join(
        f'<button type="button" data-key="{key}" title="{label}" aria-label="{label}">{text}</button>'
        for key, label, text in _KEYS
    )
    key = "".join(f'<span><span class="key {status}"></span>{status}</span> ' for status in _LETTERS)
    figures = [
        _figure(
            "times",
            "Event time",
            f"The watermark of each split after each micro-batch, in UTC. {drawn if splits > _DRAWN else ''}",
        ),
        _figure("status", "Paused and idle", key),
    ]
    if any(us is not None for us in columns["drift"]):
        figures.append(_figure("drift", "Drift", _DRIFT))
    counts_rows = any(rows is not None for rows in columns["rows"])
    if counts_rows:
        figures.append(_figure("rows", "Rows", "Delivered in each micro-batch, and left behind after it."))
    else:
        figures.append(_figure("behind", "Rows behind", "Known to be there, and not read."))
    if any(rows is not None for rows in columns["state"]):
        figures.append(_figure("state", "State", "Rows in the state of all stateful operators of the query."))
    figures.append(_figure("late", "Late records", "Of the splits in work, so far."))
    return f"""<section id="source-{place}" aria-label="{name}">
<h2>{name}</h2>
<p class="why">{escape(report.sentence)}</p>
<ul class="advice">{advice}</ul>
<div class="bar" role="toolbar" aria-label="Plots of {name}">{buttons}<output aria-live="polite"></output></div>
{"".join(figures)}
{"" if counts_rows else _ABSENT}
<figure><figcaption><h3>Splits</h3></figcaption>{_table(explained)}</figure>
</section>"""


def _figure(name: str, title: str, text: str) -> str:
    label = f"{title}: arrow keys move the cursor, + and - zoom, 0 shows all"
    return (
        f"<figure><figcaption><h3>{title}</h3><p>{text}</p></figcaption>"
        f'<div class="plot" data-plot="{name}" tabindex="0" role="application" aria-label="{label}"></div></figure>'
    )


def _table(explained: ExplainedSource) -> str:
    """The splits as `explain --json` has them, those first that hold the watermark."""
    found = explained.report.to_json()
    holders = set(found["heldBy"])
    splits = sorted(found["splits"].items(), key=lambda s: (s[0] not in holders, s[1].get("watermark", ""), s[0]))
    head = "".join(f'<th scope="col"{_kind(column)}>{title}</th>' for column, title in _COLUMNS.items())
    rows = "".join(_row(split, values, holds=split in holders) for split, values in splits[:_LISTED])
    more = len(splits) - _LISTED
    note = f'<p class="faint">and {more:,} more</p>' if more > 0 else ""
    table = f'<table class="splits"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide" tabindex="0">{table}</div>{note}'


def _row(split: str, values: dict[str, Any], *, holds: bool) -> str:
    cells = {"split": split, "rowsLate": 0, **values}
    written = "".join(f"<td{_kind(column)}>{escape(str(cells.get(column, '')))}</td>" for column in _COLUMNS)
    return f"<tr{' class=holds' if holds else ''}>{written}</tr>"


def _kind(column: str) -> str:
    return ' class="number"' if column in _NUMBERS else ""
