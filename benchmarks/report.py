"""Timing in turn, and printing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def in_turn(
    contestants: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], Any] = time.perf_counter
) -> dict[str, list[Any]]:
    """Seconds of each contestant in each round. All run once, uncounted, then `rounds` times in turn: A B C A B C.

    A clock may show several times, as an array.
    """
    seconds: dict[str, list[Any]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            began = clock()
            run()
            if number:
                seconds[name].append(clock() - began)
    return seconds


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> str:
    """Median of the ratios round by round, with their range."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with aligned columns."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, ["-" * width for width in widths], *rows]:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print(f"  {'  '.join(cells)}".rstrip(), flush=True)
