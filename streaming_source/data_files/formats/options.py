"""The formats of files by their names, and the options of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from streaming_source.api import Option, OptionSet
from streaming_source.api.options import choice, option_names, text
from streaming_source.data_files.formats.base import FileFormat
from streaming_source.data_files.formats.columnar import ParquetFormat
from streaming_source.exceptions import OptionError

_NAMES: Final = ("parquet", "arrow", "orc", "csv", "json", "text")


# Imported here: most files are Parquet.


@cache
def _formats_without_options() -> Mapping[str, type[FileFormat]]:
    from streaming_source.data_files.formats.columnar import ArrowFormat
    from streaming_source.data_files.formats.orc import OrcFormat

    return {kind.name: kind for kind in (ParquetFormat, ArrowFormat, OrcFormat)}


@cache
def _formats_of_text() -> Mapping[str, type[FileFormat]]:
    from streaming_source.data_files.formats.csv import CsvFormat
    from streaming_source.data_files.formats.json import JsonFormat
    from streaming_source.data_files.formats.lines import TextFormat

    return {kind.name: kind for kind in (CsvFormat, JsonFormat, TextFormat)}


def _schema_of_ddl(name: str, value: str) -> Any:
    # Imported here: few files lack the types of their columns.
    from streaming_source.api.ddl import schema_of_ddl

    return schema_of_ddl(name, value)


def _options_of_text() -> Mapping[str, Option]:
    # The default None means not given: a format without the option refuses any other value.
    return {
        option.name: replace(option, default=None)
        for kind in _formats_of_text().values()
        for option in OptionSet.of(kind)
    }


def _more_options() -> list[Option]:
    from streaming_source.data_files.formats.csv import character

    return [
        *_options_of_text().values(),
        Option("delimiter", character, "The same as `sep`.", None, "`,`", same_as="sep"),
        Option("charset", text, "The same as `encoding`.", None, "UTF-8", same_as="encoding"),
    ]


FORMAT_OPTIONS: Final = OptionSet(
    [
        Option("fileFormat", choice(*_NAMES), f"Format of the files: {', '.join(_NAMES)}.", "parquet"),
        Option(
            "dataSchema",
            _schema_of_ddl,
            "Columns of the files and their types, as in `t timestamp, n bigint`: for formats whose files do not have "
            "them.",
            None,
            "the files'",
        ),
    ],
    more=_more_options,
)


def format_of(values: Mapping[str, Any]) -> FileFormat:
    """Return the format that parsed values of `FORMAT_OPTIONS` describe."""
    name = values["fileFormat"]
    if "delimiter" not in values:
        # No option of text was given.
        if name == ParquetFormat.name:
            return ParquetFormat()
        if name in (others := _formats_without_options()):
            return others[name]()
    kinds = {**_formats_without_options(), **_formats_of_text()}
    attributes = {option: attribute for attribute, option in option_names(kinds[name]).items()}
    given = {option: value for option in _options_of_text() if (value := values.get(option)) is not None}
    for option in sorted(given.keys() - attributes.keys()):
        takers = [known for known, kind in kinds.items() if option in option_names(kind).values()]
        raise OptionError(
            f"option {option} is not one of fileFormat = {name}, but of {', '.join(takers)}; leave it out, or set "
            "fileFormat"
        )
    try:
        return kinds[name](**{attributes[option]: value for option, value in given.items()})
    except OptionError as error:
        raise OptionError(re.sub(r"^(?=\w)", "option ", str(error))) from None
