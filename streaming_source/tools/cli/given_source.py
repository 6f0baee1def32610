"""The source that a command is given as PATH, TABLE or TOPIC, with options KEY=VALUE as those of a format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from streaming_source.exceptions import OptionError

if TYPE_CHECKING:
    from streaming_source.spark.datasource import AlignedDataSource


def given_source(command: str, source: str, option: Sequence[str], format_name: str | None) -> AlignedDataSource:
    """Return the source of that name, by the format that is given, or that the options and the path show.

    Raises an `OptionError` for an unknown format, and a `ModuleNotFoundError`, in the command's name, without PySpark.
    """
    try:
        # Imported here: most commands need no connector, and no PySpark.
        from streaming_source.spark.datasource import FORMATS, AlignedDataSource
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        extra = "spark-watermark-alignment[cli,pyspark]"
        raise ModuleNotFoundError(f"{command} needs PySpark: pip install '{extra}'", name=error.name) from None
    given = key_values(option)
    kind = format_name or _format_of(source, given)
    if kind not in FORMATS:
        raise OptionError(f"--format {kind}: must be one of {', '.join(sorted(FORMATS))}; give one of these")
    place = "subscribe" if kind == "aligned_kafka" else "path"
    return AlignedDataSource.of_format(kind, {place: source, **given})


def _format_of(source: str, given: Mapping[str, str]) -> str:
    if any(name.lower() == "kafka.bootstrap.servers" for name in given):
        return "aligned_kafka"
    if any(name.lower().startswith("catalog.") for name in given):
        return "aligned_iceberg"
    return "aligned_delta" if Path(source, "_delta_log").is_dir() else "aligned_files"


def key_values(texts: Sequence[str]) -> dict[str, str]:
    """Parse options of the form `KEY=VALUE`; raises an `OptionError` for any other text."""
    given = {}
    for text in texts:
        name, is_given, value = text.partition("=")
        if not is_given:
            raise OptionError(f"-o {text!r}: must be key=value, as in -o fileFormat=json")
        given[name] = value
    return given
