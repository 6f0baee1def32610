"""The figures of the last release, kept in a file, beside those of a run: what grew by more than noise.

Figures are those that are held against a target; most are ratios, which machines share, and seconds are compared on the
machine of the release alone. The file has figures of several runs, `python -m benchmarks --quick --release` adds one.
Noise is what these runs differ by, and a tenth more.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Target
from streaming_source import __version__

__all__ = ["FIGURES", "add", "compared"]

FIGURES = Path(__file__).with_name("last_release.json")

_NOISE = 0.1
_OF_TIME = (" s", " ms")


def _this_machine() -> str:
    """The processor and its cores: what seconds depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores"


MACHINE = _this_machine()


def add(targets: Sequence[Target], path: Path = FIGURES, version: str = __version__, machine: str = MACHINE) -> None:
    """Add the figures of a run to those of its version and machine; those of another one are left out."""
    run = {"version": version, "machine": machine}
    kept = json.loads(path.read_text()) if path.exists() else {}
    figures = kept.pop("figures", {})
    figures = figures if kept == run else {}
    for target in targets:
        figures.setdefault(target.name, []).append(float(f"{target.value:.4g}"))
    path.write_text(json.dumps({**run, "figures": figures}, indent=1, sort_keys=True) + "\n")


def compared(targets: Sequence[Target], path: Path = FIGURES, machine: str = MACHINE) -> tuple[str, list[list[str]]]:
    """A title with what was compared, and a line for each figure that is worse than in all runs of the last release."""
    if not path.exists():
        return f"No figures of a release are kept in {path}: `python -m benchmarks --quick --release` writes them", []
    kept = json.loads(path.read_text())
    known = [target for target in targets if target.name in kept["figures"]]
    shared = [target for target in known if kept.get("machine") == machine or target.unit not in _OF_TIME]
    lines = []
    for target in shared:
        runs = kept["figures"][target.name]
        worst = max(runs) if target.at_most else min(runs)
        better, worse = (worst, target.value) if target.at_most else (target.value, worst)
        if worse > better * (1 + _NOISE):
            was = f"{min(runs):.3g} to {max(runs):.3g}{target.unit}"
            # From nothing everything grows without end.
            by = f"{worse / better:.2f} times" if better else "from 0"
            lines.append([target.name, was, f"{target.value:.3g}{target.unit}", by])
    new, left_out = len(targets) - len(known), len(known) - len(shared)
    title = (
        f"{len(lines)} of {len(shared)} figures are worse than in {kept['version']}, by more than noise; {new} are new"
    )
    if left_out:
        title += f"; {left_out} are seconds of another machine, {kept.get('machine')}, and not compared"
    return title, lines
