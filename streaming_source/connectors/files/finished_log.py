"""A log of finished files in a directory, with an entry for each state that finished some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa

from alignment import arrow_compute as pc
from streaming_source.connectors.files.finished import FinishedFiles
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.marks import MARK, NO_MARKS, Marks
from streaming_source.connectors.files.split import FileOrder, OrderKey, Remembered
from streaming_source.data_files.journal import Journal
from streaming_source.data_files.stores import Root
from streaming_source.exceptions import DataLossError

_FILES_MERGED: Final = 32
_MEND: Final = (
    "without it finished files cannot be distinguished from new ones. Restore it, or start with a new "
    "checkpointLocation"
)
_SCHEMA: Final = pa.schema([("state", pa.int64()), ("path", pa.uint64()), ("version", pa.uint32())])


class _Part(NamedTuple):
    """A file of the log: the entries of the states `first` to `last`, merged so many times."""

    first: int
    last: int
    merged: int = 0

    @property
    def name(self) -> str:
        return f"{self.first:012d}-{self.last:012d}-{self.merged}.arrow"

    @staticmethod
    def of(name: str) -> _Part | None:
        numbers = name.removesuffix(".arrow").split("-")
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            return None
        first, last, merged = map(int, numbers)
        return _Part(first, last, merged)

    def replaces(self, other: _Part) -> bool:
        """Return whether it has all entries of the other; of two with the same ones it is the one merged more often."""
        is_same = self[:2] == other[:2]
        return self.merged > other.merged if is_same else self.first <= other.first and other.last <= self.last


class FinishedLog(FinishedFiles):
    """A log of finished files. The entry of a state is written before Spark gets the offset of that state.

    The offset has the log's id and the last state that has an entry. A restart from any offset, however old, reads the
    entries up to that state. Later entries are of micro-batches that were not committed: they are removed before the
    next entry is written, so that an entry that is written again replaces the first one.

    An entry is an Arrow file with columns `state`, `path` and `version` (see `MARK`). Files that were finished before
    its micro-batch have the state of the entry before. When there are many entries they are merged, so that n entries
    are O(log n) files, and each mark is written O(log n) times.
    """

    def __init__(self, order: FileOrder, root: Root, state: Remembered, *, by_name: bool = False) -> None:
        super().__init__(order, state, by_name=by_name)
        self._log_id, self._last = state.log or (uuid4().hex[:12], 0)
        # Hidden from a source that reads the directory in which it may lie.
        self._journal = Journal(root, "stateLocation", mend=_MEND).within(f"_{self._log_id}")
        # For the next entry, as finished before it. An offset without a log has some where the option is new.
        in_offset = [*state.segments, *([] if state.last is None else [state.last])]
        self._before = [np.frombuffer(segment.marks, MARK) for segment in in_offset]
        self._parts: list[_Part] | None = None

    def load(self) -> Marks:
        self._journal.check()
        return np.concatenate([NO_MARKS, *self._before, self._logged(-1, self._last)])

    def finished_by(self, start: Remembered | None, end: Remembered) -> Marks:
        if end.log is None:
            return NO_MARKS
        return self._logged(0 if start is None or start.log is None else start.log[1], end.log[1])

    def settle(self, there: Marks) -> None:
        if self.forgotten is not None:
            self._before.append(there)
            self.forgotten = self._sketch = None

    def _logged(self, after: int, upto: int) -> Marks:
        """Return the marks of the entries of later states than `after`, up to `upto`, which has one if it is not 0."""
        if not upto or after == upto:
            return NO_MARKS
        parts = _without_contained(self._listed())
        if not any(part.first <= upto <= part.last for part in parts):
            raise DataLossError(f"stateLocation has no entry of state {upto} in {self._journal}: {_MEND}")
        table = _upto(self._read([part for part in parts if part.first <= upto and part.last > after]), upto)
        table = table.filter(pc.greater(table["state"], after))
        marks = np.empty(table.num_rows, MARK)
        marks["path"], marks["version"] = table["path"].to_numpy(), table["version"].to_numpy()
        return marks

    def add(self, file: ListedFile) -> None:
        self._before.append(self.marks_of([file]))

    def save(
        self, checkpoint_id: int, finished: Sequence[ListedFile], lowest_waiting: OrderKey | None, newest_ms: int
    ) -> Remembered:
        before = np.concatenate([NO_MARKS, *self._before])
        if finished or before.size:
            if self._parts is None:
                self._parts = self._cut()
            marks = np.concatenate([before, self.marks_of(finished)])
            states = np.full(marks.size, checkpoint_id)
            states[: before.size] = self._last
            part = _Part(checkpoint_id, checkpoint_id)
            columns = (states, marks["path"].copy(), marks["version"].copy())
            self._write(part, pa.table([pa.array(column) for column in columns], schema=_SCHEMA))
            self._parts.append(part)
            self._last = checkpoint_id
            self._before.clear()
            self._merge()
        return replace(self._of_forgotten(), log=(self._log_id, self._last) if self._last else None)

    def _listed(self) -> list[_Part]:
        return sorted(part for name in self._journal.names() if (part := _Part.of(name)) is not None)

    def _cut(self) -> list[_Part]:
        """Remove the entries after the last state of the offset, and return the other parts."""
        kept = []
        for part in _without_contained(listed := self._listed()):
            if part.last > self._last >= part.first:
                table = _upto(self._read([part]), self._last)
                part = part._replace(last=self._last)
                self._write(part, table)
            if part.last <= self._last:
                kept.append(part)
        self._journal.remove(part.name for part in set(listed) - set(kept))
        return kept

    def _merge(self) -> None:
        """Merge the last parts into one while there are enough that were merged equally often."""
        assert self._parts is not None
        while True:
            last = self._parts[-1]
            small = self._parts[-_FILES_MERGED:]
            if len(small) < _FILES_MERGED or small[0].merged != last.merged:
                return
            whole = _Part(small[0].first, last.last, last.merged + 1)
            self._write(whole, self._read(small))
            self._parts[-_FILES_MERGED:] = [whole]
            self._journal.remove(part.name for part in small)

    def _read(self, parts: list[_Part]) -> pa.Table:
        names = [part.name for part in parts]
        found = self._journal.read(names, _table_of)
        if gone := [name for name in names if name not in found]:
            raise DataLossError(f"stateLocation: {self._journal}/{gone[0]} is gone: {_MEND}")
        return pa.concat_tables(found.values())

    def _write(self, part: _Part, table: pa.Table) -> None:
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, _SCHEMA) as writer:
            writer.write_table(table)
        self._journal.write(part.name, content.getvalue().to_pybytes())


def _table_of(content: bytes) -> pa.Table:
    table = pa.ipc.open_file(content).read_all()
    if not table.schema.equals(_SCHEMA):
        raise ValueError("it has other columns")
    table.validate(full=True)
    return table


def _without_contained(parts: list[_Part]) -> list[_Part]:
    """Return the parts that no other part replaces: a crash may leave a merged part beside those that it replaces."""
    return [part for part in parts if not any(other.replaces(part) for other in parts)]


def _upto(table: pa.Table, state: int) -> pa.Table:
    """Return the entries of the states up to this one."""
    return table.filter(pc.less_equal(table["state"], state))
