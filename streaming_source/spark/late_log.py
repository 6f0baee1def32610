"""The late log: where the late records of each micro-batch are, kept until another query has read them.

Spark keeps the offsets of the latest micro-batches and removes older ones, even if they are still needed. So a query
with `late=route` logs what it routes in a journal at `lateLocation`: one entry for each micro-batch that routed
records, with the states of its splits before and after it, from which the query's own ranges are planned again. Records
are not copied.

An entry is written while its micro-batch runs: after Spark has made the offsets of the micro-batch durable, and before
any of its rows are durable. A micro-batch that runs again writes the same entry again. The query that reads
`late_records` removes the entries that it has read and committed.

Each query has a folder, named by the log id in the query's offsets, so that a query that begins anew does not read the
entries of another query.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import uuid4

from alignment.shown import log_of
from alignment.watermarks import MIN_WATERMARK
from streaming_source.coordinator import SourceState
from streaming_source.data_files.journal import Journal, from_json, to_json
from streaming_source.exceptions import DataLossError, OffsetError
from streaming_source.from_data import as_id
from streaming_source.spark.offsets import OffsetCodec

_log = log_of(__name__)

_VERSION: Final = 1
_READER: Final = "reader"
"""File beside the entries: who reads them."""
_MANY: Final = 1_000
"""Number of unread entries that raises a warning, which is repeated after as many more."""


def new_log_id() -> str:
    """Return an id for the late log of a new query."""
    return uuid4().hex[:12]


class EntryName(NamedTuple):
    """The name of an entry: the state of the source, and how many late records were routed up to that state."""

    sequence: int
    routed: int

    def __str__(self) -> str:
        return f"{self.sequence:012d}-{self.routed}.json"

    @classmethod
    def of(cls, name: str) -> EntryName | None:
        """Parse a file name; None for a file that is no entry."""
        numbers = name.removesuffix(".json").split("-")
        if len(numbers) != 2 or not all(map(str.isdigit, numbers)):
            return None
        return cls(*map(int, numbers))


class LateEntry(NamedTuple):
    """The states, before and after a micro-batch, of the splits in which it read late records."""

    start: SourceState[Any, Any]
    end: SourceState[Any, Any]

    @property
    def rows(self) -> int:
        """Late records that the micro-batch routed."""
        return self.end.routed - self.start.routed


class LateLog:
    """The entries of one query.

    Parameters
    ----------
    journal
        Option `lateLocation`: a directory with the logs of any number of queries.
    log_id
        Id of the query's late log, from its offsets. A `MalformedDataError` is raised if it may be a path.
    codec
        Codec of the source whose states the entries have.
    """

    def __init__(self, journal: Journal, log_id: str, codec: OffsetCodec) -> None:
        self._journal = journal.within(as_id(log_id))
        self._codec = codec
        self._written = 0

    def __str__(self) -> str:
        return str(self._journal)

    # ---- the query that routes -----------------------------------------------------------------------------------

    def write(self, start: SourceState[Any, Any], end: SourceState[Any, Any]) -> None:
        """Write the entry of a micro-batch that routed records: one file, of the size of these splits' states."""
        grown = _grown_splits(start, end)
        states = {"start": _only(start, grown), "end": _only(end, grown)}
        entry = {name: self._codec.encode(state) for name, state in states.items()}
        self._journal.write(str(EntryName(end.sequence, end.routed)), to_json(_VERSION, entry))
        is_time_to_look, self._written = self._written % _MANY == 0, self._written + 1
        if is_time_to_look and (unread := len(self.names())) >= _MANY:
            _log.warning(
                "%d micro-batches with late records are in %s, and no query has read them: run late_records(...) of "
                "this frame, or give late = keep or drop",
                unread,
                self,
            )

    def remove_after(self, sequence: int) -> None:
        """Remove the entries of states after this one: those states were abandoned, and others replace them."""
        self._journal.remove(map(str, self.names(sequence)))

    # ---- the query of the late records ---------------------------------------------------------------------------

    def names(self, after: int = -1, last: int | None = None) -> list[EntryName]:
        """Return the names of the entries of the states `(after, last]`, in order. One listing."""
        found = sorted(entry for name in self._journal.names() if (entry := EntryName.of(name)) is not None)
        return [entry for entry in found if after < entry.sequence and (last is None or entry.sequence <= last)]

    def read(self, names: Sequence[EntryName]) -> list[LateEntry]:
        """Read entries; raises a `DataLossError` if one is gone."""
        wanted = [*map(str, names)]
        found = self._journal.read(wanted, self._parsed)
        if gone := [name for name in wanted if name not in found]:
            raise DataLossError(
                f"{self}/{gone[0]} was removed while it was read: let one query alone read the late records of a query"
            )
        return [*found.values()]

    def give_to(self, reader: str, *, takes_it: bool = False) -> None:
        """Let one reader alone have the entries: the first that asks, or one that takes them from another."""
        found = (
            {} if takes_it else self._journal.read([_READER], lambda text: as_id(from_json(_VERSION, text)["reader"]))
        )
        if (owner := found.get(_READER, reader)) != reader:
            raise OffsetError(
                f"{self} is read by another query, {owner}, which has had some of these late records: one query alone "
                "reads those of a query. Let that one go on; or stop it, and give this one a new checkpointLocation "
                "and from_batch=0, which takes over what is not read yet"
            )
        if not found:
            self._journal.write(_READER, to_json(_VERSION, {"reader": reader}))

    def remove_to(self, sequence: int) -> None:
        """Remove the entries of this state and earlier ones: their records were read, and are not needed again."""
        self._journal.remove(map(str, self.names(last=sequence)))

    def _parsed(self, content: bytes) -> LateEntry:
        entry = from_json(_VERSION, content)
        return LateEntry(self._codec.decode(entry["start"]), self._codec.decode(entry["end"]))


def _grown_splits(start: SourceState[Any, Any], end: SourceState[Any, Any]) -> set[str]:
    """Ids of the splits that had late records between two states."""
    before = dict(zip(start.table.split_ids, start.late.tolist(), strict=True))
    after = zip(end.table.split_ids, end.late.tolist(), strict=True)
    return {split_id for split_id, count in after if count > before.get(split_id, 0)}


def _only(state: SourceState[Any, Any], split_ids: Collection[str]) -> SourceState[Any, Any]:
    """Return the state of these splits alone, without what only planning needs."""
    kept = [slot for slot, split_id in enumerate(state.table.split_ids) if split_id in split_ids]
    part = state.at_slots(kept)
    table = replace(part.table, furthest=MIN_WATERMARK)
    return replace(part, table=table, checkpoint=None, generators=(), left_out=(0, 0))
