"""The reports of alignment groups in a SQLite file on the driver's host."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from alignment.group_events import Member
from streaming_source.coordinator.group_location import (
    GroupLocation,
    member_from_json,
    member_to_json,
    seen_from_another_host,
    this_host,
)
from streaming_source.exceptions import SourceError

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
