"""The commits of a Delta table, read from its log: what each adds and removes, and what it says of the table.

`deltalake` gives the files of a version, but of a commit not which of its files are new data and which a compaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pyarrow import fs

from streaming_source.exceptions import MalformedDataError

__all__ = ["Commit", "checkpoint_version", "latest_protocol", "log_path", "path_in_table", "read_commit"]


@dataclass(frozen=True, slots=True)
class Commit:
    """One version in the log: its actions, as the protocol has them.

    `adds` and `removes` are of all files, `dataChange` or not. `metadata` and `protocol` are None where it leaves them
    as they were. `operation` is what its writer calls it, empty where it does not say.
    """

    version: int
    adds: list[Mapping[str, Any]] = field(default_factory=list)
    removes: list[Mapping[str, Any]] = field(default_factory=list)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    operation: str = ""

    @property
    def new_files(self) -> list[Mapping[str, Any]]:
        """What it adds as data."""
        return [add for add in self.adds if add.get("dataChange", True)]

    @property
    def removes_data(self) -> bool:
        """Whether rows of earlier versions are not in this one."""
        return any(remove.get("dataChange", True) for remove in self.removes)


def log_path(root: str, version: int) -> str:
    """Where the log has a version."""
    return f"{root}/_delta_log/{version:020d}.json"


def path_in_table(written: str) -> str:
    """Return what the log calls a file as a path in the table's folder, or a path or URI of a file elsewhere.

    Shallow clones have files elsewhere; those of the local file system are written in several ways.
    """
    path = unquote(written)
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def read_commit(filesystem: fs.FileSystem, root: str, version: int) -> Commit | None:
    """Read one version; None if the log has no file of it. O(its actions)."""
    path = log_path(root, version)
    try:
        with filesystem.open_input_stream(path) as stream:
            lines = bytes(stream.read()).splitlines()
    except FileNotFoundError:
        return None
    adds, removes = [], []
    latest: dict[str, Any] = {}
    try:
        for line in lines:
            if not line.strip():
                continue
            action = json.loads(line)
            if (add := action.get("add")) is not None:
                adds.append(add)
            elif (remove := action.get("remove")) is not None:
                removes.append(remove)
            else:
                latest |= action
        info = latest.get("commitInfo") or {}
        operation = str(info.get("operation") or "")
        return Commit(version, adds, removes, latest.get("metaData"), latest.get("protocol"), operation)
    except (ValueError, AttributeError, TypeError) as error:
        raise MalformedDataError(
            f"{path} cannot be read as a commit of a Delta table: {error}; restore it, or use a new checkpointLocation"
        ) from None


def checkpoint_version(filesystem: fs.FileSystem, root: str) -> int:
    """Return the version of the log's last checkpoint; -1 without one."""
    try:
        with filesystem.open_input_stream(f"{root}/_delta_log/_last_checkpoint") as stream:
            return int(json.loads(bytes(stream.read()))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1


def latest_protocol(filesystem: fs.FileSystem, root: str) -> tuple[int, Mapping[str, Any]] | None:
    """Return the newest `protocol` action among the commits that the log has as JSON, and its version; None without.

    For a table that `deltalake` does not open; commits that cannot be read are passed over. O(commits).
    """
    entries = filesystem.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True))
    versions = (entry.base_name.removesuffix(".json") for entry in entries if entry.base_name.endswith(".json"))
    for version in sorted((int(name) for name in versions if name.isdigit()), reverse=True):
        try:
            commit = read_commit(filesystem, root, version)
        except MalformedDataError:
            continue
        if commit is not None and commit.protocol is not None:
            return version, commit.protocol
    return None
