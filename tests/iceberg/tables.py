"""Real Iceberg tables for tests, written by `pyiceberg` into a folder, and what a batch read of them gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from sqlalchemy import Engine, event

from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.iceberg.catalog import CatalogProperties, properties_of
from streaming_source.testing import SourceHarness
from tests.tables.reading import SECOND, STRATEGY, rows, times

__all__ = [
    "SECOND",
    "STRATEGY",
    "append",
    "batch_times",
    "catalog_in",
    "catalog_options",
    "create",
    "harness",
    "later",
    "properties_in",
    "rows",
    "times",
]


@event.listens_for(Engine, "connect")
def _trusts_the_machine(connection: Any, _record: object) -> None:
    """SQLite waits for the disk at each commit, lest a machine dies: here processes do, at most."""
    connection.execute("PRAGMA synchronous = OFF")


def catalog_options(folder: Path) -> dict[str, str]:
    """The options `catalog.*` without their prefix, of a catalog in SQLite beside its warehouse."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def properties_in(folder: Path) -> CatalogProperties:
    return properties_of({"name": "tests", **catalog_options(folder)})


def catalog_in(folder: Path) -> Catalog:
    """Open the catalog; it has the namespace `db`."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = load_catalog("tests", **catalog_options(folder))
    catalog.create_namespace_if_not_exists("db")
    return catalog


def create(folder: Path, schema: pa.Schema | None = None, **options: Any) -> Table:
    """Make the table `db.t`."""
    catalog = catalog_in(folder)
    return catalog.create_table("db.t", schema or rows([0]).schema, **options)


def append(table: Table, times_us: Sequence[int | None], **columns: Any) -> int:
    """Write one commit, and return its snapshot."""
    table.refresh()
    table.append(rows(times_us, **columns))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def harness(folder: Path, options: dict[str, Any] | None = None, **settings: Any) -> SourceHarness:
    """A query over the table."""
    source = IcebergSource("db.t", catalog=properties_in(folder), **(options or {}))
    return SourceHarness(source, settings.pop("strategy", STRATEGY), **settings)


def later(done: SourceHarness) -> SourceHarness:
    """Let the query look for commits again."""
    done.clock.advance("2 seconds")
    done.run()
    return done


def batch_times(table: Table, snapshot_id: int | None = None) -> list[int]:
    """The same of a batch read by `pyiceberg`."""
    found = table.refresh().scan(snapshot_id=snapshot_id).to_arrow()["ts"]
    return sorted(found.drop_null().cast(pa.int64()).to_pylist())
