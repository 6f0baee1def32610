"""Write what follows from the options that the code declares: `python docs/make_options.py`.

The tables of docs/options.md, and the keywords of `from_source` for editors and type checkers.
"""

from __future__ import annotations

import re
from pathlib import Path

from streaming_source.api import Option, OptionSet
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.exceptions import OptionError
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, STRATEGY_OPTIONS

PAGE = Path(__file__).with_name("options.md")
KEYWORDS = Path(__file__).parents[1] / "streaming_source" / "spark" / "option_text.py"

_SECTIONS = (
    (
        "Event time, watermarks, alignment",
        "`from_source` does not take these: its `WatermarkStrategy` has them.",
        STRATEGY_OPTIONS,
    ),
    ("The frame", "For every format; keywords of `from_source`, such as `max_rows_per_trigger`.", FRAME_OPTIONS),
    ("Sources of your own", "Further keywords of `from_source`.", SOURCE_OPTIONS),
    ("`aligned_files`", "", FileSource.options()),
    ("`aligned_delta`", "See [Tables](tables.md).", DeltaSource.options()),
    ("`aligned_iceberg`", "See [Tables](tables.md).", IcebergSource.options()),
    ("`aligned_kafka`", "See [Kafka](kafka.md).", KAFKA_OPTIONS),
    ("`aligned_datagen`", "", DataGeneratorSource.options()),
)

_HEAD = """# Options

Five matter first:

| option | give it when |
|---|---|
| `eventTimeColumn` | always: it names the column of the event time. Without it Kafka takes the record's timestamp |
| `maxOutOfOrderness` | records of one split are out of order, by up to this much: [choose a bound](bound.md) |
| `maxDrift` | state must stay small: no split is read further ahead of the slowest one than this |
| `idleTimeout` | a split that brings nothing must release the watermark sooner, or later, than by default |
| `maxRowsPerTrigger` | a micro-batch would be too large: it takes at most this many rows, in the order of event time |

Names may be in any case. Durations are written as in Spark: `"5 seconds"`, `"1 hour 30 minutes"`. An unknown option is
refused, and the error offers the nearest known name. To keep options out of what Spark shows, give them as JSON in
`secretOptions`: see [secrets](cluster.md#secrets).
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, note, options in _SECTIONS:
        parts.append(f"\n## {title}\n\n{note}{chr(10) * 2 if note else ''}{_table(options)}")
    return "".join(parts)


def _table(options: OptionSet) -> str:
    rows = [
        f"| `{each.name}` | {_values(each)} | {each.default_text} | {each.doc} |"
        for each in options
        if not each.is_private
    ]
    return "\n".join(["| option | values | default | meaning |", "|---|---|---|---|", *rows, ""])


def _values(option: Option) -> str:
    """What an option takes, from what it says of values that it refuses."""
    said, of_minus = _refusal(option, "\0"), _refusal(option, f"-{10**9}")
    if found := re.search(r"must be one of (.*)", said):
        return ", ".join(f"`{value}`" for value in found[1].split(", "))
    if "must be true or false" in said:
        return "`true`, `false`"
    if "is not a duration" in said:
        return "duration" if _refusal(option, "none") else "duration, `none`"
    if found := re.search(r"must be an? (whole number|number|time|ISO-8601 time)\b", said):
        kind = found[1] if _refusal(option, "1,2") else f"{found[1]}s"
        least = re.search(r"at least ([^\s,]+)", of_minus)
        return f"{kind} from {least[1]} on" if least else kind
    return "text"


def with_keywords(module: str) -> str:
    """The text of the module that has them, with a keyword for each option of the frame that is not private."""
    types = {"text": "str", "`true`, `false`": "bool", "time": "datetime | date | str"}
    lines = []
    for option in FRAME_OPTIONS | SOURCE_OPTIONS:
        values = _values(option)
        kind = types.get(values) or ("timedelta | str" if "duration" in values else "int")
        if values.count("`") > 2 and values not in types and "duration" not in values:
            kind = f"Literal[{', '.join(values.split(', ')).replace('`', chr(34))}]"
        kind += " | None" if kind == "int" and option.default is None else ""
        name = re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", option.name)
        lines += [] if option.is_private else [f"    {name}: {kind}\n"]
    declared = re.compile(r"(class FrameKeywords\(.*?\"\"\"\n\n)( {4}\w+: .*?\n)+", re.DOTALL)
    return declared.sub(lambda found: found[1] + "".join(lines), module)


def _refusal(option: Option, value: str) -> str:
    try:
        option.parse(option.name, value)
    except OptionError as error:
        return " ".join(str(error).split())
    return ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    KEYWORDS.write_text(with_keywords(KEYWORDS.read_text(encoding="utf-8")), encoding="utf-8")
