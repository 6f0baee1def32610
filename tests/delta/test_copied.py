"""A table that was copied has the claims that its writer had made until then, and one that was cloned has none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from alignment.watermarks import MIN_WATERMARK
from streaming_source import complete_until
from streaming_source.exceptions import DataLossError, OffsetError
from streaming_source.testing import SourceHarness
from tests.delta.spark_delta import SparkDelta, jars_of_delta
from tests.kafka.artifacts import ArtifactsMissingError
from tests.tables.claimed_table import DeltaWriter, reading
from tests.tables.reading import SECOND, times

S = SECOND


@pytest.fixture
def writer(tmp_path: Path) -> DeltaWriter:
    made = DeltaWriter.of(tmp_path, "a")
    made.commit(10 * S, [11 * S])
    made.commit(20 * S, [21 * S])
    return made


def look(done: SourceHarness) -> int:
    done.clock.advance("1 second")
    done.run()
    return done.watermark


def going_on(before: SourceHarness, table: Path, writer: DeltaWriter) -> SourceHarness:
    """A query that goes on where another one was, over another folder."""
    done = reading(table, writer.checkpoint)
    done.state = before.state
    done.restart()
    return done


def check_copy(copy: Path, writer: DeltaWriter, claimed_us: int | None) -> None:
    """It has the rows of its time, and claims no more, whatever the writer has committed since to the other table."""
    writer.commit(40 * S, [22 * S, 41 * S])
    assert complete_until(str(copy), str(writer.checkpoint)).until_us == claimed_us
    fresh = reading(copy, writer.checkpoint)
    assert look(fresh) == (MIN_WATERMARK if claimed_us is None else claimed_us)
    assert times(fresh) == [11 * S, 21 * S]
    fresh.close()


def test_a_copied_folder_has_the_claims_of_its_time_and_a_query_does_not_go_back_to_it(
    tmp_path: Path, writer: DeltaWriter
) -> None:
    """It has the id of the table that was copied, which is right as long as its commits are those that were read."""
    done, copy = reading(writer.table, writer.checkpoint), tmp_path / "copy"
    look(done)
    shutil.copytree(writer.table, copy)
    check_copy(copy, writer, 20 * S)
    moved = going_on(done, copy, writer)
    assert look(moved) == 20 * S
    assert look(done) == 40 * S
    back = going_on(done, copy, writer)
    with pytest.raises(DataLossError, match="an older state of its log was restored"):
        look(back)
    for one in (done, moved, back):
        one.close()


@pytest.mark.spark
@pytest.mark.soak
def test_a_clone_by_spark_has_no_claims_and_is_another_table(tmp_path: Path, writer: DeltaWriter) -> None:
    """Spark's Delta leaves out who had committed the rows."""
    try:
        jars = jars_of_delta()
    except ArtifactsMissingError as error:
        pytest.skip(str(error))
    done, clone = reading(writer.table, writer.checkpoint), tmp_path / "clone"
    look(done)
    with SparkDelta(jars, tmp_path / "log-of-delta") as spark:
        spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE {{table}}", writer.table)
    check_copy(clone, writer, None)
    moved = going_on(done, clone, writer)
    with pytest.raises(OffsetError, match="it was dropped and made anew"):
        look(moved)
    for one in (done, moved):
        one.close()
