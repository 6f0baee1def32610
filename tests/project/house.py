"""What the house measures: `python -m tests.project.house` prints lines, circles, what processes load, and calls."""

from __future__ import annotations

import ast
import json
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

from tests.project.test_import_rule import PACKAGES, ROOT, Module, imports_of, modules, nodes, within

MOST_CODE_OF_AN_INIT = 40
MOST_POSITIONAL = 6

THEN = {
    "modules": 303,
    "lines": 58_039,
    "docstrings that begin with a question": 349,
    "modules that an audit imports": 47,
    "modules in the planner's process": 95,
    "calls across a module's border": 692,
}
"""At 60dec27b; an empty cell was not counted then."""

MOST = {
    "constructor calls by position": 0,
    "docstrings that begin with a question": 0,
    "import circles": 0,
    "modules that an audit imports": 43,
    "modules of an audit of Parquet files": 61,
    "modules in the planner's process": 93,
    "calls across a module's border": 692,
    "features entered that no option sets": 0,
    "lines to text and back": 699,
}
"""What `test_house.py` holds: a figure that comes down is written here, and does not go up again."""

TO_TEXT_AND_BACK = re.compile(
    r"(^|_)(to|from)_json$|^(bytes_to_json|json_to_bytes|facts_of|report_of_offset)$|^_?(de)?serialize$|"
    r"^_?(en|de)code(d|_reports)?$"
)
"""Names of functions that turn a value of this library into text, or back."""
OF_RECORDS = (
    "streaming_source.data_files.formats",
    "streaming_source.connectors.kafka",
    "streaming_source.connectors.delta",
)
"""Where such names are of records, but for `split` of Kafka: what users' files and topics have is no value of ours."""

QUESTION = re.compile(r"(What|Whether|How|Where)\b")

FEATURES = {
    "alignmentGroup": r"coordinator\.group_\w+:|alignment\.(membership|groups|group_events):|"
    r"coordinator:SourceCoordinator\._(end_plan|look_ahead)$",
    "cleanSource": r"files\.cleaning:",
    "columns of directories": r"evolution:with_given$",
    "column names of Delta and Iceberg": r"data_files\.stored_names:",
    "events of a source": r"coordinator\.enumerator_host:EnumeratorHost\.(take_events|post_source_event)",
    "eventLog": r"alignment\.recording:",
    "eventTimeFrom and eventTimeUntil": r"alignment\.event_time_range:|row_limit:Outside|"
    r"planner_warnings:(check_no_overlap|refusal)$|\.(after_unwanted|count_outside|load_wanted)$|SourceCoordinator\._check_overlap$",
    "gateway": r"streaming_source\.gateway|planning:StreamPlanning\._new_gateway",
    "generator of watermarks": r"alignment\.split_generators:|spark\.offsets:_generators$|\.generators_since$",
    "indexing = off": r"plan\.(by_reports|observed):|spark\.observed_times:|event_times\.reported:",
    "late = route": r"spark\.late_\w+:|StreamPlanning\._late_log",
    "maxFutureSkew": r"ReadRules\.time_limit_at$|EnumeratorHost\.event_time_limit_us$|\.limit_times$",
    "minRowsPerTrigger": r"SourceCoordinator\._(ends_wait|may_wait_for_rows)$|Engine\.reads_at_us$",
    "opaque blocks of Kafka": r"alignment\.index\.opaque:",
    "reportLocation": r"spark\.(report_directory|places):",
    "skipping files": r"ReadingConfig\.skip$",
}
"""What a query enters for nothing if it does not use it, by the names `module:function` that belong to it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of source by what stands on them; a line is counted once."""

    total: int
    code: int
    docstrings: int


def lines_of(source: str) -> Lines:
    """Count the lines of one module."""
    documented: set[int] = set()
    for node in nodes(source):
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
    for node in nodes(source):
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "cls" or called.lstrip("_")[:1].isupper():
                yield node.lineno, called


