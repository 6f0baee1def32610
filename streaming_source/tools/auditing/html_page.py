"""An audit as one page without a network: rows read and dropped, and each split beside Spark's watermark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

import pyarrow as pa

from alignment.shown import shown
from streaming_source.tools.auditing.report import split_table, summary
from streaming_source.tools.auditing.result import Counts
from streaming_source.tools.pages.html_page import page_of

_DRAWN: Final = 24
"""Splits that are drawn, or directories if there are several."""
_BATCHES: Final = 2_000
_LISTED: Final = 1_000
_REACH: Final = (
    "The latest row of each split in each micro-batch, and the watermark by which Spark dropped rows of it: rows at or "
    "below the line, or those of windows that had ended there."
)
_KEYS: Final = (
    '<span class="keys"><span><i class="key watermark"></i>Spark\'s watermark</span> <span><i class="key read"></i>'
    'latest row</span> <span><i class="key lost"></i>at or below the watermark</span> '
    '<label><i class="key picked"></i>{name} <select data-part="split"></select></label></span>'
)


def html_page(found: Counts, title: str, fixes: Sequence[str] = ()) -> str:
    """Return the page, with at most 2,000 micro-batches and 24 splits. O(size of the tables).

    A mark is the latest row that a split had in a micro-batch. Splits that lost most rows, and that pushed the
    watermark, are drawn. One of them can be picked. `fixes` are texts with the code that loses nothing.
    """
    name = "directory" if found.directories().num_rows > 1 else "split"
    of_each = "Directories" if name == "directory" else "Splits"
    first, *others = map(_text, summary(found))
    code = ("\n".join(map(_text, text.splitlines())) for text in fixes)
    fixed = "".join(f"<pre>{text}</pre>" for text in code)
    head, *rows = split_table(found, _LISTED)
    table = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    titles = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = f"""<header><h1>{_text(title)}</h1></header>
<main><p class="why">{first}</p>
<p>{"<br>".join(others)}</p>
<div class="charts two">
{_figure("reach", "Event time", _REACH, _KEYS.format(name=name))}
{_figure("read", "Rows read", "By micro-batch.")}
{_figure("dropped", "Rows dropped", "By micro-batch.")}
</div>
<h2>{of_each}</h2>
<div class="scroll" tabindex="0" role="region" aria-label="{of_each}">
<table class="plain"><thead><tr>{titles}</tr></thead><tbody>{table}</tbody></table></div>
{"<h2>How to lose nothing</h2>" if fixed else ""}{fixed}</main>"""
    script = (files("streaming_source.tools.auditing") / "page" / "audit.js").read_text(encoding="utf-8")
    return page_of(shown(title), body, _drawn(found, name), [script])


def _text(text: str) -> str:
    return escape(shown(text))


def _figure(name: str, title: str, text: str, keys: str = "") -> str:
    kind = ' class="wide"' if keys else ""
    caption = f'<figcaption><h3>{title}</h3> <span class="value"></span> {keys}</figcaption>'
    text = f'<p class="faint">{escape(text)}</p>'
    return f'<figure data-part="{name}"{kind}>{caption}{text}<div class="plot"></div></figure>'


def _drawn(found: Counts, name: str) -> dict[str, Any]:
    batches = found.batches.slice(max(found.batches.num_rows - _BATCHES, 0))
    numbers = batches["batch"].to_pylist()
    index = {number: i for i, number in enumerate(numbers)}
    carriers = [one.directory if name == "directory" else one.split for one in found.carriers]
    table = found.directories() if name == "directory" else found.splits()
    lost = table.sort_by([("dropped", "descending")])[name].to_pylist()
    chosen = list(dict.fromkeys([*carriers[: _DRAWN // 2], *lost]))[:_DRAWN]
    lines: dict[str, list[int | None]] = defaultdict(lambda: [None] * len(numbers))
    columns = (found.reads[column].to_pylist() for column in ("batch", name))
    for batch, split, us in zip(*columns, found.reads["latest"].cast(pa.int64()).to_pylist(), strict=True):
        if split in chosen and batch in index and us is not None:
            lines[split][index[batch]] = max(us // 1000, lines[split][index[batch]] or us // 1000)
    return {
        "batches": numbers,
        "watermark": [us // 1000 if us else None for us in batches["late_watermark"].cast(pa.int64()).to_pylist()],
        "read": batches["read"].to_pylist(),
        "dropped": batches["dropped"].to_pylist(),
        "splits": [{"id": shown(split or "."), "latest": lines[split]} for split in chosen],
    }
