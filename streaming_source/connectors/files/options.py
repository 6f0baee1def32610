"""How fields declare the options of files, and the options of other systems that mean nothing here."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from streaming_source.api.options import Parser, option

__all__ = ["FOREIGN_OPTIONS", "any_text", "option_field"]


def option_field(default: object, name: str, parse: Parser, doc: str, default_text: str = "") -> Any:
    """A field of a dataclass with a default, and the option that sets it; see `streaming_source.api.options`."""
    return field(default=default, metadata=option(name, parse, doc, default_text))


def any_text(name: str, value: str) -> str:
    """Text as it stands, also empty."""
    return value


_OLD_FILES: Final = "to skip files, give modifiedAfter, a narrower path or pathGlobFilter"
_DELTA: Final = "it is one of Delta tables, which are not read here; use spark.readStream.format('delta')"

_WITHOUT_MEANING: Final = (
    *("allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers", "allowNumericLeadingZeros"),
    *("allowSingleQuotes", "allowUnquotedControlChars", "allowUnquotedFieldNames", "charToEscapeQuoteEscaping"),
    *("datetimeRebaseMode", "discardCachedInputRatio", "dropFieldIfAllNull", "emptyValue", "enforceSchema"),
    *("enableDateTimeParsingFallback", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "int96RebaseMode"),
    *(
        "lineSep",
        "locale",
        "maxCachedFiles",
        "maxCharsPerColumn",
        "maxColumns",
        "nanValue",
        "negativeInf",
        "positiveInf",
        "preferDate",
    ),
    *("prefersDecimal", "primitivesAsString", "samplingRatio", "unescapedQuoteHandling", "wholetext"),
)

FOREIGN_OPTIONS: Final = {
    **dict.fromkeys(_WITHOUT_MEANING, "it is one of Spark's own file sources, and means nothing here; leave it out"),
    "basePath": "columns in names of directories are found without it; leave it out",
    "mergeSchema": "columns are those of the first file; name others with option dataSchema, or see schemaEvolution",
    "timestampNTZFormat": "it is called timestampFormat here",
    "cloudFiles.allowOverwrites": "it is called allowOverwrites here",
    "cloudFiles.cleanSource": "it is called cleanSource here",
    "cloudFiles.format": "it is called fileFormat here",
    "cloudFiles.includeExistingFiles": _OLD_FILES,
    "cloudFiles.inferColumnTypes": "it is called inferSchema here",
    "cloudFiles.maxBytesPerTrigger": "it is called maxBytesPerTrigger here",
    "cloudFiles.maxFilesPerTrigger": "it is called maxFilesPerTrigger here",
    "cloudFiles.schemaHints": "it is called dataSchema here, and names all columns",
    "cloudFiles.*": "it is one of Databricks' Auto Loader; leave it out, and see docs/files.md",
    **dict.fromkeys(("ignoreChanges", "ignoreDeletes", "skipChangeCommits", "startingVersion"), _DELTA),
}
"""Name -> what to do instead; the first that matches counts."""
