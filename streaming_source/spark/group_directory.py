"""A directory of the user's where sources of an alignment group exchange reports if they share no local disk.

Option `alignmentLocation` names it, on any file system. Each member writes a small file of its own, and reads those of
all members. Planners may run on several hosts, or isolated from each other on one: their monotonic clocks differ, their
wall clocks agree closely, and none can see the processes of another planner.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from alignment.codec import Codec
from alignment.group_events import Member
from streaming_source.coordinator.group_location import (
    GroupLocation,
    member_from_json,
    member_to_json,
    seen_from_another_host,
    this_host,
)
from streaming_source.data_files.journal import Journal, from_json, to_json
from streaming_source.data_files.stores import Root
from streaming_source.exceptions import SourceError

_VERSION: Final = 2

_ENTRY: Final = re.compile(r"[0-9a-f]{32}\.json")
"""Name of an entry: the id of its member."""

_LOOK_S: Final = {True: 0.05, False: 1.0}
"""Shortest time between two listings of the directory, by whether it is local: a remote listing takes requests."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry: the host of its member, how far the wall clock there is ahead, and the member as text."""

    v: int
    host: str
    shift_us: int
    member: str


_ENTRIES: Final = Codec(_Entry, strict=True)


class GroupDirectory(GroupLocation):
    """The reports of members in a directory: a journal for each group, an entry for each member.

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
        self._journal = Journal(
            root,
            "alignmentLocation",
            writers="all sources of the group",
            mend="remove the files of the directory",
            is_patient=False,
        )
        self._now_us = now_us
        self._wall_us = wall_us
        self._host = this_host() if host is None else host
        self.look_s = _LOOK_S[root.is_local]
        self._lock = threading.Lock()
        # By group: the time of the last listing, and the members found or the error.
        self._found: dict[str, tuple[float, list[Member] | SourceError]] = {}

    def __str__(self) -> str:
        return str(self._journal)

    def check(self) -> None:
        """Raise an `OptionError` if this process may not write into the directory."""
        self._journal.check()

    def exchange(self, group: str, own: Member | None, is_gone: Callable[[Member], bool]) -> list[Member]:
        with self._lock:
            if own is not None:
                self._write(group, own)
            members = self._look(group, afresh=own is not None)
            gone = [member for member in members if is_gone(member)]
            if own is not None:
                self._remove(group, [member.source_id for member in gone])
        return [member for member in members if member not in gone]

    def remove(self, group: str, source_id: str) -> None:
        with self._lock:
            self._remove(group, [source_id])

    def version(self) -> object:
        """The members of each group, which serve as their own version; lists the directory at most every `look_s` s."""
        with self._lock:
            try:
                return [(group, self._look(group)) for group in [*self._found]]
            except SourceError:
                return None

    def _write(self, group: str, own: Member) -> None:
        shift_us = self._wall_us() - self._now_us()
        entry = to_json(_VERSION, {"host": self._host, "shift_us": shift_us, "member": member_to_json(own)})
        self._of(group).write(f"{own.source_id}.json", entry)

    def _look(self, group: str, *, afresh: bool = False) -> list[Member]:
        looked_s, found = self._found.get(group, (-self.look_s, []))
        if afresh or time.monotonic() - looked_s >= self.look_s:
            before = {member.source_id for member in found} if isinstance(found, list) else set()
            found = self._read(group)
            if isinstance(found, list) and before - {member.source_id for member in found}:
                # If the file system cannot replace a file atomically, the file is missing for a moment.
                found = self._read(group)
            self._found[group] = (time.monotonic(), found)
        if isinstance(found, SourceError):
            raise found
        return found

    def _read(self, group: str) -> list[Member] | SourceError:
        journal = self._of(group)
        try:
            names = filter(_ENTRY.fullmatch, journal.names())
            # What a member says of its id is data, and by the id its entry is removed.
            found = journal.read(names, self._member).items()
            return [member for name, member in found if name == f"{member.source_id}.json"]
        except SourceError as error:
            return error

    def _member(self, content: bytes) -> Member:
        entry = _ENTRIES.read(from_json(_VERSION, content))
        member = member_from_json(entry.member)
        if entry.host == self._host:
            return member
        return seen_from_another_host(member, entry.shift_us - (self._wall_us() - self._now_us()))

    def _remove(self, group: str, source_ids: list[str]) -> None:
        looked_s, found = self._found.get(group, (0.0, []))
        if isinstance(found, list):
            self._found[group] = (looked_s, [member for member in found if member.source_id not in source_ids])
        self._of(group).remove(f"{source_id}.json" for source_id in source_ids)

    def _of(self, group: str) -> Journal:
        return self._journal.within(hashlib.sha256(group.encode()).hexdigest()[:16])
