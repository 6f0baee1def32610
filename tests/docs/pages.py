"""The pages of the documentation, and the code on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the name of the file it belongs to if it says one, and what is in it."""

    language: str
    file: str
    text: str


def pages() -> list[Path]:
    """Every page that is written for people."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "tests").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        language, _, file = match["info"].strip().partition(" ")
        found.append(Block(language, file, match["text"]))
    return found


def code(page: Path, file: str = "") -> str:
    """The Python blocks of one file on the page, or of the script that the page is, one after another."""
    return "\n\n".join(block.text for block in blocks(page) if block.language == "python" and block.file == file)


def printed(page: Path) -> list[str]:
    """The lines that the page says are printed."""
    return [line for block in blocks(page) if block.language == "text" for line in block.text.splitlines()]
