"""Every command, given every kind of bad input: one line that ends with the fix, exit code 2, and no traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from streaming_source.tools.cli.main import app
from streaming_source.tools.pages.watch import CheckpointWatch
from tests.cli.test_take_over import METADATA, checkpoint
from tests.monitoring.situations import silent_split

BINARY = bytes(range(256))
FIX = re.compile(
    r"(?:[;:,.] (?:or )?|, or )(?:give|restore|upgrade|use|wait|correct|add|let|install|run|see|start|leave)\b[^;]*$",
    re.I,
)

Break = Callable[[Path], object]


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Two checkpoints: `ours`, and `kafka` of Spark's own source. Any user may read them."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    query = silent_split(root / "query")
    query.close()
    shutil.copytree(query.folder / "checkpoint", root / "ours")
    (root / "ours" / "metadata").write_text('{"id":"7e3f"}')
    checkpoint(root / "kafka", '{"a":{"0":3}}', commits=1)
    yield root
    shutil.rmtree(root)


def replaced(name: str, content: bytes | str) -> Break:
    def change(path: Path) -> None:
        (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def folder_at(name: str) -> Break:
    def change(path: Path) -> None:
        (path / name).unlink()
        (path / name).mkdir()

    return change


def file_at(content: bytes) -> Break:
    def change(path: Path) -> None:
        shutil.rmtree(path)
        path.write_bytes(content)

    return change


def file_for_folder(name: str) -> Break:
    def change(path: Path) -> None:
        shutil.rmtree(path / name)
        (path / name).write_text("no folder")

    return change


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def changed_offset(**fields: object) -> Break:
    """One of our own offsets, with other fields."""

    def change(path: Path) -> None:
        *lines, offset = (path / "offsets" / "0").read_text().splitlines()
        (path / "offsets" / "0").write_text("\n".join([*lines, json.dumps({**json.loads(offset), **fields})]))

    return change


BAD: dict[str, Break] = {
    "missing": shutil.rmtree,
    "an empty folder": empty,
    "an empty file": file_at(b""),
    "a binary file": file_at(BINARY),
    "offsets is a file": file_for_folder("offsets"),
    "an offset is empty": replaced("offsets/0", ""),
    "an offset is binary": replaced("offsets/0", BINARY),
    "an offset is a folder": folder_at("offsets/0"),
    "an offset is cut": replaced("offsets/0", f'v1\n{METADATA[:-2]}\n{{"a":{{'),
    "an offset is a version alone": replaced("offsets/0", "v1"),
    "an offset has another's metadata": replaced("offsets/0", 'v1\n[]\n{"a":{"0":3}}'),
    "an offset has no source": replaced("offsets/0", f"v1\n{METADATA}"),
    "an offset log of the future": replaced("offsets/0", f"v9\n{METADATA}\n-"),
}
BAD_COMMITS: dict[str, Break] = {
    "a commit is binary": replaced("commits/0", BINARY),
    "a commit is empty": replaced("commits/0", ""),
    "a commit has another's metadata": replaced("commits/0", "v1\n[]"),
}
BAD_OFFSETS: dict[str, Break] = {
    "an offset of the future": changed_offset(v=99),
    "an offset whose version is a text": changed_offset(v="x"),
    "splits of another kind": changed_offset(splits=7),
    "splits that are cut": changed_offset(splits=[[1]]),
    "reasons of another kind": changed_offset(why=7),
    "a watermark that is no time": changed_offset(watermark="x"),
    "metadata that is binary": replaced("metadata", BINARY),
}
OF_OURS: dict[str, Callable[[Path], list[object]]] = {
    "explain": lambda path: ["explain", path],
    "history": lambda path: ["explain", path, "--history"],
    "split": lambda path: ["explain", path, "--split", "carrier=HA"],
    "report": lambda path: ["report", path, "--output", path.parent / "report.html"],
}
OF_SPARKS: dict[str, Callable[[Path], list[object]]] = {
    "audit": lambda path: ["audit", path, "--window", "1 minute"],
    "take-over": lambda path: ["take-over", path, path.parent / "new", "--subscribe", "a"],
    "take-over of a table": lambda path: ["take-over", path, path.parent / "new", "--table", path.parent / "table"],
}
CASES = [
    *(("ours", command, kind) for command in OF_OURS for kind in (*BAD, *BAD_OFFSETS)),
    *(("kafka", command, kind) for command in OF_SPARKS for kind in BAD),
    *(("kafka", "take-over", kind) for kind in BAD_COMMITS),
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def check(result: Result) -> None:
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: "), line
    assert FIX.search(line), line


@pytest.mark.parametrize(("base", "command", "kind"), CASES)
def test_a_bad_checkpoint_is_one_line_with_the_fix(
    made: Path, tmp_path: Path, base: str, command: str, kind: str
) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(made / base, path)
    {**BAD, **BAD_COMMITS, **BAD_OFFSETS}[kind](path)
    check(run(*{**OF_OURS, **OF_SPARKS}[command](path)))
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("kind", [*BAD, *BAD_OFFSETS])
def test_the_live_page_shows_what_is_wrong(made: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(made / "ours", path)
    {**BAD, **BAD_OFFSETS}[kind](path)
    note = CheckpointWatch(str(path)).latest.data["note"]
    assert re.match("The checkpoint (cannot be read: |is not there yet)", note), note


def test_a_newer_version_is_named_and_not_read_as_a_current_one(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(made / "ours", path)
    changed_offset(v=99)(path)
    line = run("explain", path).stderr
    assert "offsets/0: the offset has version 99, this library reads up to 2" in line
    assert line.rstrip().endswith("upgrade spark-watermark-alignment")


LOGS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "an empty folder": Path.mkdir,
    "a folder of folders": lambda path: (path / "log.jsonl").mkdir(parents=True),
    "an empty file": Path.touch,
    "a binary file": lambda path: path.write_bytes(BINARY),
    "a text": lambda path: path.write_text("no event log\n"),
    "JSON of something else": lambda path: path.write_text("[]\n"),
    "an unknown event": lambda path: path.write_text('{"type": "SomethingNew"}\n'),
}


@pytest.mark.parametrize("kind", LOGS)
def test_a_bad_event_log_is_one_line_with_the_fix(made: Path, tmp_path: Path, kind: str) -> None:
    log = tmp_path / "log"
    LOGS[kind](log)
    check(run("simulate", log))
    check(run("explain", made / "ours", "--split", "carrier=HA", "--event-log", log))


DATA: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "an empty folder": Path.mkdir,
    "an empty file": Path.touch,
    "a binary file": lambda path: path.write_bytes(BINARY),
    "a folder with a binary file": lambda path: (path.mkdir(), (path / "a.parquet").write_bytes(BINARY)),
    "a broken Delta table": lambda path: (
        (path / "_delta_log").mkdir(parents=True),
        (path / "_delta_log" / f"{0:020}.json").write_bytes(BINARY),
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_bad_data_are_one_line_with_the_fix(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "data"
    DATA[kind](data)
    result = run("advise", data, "-o", "eventTimeColumn=ts")
    assert FIX.search(result.stderr.rstrip()) or "rename it when it is complete" in result.stderr
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_a_page_that_cannot_be_written_is_one_line_with_the_fix(made: Path, tmp_path: Path) -> None:
    check(run("report", made / "ours", "--output", tmp_path / "no" / "report.html"))


def test_a_page_of_nothing_is_not_written(made: Path, tmp_path: Path) -> None:
    check(run("report", made / "kafka", "--output", tmp_path / "report.html"))
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("option", [("--unevenness", "inf"), ("--spacing", "99999999 days")])
def test_a_workload_beyond_all_event_times_is_one_line_with_the_fix(option: tuple[str, str]) -> None:
    check(run("simulate", "--records", "5", *option))


@pytest.mark.parametrize("name", [".", "offsets", "offsets/0", "commits"])
def test_what_this_user_may_not_read_is_one_line_with_the_fix(made: Path, name: str) -> None:
    for base, commands in (("ours", OF_OURS), ("kafka", OF_SPARKS)):
        path = made / f"{base}-of-others-{name.replace('/', '-')}"
        shutil.copytree(made / base, path)
        for command in commands.values():
            # Once as one who may, so that what a command imports is there for one who may not.
            run(*command(path))
            shutil.rmtree(made / "new", ignore_errors=True)
        (path / name).chmod(0)
        for command in commands.values():
            as_nobody(lambda: check(run(*command(path))))  # noqa: B023 (called at once)


def as_nobody(act: Callable[[], None]) -> None:
    """Call it in a child process that has no more rights than any user."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65_534)
                os.setuid(65_534)
            act()
            said = "done"
        except BaseException as error:
            said = repr(error)
        os.write(writes, said.encode()[:60_000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    assert said == "done"


def test_a_library_that_is_missing_is_named_with_its_extra(made: Path, tmp_path: Path) -> None:
    iceberg = '{"version":1,"snapshot_id":5,"position":2,"scan_all_files":false}'
    checkpoint(tmp_path / "iceberg", iceberg, commits=1)
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    new = tmp_path / "new"
    commands = {
        "kafka": [
            ["take-over", made / "kafka", new, "--subscribe", "a"],
            ["advise", "a", "-o", "kafka.bootstrap.servers=nobody:9092"],
            ["audit", made / "kafka", "--window", "1 minute"],
        ],
        "delta": [
            ["take-over", made / "kafka", new, "--table", tmp_path / "table"],
            ["advise", tmp_path / "table", "-o", "eventTimeColumn=ts"],
        ],
        "iceberg": [
            ["take-over", tmp_path / "iceberg", new, "--table", "db.t", "-o", "catalog.type=rest"],
            ["advise", "db.t", "-o", "catalog.type=rest", "-o", "eventTimeColumn=ts"],
        ],
    }
    program = (
        "import json, sys\n"
        "for name in ('confluent_kafka', 'deltalake', 'pyiceberg'): sys.modules[name] = None\n"
        "from typer.testing import CliRunner\n"
        "from streaming_source.tools.cli.main import app\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    result = CliRunner().invoke(app, arguments)\n"
        "    print(json.dumps([result.exit_code, result.stderr]))\n"
    )
    given = [list(map(str, arguments)) for found in commands.values() for arguments in found]
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(given)], capture_output=True, text=True, check=True, timeout=120
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [extra for extra, arguments in commands.items() for _ in arguments]
    assert [code for code, _ in found] == [2] * len(expected)
    for extra, (_, text) in zip(expected, found, strict=True):
        assert re.fullmatch(rf"error: [^\n]* install '?spark-watermark-alignment\[{extra}\]'?\n", text), text
    assert not new.exists()
