"""What the house measures: `python -m tests.project.house` prints lines, circles and what one micro-batch crosses."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import FrameType

from tests.project.test_import_rule import PACKAGES, ROOT, Module, imports_of, modules, within

THEN = {
    "modules": 212,
    "lines": 31_778,
    "lines of code": 19_161,
    "lines of docstrings": 7_440,
    "gateway lines": 1_740,
    "`__init__` modules with code": 0,
    "constructor calls by position": 9,
    "import circles": 4,
    "modules in the largest circle": 13,
    "modules that a micro-batch crosses": 67,
    "calls across a module's border": 701,
    "modules in the planner's process": 134,
}
"""At 7ee14c0, before the redesign, by this script."""

MOST_CODE_OF_AN_INIT = 40
MOST_POSITIONAL = 6

AIMS = {
    "modules": 150,
    "gateway lines": 450,
    "`__init__` modules with code": 0,
    "constructor calls by position": 0,
    "import circles": 0,
    "modules that a micro-batch crosses": 35,
    "modules in the planner's process": 90,
}


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of source by what stands on them; a line is counted once."""

    total: int
    code: int
    docstrings: int


def lines_of(source: str) -> Lines:
    """Count the lines of one module."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        # Under an attribute too: a string that stands for itself is for the reader.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    coded: set[int] = set()
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type not in silent:
            coded.update(range(token.start[0], token.end[0] + 1))
    return Lines(len(source.splitlines()), len(coded - documented), len(documented))


def constructor_calls(source: str) -> Iterator[tuple[int, str]]:
    """Yield `(line, class)` of each call of a class that gives more arguments by position than a reader can follow."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "cls" or called.lstrip("_")[:1].isupper():
                yield node.lineno, called


def inits_with_code(found: Iterable[Module]) -> list[str]:
    """Return the packages whose `__init__` defines things, beside exporting those of other modules."""
    return [m.name for m in found if m.is_package and _own_code(m.source) > MOST_CODE_OF_AN_INIT]


def _own_code(source: str) -> int:
    exports = 0
    for node in ast.walk(ast.parse(source)):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        # `_HOMES`: from where each name is imported when it is used first.
        is_table = isinstance(target, ast.Name) and target.id in ("__all__", "_HOMES")
        if is_table or isinstance(node, ast.Import | ast.ImportFrom):
            exports += (node.end_lineno or node.lineno) - node.lineno + 1
    return lines_of(source).code - exports


def graph(found: Iterable[Module]) -> dict[str, set[str]]:
    """Return for each module those it imports, lazily and under `TYPE_CHECKING` too."""
    by_name = {module.name: module for module in found}
    edges: dict[str, set[str]] = {}
    for module in by_name.values():
        targets = edges[module.name] = set()
        for imported in imports_of(module):
            target = imported.target
            while target and target not in by_name:
                target = target.rpartition(".")[0]
            if target and target != module.name:
                targets.add(target)
    return edges


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of modules of which each can be reached from each, the largest first."""
    reached = {name: _reachable(edges, name) for name in edges}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in edges}
    return sorted((sorted(group) for group in groups if group), key=lambda group: (-len(group), group))


def _reachable(edges: Mapping[str, Iterable[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = list(edges[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead.extend(edges[name])
    return found


class Crossings:
    """Calls between modules of the house while the block runs, in all its threads that begin in it, too."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.calls = 0

    def __enter__(self) -> Crossings:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (called := _house_module(frame)):
            return
        self.modules.add(called)
        caller: FrameType | None = frame.f_back
        # What lies between and is not ours (a comprehension of the standard library, a decorator) crosses no border.
        while caller is not None and not _house_module(caller):
            caller = caller.f_back
        self.calls += caller is not None and _house_module(caller) != called


def _house_module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__", "")
    return name if within(name, *PACKAGES) else ""


