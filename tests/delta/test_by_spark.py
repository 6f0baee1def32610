"""Tables that Spark's own Delta has written, with what `deltalake` does not write: see `by_spark/write.py`."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from alignment import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from streaming_source.connectors.delta import DeltaSource
from streaming_source.exceptions import SchemaError, UnsupportedOperationError
from tests.delta.tables import SECOND, harness, read_all, times

TABLES = Path(__file__).with_name("by_spark")
T0 = 1_700_000_000 * SECOND + 777


def at(*numbers: int) -> list[int]:
    return [T0 + 60 * n * SECOND for n in numbers]


def numbers_of(name: str) -> list[int]:
    return sorted(read_all(DeltaSource(str(TABLES / name)))["n"].to_pylist())


def test_rows_that_spark_has_deleted_by_vectors_are_not_read() -> None:
    left = [n for n in range(200) if n % 10 != 3 and not 90 <= n <= 99 and n != 199]
    done = harness(TABLES / "deleted_rows", max_rows=17)
    for _ in range(30):
        done.run_batch()
        done.restart()
    done.run()

    assert times(done) == at(*left)
    assert numbers_of("deleted_rows") == left


@pytest.mark.parametrize("name", ["mapped_by_id", "renamed", "widened", "checkpoint_v2", "many_features", "clustered"])
def test_tables_of_spark_are_read_as_a_whole(name: str) -> None:
    count = {"mapped_by_id": 20, "checkpoint_v2": 50, "clustered": 20}.get(name, 40)
    done = harness(TABLES / name, max_rows=7)

    done.run()

    assert times(done) == at(*range(count))
    assert numbers_of(name) == list(range(count))


def test_columns_are_found_by_their_ids_and_by_the_names_they_had() -> None:
    by_id = read_all(DeltaSource(str(TABLES / "mapped_by_id"))).sort_by("n").to_pylist()
    assert by_id[7] | {"ts": None} == {
        "ts": None,
        "n": 7,
        "s": {"a": 7, "b": "7"},
        "l": [{"x": 7}],
        "part": 1,
    }
    renamed = read_all(DeltaSource(str(TABLES / "renamed"))).sort_by("n")
    assert renamed.schema.names == ["ts", "n", "s"]
    assert [row["s"] for row in renamed.to_pylist()] == [{"aa": n, "b": str(n)} for n in range(40)]


def test_a_version_before_columns_were_renamed_is_read_by_their_names_of_then() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")

    before = read_all(DeltaSource(str(TABLES / "renamed"), version_as_of=1), strategy).sort_by("n").to_pylist()

    assert [row.pop("at").timestamp() for row in before] == [1_700_000_000 + 60 * n + 0.000777 for n in range(20)]
    assert before == [{"n": n, "gone": 1, "s": {"a": n, "b": str(n)}} for n in range(20)]


def test_values_of_narrower_types_are_widened() -> None:
    widened = read_all(DeltaSource(str(TABLES / "widened"))).sort_by("n")
    assert [str(field.type) for field in widened.schema][1:] == ["int64", "decimal128(12, 4)"]
    assert widened["d"].to_pylist() == [Decimal(n) for n in range(40)]


def copied_as_of_version_1(name: str, table: Path) -> dict[Path, str]:
    """Copy a table with its first two versions; return the files of its log that add the others, with their texts."""
    shutil.copytree(TABLES / name, table)
    later = {path: path.read_text() for path in sorted((table / "_delta_log").glob("*.json"))[2:]}
    for path in later:
        path.unlink()
    return later


def test_a_query_before_the_types_widen_ends_at_that_version(tmp_path: Path) -> None:
    table = tmp_path / "widened"
    later = copied_as_of_version_1("widened", table)
    done = harness(table)
    done.run()
    assert times(done) == at(*range(20))
    for path, text in later.items():
        path.write_text(text)
    done.clock.advance("2 seconds")

    with pytest.raises(ValueError, match=r"version 2, has column 'n' as int64, and the query reads it as int32"):
        done.run()
    # Started again it reads the column as it is now, and goes on with the version that it had come to.
    done = harness(table, {"starting_version": 2})
    done.run()
    assert times(done) == at(*range(20, 40))


def test_a_query_reads_on_when_its_event_time_is_renamed_and_ends_when_a_column_of_it_goes(tmp_path: Path) -> None:
    table = tmp_path / "renamed"
    later = copied_as_of_version_1("renamed", table)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    reads_on, ends = (harness(table, {"columns": ("at", name)}, strategy=strategy) for name in ("n", "gone"))
    for done in (reads_on, ends):
        done.run()
        done.clock.advance("2 seconds")
    for path, text in later.items():
        path.write_text(text)

    reads_on.run()

    assert times(reads_on) == at(*range(40))
    with pytest.raises(SchemaError, match=r"version 4, has no column 'gone' any more, which the query reads. Start"):
        ends.run()


def test_times_without_a_zone_are_read() -> None:
    assigner = FieldTimestampAssigner("ts", zone="UTC")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds").with_timestamp_assigner(assigner)
    done = harness(TABLES / "local_times", strategy=strategy)
    done.run()
    assert times(done) == at(*range(20))


def test_a_partition_column_of_moments_is_the_event_time() -> None:
    done = harness(TABLES / "by_moment", max_rows=1)
    done.run()
    assert times(done)[1:] == at(*range(6))


def test_a_partition_column_of_moments_in_the_zone_of_a_session_is_read_in_it() -> None:
    done = harness(TABLES / "by_local_moment", {"time_zone": "America/New_York"}, max_rows=1)
    done.run()
    assert times(done)[1:] == at(*range(6))


def test_variants_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"needs a reader that understands variantType.*: columns of"):
        DeltaSource(str(TABLES / "variant")).schema()
