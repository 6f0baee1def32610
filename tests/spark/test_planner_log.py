"""A planner's last words reach the driver, which throws away what it has not read when it ends the process."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

PLANNER = """
import logging, sys
from streaming_source.spark import planner_log
planner_log._PATIENCE_S = float(sys.argv[1])
planner_log.log_lines_of("aligned_files 7f3a")
print("begun", flush=True)
logging.getLogger("streaming_source.coordinator").warning("this run ends with %d records unread", 10)
print("ended", flush=True)
"""


@contextmanager
def planner(patience_s: float) -> Iterator[tuple[IO[str], IO[str]]]:
    """Standard output and error of one that has begun."""
    command = [sys.executable, "-c", PLANNER, str(patience_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        yield process.stdout, process.stderr


def test_a_planner_waits_until_its_line_is_taken() -> None:
    with planner(patience_s=60) as (output, errors):
        assert not select.select([output], [], [], 0.3)[0]
        assert errors.readline().endswith("Z WARNING aligned_files 7f3a: this run ends with 10 records unread\n")
        assert output.readline() == "ended\n"


def test_a_planner_whose_lines_nobody_takes_goes_on() -> None:
    with planner(patience_s=0.1) as (output, _):
        assert output.readline() == "ended\n"