def text_functions(found: Iterable[Module]) -> Iterator[tuple[str, int]]:
    """Yield `(module:function, lines)` of those that turn values into text and back, and of all of the codec's."""
    for module in found:
        if within(module.name, *OF_RECORDS) and not module.name.endswith(".split"):
            continue
        for node in nodes(module.source):
            is_one = isinstance(node, ast.FunctionDef) and (
                module.name == "alignment.codec" or TO_TEXT_AND_BACK.search(node.name) is not None
            )
            if is_one and isinstance(node, ast.FunctionDef):
                yield f"{module.name}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def questions(found: Iterable[Module]) -> list[str]:
    """Return `module:name` of each docstring that begins with What, Whether, How or Where."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{module.name}:{getattr(node, 'name', '')}"
        for module in found
        for node in nodes(module.source)
        if isinstance(node, kinds) and QUESTION.match(ast.get_docstring(node) or "")
    ]


def inits_with_code(found: Iterable[Module]) -> list[str]:
    """Return the packages whose `__init__` defines things, beside exporting those of other modules."""
    return [m.name for m in found if m.is_package and _own_code(m.source) > MOST_CODE_OF_AN_INIT]


def _own_code(source: str) -> int:
    exports = 0
    for node in nodes(source):
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
        self.functions: set[str] = set()
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
        self.functions.add(f"{called}:{frame.f_code.co_qualname}")
        caller: FrameType | None = frame.f_back
        # What lies between and is not ours (a comprehension of the standard library, a decorator) crosses no border.
        while caller is not None and not _house_module(caller):
            caller = caller.f_back
        self.calls += caller is not None and _house_module(caller) != called


def _house_module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__", "")
    return name if within(name, *PACKAGES) else ""


def features(functions: Iterable[str]) -> list[str]:
    """Return the features of `FEATURES` to which a function belongs that was called."""
    return [name for name, own in FEATURES.items() if any(re.search(own, function) for function in functions)]


def micro_batch() -> dict[str, Any]:
    """One steady micro-batch of `aligned_files`: planned as in Spark's planner process, and read as by a task."""
    # What Spark's process has loaded before it comes to us.
    import pyspark.sql.streaming.python_streaming_source_runner  # noqa: F401

    from streaming_source.coordinator.rules import EMITTED
    from streaming_source.spark.datasource import AlignedDataSource

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
        loaded = _loaded()
        assert end != start
        # Several times: what a task loads and looks up once for all micro-batches is no part of a steady one, and how
        # often it polls the threads that fetch is theirs to say.
        reads = [_read(pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(partitions))) for _ in range(21)]
        read = min(reads[1:], key=lambda one: one.calls)
        reader.stop()
    entered = features(planned.functions | read.functions)
    return {
        "modules in the planner's process": len(loaded),
        "calls across a module's border": planned.calls + read.calls,
        "features entered that no option sets": len(entered),
        "entered": entered,
    }


def _read(task: Any, partitions: Iterable[Any]) -> Crossings:
    crossings = Crossings()
    for partition in partitions:
        with crossings:
            for _ in task.read(partition):
                # So that the next one is fetched meanwhile, and polls in vain are few, whatever else the machine does.
                time.sleep(0.002)
    return crossings


def audit_of_files() -> dict[str, int]:
    """`streaming-source audit` of a query over Parquet files."""
    from streaming_source.tools.cli.main import app
    from tests.auditing import naive

    query = naive.Query(5_000, 60 * naive.SECOND, 60 * naive.SECOND)
    with tempfile.TemporaryDirectory() as folder:
        files, checkpoint = Path(folder) / "files", Path(folder) / "checkpoint"
        batches = [[(f"{name}.parquet", [naive.T0 + name * naive.SECOND])] for name in range(3)]
        naive.write_files(files, batches)
        naive.write_checkpoint(checkpoint, files, query, naive.run(query, batches))
        app(["audit", str(checkpoint), "--window", "1 minute", "--mode", "append", "--json"], standalone_mode=False)
    return {"modules of an audit of Parquet files": len(_loaded())}


def import_of_audit() -> dict[str, int]:
    """`from streaming_source.tools.auditing.query import audit`."""
    import streaming_source.tools.auditing.query  # noqa: F401

    return {"modules that an audit imports": len(_loaded())}


def _loaded() -> list[str]:
    return sorted(name for name in sys.modules if within(name, *PACKAGES))


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


PROCESSES = {one.__name__: one for one in (micro_batch, audit_of_files, import_of_audit)}
"""What is measured in a process of its own: what is loaded here is no part of it."""


def in_process(name: str) -> dict[str, Any]:
    """Return the figures of one of `PROCESSES`."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.project.house", name]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure() -> dict[str, Any]:
    """Return all figures by their names."""
    found = modules(ROOT)
    counted = {module.name: lines_of(module.source) for module in found}
    figures: dict[str, Any] = {
        "modules": len(found),
        "lines": sum(lines.total for lines in counted.values()),
        "lines of code": sum(lines.code for lines in counted.values()),
        "lines of docstrings": sum(lines.docstrings for lines in counted.values()),
        "constructor calls by position": sum(1 for module in found for _ in constructor_calls(module.source)),
        "docstrings that begin with a question": len(questions(found)),
        "import circles": len(circles(graph(found))),
        "functions to text and back": sum(1 for _ in text_functions(found)),
        "lines to text and back": sum(lines for _, lines in text_functions(found)),
    }
    for name in PROCESSES:
        figures |= in_process(name)
    return figures


def _table(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'':40}{'60dec27b':>10}{'now':>10}{'most':>10}"
    for name, now in figures.items():
        if isinstance(now, int):
            then, most = (f"{known[name]:,}" if name in known else "" for known in (THEN, MOST))
            yield f"{name:40}{then:>10}{now:>10,}{most:>10}"


def main(arguments: list[str]) -> None:
    """Print the figures; with a name of `PROCESSES` those of this process alone, as JSON."""
    if arguments:
        print(json.dumps(PROCESSES[arguments[0]]()))
        return
    figures = measure()
    print("\n".join(_table(figures)))
    if figures["entered"]:
        print(f"entered, and set by no option: {', '.join(figures['entered'])}")
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
