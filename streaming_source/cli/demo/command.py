"""The demo from data to verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from streaming_source.cli.demo.flights import load_flights, out_of_orderness_us, whole_hours, write_logs
from streaming_source.cli.demo.history import aligned_history, spark_history
from streaming_source.cli.demo.picture import save_picture
from streaming_source.cli.demo.report import Verdict, print_report
from streaming_source.cli.demo.runs import Plan, run_aligned, run_batch, run_spark
from streaming_source.cli.demo.session import check_master, spark_session

__all__ = ["DemoSettings", "run_demo"]

_MAX_DRIFT: Final = "28 days"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What `streaming-source demo` was asked for.

    Attributes
    ----------
    output
        Directory for the picture and Spark's log.
    master
        Of Spark.
    months
        Of the year 2013, from January on.
    rows_per_file
        After so many rows a carrier's next file begins.
    """

    output: Path
    master: str
    months: int
    rows_per_file: int


def run_demo(settings: DemoSettings) -> bool:
    """Run it, print the report, save the picture.

    Returns
    -------
    bool
        Whether the aligned stream gave every window as batch does.

    Raises
    ------
    DemoError
        If the flights are not there.
    """
    # Progress goes to standard error: standard output is the report, and its last line JSON.
    console = Console(stderr=True)
    check_master(settings.master)
    settings.output.mkdir(parents=True, exist_ok=True)
    log, picture = settings.output / "spark.log", settings.output / "watermarks.png"
    with TemporaryDirectory(prefix="streaming-source-demo-") as directory:
        scratch = Path(directory)
        console.print("Flights from New York in 2013, one log of Parquet files per carrier ...")
        flights = load_flights(settings.months)
        bounds = out_of_orderness_us(flights)
        files = write_logs(flights, scratch / "logs", settings.rows_per_file)
        plan = Plan(scratch / "logs", files, scratch, whole_hours(max(bounds.values())), _MAX_DRIFT)
        console.print(f"Starting Spark (its log: {log}) ...")
        columns = (TextColumn("{task.description:<44}"), BarColumn(), TextColumn("{task.percentage:>4.0f} %"))
        with (
            spark_session(settings.master, scratch, log) as spark,
            Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        ):

            def begin(text: str) -> Callable[[int], None]:
                task = progress.add_task(text, total=flights.num_rows)
                return lambda rows: progress.update(task, completed=rows)

            advance = begin("batch")
            batch = run_batch(spark, plan)
            advance(flights.num_rows)
            advance = begin("Spark's Parquet stream, with watermark")
            own = run_spark(spark, plan, advance)
            advance(flights.num_rows)
            advance = begin("aligned stream, as the files arrive")
            aligned = run_aligned(spark, plan, advance)
            advance(flights.num_rows)
    verdict = Verdict(batch, own.latest(), aligned.appended())
    spark_batches, aligned_batches = spark_history(own.progress), aligned_history(aligned.progress)
    save_picture(picture, spark_batches, aligned_batches, verdict, plan)
    print_report(verdict, plan, max(bounds.values()), spark_batches, picture)
    return verdict.is_complete
