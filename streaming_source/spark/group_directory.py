"""A directory of the user's where sources of an alignment group exchange reports if they share no local disk.

Option `alignmentLocation` names it, on any file system. Each member writes a small file of its own, and reads those of
all members. Planners may run on several hosts, or isolated from each other on one: their monotonic clocks differ, their
wall clocks agree closely, and none can see the processes of another planner.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import threading
import time
from collections.abc import Callable
from typing import Final

from pyarrow import fs

from alignment.group_events import Member
from streaming_source.coordinator.group_place import (
    GroupPlace,
    PlaceError,
    member_from_json,
    member_to_json,
    seen_from_another_host,
    this_host,
)
from streaming_source.data_files.stores import Root, without_secrets, write_whole
from streaming_source.spark.places import PLACE_ERRORS, check_writable

__all__ = ["GroupDirectory"]

_VERSION: Final = 2

_LOOK_S: Final = {True: 0.05, False: 1.0}
"""Shortest time between two listings of the directory, by whether it is local: a remote listing takes requests."""


class GroupDirectory(GroupPlace):
    """The reports of members in a directory, which is created if it is missing.

    After an exchange with a group, the members found, or the error, are cached for `look_s` seconds.

    Parameters
    ----------
    root
        The directory.
    now_us, wall_us
        The members' clock, which all processes of a host share, and the wall clock, in microseconds.
    host
        Identifies processes that can see each other; by default those of this kernel and process namespace.
    """

    def __init__(
        self, root: Root, now_us: Callable[[], int], wall_us: Callable[[], int], host: str | None = None
    ) -> None:
        self._root = root
        self._now_us = now_us
        self._wall_us = wall_us
        self._host = this_host() if host is None else host
        self.look_s = _LOOK_S[root.is_local]
        self._lock = threading.Lock()
        # By group: the time of the last listing, and the members found or the error.
        self._found: dict[str, tuple[float, list[Member] | PlaceError]] = {}

    def __str__(self) -> str:
        return without_secrets(self._root.uri)

    def check(self) -> None:
        """Raise an `OptionError` if this process may not write into the directory."""
        check_writable(self._root, "alignmentLocation", "name a directory that all sources of the group may write to")

    def exchange(self, group: str, own: Member | None, is_gone: Callable[[Member], bool]) -> list[Member]:
        with self._lock:
            if own is not None:
                self._write(group, own)
            members = self._look(group, afresh=own is not None)
            gone = [member for member in members if is_gone(member)]
            if own is not None:
                for member in gone:
                    self._delete(group, member.source_id)
        return [member for member in members if member not in gone]

    def remove(self, group: str, source_id: str) -> None:
        with self._lock:
            self._delete(group, source_id)

    def version(self) -> object:
        """The members of each group, which serve as their own version; lists the directory at most every `look_s` s."""
        with self._lock:
            try:
                return [(group, self._look(group)) for group in [*self._found]]
            except PlaceError:
                return None

    # ---- inside --------------------------------------------------------------------------------------------------

    def _write(self, group: str, own: Member) -> None:
        shift_us = self._wall_us() - self._now_us()
        text = {"v": _VERSION, "host": self._host, "shift_us": shift_us, "member": member_to_json(own)}
        try:
            files, folder = self._opened(group)
            write_whole(files, posixpath.join(folder, f"{own.source_id}.json"), json.dumps(text).encode())
        except PLACE_ERRORS as error:
            raise PlaceError(without_secrets(str(error))) from error

    def _look(self, group: str, *, afresh: bool = False) -> list[Member]:
        looked_s, found = self._found.get(group, (-self.look_s, []))
        if afresh or time.monotonic() - looked_s >= self.look_s:
            before = {member.source_id for member in found} if isinstance(found, list) else set()
            found = self._read(group)
            if isinstance(found, list) and before - {member.source_id for member in found}:
                # If the file system cannot replace a file atomically, the file is missing for a moment.
                found = self._read(group)
            self._found[group] = (time.monotonic(), found)
        if isinstance(found, PlaceError):
            raise found
        return found

    def _read(self, group: str) -> list[Member] | PlaceError:
        members = []
        try:
            files, folder = self._opened(group)
            for info in files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
                if info.base_name.endswith(".json") and not info.base_name.startswith("_"):
                    try:
                        with files.open_input_stream(info.path) as stream:
                            members.append(self._member(stream.read()))
                    except FileNotFoundError:
                        continue  # this member has left meanwhile
        except PlaceError as error:
            return error
        except PLACE_ERRORS as error:
            return PlaceError(without_secrets(str(error)))
        return members

    def _member(self, text: bytes) -> Member:
        try:
            written = json.loads(text)
            if written["v"] != _VERSION:
                raise PlaceError(f"a report of version {written['v']}: upgrade spark-watermark-alignment everywhere")
            member = member_from_json(written["member"])
        except (KeyError, TypeError, ValueError) as error:
            raise PlaceError(f"a report is damaged ({error!r}); remove the files of the directory") from None
        if written["host"] == self._host:
            return member
        return seen_from_another_host(member, written["shift_us"] - (self._wall_us() - self._now_us()))

    def _delete(self, group: str, source_id: str) -> None:
        looked_s, found = self._found.get(group, (0.0, []))
        if isinstance(found, list):
            self._found[group] = (looked_s, [member for member in found if member.source_id != source_id])
        try:
            files, folder = self._opened(group)
            path = posixpath.join(folder, f"{source_id}.json")
            if files.get_file_info(path).type is not fs.FileType.NotFound:
                files.delete_file(path)
        except PLACE_ERRORS as error:
            raise PlaceError(without_secrets(str(error))) from error

    def _opened(self, group: str) -> tuple[fs.FileSystem, str]:
        files, path = self._root.open()
        return files, posixpath.join(path, hashlib.sha256(group.encode()).hexdigest()[:16])
