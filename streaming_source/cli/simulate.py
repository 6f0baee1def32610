"""`streaming-source simulate`: what a drift would come to, for splits as skewed as one says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from alignment.durations import format_duration
from alignment.simulation.run import SimulationResult, SourceTrace, simulate
from alignment.simulation.scenario import Faults, Scenario, SourceScenario
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["run_simulation"]

_LINES: Final = 20
"""Steps shown at most: the first, the last, and some between."""


def run_simulation(source: SourceScenario, faults: Faults, seed: int) -> bool:
    """Play one source, with its drift and without, and print what came of it; whether it came to its end.

    The last line of standard output is JSON.
    """
    result = simulate(Scenario(sources=(source,), faults=faults), seed)
    # As many rows a micro-batch, or there is nothing to compare.
    rows = -(-source.splits * source.records // result.steps)
    free = replace(source, max_drift_us=None, max_rows=rows)
    unaligned = simulate(Scenario(sources=(free,), faults=faults), seed)
    console = Console()
    console.print(_table(result.sources[0]))
    for line in _notes(source, result, unaligned):
        console.print(line, highlight=False)
    print(json.dumps(_numbers(result, unaligned)), flush=True)
    return result.has_ended


def _table(trace: SourceTrace) -> Table:
    table = Table(
        title="Step by step, in seconds of event time", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    headers = ("step", "watermark", "drift", "past limit", "paused", "rows", "held", "late")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("held back by", no_wrap=True)
    known = trace.watermark[(trace.watermark > MIN_WATERMARK) & (trace.watermark < MAX_WATERMARK)]
    begin_us = int(known[0]) if known.size else 0
    steps = trace.rows.size
    for step in np.unique(np.linspace(0, steps - 1, min(steps, _LINES)).astype(int)).tolist():
        table.add_row(
            f"{step:,}",
            _watermark(int(trace.watermark[step]), begin_us),
            _seconds(int(trace.drift_us[step])),
            _seconds(int(trace.overshoot_us[step])),
            *(f"{int(column[step]):,}" for column in (trace.paused, trace.rows, trace.held_rows, trace.late)),
            trace.holding_back[step],
        )
    return table


def _watermark(watermark: int, begin_us: int) -> str:
    if watermark in (MIN_WATERMARK, MAX_WATERMARK):
        return "none" if watermark == MIN_WATERMARK else "end"
    return f"+{_seconds(watermark - begin_us)}"


def _seconds(us: int) -> str:
    return f"{us / 1e6:,.1f}"


def _notes(source: SourceScenario, result: SimulationResult, unaligned: SimulationResult) -> list[str]:
    drift = "none" if source.max_drift_us is None else format_duration(source.max_drift_us)
    (aligned,), (free,) = result.sources, unaligned.sources
    ended = "all was read" if result.has_ended else "it did not come to its end"
    return [
        f"{result.steps:,} micro-batches, {source.planning}, maxDrift {drift}: {ended}.",
        f"Records held at most: {aligned.held_rows.max(initial=0):,}; without maxDrift, at the same pace, "
        f"{free.held_rows.max(initial=0):,}.",
    ]


def _numbers(result: SimulationResult, unaligned: SimulationResult) -> dict[str, int | bool]:
    trace = result.sources[0]
    return {
        "ended": result.has_ended,
        "steps": result.steps,
        "rows": int(trace.rows.sum()),
        "late": int(trace.late.sum()),
        "held_most": int(trace.held_rows.max(initial=0)),
        "held_most_unaligned": int(unaligned.sources[0].held_rows.max(initial=0)),
        "overshoot_most_us": int(trace.overshoot_us.max(initial=0)),
    }
