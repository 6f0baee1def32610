"""An audit on one page that needs no network: what was read and dropped, and each split beside Spark's watermark."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from importlib.resources import files
from typing import Any, Final

import pyarrow as pa

from streaming_source.auditing.result import Counts
from streaming_source.auditing.text import split_table, summary
from streaming_source.monitoring.html_page import page_of

__all__ = ["html_page"]

_DRAWN: Final = 24
"""Splits, or directories where there are several, that have a line."""
_BATCHES: Final = 2_000
_LISTED: Final = 1_000
_REACH: Final = (
    "The latest row of each split in each micro-batch, and the watermark by which Spark dropped rows of it: rows at or "
    "below the line, or those of windows that had ended there."
)


def html_page(found: Counts, title: str) -> str:
    """The page, of 2,000 micro-batches and 24 splits at most. O(size of the tables).

    A line is the latest row that a split had in a micro-batch; those are drawn that lost most, and that carried the
    watermark.
    """
    name = "directory" if found.directories().num_rows > 1 else "split"
    sentences = "<br>".join(map(escape, summary(found)))
    head, *rows = split_table(found, _LISTED)
    table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    titles = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    section = f"""<section aria-label="Audit">
<p class="why">{sentences}</p>
{_figure("reach", "Event time", _REACH)}
{_figure("rows", "Rows", "Read in each micro-batch, and dropped of them.")}
<figure><figcaption><h3>Splits</h3></figcaption><div class="wide" tabindex="0">
<table class="splits"><thead><tr>{titles}</tr></thead><tbody>{table}</tbody></table></div></figure>
</section>"""
    script = (files("streaming_source.auditing") / "page" / "audit.js").read_text(encoding="utf-8")
    return page_of(title, f"{found.read:,} rows of {found.query.checkpoint}", section, _drawn(found, name), script)


def _figure(name: str, title: str, text: str) -> str:
    plot = f'<div class="plot" data-plot="{name}" role="img" aria-label="{title}"></div>'
    return f"<figure><figcaption><h3>{title}</h3><p>{escape(text)}</p></figcaption>{plot}</figure>"


def _drawn(found: Counts, name: str) -> dict[str, Any]:
    batches = found.batches.slice(max(found.batches.num_rows - _BATCHES, 0))
    numbers = batches["batch"].to_pylist()
    place = {number: i for i, number in enumerate(numbers)}
    carriers = [one.directory if name == "directory" else one.split for one in found.carriers]
    table = found.directories() if name == "directory" else found.splits()
    lost = table.sort_by([("dropped", "descending")])[name].to_pylist()
    chosen = list(dict.fromkeys([*carriers[: _DRAWN // 2], *lost]))[:_DRAWN]
    lines: dict[str, list[int | None]] = defaultdict(lambda: [None] * len(numbers))
    columns = (found.reads[column].to_pylist() for column in ("batch", name))
    for batch, split, us in zip(*columns, found.reads["latest"].cast(pa.int64()).to_pylist(), strict=True):
        if split in chosen and batch in place and us is not None:
            lines[split][place[batch]] = max(us, lines[split][place[batch]] or us)
    return {
        "batches": numbers,
        "watermark": [us or None for us in batches["late_watermark"].cast(pa.int64()).to_pylist()],
        "read": batches["read"].to_pylist(),
        "dropped": batches["dropped"].to_pylist(),
        "splits": [{"id": split or ".", "latest": lines[split]} for split in chosen],
    }
