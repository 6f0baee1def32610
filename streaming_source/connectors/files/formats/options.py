"""The options of formats as Spark's users know them, and which format takes which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from streaming_source.api import Option, OptionSet
from streaming_source.api.ddl import schema_of_ddl
from streaming_source.api.options import boolean, choice, text
from streaming_source.connectors.files.formats.base import FileFormat
from streaming_source.exceptions import OptionError

__all__ = ["COMPRESSIONS", "FORMAT_MODULES", "FORMAT_OPTIONS", "MODES", "format_class", "format_of"]

COMPRESSIONS: Final = ("auto", "none", "gzip", "bz2", "lz4", "zstd", "brotli")
"""Values of option `compression`; `auto` goes by the ending of each file's name."""

MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

FORMAT_MODULES: Final = {
    "ParquetFormat": "parquet",
    "ArrowFormat": "chunks",
    "OrcFormat": "chunks",
    "CsvFormat": "csv",
    "JsonFormat": "json",
    "TextFormat": "text",
}
"""Class of each format -> its module, imported when the format is used."""

_FORMATS: Final = {kind.removesuffix("Format").lower(): kind for kind in FORMAT_MODULES}

_LINES: Final = {"compression": "compression", "encoding": "encoding"}
_RECORDS: Final = {
    **_LINES,
    "inferSchema": "infer_schema",
    "mode": "mode",
    "columnNameOfCorruptRecord": "corrupt_column",
    "rescuedDataColumn": "rescued_column",
    "multiLine": "multi_line",
    "timestampFormat": "timestamp_format",
    "dateFormat": "date_format",
}
_TAKEN: Final[Mapping[str, Mapping[str, str]]] = {
    "text": _LINES,
    "json": _RECORDS,
    "csv": {
        **_RECORDS,
        "header": "header",
        "sep": "sep",
        "quote": "quote",
        "escape": "escape",
        "nullValue": "null_value",
        "comment": "comment",
    },
}
"""Which options a format takes, and as which of its attributes."""


def _mode(name: str, value: str) -> str:
    return str(choice(*MODES)(name, value))


def _character(name: str, value: str) -> str:
    r"""A character, or `\t`; what else is wrong with it the format says."""
    return "\t" if value == r"\t" else value


def _any(name: str, value: str) -> str:
    return value


FORMAT_OPTIONS: Final = OptionSet(
    [
        Option(
            "fileFormat", choice(*_FORMATS), "Format of the files: " + ", ".join(_FORMATS) + ".", "parquet", "parquet"
        ),
        Option(
            "dataSchema",
            schema_of_ddl,
            "Columns of the files and their types, as in `t timestamp, n bigint`: for formats that do not tell them.",
            None,
            "the files'",
        ),
        Option(
            "inferSchema",
            boolean,
            "csv, json: take columns and types from the first file, where no schema is given.",
            None,
            "false",
        ),
        Option("header", boolean, "csv: the first record of each file names its columns.", None, "false"),
        Option("sep", _character, "csv: the character between fields.", None, "`,`"),
        Option("delimiter", _character, "The same as `sep`.", None, "`,`", same_as="sep"),
        Option("comment", _character, "csv: lines that begin with this character are skipped.", None, "none"),
        Option("quote", _character, "csv: the character around fields; empty for none.", None, '`"`'),
        Option("escape", _character, "csv: the character that takes the meaning from the next.", None, "none"),
        Option("nullValue", _any, "csv: text that means null, beside an empty field.", None, "none"),
        Option(
            "mode",
            _mode,
            "csv, json: of a malformed record. `PERMISSIVE` keeps it, null where it cannot be read; `DROPMALFORMED` "
            "leaves it out; `FAILFAST` fails.",
            None,
            "PERMISSIVE",
        ),
        Option(
            "columnNameOfCorruptRecord",
            text,
            "csv, json: the column of the schema that takes the text of malformed records.",
            None,
            "_corrupt_record",
        ),
        Option(
            "rescuedDataColumn",
            text,
            "csv, json: add a column of this name, with the fields that no column reads or whose type is another, and "
            "`_file_path`, as JSON text.",
        ),
        Option(
            "multiLine",
            boolean,
            "csv: quoted fields may hold line ends; json: a file is one object, or an array of them.",
            None,
            "false",
        ),
        Option(
            "timestampFormat",
            _any,
            "csv, json: how columns of timestamps are written, in Java's letters, as in `dd.MM.yyyy HH:mm[:ss]`.",
            None,
            "ISO-8601",
        ),
        Option("dateFormat", _any, "csv, json: how dates are written, in the same letters.", None, "ISO-8601"),
        Option("charset", text, "The same as `encoding`.", None, "UTF-8", same_as="encoding"),
        Option("encoding", text, "csv, json, text: encoding of the files.", None, "UTF-8"),
        Option(
            "compression",
            choice(*COMPRESSIONS),
            "csv, json, text: how files are compressed; `auto`: as the endings of their names say.",
            None,
            "auto",
        ),
    ]
)


def format_class(name: str) -> type[FileFormat]:
    """One of `FORMAT_MODULES` by its name."""
    kind: type[FileFormat] = getattr(import_module(f"{__package__}.{FORMAT_MODULES[name]}"), name)
    return kind


def format_of(values: Mapping[str, Any]) -> FileFormat:
    """The format that parsed values of `FORMAT_OPTIONS` describe.

    Raises
    ------
    OptionError
        If an option is not one of that format, or a value is wrong.
    """
    name = values["fileFormat"]
    taken = _TAKEN.get(name, {})
    of_any = ("fileFormat", "dataSchema")
    named = [option.name for option in FORMAT_OPTIONS if option.name not in of_any and option.same_as is None]
    given = {option: values[option] for option in named if values[option] is not None}
    for option in sorted(given.keys() - taken.keys()):
        takers = [kind for kind, options in _TAKEN.items() if option in options]
        raise OptionError(
            f"option {option} is not one of fileFormat = {name}, but of {', '.join(takers)}; leave it out, or set "
            "fileFormat"
        )
    try:
        return format_class(_FORMATS[name])(**{taken[option]: value for option, value in given.items()})
    except OptionError as error:
        raise OptionError(re.sub(r"^(?=\w)", "option ", str(error))) from None
