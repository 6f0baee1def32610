"""A log of all that drove an engine, and what it planned; replayed, it gives the same plans.

The log has one JSON object a line. The first is an `EngineStarted`: what the engine was made with. Then follow events
as they were applied, the event times that were loaded, answers to where opaque blocks are to be cut, and plans. A
planner that restores a state starts another engine, in the same log. It is a bug report: it has everything that the
planner knew, and no record but its event time.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from alignment import events
from alignment.codec import Codec
from alignment.engine import Engine
from alignment.exceptions import AlignmentError, InvalidArgumentError
from alignment.index import EventTimeIndex, EventTimeLoader, FirstLater
from alignment.plan import MicroBatchPlan, PlanningRules
from alignment.plan.by_reports import ReactivePlanner
from alignment.split_generators import SplitGenerators, WatermarkEmitted
from alignment.watermarks import Int64Array, WatermarkOutput

_SHOWN: Final = 300
"""How many characters an error shows of another one."""
_GIVE: Final = "give the file of one run of a query, which its option eventLog writes"


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The arguments of an engine; see `Engine`. Either readers report, or event times are known ahead."""

    rules: PlanningRules
    idle_timeout_us: int | None
    by_reports: bool
    generates: bool = False
    counts_runs: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Exact event times of `[start, stop)` of a split, which were loaded where a cut fell."""

    split_id: str
    start: int
    stop: int
    times: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """An answer to where opaque blocks are cut; see `FirstLater`."""

    split_ids: tuple[str, ...]
    starts: Int64Array
    stops: Int64Array
    bound_us: int
    positions: Int64Array
    times: Int64Array


@dataclass(frozen=True, slots=True)
class ReplayedPlan:
    """One plan of a log, as it was recorded, and made again; equal if both are the same plan."""

    recorded: dict[str, Any]
    replayed: dict[str, Any]


_ENTRIES: Final = (
    *get_args(events.Event),
    *(events.LookedAhead, events.PlanCommitted, events.Planned),
    *(EngineStarted, MicroBatchPlan, WatermarkEmitted, Loaded, Located),
)
_CODECS: Final[dict[str, Codec[Any]]] = {kind.__name__: Codec(kind, whole=True) for kind in _ENTRIES}

_OWN_FOLDER: Final = "give a folder that only the query's user may write to"


class Recorder:
    """Writes a log: appends lines to a file, which only its user may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, started: EngineStarted) -> None:
        """Write down what an engine is made with."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write(started)

    def write(self, entry: object) -> None:
        """Write one entry: an event, a plan, or what an engine was made with. Not what generators keep of records."""
        if isinstance(entry, events.RangesReported):
            entry = replace(entry, reports=tuple([replace(report, state="") for report in entry.reports]))
        with open(self._path, "a", encoding="utf-8", opener=_private) as file:
            # What numpy counted is a number of its own.
            file.write(json.dumps(_encoded(entry), default=np.generic.item) + "\n")

    def loading(self, load: EventTimeLoader) -> EventTimeLoader:
        """The loader, with what it gives written down."""

        def recorded(split_id: str, start: int, stop: int) -> Int64Array:
            times = load(split_id, start, stop)
            self.write(Loaded(split_id, start, stop, times))
            return times

        return recorded

    def locating(self, locate: FirstLater) -> FirstLater:
        """The same for the queries that find where opaque blocks are cut."""

        def recorded(
            split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
        ) -> tuple[Int64Array, Int64Array]:
            positions, times = locate(split_ids, starts, stops, bound_us)
            self.write(Located(tuple(split_ids), starts, stops, bound_us, positions, times))
            return positions, times

        return recorded


def _private(path: str, flags: int) -> int:
    """Open a file for its user alone; an `InvalidArgumentError` for a link, a pipe, or what is another user's."""
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise InvalidArgumentError(f"eventLog: {path} is a link or a pipe; {_OWN_FOLDER}") from None
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(opened)
        raise InvalidArgumentError(f"eventLog: {path} is another user's, or no file; {_OWN_FOLDER}")
    return opened


def replay(lines: Iterable[str]) -> Iterator[ReplayedPlan]:
    """Plan again what was planned in the lines of a log; an `InvalidArgumentError` if they are not such a log."""
    for entries in engines(lines):
        with as_of_a_log():
            yield from _replay_engine(entries, _engine(entries))


def engines(lines: Iterable[str]) -> Iterator[list[Any]]:
    """The entries of each engine in a log: an `EngineStarted`, then events, plans, and what was loaded.

    An `InvalidArgumentError` if it is not such a log.
    """
    entries: list[Any] = []
    for number, line in enumerate(_readable(lines), 1):
        try:
            entry = _decoded(json.loads(line, object_hook=_as_now))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidArgumentError(f"line {number} is none of an event log: {error!r}; {_GIVE}") from None
        if isinstance(entry, EngineStarted) and entries:
            yield entries
            entries = []
        entries.append(entry)
        if not isinstance(entries[0], EngineStarted):
            raise InvalidArgumentError(
                f"an event log begins with EngineStarted, not with {type(entry).__name__}; {_GIVE}"
            )
    if entries:
        yield entries


