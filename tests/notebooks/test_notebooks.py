"""The notebooks run from their first cell to their last, and print and draw what is stored in them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from tests.notebooks.executed import NOTEBOOKS, pictures, run_cells, stored

NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
KAFKA = ("from_history_to_live", "kafka_after_outage")
CHEAP = ("your_data",)
"""It prints what `audit` and `advise` print; `make notebooks` runs the others too, in CI on every change."""

_OF_A_MACHINE = re.compile(r"/(tmp|home|root|work|Users|usr|opt|private|var)/|\b(WARN|ERROR|Traceback|Picked up)\b")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_what_it_prints_and_draws_and_nothing_of_a_machine(name: str) -> None:
    notebook = stored(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < 300_000
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.get("name", "picture") for output in outputs} == {"stdout", "picture"}
    for output in outputs:
        assert not _OF_A_MACHINE.search(output.get("text", ""))
    drawn = [picture for cell in code for picture in pictures(cell)]
    assert drawn
    assert all(struct.unpack(">I", picture[16:20])[0] > 500 for picture in drawn), "pixels wide"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_needs_an_api_and_no_parser(name: str) -> None:
    assert not [cell.source for cell in stored(name).cells if re.search(r"\bjson\b|\[\d\]\[\d\]\[\d\]", cell.source)]


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (name not in CHEAP)) for name in NAMES if name not in KAFKA],
)
def test_a_notebook_prints_and_draws_what_is_stored(
    name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cells(name, monkeypatch, capsys)


@pytest.mark.spark
@pytest.mark.soak
def test_a_notebook_runs_in_a_kernel_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for file in (NOTEBOOKS / "split_skew.ipynb", NOTEBOOKS / "drawing.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    notebook = nbformat.read(tmp_path / "split_skew.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"split_skew.ipynb", "drawing.py"}
