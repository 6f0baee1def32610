"""Random Delta tables that change while queries on Spark read them, which are killed: against batch reads of them.

With PySpark 4.2 and Delta's JARs, Spark's own Delta is the second writer, and reads the table as a batch as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.delta.random_table import RandomTable
from tests.delta.spark_delta import SparkDelta, jars_of_delta
from tests.kafka.artifacts import ArtifactsMissingError
from tests.tables.killing import KilledQuery, Kills

pytestmark = [pytest.mark.spark, pytest.mark.soak]

INSIDE, BEHIND = 7, 4
SEEDS = (0, 1, 2, 3, 5, 15)


@pytest.fixture(scope="module")
def spark_delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDelta | None]:
    try:
        jars = jars_of_delta()
    except ArtifactsMissingError:
        jars = ""
    with ExitStack() as stack:
        log = tmp_path_factory.mktemp("spark-delta") / "log"
        yield stack.enter_context(SparkDelta(jars, log)) if jars else None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_query_brings_what_a_batch_has(
    seed: int, spark_delta: SparkDelta | None, killed: list[Kills], tmp_path: Path
) -> None:
    table = RandomTable(tmp_path / "table", seed, appends=40, spark=spark_delta)
    for _ in range(8):
        table.change()
    if table.may_rename:
        table.rename()
    table.started = True
    options = {"format": "aligned_delta", "eventTimeColumn": "ts", "columns": "ts,id", "invalidTimestamp": "null"}
    limit = max(len(table.expected) // (8 * INSIDE), 1)
    query = KilledQuery(tmp_path, {**options, "maxRowsPerTrigger": str(limit)}, table.path)

    kills = query.run_and_kill(table.random, table.change, inside=INSIDE, behind=BEHIND)

    read = query.drain()
    killed.append(kills)
    print(f"seed {seed}: {kills}; {read.total()} rows; mapped {table.mapped}, partitioned {table.partitioned}")
    assert table.by_spark() in (None, read)
    assert table.by_deltalake() in (None, {number: 1 for number, _ in read})
    assert dict(read.keys()) == table.expected
    assert set(read.values()) == {1}
    assert kills.total == INSIDE + BEHIND
    assert 2 * kills.in_snapshot >= kills.total
