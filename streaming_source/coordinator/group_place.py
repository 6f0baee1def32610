"""Where the sources of alignment groups leave their reports for each other: a SQLite file on the driver's host."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from alignment.groups import Outlook, SourceReport, Turn
from streaming_source.exceptions import SourceError

__all__ = ["GroupPlace", "Member", "PlaceError"]

_BUSY_S: Final = 0.1
"""How long a plan waits for another source's transaction, each of which takes well under a millisecond."""

_LOOK_S: Final = 0.005
_CHANGES_AT: Final = 24
"""Where a SQLite file counts its transactions, in four bytes."""

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS member (
        alignment_group TEXT, source TEXT, report TEXT, PRIMARY KEY (alignment_group, source)
    ) WITHOUT ROWID
"""

_REMOVE: Final = "DELETE FROM member WHERE alignment_group = ? AND source = ?"


class PlaceError(SourceError):
    """The reports of a group can be neither written nor read now."""


@dataclass(frozen=True, slots=True)
class Member:
    """A source of a group, as it was when it last reported.

    Its process `pid` is one of this host. By a monotonic clock that all processes of the host share, it reported at
    `at_us`, and its report counts until `until_us`, in microseconds.
    """

    source_id: str
    name: str
    pid: int
    at_us: int
    until_us: int
    report: SourceReport

    def to_json(self) -> str:
        """All of it as text; see `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Member:
        """The member that a text is of."""
        values = json.loads(text)
        report = values["report"]
        if (turn := report["turn"]) is not None:
            outlook = turn["outlook"]
            report["turn"] = Turn(turn["rank"], None if outlook is None else Outlook(**outlook))
        return cls(**{**values, "report": SourceReport(**report)})


class GroupPlace:
    """Has one small text of each member of each group: the last that the member wrote.

    A member writes its own text alone, and reads those of all; any may remove that of a member that is gone. Nothing
    here must survive the machine: reports are worth their lease. A `PlaceError` is raised where the place cannot be
    reached. From any thread and process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def exchange(self, group: str, own: Member | None, is_gone: Callable[[Member], bool]) -> list[Member]:
        """Write the text of one member, if it is given, and return all members of the group that are not gone.

        With `own` those that are gone are removed.
        """
        try:
            with closing(self._open()) as file, file:
                if own is not None:
                    file.execute("BEGIN IMMEDIATE")
                    row = (group, own.source_id, own.to_json())
                    file.execute("INSERT OR REPLACE INTO member VALUES (?, ?, ?)", row)
                found = file.execute("SELECT report FROM member WHERE alignment_group = ?", (group,)).fetchall()
                members = [Member.from_json(text) for (text,) in found]
                gone = [member for member in members if is_gone(member)]
                if own is not None:
                    for member in gone:
                        file.execute(_REMOVE, (group, member.source_id))
                return [member for member in members if member not in gone]
        except sqlite3.Error as error:
            raise PlaceError(str(error)) from error

    def remove(self, group: str, source_id: str) -> None:
        """Remove the text of a member, if there is one."""
        try:
            with closing(self._open()) as file, file:
                file.execute(_REMOVE, (group, source_id))
        except sqlite3.Error as error:
            raise PlaceError(str(error)) from error

    def version(self) -> object:
        """What differs once something was written or removed, in any group; some microseconds."""
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(_CHANGES_AT)
                return file.read(4)
        except OSError:
            return None

    def wait_for_change(self, version: object, timeout_s: float) -> None:
        """Wait until the `version` is another one, or the time is over."""
        until = time.monotonic() + timeout_s
        while self.version() == version and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))

    def _open(self) -> sqlite3.Connection:
        # A connection for each exchange: one that is kept would be another process's after a fork.
        file = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            file.execute("PRAGMA synchronous = OFF")
            file.execute(_TABLE)
        except BaseException:
            file.close()
            raise
        return file
