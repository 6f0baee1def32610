"""The log of Spark's file source: which files it has read, and in which of its entries."""

from __future__ import annotations

from typing import NamedTuple

from streaming_source.checkpoint.files import RESTORE, CheckpointFiles
from streaming_source.exceptions import CheckpointError
from streaming_source.from_data import as_json


class LoggedFile(NamedTuple):
    """A file: the entry of the log that it is in, its URI, and when it had been modified, in milliseconds."""

    entry: int
    uri: str
    modified_ms: int | None


def file_log(files: CheckpointFiles, source: str, last: int) -> list[LoggedFile]:
    """Return all files that a source has listed up to an entry of the log, in the order of the entries.

    Raises
    ------
    CheckpointError
        If the log is missing, has a gap, or is damaged.
    """
    folder = f"sources/{source}"
    found = files.list_folder(folder)
    if found is None:
        raise CheckpointError(
            f"{files.checkpoint}/{folder}, the log of the files that were read, is missing; {RESTORE}"
        )
    compact = max((int(n.removesuffix(".compact")) for n in found if n.endswith(".compact")), default=-1)
    later = sorted(int(n) for n in found if n.isdigit() and int(n) > compact)
    if compact < 0 and not later:
        raise CheckpointError(f"{files.checkpoint}/{folder} has no log of the files that were read; {RESTORE}")
    if lost := sorted(set(range(compact + 1, last + 1)) - set(later)):
        raise CheckpointError(f"{files.checkpoint}/{folder}/{lost[0]} is missing; {RESTORE}")
    names = [f"{compact}.compact"] if compact >= 0 else []
    entries = [
        one
        for name in [*names, *(str(number) for number in later if number <= last)]
        for one in _entry(files, f"{folder}/{name}")
    ]
    return sorted((one for one in entries if one.entry <= last), key=lambda one: one.entry)


def _entry(files: CheckpointFiles, name: str) -> list[LoggedFile]:
    version, *lines = (files.text(name) or "").split("\n")
    try:
        if version != "v1":
            raise ValueError(f"version {version!r}")
        logged = [as_json(line) for line in lines if line]
        return [
            LoggedFile(int(one["batchId"]), str(one["path"]), int(one.get("timestamp") or 0))
            for one in logged
            if one.get("action", "add") == "add"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{files.checkpoint}/{name} is damaged ({error!r}); {RESTORE}") from None
