"""Runs the cells of a notebook in this process, with the session and the broker that the tests have."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pytest

__all__ = ["NOTEBOOKS", "pictures", "printed", "run_cells", "stored"]

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def stored(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell is stored to print."""
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")


def pictures(cell: nbformat.NotebookNode) -> list[bytes]:
    return [base64.b64decode(o.data["image/png"]) for o in cell.outputs if "image/png" in o.get("data", {})]


def run_cells(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From the first cell to the last: each draws as many pictures as are stored, and prints what is stored.

    What a cell prints that is tagged `varies` depends on the clock, or on how fast files were found: of that the words
    of the first line are compared.
    """
    shown: list[int] = []

    def show() -> None:
        shown.extend(plt.get_fignums())
        plt.close("all")

    matplotlib.use("Agg")
    monkeypatch.setattr(plt, "show", show)
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    scope: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(stored(name).cells):
        if cell.cell_type != "code":
            continue
        exec(compile(cell.source, f"{name}, cell {number}", "exec"), scope)
        text, expected = capsys.readouterr().out, printed(cell)
        varies = "varies" in cell.metadata.get("tags", ())
        same = text == expected or (varies and _first_words(text) == _first_words(expected) != [])
        assert same, f"cell {number} prints {text!r}; to store it: python notebooks/store.py {name}"
        assert len(shown) == len(pictures(cell)), f"{name}, cell {number}"
        shown.clear()


def _first_words(text: str) -> list[str]:
    """The words of the first line that has any, without numbers and names that are made up for each run."""
    line = next(filter(None, text.splitlines()), "")
    return re.findall(r"(?<![\w'-])[A-Za-z]+(?![\w'-])", line)