def _readable(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a file; an `InvalidArgumentError` if it is no text."""
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"this is no event log: byte {error.start} is not of a text; {_GIVE}") from None


def log_files(path: Path) -> list[Path]:
    """The event logs at a path, the file or folder that option `eventLog` names, the latest last.

    An `InvalidArgumentError` if there is none.
    """
    logs = sorted(path.glob("*.jsonl"), key=lambda log: log.stat().st_mtime) if path.is_dir() else [path]
    if not logs or not logs[0].is_file():
        raise InvalidArgumentError(f"{path} has no event log; {_GIVE}")
    return logs


def last_engine(lines: Iterable[str]) -> list[Any]:
    """The entries of the last engine in a log, see `engines`; an `InvalidArgumentError` if it has none."""
    last = deque(engines(lines), 1)
    if not last:
        raise InvalidArgumentError(f"the event log is empty; {_GIVE}")
    return last[0]


def _engine(entries: Sequence[Any]) -> Engine:
    started = entries[0]
    return Engine(
        started.rules,
        EventTimeIndex(_loader(entries), locate=_locator(entries), wanted=started.rules.times),
        idle_timeout_us=started.idle_timeout_us,
        counts_runs=started.counts_runs,
        reactive=ReactivePlanner(started.rules) if started.by_reports else None,
        generators=_ReplayedGenerators(entries) if started.generates else None,
    )


@contextmanager
def as_of_a_log() -> Iterator[None]:
    """Raise what an engine raises of events that do not follow from each other as an `InvalidArgumentError`."""
    try:
        yield
    except AlignmentError:
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"the entries of the event log do not fit together: {repr(error)[:_SHOWN]}; {_GIVE}"
        ) from error


def _replay_engine(entries: Sequence[Any], engine: Engine) -> Iterator[ReplayedPlan]:
    plan: MicroBatchPlan | None = None
    for entry in entries[1:]:
        if isinstance(entry, events.Planned):
            plan = engine.plan(
                entry.now_us, entry.max_rows, min_rows=entry.min_rows, waits_until_us=entry.waits_until_us
            )
        elif isinstance(entry, MicroBatchPlan):
            assert plan is not None, "a plan is written after its event"
            yield ReplayedPlan(_encoded(entry), _encoded(plan))
        elif isinstance(entry, events.LookedAhead):
            engine.lookahead(entry.max_rows, knows_all=entry.knows_all)
        elif isinstance(entry, events.PlanCommitted):
            assert plan is not None, "a plan is committed after its event"
            engine.commit(plan)
        elif not isinstance(entry, (Loaded, Located, WatermarkEmitted)):
            engine.apply(entry)


class _ReplayedGenerators(SplitGenerators):
    """Emit again what was emitted."""

    def __init__(self, entries: Sequence[Any]) -> None:
        super().__init__(1)
        self._emitted = {entry.call: entry for entry in entries if isinstance(entry, WatermarkEmitted)}

    def _call(self, split_id: str, emit: Callable[[WatermarkOutput], None]) -> bool:
        self._calls += 1
        entry, latest = self._emitted.get(self._calls), self._of(split_id)
        if entry is not None:
            latest.watermark, latest.is_idle = entry.watermark_us, entry.is_idle
        return entry is not None

    def _see(self, split_id: str, start: int, stop: int, output: WatermarkOutput) -> None:
        """Emitted by `_call`."""

    def _emit(self, split_id: str, position: int, output: WatermarkOutput) -> None:
        """Emitted by `_call`."""


def _loader(entries: Sequence[Any]) -> EventTimeLoader:
    loaded: dict[tuple[str, int, int], deque[Int64Array]] = defaultdict(deque)
    for entry in entries:
        if isinstance(entry, Loaded):
            loaded[entry.split_id, entry.start, entry.stop].append(entry.times)

    def load(split_id: str, start: int, stop: int) -> Int64Array:
        known = loaded[split_id, start, stop]
        if not known:
            raise InvalidArgumentError(
                f"the log has no event times of split {split_id!r} from {start} to {stop}: the version that wrote it "
                "did not need them for its plans, and this one does; record it again"
            )
        return known.popleft() if len(known) > 1 else known[0]

    return load


def _locator(entries: Sequence[Any]) -> FirstLater:
    answers = deque(entry for entry in entries if isinstance(entry, Located))

    def locate(
        split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        answer = answers.popleft() if answers else None
        if answer is None or (answer.split_ids, answer.bound_us) != (tuple(split_ids), bound_us):
            raise InvalidArgumentError(f"the log has no answer to where {list(split_ids)} pass {bound_us}")
        return answer.positions, answer.times

    return locate


def _encoded(entry: Any) -> dict[str, Any]:
    kind = type(entry).__name__
    return {"type": kind, **_CODECS[kind].write(entry)}


def _decoded(entry: dict[str, Any]) -> Any:
    return _CODECS[entry["type"]].read(entry)


def _as_now(found: dict[str, Any]) -> Any:
    """Return what earlier versions wrote as it is written now: sets as objects, and `lateness` by another name."""
    if "perfect" in found:
        found["lateness"] = "none" if found["perfect"] else "bounded"
    return found["set"] if found.keys() == {"set"} else found
