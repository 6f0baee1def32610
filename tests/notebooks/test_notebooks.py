"""The notebooks run from their first cell to their last, and print what they claim."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def committed(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def run_copy(name: str, directory: Path) -> nbformat.NotebookNode:
    """Execute a copy; raises the error of the first cell that has one."""
    copy = Path(shutil.copy(NOTEBOOKS / name, directory))
    notebook = nbformat.read(copy, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(directory)}}).execute()
    return notebook


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout").splitlines()


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [base64.b64decode(o.data["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_valid_and_committed_without_outputs(path: Path) -> None:
    notebook = committed(path.name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.spark
@pytest.mark.slow
def test_split_skew_tells_what_spark_drops_and_that_an_exact_watermark_drops_nothing(tmp_path: Path) -> None:
    notebook = run_copy("split_skew.ipynb", tmp_path)
    lines = printed(notebook)
    assert "18,000 readings in 140 windows" in lines
    assert "  slow: 4,000 of 6,000 readings lost" in lines
    assert "  fast:     0 of 6,000 readings lost" in lines
    # With an exact watermark, and again while the files arrive: pause, restart, resume.
    assert lines.count("18,000 of 18,000 readings, 140 of 140 windows") == 2
    assert any(line.startswith("equal to the millisecond in ") for line in lines)
    assert any(line.startswith("delay 10 seconds: ") and "closed, each as in batch" in line for line in lines)
    assert lines[-1] == "all claims hold"
    assert len(pictures(notebook)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["split_skew.ipynb"], "nothing is left behind"
