"""Options of Spark's own file sources and of Databricks' Auto Loader that mean nothing here, or have another name."""

from __future__ import annotations

from typing import Final

__all__ = ["FOREIGN_OPTIONS"]

_OLD_FILES: Final = "it is not supported; to skip files, give a narrower path or pathGlobFilter"
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
    *("prefersDecimal", "primitivesAsString", "samplingRatio", "timeZone", "unescapedQuoteHandling", "wholetext"),
)

FOREIGN_OPTIONS: Final = {
    **dict.fromkeys(_WITHOUT_MEANING, "it is one of Spark's own file sources, and means nothing here; leave it out"),
    "basePath": "columns in names of directories are found without it; leave it out",
    "charset": "it is called encoding here",
    "comment": "comments are records like others; take them out before, or read fileFormat = text and filter",
    "dateFormat": "read such dates as text, with option dataSchema, and parse them in the query",
    "delimiter": "it is called sep here",
    "fileNameOnly": "files are known by their paths; leave it out, and do not move them",
    "mergeSchema": "columns are those of the first file; name others with option dataSchema, or leave it out",
    "modifiedAfter": _OLD_FILES,
    "modifiedBefore": _OLD_FILES,
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
    "rescuedDataColumn": "mode = PERMISSIVE with option columnNameOfCorruptRecord keeps malformed records",
    **dict.fromkeys(("ignoreChanges", "ignoreDeletes", "skipChangeCommits", "startingVersion"), _DELTA),
}
"""Name -> what to do instead; the first that matches counts."""
