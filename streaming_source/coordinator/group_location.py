"""The place where sources of alignment groups leave reports for each other: by default a SQLite file on the driver."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final
from uuid import getnode, uuid4

from alignment.codec import Codec
from alignment.group_events import Member
from streaming_source.exceptions import SourceError
from streaming_source.from_data import as_id, as_json

_PROC: Final = Path("/proc")

_FOREIGN_LEASE_US: Final = 600 * 1_000_000
"""Microseconds that a report of another host counts at most: its process cannot be checked from here."""

_MOST_PID: Final = 2**31 - 1

_ALWAYS_THERE: Final = 0
"""Replaces the id of a process that cannot be seen from here: a liveness check of this id always succeeds."""


_MEMBER: Final = Codec(Member, whole=True, strict=True)


def member_to_json(member: Member) -> str:
    """All of a member as text; see `member_from_json`."""
    return json.dumps(_MEMBER.write(member))


def member_from_json(text: str) -> Member:
    """The member that a text is of; raises a `ValueError` if its values are of other types, or impossible."""
    member = _MEMBER.read(as_json(text))
    as_id(member.source_id)
    if not 0 <= member.pid <= _MOST_PID or member.until_us < member.at_us or member.report.max_drift_us < 0:
        raise ValueError("its process, its lease or its drift cannot be")
    return member


def seen_from_another_host(member: Member, shift_us: int = 0) -> Member:
    """The member where its process cannot be seen; `shift_us` is how far the clock there is ahead of its own.

    It counts until its lease ends, for ten minutes at most.
    """
    at_us = member.at_us + shift_us
    lease_us = min(member.until_us - member.at_us, _FOREIGN_LEASE_US)
    return replace(member, pid=_ALWAYS_THERE, at_us=at_us, until_us=at_us + lease_us)


class GroupLocation(ABC):
    """Has one small text of each member of each group: the last that the member wrote.

    A member writes its own text alone, and reads those of all; any may remove that of a member that has ended. Nothing
    here must survive the machine: reports are worth their lease. A `SourceError` is raised where the location cannot be
    reached. From any thread and process.
    """

    look_s = 0.005
    """Seconds between the looks of a source that waits for another version."""

    @abstractmethod
    def exchange(self, group: str, own: Member | None, is_gone: Callable[[Member], bool]) -> list[Member]:
        """Write the text of one member, if it is given, and return all members of the group that have not ended.

        With `own` the others are removed.
        """

    @abstractmethod
    def remove(self, group: str, source_id: str) -> None:
        """Remove the text of a member, if there is one."""

    @abstractmethod
    def version(self) -> object:
        """Return what differs once something was written or removed, in any group that was exchanged with."""

    def wait_for_change(self, version: object, timeout_s: float) -> None:
        """Wait until the `version` is another one, or the time is over."""
        until = time.monotonic() + timeout_s
        while self.version() == version and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, self.look_s))


@cache
def this_host() -> str:
    """Identify the processes that see each other: those of this kernel and process namespace."""
    if not _PROC.is_dir():
        # As on macOS, which has no process namespaces.
        return f"{getnode():x}"
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        # Unknown: each process counts as a host, so that a process that cannot be seen is not taken for ended.
        return uuid4().hex


_BUSY_S: Final = 0.1
"""Seconds that a plan waits for another source's transaction, each of which takes well under a millisecond."""

_CHANGES_AT: Final = 24
"""The place at which a SQLite file counts its transactions, in four bytes."""

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS member (
        alignment_group TEXT, source TEXT, host TEXT, report TEXT, PRIMARY KEY (alignment_group, source)
    ) WITHOUT ROWID
"""

_REMOVE: Final = "DELETE FROM member WHERE alignment_group = ? AND source = ?"


class GroupFile(GroupLocation):
    """A SQLite file on a local disk, for members on one machine, also in containers that share that disk.

    `host` identifies processes that can see each other; by default those of this kernel and process namespace.
    """

    def __init__(self, path: Path, host: str | None = None) -> None:
        self._path = path
        self._host = this_host() if host is None else host

    def __str__(self) -> str:
        return str(self._path)

    def exchange(self, group: str, own: Member | None, is_gone: Callable[[Member], bool]) -> list[Member]:
        try:
            with closing(self._open()) as file, file:
                if own is not None:
                    file.execute("BEGIN IMMEDIATE")
                    row = (group, own.source_id, self._host, member_to_json(own))
                    file.execute("INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?)", row)
                found = file.execute("SELECT host, report FROM member WHERE alignment_group = ?", (group,)).fetchall()
                members = [self._member(host, text) for host, text in found]
                dead = [member for member in members if is_gone(member)]
                if own is not None:
                    for member in dead:
                        file.execute(_REMOVE, (group, member.source_id))
                return [member for member in members if member not in dead]
        except sqlite3.Error as error:
            raise SourceError(str(error)) from error
        except ValueError as error:
            raise SourceError(f"{self} has a damaged report: {error}; remove the file") from None

    def remove(self, group: str, source_id: str) -> None:
        try:
            with closing(self._open()) as file, file:
                file.execute(_REMOVE, (group, source_id))
        except sqlite3.Error as error:
            raise SourceError(str(error)) from error

    def version(self) -> object:
        """Of all groups; some microseconds."""
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(_CHANGES_AT)
                return file.read(4)
        except OSError:
            return None

    def _member(self, host: str, text: str) -> Member:
        member = member_from_json(text)
        return member if host == self._host else seen_from_another_host(member)

    def _open(self) -> sqlite3.Connection:
        try:
            # SQLite would follow a link, and make the file by the umask.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        except OSError as error:
            raise SourceError(f"{self}: {error.strerror}; remove what is there") from error
        # A connection for each exchange: one that is kept would be another process's after a fork.
        file = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            file.execute("PRAGMA synchronous = OFF")
            file.execute(_TABLE)
        except BaseException:
            file.close()
            raise
        return file
