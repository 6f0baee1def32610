"""The formats of files by their names, and the options of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from streaming_source.api import Option, OptionSet
from streaming_source.api.ddl import schema_of_ddl
from streaming_source.api.options import choice, option_names, text
from streaming_source.data_files.formats.base import FileFormat
from streaming_source.data_files.formats.columnar import ArrowFormat, OrcFormat, ParquetFormat
from streaming_source.data_files.formats.csv import CsvFormat, character
from streaming_source.data_files.formats.json import JsonFormat
from streaming_source.data_files.formats.lines import TextFormat
from streaming_source.exceptions import OptionError

__all__ = ["FORMAT_OPTIONS", "format_of"]

_KINDS: Final[Mapping[str, type[FileFormat]]] = {
    kind.name: kind for kind in (ParquetFormat, ArrowFormat, OrcFormat, CsvFormat, JsonFormat, TextFormat)
}

# The default None means not given: a format without the option refuses any other value.
_OF_SOME: Final = {
    option.name: replace(option, default=None) for kind in _KINDS.values() for option in OptionSet.of(kind)
}

FORMAT_OPTIONS: Final = OptionSet(
    [
        Option("fileFormat", choice(*_KINDS), f"Format of the files: {', '.join(_KINDS)}.", "parquet", "parquet"),
        Option(
            "dataSchema",
            schema_of_ddl,
            "Columns of the files and their types, as in `t timestamp, n bigint`: for formats whose files do not have "
            "them.",
            None,
            "the files'",
        ),
        *_OF_SOME.values(),
        Option("delimiter", character, "The same as `sep`.", None, "`,`", same_as="sep"),
        Option("charset", text, "The same as `encoding`.", None, "UTF-8", same_as="encoding"),
    ]
)


def format_of(values: Mapping[str, Any]) -> FileFormat:
    """Return the format that parsed values of `FORMAT_OPTIONS` describe."""
    name = values["fileFormat"]
    attributes = {option: attribute for attribute, option in option_names(_KINDS[name]).items()}
    given = {option: values[option] for option in _OF_SOME if values[option] is not None}
    for option in sorted(given.keys() - attributes.keys()):
        takers = [known for known, kind in _KINDS.items() if option in option_names(kind).values()]
        raise OptionError(
            f"option {option} is not one of fileFormat = {name}, but of {', '.join(takers)}; leave it out, or set "
            "fileFormat"
        )
    try:
        return _KINDS[name](**{attributes[option]: value for option, value in given.items()})
    except OptionError as error:
        raise OptionError(re.sub(r"^(?=\w)", "option ", str(error))) from None
