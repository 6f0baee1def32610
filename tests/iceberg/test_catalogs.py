"""Catalogs that keep a pointer to a table's metadata: a look that finds nothing new does not read these."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from alignment.timestamps import FieldTimestampAssigner
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.iceberg.catalog import properties_of
from streaming_source.exceptions import DataLossError
from tests.iceberg.tables import SECOND, append, catalog_options, rows


def _in_sql(folder: Path, _: pytest.FixtureRequest) -> dict[str, str]:
    return catalog_options(folder)


def _in_glue(folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    keys = {"client.access-key-id": "a", "client.secret-access-key": "b", "client.region": "us-east-1"}
    endpoint = request.getfixturevalue("s3_endpoint")
    return {"type": "glue", "glue.endpoint": f"http://{endpoint}", "warehouse": f"file://{folder}/warehouse", **keys}


@pytest.mark.parametrize("properties", [_in_sql, _in_glue])
def test_metadata_are_read_when_the_catalog_has_others(
    properties: object, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert callable(properties)
    given = properties(tmp_path, request)
    catalog: Catalog = load_catalog("tests", **given)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows([0]).schema)
    append(table, [3 * SECOND])
    source = IcebergSource("db.t", catalog=properties_of({"name": "tests", **given}))
    lister = source.open_lister(source.schema(), FieldTimestampAssigner("ts"))
    begun = lister.start().version
    metadata = Path(table.metadata_location.removeprefix("file://"))
    written = metadata.read_bytes()
    metadata.unlink()

    assert lister.commits(begun).whole() == []

    metadata.write_bytes(written)
    newest = append(table, [9 * SECOND])
    (found,) = lister.commits(begun).whole()
    assert (found.version, found.files()["low_us"].to_pylist()) == (newest, [9 * SECOND])
    catalog.drop_table("db.t")
    with pytest.raises(DataLossError, match="is not in its catalog any more"):
        lister.commits(newest)
