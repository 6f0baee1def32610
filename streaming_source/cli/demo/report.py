"""What the demo found: a table for people, a line of JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from alignment.durations import format_duration
from streaming_source.cli.demo.history import SparkBatch
from streaming_source.cli.demo.runs import Counts, Plan

__all__ = ["Verdict", "print_report"]

_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Verdict:
    """The three results side by side.

    Attributes
    ----------
    batch
        The truth.
    spark
        Spark's own stream: every window that any row was counted in, still-open ones too.
    aligned
        The aligned stream: only windows that it has closed.
    """

    batch: Counts
    spark: Counts
    aligned: Counts

    @property
    def is_complete(self) -> bool:
        """Whether the aligned stream gave every window, with batch's count."""
        return self.aligned == self.batch

    def numbers(self) -> dict[str, int]:
        """For programs; `lost` is of the aligned stream."""
        batch_rows, aligned_rows = sum(self.batch.values()), sum(self.aligned.values())
        return {
            "batch_rows": batch_rows,
            "spark_rows": sum(self.spark.values()),
            "aligned_rows": aligned_rows,
            "lost": batch_rows - aligned_rows,
            "windows": len(self.aligned),
            "windows_expected": len(self.batch),
        }


def print_report(
    verdict: Verdict, plan: Plan, bound_us: int, spark_batches: Sequence[SparkBatch], picture: Path
) -> None:
    """Print the table, what it means, and last the line of JSON, to standard output."""
    console = Console()
    console.print(_table(verdict))
    for line in _notes(verdict, plan, bound_us, spark_batches):
        console.print(line, highlight=False)
    console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    print(json.dumps(verdict.numbers()), flush=True)


def _table(verdict: Verdict) -> Table:
    results = (verdict.batch, verdict.spark, verdict.aligned)
    rows = [_by_carrier(result, rows=True) for result in results]
    windows = [_by_carrier(result, rows=False) for result in results]
    table = Table(
        title="Flights counted per hour and carrier",
        box=SIMPLE_HEAD,
        show_footer=True,
        pad_edge=False,
        collapse_padding=True,
    )

    def cells(value_of: Callable[[Counter[str]], int]) -> list[str]:
        batch, spark, aligned = (value_of(by) for by in rows)
        values = (batch, spark, aligned, batch - spark, batch - aligned, *(value_of(by) for by in windows))
        return [f"{value:,}" for value in values]

    headers = (
        "rows\nbatch",
        "\nSpark",
        "\naligned",
        "lost\nSpark",
        "\naligned",
        "windows\nbatch",
        "\nSpark",
        "\naligned",
    )
    table.add_column("\ncarrier", "all")
    for header, footer in zip(headers, cells(lambda by: by.total()), strict=True):
        table.add_column(header, footer, justify="right")
    for carrier, _ in rows[0].most_common():
        table.add_row(carrier, *cells(itemgetter(carrier)))
    return table


def _notes(verdict: Verdict, plan: Plan, bound_us: int, spark_batches: Sequence[SparkBatch]) -> list[str]:
    numbers = verdict.numbers()
    lost = numbers["batch_rows"] - numbers["spark_rows"]
    final_s = max((batch.closing_us for batch in spark_batches), default=0) / 1e6
    still_open = [window for window in verdict.spark if window[1] + _HOUR_S > final_s]
    return [
        f"Both streams saw the files in the order in which they were written, and were given the same bound on "
        f"out-of-orderness: {plan.out_of_orderness} ({format_duration(bound_us)} in the data).",
        f"Spark's stream dropped {lost:,} rows ({lost / numbers['batch_rows']:.1%}) as too late. Its "
        f"{len(still_open):,} windows that are still open at the end are counted as found.",
        "It ran with trigger AvailableNow: it takes the files in their order whatever else is there already. The "
        "aligned stream ran while they arrived, so that it knew nothing of later files, and ended with AvailableNow.",
        "The data is a backfill: all carriers exported in parallel, each at one pace, after the year was over. That is "
        "why so much is lost: a live stream loses as much as its splits drift apart.",
        "The aligned stream is counted by the windows that it has closed; the last ones close when the source ends.",
    ]


def _by_carrier(counts: Counts, *, rows: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for (carrier, _), flights in counts.items():
        found[carrier] += flights if rows else 1
    return found
