"""A stranger's ten minutes: `make stranger` walks through the quick start and the first query, commands as pasted.

From `pip install` of the clone in a fresh environment, through the quick start and the audit of the checkpoint that
Spark's own query left (also where there is no PySpark), to a first query on files, its `explain` and its report.
What is printed is compared with the pages, and the time of each step is shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.pages import ROOT, blocks, code, printed

README, QUICK_START, FIRST_QUERY = (ROOT / name for name in ("README.md", "docs/quick-start.md", "docs/first-query.md"))


class Walk:
    """A terminal in a folder of its own, with the environment activated, and the seconds of each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"}
        self.environment = {name: value for name, value in os.environ.items() if name not in ours}
        self.environment["PATH"] = f"{folder}/venv/bin:{self.environment['PATH']}"
        self.seconds: list[tuple[str, float]] = []

    def run(self, name: str, command: str, program: str | None = None) -> str:
        """What a command prints, with a program on its standard input where there is one."""
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            input=program,
            capture_output=True,
            text=True,
            check=False,
        )
        self.seconds.append((name, time.monotonic() - begun))
        print(f"{self.seconds[-1][1]:7.1f} s  {name}: {command}", flush=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def commands(page: Path) -> list[str]:
    """The command lines of a page that are to be pasted."""
    text = "".join(block.text for block in blocks(page) if block.language == "bash")
    return [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines()]


def walk(folder: Path) -> Walk:
    """All steps, one after another."""
    walked = Walk(folder)
    walked.environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    (install,) = (block.text.strip() for block in blocks(README) if block.text.startswith("pip install"))
    walked.run("environment", f"{sys.executable} -m venv venv")
    # Both install from the clone that they are read in.
    assert install in QUICK_START.read_text(encoding="utf-8")
    walked.run("install", install.replace("'.[", f"'{ROOT}["))

    shown = [line for line in walked.run("quick start", "python -", code(QUICK_START)).splitlines() if line]
    command = shown[-1]
    root = command.removeprefix("streaming-source audit ").removesuffix("/sparks_own.checkpoint")
    assert [line.replace(root, "/tmp/quick-start") for line in shown] == [line for line in printed(QUICK_START) if line]
    audited = walked.run("audit", command).replace(f"{root}/logs", "/data/logs")
    (on_page,) = [block.text for block in blocks(QUICK_START) if block.language == "console"]
    assert audited.strip() == on_page.partition("\n")[2].strip()

    walked.run("environment without PySpark", f"{sys.executable} -m venv bare")
    walked.run("install", f"bare/bin/pip install '{ROOT}[cli]'")
    assert "pyspark" not in walked.run("what is there", "bare/bin/pip list")
    counted = walked.run("audit without PySpark", f"bare/bin/{command}")
    # All but the bound of the last lines, which needs the options of a format.
    assert counted.partition("\n\nThese lines")[0] == audited.partition("\n\nWith maxOutOfOrderness")[0]

    shown = walked.run("first query", "python -", code(FIRST_QUERY)).splitlines()
    rows = [line for line in shown if line.startswith(("[Row", "['ts'"))]
    assert rows == printed(FIRST_QUERY), rows
    for command in commands(FIRST_QUERY):
        walked.run(re.sub(r"streaming-source (\w+).*", r"\1", command), command)
    assert (folder / "first-query" / "report.html").exists()
    return walked


if __name__ == "__main__":
    with TemporaryDirectory(prefix="stranger-") as place:
        total = sum(seconds for _, seconds in walk(Path(place)).seconds)
    print(f"{total:7.1f} s  in all")
