"""The process that starts a driver, strikes it with faults, starts it again, and judges what came out."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.class_archives import java_options
from tests.faults.checks import (
    RUN,
    check_output,
    check_reads,
    check_watermarks,
    last_commit,
    members_of_groups,
    processes_of,
)
from tests.faults.inputs import Growing
from tests.forked_planners import RUNNER

__all__ = ["AT_RANDOM", "Fault", "Query", "Struck", "Supervisor"]

AT_RANDOM = "any moment"
_DAEMON = "pyspark.daemon"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_SPARKS_OWN = ("Python worker failed to connect back", "Broken pipe")
"""Failures of a query whose cause is a machine too slow for Spark's 10 s, or a daemon that was killed before."""
_LIMIT_S = 180.0
_GONE_S = 20.0
_GROW_S = 0.15


@dataclass(frozen=True)
class Fault:
    """What happens to whom, and when.

    Attributes
    ----------
    step
        One of `tests.faults.steps`, `written` (by `foreachBatch`, before Spark commits), or `any moment`.
    what
        `kill`, `fail` or `stop` whoever comes to the step; `kill driver`. At any moment also `kill worker`,
        `kill daemon`, `kill planner`, `kill executor`, `stop driver`.
    while_starting
        Strike the first batch; otherwise only what has committed since it began.
    seconds
        How long something is stopped.
    """

    step: str
    what: str
    while_starting: bool = False
    seconds: float = 0.0

    @property
    def ends_the_driver(self) -> bool:
        return self.what == "kill driver"

    @property
    def is_kill(self) -> bool:
        return self.what.startswith("kill")


@dataclass
class Query:
    """One query of a run: what `tests.faults.query` is told, and its input."""

    name: str
    connector: str
    place: str
    shape: str
    sink: str
    group: str = ""
    readers: int = 2
    max_rows: int = 400


@dataclass(frozen=True)
class Struck:
    """One fault as it happened; `committed` is the last batch that was, `since` the last at the fault before."""

    life: int
    query: str
    step: str
    what: str
    committed: int
    since: int

    @property
    def after_commits(self) -> bool:
        return self.committed > self.since


@dataclass
class _Work:
    """Of one query: the faults still to come, and the one that is under way."""

    faults: list[Fault]
    since: int
    order: str = ""
    limit: float = 0.0
    taken: dict[str, Any] | None = None
    awake: float = 0.0
    rest: float = 0.0


