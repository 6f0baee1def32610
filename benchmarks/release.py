"""The figures of the last release, kept in a file, beside those of a run: what grew by more than noise.

Figures are those that are held against a target; nearly all are ratios, which machines share. The file has them of
several runs, `python -m benchmarks --quick --release` adds one. Noise is what these runs differ by, and a tenth more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Target
from streaming_source import __version__

__all__ = ["FIGURES", "add", "compared"]

FIGURES = Path(__file__).with_name("last_release.json")

_NOISE = 0.1


def add(targets: Sequence[Target], path: Path = FIGURES, version: str = __version__) -> None:
    """Add the figures of a run to those of its version; those of another version are left out."""
    kept = json.loads(path.read_text()) if path.exists() else {"version": version, "figures": {}}
    figures = kept["figures"] if kept["version"] == version else {}
    for target in targets:
        figures.setdefault(target.name, []).append(float(f"{target.value:.4g}"))
    path.write_text(json.dumps({"version": version, "figures": figures}, indent=1, sort_keys=True) + "\n")


def compared(targets: Sequence[Target], path: Path = FIGURES) -> tuple[str, list[list[str]]]:
    """A title with what was compared, and a line for each figure that is worse than in all runs of the last release."""
    if not path.exists():
        return f"No figures of a release are kept in {path}: `python -m benchmarks --quick --release` writes them", []
    kept = json.loads(path.read_text())
    known = [target for target in targets if target.name in kept["figures"]]
    lines = []
    for target in known:
        runs = kept["figures"][target.name]
        worst = max(runs) if target.at_most else min(runs)
        better, worse = (worst, target.value) if target.at_most else (target.value, worst)
        if worse > better * (1 + _NOISE):
            was = f"{min(runs):.3g} to {max(runs):.3g}{target.unit}"
            # From nothing everything grows without end.
            by = f"{worse / better:.2f} times" if better else "from 0"
            lines.append([target.name, was, f"{target.value:.3g}{target.unit}", by])
    new = len(targets) - len(known)
    title = (
        f"{len(lines)} of {len(known)} figures are worse than in {kept['version']}, by more than noise; {new} are new"
    )
    return title, lines
