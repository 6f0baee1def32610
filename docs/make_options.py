"""Write the tables of docs/options.md from the options that the code declares: `python docs/make_options.py`."""

from __future__ import annotations

from pathlib import Path

from streaming_source.api import OptionSet
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, STRATEGY_OPTIONS

PAGE = Path(__file__).with_name("options.md")

_SECTIONS = (
    ("Event time, watermarks, alignment", "With `from_source` the `WatermarkStrategy` says this.", STRATEGY_OPTIONS),
    ("The frame", "Of every format; `from_source` takes them as keywords.", FRAME_OPTIONS),
    ("Sources of your own", "Keywords of `from_source` beside those of the frame.", SOURCE_OPTIONS),
    ("`aligned_files`", "", FileSource.options()),
    ("`aligned_kafka`", "See [Kafka](kafka.md).", KAFKA_OPTIONS),
    ("`aligned_datagen`", "", DataGeneratorSource.options()),
)

_HEAD = """# Options

Strings, in any case. Durations are written as in Spark: `"5 seconds"`, `"1 hour 30 minutes"`. An unknown option is
refused, with the nearest known name. This page is written by `docs/make_options.py`.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, note, options in _SECTIONS:
        parts.append(f"\n## {title}\n\n{note}{chr(10) * 2 if note else ''}{_table(options)}")
    return "".join(parts)


def _table(options: OptionSet) -> str:
    rows = [f"| `{option.name}` | {option.default_text} | {option.doc} |" for option in options]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
