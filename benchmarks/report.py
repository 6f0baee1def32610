"""Timing in turn, tables, targets with their verdicts, and all of it as JSON."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Target:
    """A bound that a figure is held against."""

    name: str
    value: float
    bound: float
    at_most: bool
    """Whether the bound is above; else it is below."""

    unit: str = ""

    @property
    def is_met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def cells(self) -> list[str]:
        sign = "<=" if self.at_most else ">="
        verdict = "met" if self.is_met else "MISSED"
        return [self.name, f"{self.value:.3g}{self.unit}", f"{sign} {self.bound:g}{self.unit}", verdict]


@dataclass
class Report:
    """What a run of the benchmarks found: it prints each table at once, and the targets at its end."""

    tables: list[dict[str, Any]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    seconds: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        print_table(title, header, rows)
        self.tables.append({"title": title, "header": list(header), "rows": [list(row) for row in rows]})

    def at_most(self, name: str, value: float, bound: float, unit: str = "") -> None:
        self.targets.append(Target(name, value, bound, at_most=True, unit=unit))

    def at_least(self, name: str, value: float, bound: float, unit: str = "") -> None:
        self.targets.append(Target(name, value, bound, at_most=False, unit=unit))

    def compare(self, title: str, rows: int, seconds: Mapping[str, Sequence[float]], ours: str = "ours") -> None:
        """Rows a second of each contestant, and how fast ours is against it."""
        self.seconds[title] = {name: list(taken) for name, taken in seconds.items()}
        lines = [
            [name, f"{rows / statistics.median(taken) / 1e6:.2f} M/s", spread(taken), ratio(taken, seconds[ours])]
            for name, taken in seconds.items()
        ]
        header = ["source", "median rate", "seconds", "speed of ours against it"]
        self.table(f"{title} ({len(seconds[ours])} rounds in turn)", header, lines)

    def print_targets(self) -> None:
        print_table("Targets", ["what", "measured", "target", "verdict"], [target.cells() for target in self.targets])

    def write(self, path: Path) -> None:
        targets = [{**asdict(target), "met": target.is_met} for target in self.targets]
        found = {"tables": self.tables, "targets": targets, "seconds": self.seconds}
        path.write_text(json.dumps(found, indent=1) + "\n")


def in_turn(
    contestants: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], Any] = time.perf_counter
) -> dict[str, list[Any]]:
    """Seconds of each contestant in each round. All run once, uncounted, then `rounds` times in turn: A B C A B C.

    A clock may show several times, as an array. A contestant that returns a float or an array has measured itself.
    """
    seconds: dict[str, list[Any]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            began = clock()
            own = run()
            if number:
                seconds[name].append(own if isinstance(own, float | np.ndarray) else clock() - began)
    return seconds


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> str:
    """Median of the ratios round by round, with their range."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def spread(taken: Sequence[float]) -> str:
    """The median with the range."""
    return f"{statistics.median(taken):.2f} ({min(taken):.2f} to {max(taken):.2f})"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    print(f"\n{title}\n\n{markdown(header, rows)}", flush=True)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )
