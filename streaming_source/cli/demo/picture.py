"""The picture: watermarks over the micro-batches, of Spark's own stream and of the aligned one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from matplotlib.dates import DateFormatter, MonthLocator
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from streaming_source.cli.demo.history import AlignedBatch, SparkBatch
from streaming_source.cli.demo.report import Verdict
from streaming_source.cli.demo.runs import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_picture"]

# Okabe and Ito's palette: told apart under every common colour blindness.
_BLUE: Final = "#0072B2"
_ORANGE: Final = "#E69F00"
_VERMILION: Final = "#D55E00"
_INK: Final = "#1A1A1A"
_GREY: Final = "#8A8A8A"
_SOFT: Final = "#4A4A4A"
_PALE: Final = "#E4E4E4"

_DAY_US: Final = 86_400_000_000

# A README shows it about 830 pixels wide: 83 to the inch, so that the smallest text is 10 pixels high.
_INCHES: Final = (10, 9.4)
_DPI: Final = 166
_TEXT: Final = 9.5
_SMALL: Final = 9


def save_picture(
    path: Path, spark: Sequence[SparkBatch], aligned: Sequence[AlignedBatch], verdict: Verdict, plan: Plan
) -> None:
    """Draw both streams and save the picture as PNG."""
    figure = Figure(figsize=_INCHES)
    grid = figure.add_gridspec(
        2,
        2,
        width_ratios=(1, 1.15),
        height_ratios=(1.25, 1),
        left=0.062,
        right=0.99,
        top=0.765,
        bottom=0.055,
        hspace=0.25,
        wspace=0.24,
    )
    whole, upper, lower = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    figure.text(
        0.012, 0.955, "A backfill: one watermark for all, or one for each?", fontsize=18, weight="bold", color=_INK
    )
    subtitle = (
        f"{verdict.numbers()['batch_rows']:,} flights from New York in 2013, counted per hour and carrier. They were "
        "exported when the year was\nover: all carriers at once, each into its own log of files and at one pace, so "
        "that small carriers are through their year first."
    )
    figure.text(0.012, 0.902, subtitle, fontsize=_TEXT, color=_SOFT, linespacing=1.35)
    _draw_spark(whole, spark, verdict, plan)
    _draw_aligned(upper, aligned, verdict, plan)
    _draw_limits(lower, aligned, verdict)
    lower.sharex(upper)
    upper.sharey(whole)
    first, last = whole.dataLim.intervaly
    whole.set_ylim(first - 0.05 * (last - first), last + 0.03 * (last - first))
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (whole, upper):
        axes.yaxis.set_major_locator(MonthLocator())  # type: ignore[no-untyped-call]
        axes.yaxis.set_major_formatter(DateFormatter("%b"))  # type: ignore[no-untyped-call]
        axes.grid(axis="y", color=_PALE, linewidth=0.8)
        axes.set_axisbelow(True)
    for axes in (whole, upper, lower):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0, colors=_SOFT, labelsize=_TEXT)
    lower.tick_params(axis="y", labelsize=_SMALL)
    figure.savefig(path, dpi=_DPI)


def _draw_spark(axes: Axes, batches: Sequence[SparkBatch], verdict: Verdict, plan: Plan) -> None:
    """Of each batch the event times it brought, and the watermark it was compared with."""
    numbers = np.arange(len(batches))
    low, high = _days(batch.earliest_us for batch in batches), _days(batch.latest_us for batch in batches)
    watermark = _days(batch.watermark_us for batch in batches)
    late = np.clip(watermark, low, high)
    axes.bar(numbers, late - low, bottom=low, width=0.66, color=_VERMILION)
    axes.bar(numbers, high - late, bottom=late, width=0.66, color=_BLUE)
    # At first it is 1970: nothing is late yet.
    begun = watermark > 0
    axes.step(numbers[begun], watermark[begun], where="mid", color=_INK, linewidth=3, solid_capstyle="butt")
    lost = verdict.numbers()["batch_rows"] - verdict.numbers()["spark_rows"]
    lines = [
        "A bar spans the departures of one micro-batch.",
        f"The watermark is the latest of all, less {plan.out_of_orderness}:",
        "after a small carrier's December the others' year",
        "is too late.",
    ]
    _head(axes, f"Spark's own stream drops {lost / verdict.numbers()['batch_rows']:.1%} of rows", lines)
    _legend(
        axes,
        0.985,
        0.02,
        [("counted", _BLUE), ("too late, dropped", _VERMILION), ("watermark", _INK)],
    )
    axes.set_xlabel(f"micro-batch ({plan.files_per_trigger} files each)", color=_SOFT, fontsize=_TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_aligned(axes: Axes, batches: Sequence[AlignedBatch], verdict: Verdict, plan: Plan) -> None:
    """Every carrier's watermark after each batch, and the exact one."""
    numbers = np.arange(len(batches))
    for carrier in _carriers(batches):
        states = [batch.splits.get(carrier) for batch in batches]
        line = _days(state.watermark_us if state else None for state in states)
        at_limit = np.array([bool(state and state.is_at_limit) for state in states])
        axes.plot(numbers, line, color=_GREY, linewidth=0.9, zorder=2)
        axes.plot(numbers[at_limit], line[at_limit], "o", color=_ORANGE, markersize=5, zorder=3)
        axes.plot(numbers[~at_limit], line[~at_limit], "o", color=_BLUE, markersize=5, zorder=4)
    exact = _days(batch.watermark_us for batch in batches)
    axes.step(numbers, exact, where="mid", color=_INK, linewidth=3, zorder=2.5, solid_capstyle="butt")
    _mark_holder(axes, batches, exact, verdict)
    lines = [
        "A dot is one carrier's watermark after a micro-batch; the",
        "exact watermark is the smallest of them. No carrier is read",
        f"further than {plan.max_drift} ahead of the slowest: the limit, which",
        "moves on with it until all are read to the end.",
    ]
    _head(axes, f"The aligned stream loses {verdict.numbers()['lost']:,} rows", lines)
    _legend(axes, 0.93, 0.16, [("within the limit", _BLUE), ("at the limit", _ORANGE), ("exact watermark", _INK)])
    for number in [number for number, batch in enumerate(batches) if batch.ended][:1]:
        axes.axvline(number, color=_GREY, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            "source ended",
            (number, 0.5),
            (-4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="center",
            fontsize=_TEXT,
            color=_SOFT,
        )


def _mark_holder(axes: Axes, batches: Sequence[AlignedBatch], exact: npt.NDArray[np.float64], verdict: Verdict) -> None:
    """Name the carrier that held the exact watermark for the most batches in a row."""
    runs: list[tuple[int, int]] = []
    for number in range(1, len(batches)):
        if exact[number] == exact[number - 1]:
            begin = runs[-1][0] if runs and runs[-1][1] == number - 1 else number - 1
            runs.append((begin, number))
    if not runs:
        return
    begin, end = max(runs, key=lambda run: run[1] - run[0])
    watermark_us = batches[end].watermark_us
    holder = next(c for c, state in batches[end].splits.items() if state.watermark_us == watermark_us)
    flights = sum(count for (carrier, _), count in verdict.batch.items() if carrier == holder)
    axes.annotate(
        f"{holder}, {flights:,} flights in all, holds the watermark: windows wait",
        (begin, exact[end]),
        (0, -7),
        textcoords="offset points",
        va="top",
        fontsize=_TEXT,
        color=_INK,
    )


def _draw_limits(axes: Axes, batches: Sequence[AlignedBatch], verdict: Verdict) -> None:
    """Carrier by carrier, the largest on top: within the limit, or at it."""
    flights = Counter[str]()
    for (carrier, _), count in verdict.batch.items():
        flights[carrier] += count
    carriers = [carrier for carrier, _ in reversed(flights.most_common())]
    for row, carrier in enumerate(carriers):
        for number, batch in enumerate(batches):
            if state := batch.splits.get(carrier):
                axes.barh(row, 0.9, left=number - 0.45, height=0.74, color=_ORANGE if state.is_at_limit else _BLUE)
    axes.set_yticks(range(len(carriers)), [f"{carrier}  {flights[carrier]:>6,}" for carrier in carriers])
    axes.set_xlabel("micro-batch", color=_SOFT, fontsize=_TEXT)
    axes.set_title("Who was at the limit (by number of flights)", loc="left", fontsize=11, weight="bold", color=_INK)


def _head(axes: Axes, title: str, lines: Sequence[str]) -> None:
    text = "\n".join(lines)
    axes.annotate(
        text,
        (0, 1),
        (0, 12),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=_TEXT,
        color=_SOFT,
        va="bottom",
        linespacing=1.25,
    )
    axes.set_title(title, loc="left", fontsize=13, weight="bold", color=_INK, pad=18 + 12.6 * len(lines))


def _legend(axes: Axes, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    """Words in their colours, in the corner that rising watermarks leave free."""
    for place, (text, colour) in enumerate(reversed(entries)):
        axes.annotate(
            text,
            (x, y),
            (0, 16 * place),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            color=colour,
            fontsize=11,
            weight="bold",
        )


def _carriers(batches: Sequence[AlignedBatch]) -> list[str]:
    return sorted({carrier for batch in batches for carrier in batch.splits})


def _days(times_us: Iterable[int | None]) -> npt.NDArray[np.float64]:
    """Matplotlib's numbers of days; NaN, which it leaves out, where there is no time."""
    return np.array([np.nan if time_us is None else time_us / _DAY_US for time_us in times_us], np.float64)
