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
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from streaming_source.monitoring.explained import ExplainedQuery
from streaming_source.monitoring.history import History
from streaming_source.monitoring.page_data import page_data

_PARTS: Final = files("streaming_source.monitoring") / "page"
_SCRIPTS: Final = ("labels.js", "lanes.js", "page.js")


def html_report(history: History, explained: ExplainedQuery, title: str, as_of_us: int | None = None) -> str:
    """The page of a history, at most some 2 MB. O(rows of the history).

    The history of a listener has rows and state, that of a checkpoint has not; `explained` is the same query now, as of
    a time in microseconds since the epoch, by default that of the clock.
    """
    return _report(page_data(history, explained, title, as_of_us), str(explained))


def live_page(data: Mapping[str, Any], plain: str, events: str) -> str:
    """The page of `page_data`, which draws again what arrives from a URL of server-sent events; `plain` is the text."""
    return _report(data, plain, events)


def _report(data: Mapping[str, Any], plain: str, events: str | None = None) -> str:
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