def micro_batch() -> dict[str, int]:
    """One steady micro-batch of `aligned_files`: planned as in Spark's planner process, and read as by a task."""
    # What Spark's process has loaded before it comes to us.
    import pyspark.sql.streaming.python_streaming_source_runner  # noqa: F401

    from streaming_source.spark.datasource import AlignedDataSource
    from streaming_source.spark.watermark_rows import EMITTED

    with tempfile.TemporaryDirectory() as folder:
        _write_files(Path(folder))
        options = {"path": folder, "eventTimeColumn": "ts", "watermarkRows": EMITTED, "maxRowsPerTrigger": "50"}
        source = AlignedDataSource.of_format("aligned_files", {**options, "numReaders": "2"})
        reader = source.stream_reader(source.schema())
        limit = reader.getDefaultReadLimit()
        start = reader.initialOffset()
        for _ in range(3):
            end = reader.latestOffset(start, limit)
            reader.partitions(start, end)
            reader.commit(end)
            start = end
        with Crossings() as planned:
            end = reader.latestOffset(start, limit)
            partitions = reader.partitions(start, end)
            reader.commit(start)
        loaded = [name for name in sys.modules if within(name, *PACKAGES)]
        assert end != start
        # Twice: what a task loads and looks up once for all micro-batches is no part of a steady one.
        for crossings in (Crossings(), read := Crossings()):
            task = pickle.loads(pickle.dumps(reader))
            for partition in pickle.loads(pickle.dumps(partitions)):
                with crossings:
                    assert list(task.read(partition))
        reader.stop()
    return {
        "modules that a micro-batch crosses": len(planned.modules | read.modules),
        "calls across a module's border": planned.calls + read.calls,
        "modules in the planner's process": len(loaded),
    }


def _write_files(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split in range(3):
        for file in range(3):
            seconds = range(file * 100, (file + 1) * 100)
            times = pa.array([1_700_000_000_000_000 + s * 1_000_000 for s in seconds], pa.timestamp("us", "UTC"))
            path = folder / f"split-{split}" / f"{file}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"ts": times, "n": list(seconds)}), path, row_group_size=20)


def measure() -> dict[str, int]:
    """Return all figures by their names."""
    found = modules(ROOT)
    counted = {module.name: lines_of(module.source) for module in found}
    rounds = circles(graph(found))
    crowded = [call for module in found for call in constructor_calls(module.source)]
    # In a process of its own: what is loaded here is no part of it.
    command = [sys.executable, "-W", "ignore", "-m", "tests.project.house", "micro-batch"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    traced: dict[str, int] = json.loads(done.stdout)
    return {
        "modules": len(found),
        "lines": sum(lines.total for lines in counted.values()),
        "lines of code": sum(lines.code for lines in counted.values()),
        "lines of docstrings": sum(lines.docstrings for lines in counted.values()),
        "gateway lines": sum(n.total for name, n in counted.items() if within(name, "streaming_source.gateway")),
        "`__init__` modules with code": len(inits_with_code(found)),
        "constructor calls by position": len(crowded),
        "import circles": len(rounds),
        "modules in the largest circle": max(map(len, rounds), default=0),
        **traced,
    }


def _table(figures: Mapping[str, int]) -> Iterator[str]:
    yield f"{'':36}{'7ee14c0':>10}{'now':>10}{'aim':>10}"
    for name, now in figures.items():
        aim = f"<= {AIMS[name]:,}" if AIMS.get(name) else str(AIMS.get(name, ""))
        yield f"{name:36}{THEN[name]:>10,}{now:>10,}{aim:>10}"


def main(arguments: list[str]) -> None:
    """Print the figures; with `micro-batch`, those of the traced one alone, as JSON."""
    if arguments == ["micro-batch"]:
        print(json.dumps(micro_batch()))
        return
    print("\n".join(_table(measure())))
    found = modules(ROOT)
    for name in inits_with_code(found):
        print(f"more than {MOST_CODE_OF_AN_INIT} lines of code: {name}.__init__")
    for module in found:
        for line, called in constructor_calls(module.source):
            print(f"more than {MOST_POSITIONAL} arguments by position: {called} in {module.name}:{line}")
    for number, group in enumerate(circles(graph(found)), 1):
        print(f"circle {number}: {', '.join(group)}")


if __name__ == "__main__":
    main(sys.argv[1:])
