"""Flink's HybridSource: files, then the topic, in one job of the DataStream API in Java."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from benchmarks import flink
from benchmarks.history.inputs import BOUND_S, HistoryAndTopic
from benchmarks.history.ways import Found, Way
from tests.kafka.artifacts import Artifacts, ArtifactsMissingError

__all__ = ["CONNECTOR", "HybridSource", "start"]

HERE = Path(__file__).parent
CONNECTOR = Artifacts(HERE / "flink-kafka.xml")
PATIENCE_MS = 10_000
"""A job without an end is cancelled once no window has come out for so long."""


def start(stack: ExitStack, folder: Path) -> HybridSource | None:
    """Compile the job and start its process; None, and a line that gives the reason, where Flink cannot be run."""
    try:
        python, jars = flink.environment(), CONNECTOR.jars()
    except (OSError, subprocess.CalledProcessError, ArtifactsMissingError) as error:
        print(f"\nFlink is not measured: {error}", flush=True)
        return None
    pyflink = next(python.parents[1].glob("lib/python*/site-packages/pyflink"))
    command = flink.java_program(HERE / "HybridHistory.java", pyflink, folder, jars)
    if not command:
        print("\nFlink is not measured: there is no javac; install a JDK, or point JAVA_HOME at one", flush=True)
        return None
    return HybridSource(stack.enter_context(flink.process(*command)), folder)


class HybridSource:
    """A process that runs the job as often as it is wanted."""

    def __init__(self, runner: subprocess.Popen[str], folder: Path) -> None:
        self._runner = runner
        self._folder = folder

    def by_offset(self, parallelism: int) -> Way:
        """The topic from the offsets behind the history, which users must find: here those of `cut_from`."""
        return lambda given: self._run(given, parallelism, _offsets(given))

    def by_timestamp(self, parallelism: int) -> Way:
        """The topic from the latest time of the history on, as in the example of Flink's documentation."""
        return lambda given: self._run(given, parallelism, f"from:{max(given.ends_ms) + 1}")

    def without_end(self, parallelism: int) -> Way:
        """The topic without an end, from the offsets behind the history; until no window comes out any more."""
        return lambda given: self._run(given, parallelism, _offsets(given), PATIENCE_MS)

    def _run(self, given: HistoryAndTopic, parallelism: int, start: str, patience_ms: int = 0) -> Found:
        output = self._folder / uuid4().hex
        topic = (given.topic.broker.bootstrap, given.topic.name, start, str(patience_ms))
        words = (str(parallelism), str(BOUND_S * 1000), str(given.lines), *topic, str(output))
        seconds = float(flink.ask(self._runner, *words)[0])
        pairs = (line.split(",") for line in output.read_text().splitlines())
        return Found({int(window): [int(one) for one in ids.split()] for window, ids in pairs}, seconds)


def _offsets(given: HistoryAndTopic) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in enumerate(given.offsets))
