"""Looks at a checkpoint again and again, in a thread: what its page shows, whenever that has changed.

The checkpoint may not be there yet, may be deleted, and may be written anew by another query: then the page shows that.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from alignment.shown import shown
from streaming_source.exceptions import CheckpointError
from streaming_source.monitoring.explained import ExplainedQuery, explain_batches
from streaming_source.monitoring.history import History
from streaming_source.monitoring.micro_batch import CheckpointBatches, MicroBatch
from streaming_source.tools.pages.html_page import page_data

_SHARE: Final = 10
"""A look that takes long is followed by so many times as long without one."""
_AGAIN_S: Final = 5.0
"""Sentences change with time as well: how long a split has been silent, when it becomes idle."""
_ROWS: Final = 1_000_000
"""Splits times micro-batches in a history: a hundred micro-batches of ten thousand splits, some 200 MB."""
_BATCHES: Final = 1_000
"""Micro-batches in a history, more than Spark keeps; of more than these the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of the page, as `page_data` and as text. Each version is another one, also after a new start."""

    version: str
    data: dict[str, Any]
    plain: str

    def to_json(self) -> str:
        """The data, in one line."""
        return json.dumps(self.data, separators=(",", ":"))


class CheckpointWatch:
    """The state of a checkpoint, read every `interval_s` seconds between `start` and `close`.

    `checkpoint` is as for `OffsetLog`. It takes at most a tenth of a processor.
    """

    def __init__(self, checkpoint: str, interval_s: float = 1.0) -> None:
        self._checkpoint = checkpoint
        self._interval_s = interval_s
        self._batches = CheckpointBatches(checkpoint)
        self._was_there = False
        self._history = History(_ROWS)
        self._added: list[MicroBatch] = []
        self._looked: tuple[list[MicroBatch], float] = [], 0.0
        self._begun = time.time_ns()
        self.looked_at_ms = 0
        """When the checkpoint was read last: milliseconds since the epoch."""
        self._count = 0
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-watch", daemon=True)
        self._snapshot = self._note("")
        self.look()

    @property
    def latest(self) -> Snapshot:
        """The last state. From any thread."""
        return self._snapshot

    @property
    def is_closed(self) -> bool:
        """True if nothing is going to change any more."""
        return self._closed.is_set()

    def start(self) -> None:
        """Look again and again, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking, and let go who waits. Safe to call twice."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self, seen: str | None, timeout_s: float) -> Snapshot | None:
        """The next state after the version that was seen; None if there is none in time, or none comes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or self._snapshot.version != seen, timeout_s)
            return None if self.is_closed or self._snapshot.version == seen else self._snapshot

    def look(self) -> None:
        """Read what has changed; a new version if the page shows something else."""
        self.looked_at_ms = time.time_ns() // 1_000_000
        try:
            batches = self._batches.read()
            self._was_there = True
            if self._is_same(batches):
                return
            explained = explain_batches(batches)
            made = self._made(page_data(self._history_of(batches), explained, self._title), str(explained))
            self._looked = batches, time.monotonic()
        except Exception as error:
            if isinstance(error, CheckpointError) and not self._batches.is_there:
                self._history, self._added = History(_ROWS), []
                state = "is not there any more" if self._was_there else "is not there yet"
                made = self._note(f"The checkpoint {state}. This page follows as soon as a query writes it.")
            else:
                # Whatever is in the files: the page shows it, and the next look may find them whole.
                made = self._note(f"The checkpoint cannot be read: {error}")
        if _without_time(made.data) != _without_time(self._snapshot.data):
            with self._changed:
                self._snapshot = made
                self._changed.notify_all()
        else:
            self._count -= 1

    # ---- inside --------------------------------------------------------------------------------------------------

    @property
    def _title(self) -> str:
        return f"Watermarks: {self._checkpoint}"

    def _note(self, text: str) -> Snapshot:
        return self._made({**page_data(History(), ExplainedQuery(()), self._title), "note": shown(text)}, shown(text))

    def _made(self, data: dict[str, Any], plain: str) -> Snapshot:
        self._count += 1
        version = f"{self._begun:x}-{self._count}"
        return Snapshot(version, {**data, "version": version}, plain)

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._closed.wait(pause_s):
            started = time.perf_counter()
            self.look()
            pause_s = max(self._interval_s, _SHARE * (time.perf_counter() - started))

    def _is_same(self, batches: list[MicroBatch]) -> bool:
        """Return whether nothing was written since the last look, and that was a moment ago."""
        known, at = self._looked
        is_same = len(batches) == len(known) and all(map(_is, batches, known))
        return is_same and time.monotonic() - at < _AGAIN_S and bool(self._snapshot.data["sources"])

    def _history_of(self, batches: list[MicroBatch]) -> History:
        """The history with what is new; another one if a micro-batch before the last is not what it was."""
        added = self._added
        known = set(map(id, added))
        new = [batch for batch in batches if id(batch) not in known]
        last = added[-1].number if added else -1
        is_next = not new or new[0].number >= last
        if not is_next or len(added) + len(new) > _BATCHES or (batches and batches[-1].number < last):
            self._history, self._added, new = History(_ROWS), [], batches
        for batch in new:
            self._history.add(batch)
        self._added = [*self._added, *new]
        return self._history


def _is(one: object, other: object) -> bool:
    return one is other


def _without_time(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in ("asOf", "version")}
