"""Options of a source over files, beside those of the formats."""

from __future__ import annotations

from typing import Final

from streaming_source.api import Option, OptionSet
from streaming_source.api.options import boolean, choice, duration, text
from streaming_source.connectors.files.layout import LAYOUT_OPTIONS
from streaming_source.exceptions import OptionError

__all__ = ["SHORTEST_US", "SOURCE_OPTIONS"]

_SECOND_US: Final = 1_000_000
_WEEK_US: Final = 7 * 24 * 3600 * _SECOND_US
SHORTEST_US: Final = 1000
"""Of a duration: there is no shorter one."""


def _names(name: str, value: str) -> tuple[str, ...]:
    """Names separated by commas."""
    found = tuple(part.strip() for part in value.split(","))
    if not all(found) or len({*found}) < len(found):
        raise OptionError(f"option {name} = {value!r}: must be different names separated by commas, as in a,b")
    return found


SOURCE_OPTIONS: Final = OptionSet(
    [
        Option(
            "path",
            text,
            "Directory to read, a path or URI; also the argument of `load`. Several are separated by commas, or are "
            "a JSON list; `*`, `?`, `[a-z]` and `{a,b}` stand for parts of names.",
            None,
            "required",
        ),
        Option(
            "splitBy",
            choice("directory", "file"),
            "`directory`: each is an append-only log, its files in order of their names; `file`: each is finite.",
            "directory",
            "directory",
        ),
        Option("bounded", boolean, "End after the files that are present at the start.", False, "false"),
        Option(
            "discoveryInterval",
            duration(SHORTEST_US),
            "How often to look for new files, beside whenever a trigger finds nothing to read and looks take less than "
            "20 ms.",
            _SECOND_US,
            "1 second",
        ),
        Option(
            "columns",
            _names,
            "Columns to read from disk, separated by commas; the others are not there for the query.",
            None,
            "all",
        ),
        Option(
            "indexing",
            choice("auto", "statistics", "scan", "off"),
            "Event times ahead of reading: from the files' statistics, by reading the time column (`scan`), or "
            "whichever goes (`auto`). `off` is refused: what is read next is chosen by event time.",
            "auto",
            "auto",
        ),
        Option(
            "maxFileAge",
            duration(SHORTEST_US),
            "With splitBy=file in the order of event times: finished files this much older than the newest are "
            "forgotten, and what is then found to be as old is ignored.",
            _WEEK_US,
            "7 days",
        ),
        *LAYOUT_OPTIONS,
    ]
)
