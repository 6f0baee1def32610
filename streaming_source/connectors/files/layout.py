"""Options that say which files there are, in which order they are read, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streaming_source.api import Option
from streaming_source.api.options import boolean, choice, integer, text
from streaming_source.connectors.files.storage import StorageOptions
from streaming_source.exceptions import OptionError

__all__ = ["CLEAN_SOURCE", "FILE_ORDERS", "LAYOUT_OPTIONS", "layout_arguments"]

FILE_ORDERS: Final = ("eventTime", "name", "modificationTime")
CLEAN_SOURCE: Final = ("off", "archive", "delete")


def _not_latest_first(name: str, value: str) -> bool:
    if boolean(name, value):
        raise OptionError(
            "option latestFirst = true: what is read next is chosen by event time, so that no split runs ahead of the "
            "others; the newest files first would carry the watermark past all older ones. Leave it out; to skip old "
            "files, give a narrower path or pathGlobFilter"
        )
    return False


def _any_text(name: str, value: str) -> str:
    return value


LAYOUT_OPTIONS: Final = [
    Option(
        "fileOrder",
        choice(*FILE_ORDERS),
        "With splitBy=file, in which order files are begun. `eventTime`: by the earliest record in each; all files are "
        "looked into first. `name`, `modificationTime`: so you say that later files bring later records, within "
        "`maxOutOfOrderness`; files are looked into when it is their turn.",
        "eventTime",
        "eventTime",
    ),
    Option("maxFilesPerTrigger", integer(1), "With splitBy=file: so many new files begin in one micro-batch at most."),
    Option(
        "maxBytesPerTrigger",
        integer(1),
        "With splitBy=file: no further file begins in a micro-batch when those that did have so many bytes.",
    ),
    Option(
        "stateLocation",
        text,
        "With splitBy=file: a directory in which finished files are written down, so that all are remembered and the "
        "offset stays small.",
    ),
    Option(
        "allowOverwrites",
        boolean,
        "With splitBy=file: read a file again as a whole that was rewritten after it was read, instead of failing.",
        False,
        "false",
    ),
    Option(
        "pathGlobFilter",
        text,
        "Only files whose names match are there: `*`, `?`, `[a-z]` and `{a,b}` stand for parts of a name.",
    ),
    Option(
        "recursiveFileLookup",
        boolean,
        "Names of directories such as `day=2024-01-31` give no columns. All below the path is read in any case.",
        False,
        "false",
    ),
    Option(
        "ignoreMissingFiles", boolean, "Go on without files that were deleted before they were read.", False, "false"
    ),
    Option(
        "ignoreCorruptFiles",
        boolean,
        "Go on without files that cannot be read, and without the rest of one that breaks in its middle.",
        False,
        "false",
    ),
    Option(
        "cleanSource",
        choice(*CLEAN_SOURCE),
        "What becomes of a file when the micro-batch that read the last of it is committed.",
        "off",
        "off",
    ),
    Option("sourceArchiveDir", text, "With cleanSource=archive: where files are moved, under their paths."),
    Option(
        "latestFirst",
        _not_latest_first,
        "Refused: what is read next is chosen by event time, and the newest first would make all others late.",
        False,
        "false",
    ),
    Option(
        "storage.*",
        _any_text,
        "Arguments of the file system, as its class in `pyarrow.fs` takes them: `storage.access_key`, "
        "`storage.endpoint_override`. They stand in no offset, log or error.",
        {},
    ),
]


def layout_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parsed values of `LAYOUT_OPTIONS` as arguments of a `FileSource`."""
    passed = [option.name for option in LAYOUT_OPTIONS if option.name not in ("latestFirst", "storage.*")]
    arguments = {_snake_case(name): values[name] for name in passed}
    return {**arguments, "storage": StorageOptions.of(values["storage.*"])}


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
