"""How the options of files are declared and read, and the options of other systems that mean nothing here."""

from __future__ import annotations

from typing import Final

from alignment.arrow_times import UTC
from streaming_source.api.options import boolean
from streaming_source.connectors.files.storage import modified_ms
from streaming_source.exceptions import OptionError

__all__ = [
    "FOREIGN_OPTIONS",
    "any_text",
    "character",
    "distinct_names",
    "not_latest_first",
    "time_text",
]


def any_text(name: str, value: str) -> str:
    """Text as it stands, also empty."""
    return value


def not_latest_first(name: str, value: str) -> bool:
    """False, the only value that is taken."""
    if boolean(name, value):
        raise OptionError(
            "option latestFirst = true: what is read next is chosen by event time, so that no split runs ahead of the "
            "others; the newest files first would carry the watermark past all older ones. Leave it out; to skip old "
            "files, give a narrower path or pathGlobFilter"
        )
    return False


def time_text(name: str, value: str) -> str:
    """ISO-8601 text, whose zone is not known yet."""
    modified_ms(name, value, UTC)
    return value


def distinct_names(name: str, value: str) -> tuple[str, ...]:
    """Names separated by commas."""
    found = tuple(part.strip() for part in value.split(","))
    if not all(found) or len({*found}) < len(found):
        raise OptionError(f"option {name} = {value!r}: must be different names separated by commas, as in a,b")
    return found


def character(name: str, value: str) -> str:
    r"""A character, or `\t`; what else is wrong with it the format says."""
    return "\t" if value == r"\t" else value


_OLD_FILES: Final = "to skip files, give modifiedAfter, a narrower path or pathGlobFilter"
_DELTA: Final = "it is one of Delta tables, which are not read here; use spark.readStream.format('delta')"

_PLAIN_JSON: Final = (
    "JSON is read as in RFC 8259; leave it out, or read other files with fileFormat = text and parse them in the query "
    "with from_json, which takes this option"
)
_PLAIN_CSV: Final = (
    "fields of CSV are read as they stand; leave it out, or read the column as string and convert it in the query"
)

_WITHOUT_MEANING: Final = (
    *("datetimeRebaseMode", "discardCachedInputRatio", "dropFieldIfAllNull", "enableDateTimeParsingFallback"),
    *("enforceSchema", "int96RebaseMode", "locale", "maxCachedFiles", "maxCharsPerColumn", "maxColumns", "preferDate"),
    *("prefersDecimal", "primitivesAsString", "samplingRatio", "unescapedQuoteHandling", "wholetext"),
)
_OF_JSON: Final = (
    *("allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers", "allowNumericLeadingZeros"),
    *("allowSingleQuotes", "allowUnquotedControlChars", "allowUnquotedFieldNames"),
)
_OF_CSV: Final = (
    *("charToEscapeQuoteEscaping", "emptyValue", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nanValue"),
    *("negativeInf", "positiveInf"),
)

FOREIGN_OPTIONS: Final = {
    **dict.fromkeys(_WITHOUT_MEANING, "it is one of Spark's own file sources, and means nothing here; leave it out"),
    **dict.fromkeys(_OF_JSON, _PLAIN_JSON),
    **dict.fromkeys(_OF_CSV, _PLAIN_CSV),
    "lineSep": "lines end with \\n or \\r\\n, whichever is there; leave it out, or write the files with such ends",
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
