"""The documentation says what the code does."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_options_is_the_one_that_the_code_gives() -> None:
    written = runpy.run_path(str(DOCS / "make_options.py"))["page"]()
    assert (DOCS / "options.md").read_text(encoding="utf-8") == written, "run: python docs/make_options.py"
