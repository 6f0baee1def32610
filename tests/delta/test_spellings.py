"""One table by several spellings of its path: a checkpoint of one goes on with each other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from streaming_source.connectors.delta import DeltaSource
from streaming_source.exceptions import OffsetError
from streaming_source.spark.datasource import AlignedDataSource
from tests.delta.tables import SECOND, append
from tests.spark.reading import Reading


def reading(path: str) -> Reading:
    options = {"path": path, "eventTimeColumn": "ts", "timeZone": "UTC", "discoveryInterval": "1 ms"}
    source = AlignedDataSource.of_format("aligned_delta", options)
    return Reading(source.stream_reader(source.schema()))


def test_a_checkpoint_of_a_table_goes_on_however_its_path_is_written(tmp_path: Path) -> None:
    table = tmp_path / "a b"
    plain = str(table)
    as_uri = table.as_uri()
    append(table, [0])
    offset = None
    spellings = [plain, as_uri, f"file:{as_uri[7:]}", f"{plain}/", f"{as_uri}/", f"{tmp_path}/x/../a b"]
    for number, path in enumerate(spellings):
        append(table, [(number + 1) * SECOND])
        one = reading(path)
        if offset is not None:
            one.offset = offset
        rows = one.next()
        assert rows is not None
        assert rows.num_rows == (1 if number else 2)
        offset = one.offset

    # What an earlier version wrote for a URI.
    former = {**one.offset, "id": hashlib.sha256(as_uri.encode()).hexdigest()[:8]}
    append(table, [99 * SECOND])
    again = reading(plain)
    again.offset = former
    rows = again.next()
    assert rows is not None
    assert rows.num_rows == 1
    other = reading(plain)
    other.offset = {**former, "id": hashlib.sha256(b"/other").hexdigest()[:8]}
    with pytest.raises(OffsetError, match="is of another source"):
        other.next()


def test_schemes_of_one_store_are_one_place() -> None:
    for first, second in (("s3://b/t", "s3a://b/t/"), ("gs://b/t", "gcs://b/t"), ("abfs://c@h/t", "abfss://c@h/t")):
        one, other = DeltaSource(first), DeltaSource(second)
        assert one.identity == other.identity == first
        assert second.rstrip("/") in one.former_identities
    assert DeltaSource("s3://b/t").identity != DeltaSource("gs://b/t").identity
    assert DeltaSource("s3://b/t").identity != DeltaSource("s3://b/u").identity
