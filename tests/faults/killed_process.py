"""A process with queries of Spark that is killed by SIGKILL, with its JVM and planners, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

__all__ = ["KilledProcess", "KilledQueryLog"]

LIMIT_S = 600.0
# Spark waits ten seconds for a Python worker; on a busy machine it then ends a query, as one more fault.
_WORKER_TOO_SLOW = b"Timed out while waiting for the Python worker to connect back"


@dataclass(frozen=True)
class KilledQueryLog:
    """What the checkpoint of a query shows from outside, while it runs or after it was killed."""

    checkpoint: Path

    def last(self, log: str) -> int:
        """The number of the last micro-batch in `offsets` or `commits`; -1 if there is none."""
        names = (path.name for path in (self.checkpoint / log).glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def offsets(self, micro_batch: int) -> list[dict[str, Any]]:
        """Where each source was after a micro-batch; empty before the first one."""
        if micro_batch < 0:
            return []
        lines = (self.checkpoint / f"offsets/{micro_batch}").read_text().splitlines()[2:]
        return [{} if line == "-" else json.loads(line) for line in lines]

    @property
    def is_inside(self) -> bool:
        """Whether a micro-batch is planned and not committed."""
        return self.last("offsets") > self.last("commits")


class KilledProcess:
    """Runs `python -m MODULE ARGUMENTS... TRIGGER` again and again.

    Parameters
    ----------
    log
        The file that takes what it writes.
    module
        What it runs. With the trigger `availableNow` it must end by itself.
    arguments
        Of the module, before the trigger.
    """

    def __init__(self, log: Path, module: str, arguments: Sequence[str]) -> None:
        self.log = log
        self._command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
        # Spark would look for data sources with another Python, which has none of this library.
        self._environment = {"PYSPARK_PYTHON": sys.executable, **os.environ}
        self._process: subprocess.Popen[bytes] | None = None
        self._trigger, self._logged = "", 0

    def start(self, trigger: str = "0 seconds") -> None:
        """Start it; it runs until it is killed."""
        with self.log.open("ab") as written:
            self._trigger, self._logged = trigger, written.tell()
            self._process = subprocess.Popen(
                [*self._command, trigger],
                stdout=written,
                stderr=written,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it with all that it has started; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @contextmanager
    def life(self) -> Iterator[Callable[[Callable[[], bool]], None]]:
        """Start it, and kill it behind the block, which waits by what it is given until a condition is true."""
        self.start()
        try:
            yield self.wait_until
        finally:
            self.kill()

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait for a condition while it runs."""
        until = time.monotonic() + LIMIT_S
        while not is_true():
            assert self._process is not None, "it does not run"
            if self._process.poll() is not None and self._worker_was_too_slow():
                self.start(self._trigger)
            assert self._process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < until, self.log.read_text()[-4000:]
            time.sleep(0.005)

    def finish(self) -> None:
        """Let it read all that there is."""
        while (code := self._end()) and self._worker_was_too_slow():
            pass
        assert code == 0, self.log.read_text()[-4000:]

    def _end(self) -> int:
        self.start("availableNow")
        assert self._process is not None
        try:
            return self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            # What each thread of the JVM does is then in the log.
            for process in psutil.Process(self._process.pid).children(recursive=True):
                if process.name() == "java":
                    process.send_signal(signal.SIGQUIT)
            time.sleep(2)
            raise
        finally:
            self.kill()

    def _worker_was_too_slow(self) -> bool:
        return _WORKER_TOO_SLOW in self.log.read_bytes()[self._logged :]