class Supervisor:
    """One checkpoint for each query, through any number of drivers.

    Parameters
    ----------
    folder
        Empty; all of the run is in it.
    queries
        What runs.
    rng
        Decides what the seed decides.
    settings
        Of Spark.
    """

    def __init__(
        self, folder: Path, queries: Sequence[Query], rng: random.Random, settings: dict[str, str] | None = None
    ) -> None:
        self.folder, self.queries, self.rng = folder, list(queries), rng
        self.struck: list[Struck] = []
        self.lives = 0
        self.run = uuid.uuid4().hex
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: dict[str, int] = {}
        self._pause_s, self._last_at = 0.0, math.inf
        self._grows, self._grown_at = True, 0.0
        for name in ("orders", "taken", "reads", "out", "checkpoints", "local", "tmp"):
            (folder / name).mkdir(parents=True)
        self.inputs = {query.name: Growing(query.connector, query.place, rng) for query in queries}

    # ---- the driver ----------------------------------------------------------------------------------------------

    def start(self, master: str) -> None:
        """A new life of the driver."""
        self.lives += 1
        root = str(Path(__file__).parents[2])
        settings = {"spark.local.dir": str(self.folder / "local"), f"spark.executorEnv.{RUN}": self.run}
        settings |= {"spark.executorEnv.PYTHONPATH": root, **self._settings}
        plan = {"master": master, "settings": settings, "queries": [asdict(query) for query in self.queries]}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        for name in ("driver.json", "started"):
            (self.folder / name).unlink(missing_ok=True)
        environment = {
            "JAVA_TOOL_OPTIONS": java_options(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **os.environ,
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYSPARK_PYTHON": sys.executable,
            "TMPDIR": str(self.folder / "tmp"),
            RUN: self.run,
        }
        with (self.folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.faults.query", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
                cwd=root,
            )

    def live(
        self,
        faults: dict[str, list[Fault]],
        end: tuple[str, Fault] | None = None,
        *,
        pause_s: float = 0.0,
        seconds: float = 0.0,
        commits: int = 0,
    ) -> None:
        """Strike each query with its faults, one after another; then end the driver, if it shall end.

        It ends after so many `commits` of each query in this life. With `seconds` no fault begins when these are over.
        After each one its query rests for `pause_s`.
        """
        self._pause_s, self._last_at = pause_s, time.monotonic() + (seconds or math.inf)
        work = {}
        for query in self.queries:
            work[query.name] = _Work(list(faults.get(query.name, ())), last_commit(self._checkpoint(query.name)))
        if end is not None and end[1].while_starting:
            todo = _Work([end[1]], work[end[0]].since)
            self._order(end[0], todo)
            self._until(lambda: self._has_ended(todo), f"the driver to die at {end[1].step}")
            return self._bury(end, todo)
        self._until(lambda: (self.folder / "driver.json").exists(), "the driver to start")
        self._pids = json.loads((self.folder / "driver.json").read_text())
        self._until(lambda: (self.folder / "started").exists(), "all queries to start")
        self._until(lambda: self._all_done(work), "all faults", 900 + seconds)
        self._until(self._is_settled, "what faults left behind to go away", every=0.2)
        for query in self.queries:
            wanted, checkpoint = work[query.name].since + commits, self._checkpoint(query.name)
            self._until(lambda: last_commit(checkpoint) >= wanted, f"{commits} commits of {query.name}")  # noqa: B023
        if end is not None:
            name, fault = end
            todo = _Work([fault], work[name].since)
            if fault.step == AT_RANDOM:
                self._wait(self.rng.uniform(0.0, 1.0))
                todo.taken = {"committed": last_commit(self._checkpoint(name))}
                for pid in self._pids.values():
                    os.kill(pid, signal.SIGKILL)
            else:
                self._order(name, todo)
                self._until(lambda: self._has_ended(todo), f"the driver to die at {fault.step}")
            self._bury(end, todo)

    def finish(self) -> None:
        """Let all queries read to the end of all input, which grows no more, and stop."""
        self._grows = False
        for growing in self.inputs.values():
            growing.end()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        self._process.stdin.flush()
        self._until(lambda: self._process is None or self._process.poll() is not None, "the queries to finish", 300)
        assert self._process.returncode == 0, f"the driver ended with {self._process.returncode}\n{self.log()}"
        self._end_driver()

    def close(self) -> None:
        """Leave no process behind, whatever happened."""
        for process in processes_of(self.run):
            process.kill()
        if self._process is not None:
            self._end_driver(is_checked=False)

    def check(self) -> dict[str, int]:
        """Judge all that came out; figures."""
        figures = {"faults": len(self.struck), "kills": sum(one.what.startswith("kill") for one in self.struck)}
        figures["kills after commits"] = sum(one.what.startswith("kill") and one.after_commits for one in self.struck)
        figures |= {"steps": len({one.step for one in self.struck}), "rows": 0}
        for query in self.queries:
            out, read = self.folder / "out" / query.name, self.inputs[query.name]
            check_watermarks(self._checkpoint(query.name), read.last_watermark)
            figures["rows"] += check_output(
                out, query.sink, query.shape, read.times, read.positions, read.last_watermark
            )
        figures["tasks"], figures["read again"] = check_reads(self.folder / "reads")
        # A planner leaves a note of what it knew, for a week.
        known = ("hsperfdata", "streaming-source-")
        left = [path for path in (self.folder / "tmp").iterdir() if not path.name.startswith(known)]
        assert not left, f"temporary files are left: {left}"
        failures = [one for one in self.failures() if not any(words in one["error"] for words in _SPARKS_OWN)]
        expected = sum(one.what in ("kill", "kill planner", "fail", "kill daemon") for one in self.struck)
        assert len(failures) <= expected, f"{len(failures)} failures after {expected} faults: {failures}"
        return figures

    def failures(self) -> list[dict[str, str]]:
        """Queries that ended with an error, and its last line."""
        file = self.folder / "failures.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [{**one, "error": _last_line(one["error"].partition("=== Streaming Query")[0])} for one in found]

    def log(self) -> str:
        """The end of what the drivers printed."""
        lines = (self.folder / "driver.log").read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if not line.startswith("\tat ")][-40:])

    # ---- faults --------------------------------------------------------------------------------------------------

    def _all_done(self, work: dict[str, _Work]) -> bool:
        # Each is looked at, whatever the others say.
        return all([self._goes_on(name, todo) for name, todo in work.items()])  # noqa: C419

    def _goes_on(self, name: str, work: _Work) -> bool:
        """One look at a query: order its next fault, see whether it was taken, whether the query commits again."""
        committed = last_commit(self._checkpoint(name))
        if work.taken is not None:
            if work.awake and time.monotonic() > work.awake:
                _signal(work.taken["pid"], signal.SIGCONT)
                work.awake = 0.0
            if work.awake or committed <= max(work.taken["committed"], work.since):
                assert time.monotonic() < work.limit, f"{name} commits nothing after {work.taken}\n{self.log()}"
                return False
            work.taken, work.since = None, work.taken["committed"]
            work.rest = time.monotonic() + self._pause_s
        if work.order:
            report = self.folder / "taken" / f"{work.order}.json"
            if report.exists():
                self._note(name, work, json.loads(report.read_text()))
            assert time.monotonic() < work.limit, f"{name} never came to {work.faults[0]}\n{self.log()}"
            return False
        if not work.faults or time.monotonic() > self._last_at:
            return True
        if committed <= work.since or time.monotonic() < work.rest:
            return False
        if work.faults[0].step == AT_RANDOM:
            if self.rng.random() < 0.2 and (pid := self._strike(work.faults[0])) is not None:
                self._note(name, work, {"pid": pid, "committed": committed})
        else:
            self._order(name, work)
        return False

    def _order(self, name: str, work: _Work) -> None:
        fault = work.faults[0]
        work.order, work.limit = uuid.uuid4().hex[:12], time.monotonic() + _LIMIT_S
        order = self.folder / "orders" / f"{name}.{fault.step}"
        new = order.with_suffix(".new")
        new.write_text(json.dumps({"id": work.order, "fault": fault.what}))
        new.rename(order)

    def _note(self, name: str, work: _Work, taken: dict[str, Any]) -> None:
        fault = work.faults.pop(0)
        work.order, work.limit, work.taken = "", time.monotonic() + _LIMIT_S + fault.seconds, taken
        work.awake = time.monotonic() + fault.seconds if fault.seconds else 0.0
        self.struck.append(Struck(self.lives, name, fault.step, fault.what, taken["committed"], work.since))

    def _strike(self, fault: Fault) -> int | None:
        """Hit one process of this kind; None if there is none at the moment."""
        if fault.what == "stop driver":
            found = [self._pids["jvm"]]
        else:
            word = {"kill planner": RUNNER, "kill executor": _EXECUTOR}.get(fault.what, _DAEMON)
            processes = processes_of(self.run, lambda command: word in command)
            found = [process.pid for process in processes]
            if word == _DAEMON:
                # Those that have forked workers, or these.
                forked = {process.pid: [child.pid for child in _children(process)] for process in processes}
                children = {pid for pids in forked.values() for pid in pids}
                daemons = [pid for pid in forked if pid not in children and forked[pid]]
                found = daemons if fault.what == "kill daemon" else sorted(children)
        if not found:
            return None
        pid = self.rng.choice(sorted(found))
        return pid if _signal(pid, signal.SIGSTOP if "stop" in fault.what else signal.SIGKILL) else None

    # ---- waiting -------------------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = _LIMIT_S, every: float = 0.03) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            ended = self._process is not None and self._process.poll() is not None
            assert not ended or condition(), f"the driver ended while waiting for {what}\n{self.log()}"
            assert time.monotonic() < limit, f"waited {seconds} s for {what}; struck {self.struck[-3:]}\n{self.log()}"
            self._wait(every)

    def _wait(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while True:
            if self._grows and time.monotonic() - self._grown_at > _GROW_S:
                self._grown_at = time.monotonic()
                for growing in self.inputs.values():
                    growing.grow()
            if (left := limit - time.monotonic()) <= 0:
                return
            time.sleep(min(left, _GROW_S))

    def _is_settled(self) -> bool:
        """One planner a query, which listens at one port at most, and no lease of a process that is gone."""
        planners = processes_of(self.run, lambda command: RUNNER in command)
        if len(planners) != len(self.queries):
            return False
        try:
            ports = [len([c for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]) for p in planners]
        except psutil.Error:
            return False
        members = members_of_groups(self.folder / "local")
        return max(ports) <= 1 and members <= {planner.pid for planner in planners}

    def _has_ended(self, work: _Work) -> bool:
        report = self.folder / "taken" / f"{work.order}.json"
        if work.taken is None and report.exists():
            work.taken = json.loads(report.read_text())
        return work.taken is not None and self._process is not None and self._process.poll() is not None

    def _bury(self, end: tuple[str, Fault], work: _Work) -> None:
        assert work.taken is not None
        name, fault = end
        self.struck.append(Struck(self.lives, name, fault.step, fault.what, work.taken["committed"], work.since))
        self._end_driver()

    def _end_driver(self, *, is_checked: bool = True) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        limit = time.monotonic() + _GONE_S
        while is_checked and (left := processes_of(self.run)):
            names = [(process.pid, " ".join(_command(process))[-200:]) for process in left]
            assert time.monotonic() < limit, f"processes are left behind {_GONE_S} s after their driver: {names}"
            self._wait(0.2)

    def _checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / name


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip() and "SQLSTATE:" not in line[:12]), text)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.Error:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
