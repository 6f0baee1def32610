"""Faults strike queries over every connector, one after another: each row comes out once, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import crashes
from tests.faults.checks import wrong_rows
from tests.faults.inputs import CONNECTORS
from tests.faults.steps import PLANNER_STEPS, READ_STEPS
from tests.faults.supervisor import AT_RANDOM
from tests.spark.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="session")
def brokers(request: pytest.FixtureRequest) -> str:
    """Empty where no broker can be had: then all connectors but Kafka are struck."""
    try:
        bootstrap: str = request.getfixturevalue("broker").bootstrap
    except pytest.skip.Exception:
        return ""
    return bootstrap


@pytest.fixture(scope="session")
def connectors(brokers: str) -> list[str]:
    return [name for name in CONNECTORS if brokers or name != "kafka"]


# Each fault costs a restart, and so does each query. Of two connectors the first seed draws a kill when a micro-batch
# is planned, when its offset is written, within a partition and at its end, and of the driver behind a write; the
# second one nine faults, one at each step. The other connectors, with more faults, are in the chains below.
@pytest.mark.soak
@pytest.mark.parametrize(("seed", "faults"), [(70572, 1), (385215, 2)], ids=["five steps", "each step"])
def test_a_fault_at_each_step_loses_no_row_and_doubles_none(
    tmp_path: Path, connectors: list[str], brokers: str, seed: int, faults: int
) -> None:
    struck = [name for name in connectors if name in ("kafka", "own, off")]
    report = crashes.chain(seed, tmp_path / "run", struck, lives=2, faults=faults, brokers=brokers)
    assert report["faults"] == 2 * faults * len(struck) + 1
    steps = {1: 5, 2: len((*PLANNER_STEPS, *READ_STEPS, "written", AT_RANDOM))}[faults]
    assert not brokers or report["steps"] == steps
    assert report["kills after commits"] * 2 >= report["kills"] > 0
    assert report["read again"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 109))
def test_chains_of_crashes_lose_no_row_and_double_none(
    tmp_path: Path, connectors: list[str], brokers: str, seed: int
) -> None:
    report = crashes.chain(seed, tmp_path / "run", connectors, lives=3, faults=3, stops=True, brokers=brokers)
    assert report["kills after commits"] * 2 >= report["kills"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [200, 201])
def test_executors_of_a_cluster_are_killed_and_tasks_are_run_twice(tmp_path: Path, cluster: Cluster, seed: int) -> None:
    report = crashes.chain(seed, tmp_path / "run", ["files", "own", "own, off"], master=cluster.url, stops=True)
    assert report["kills after commits"] * 2 >= report["kills"]


def test_what_is_lost_wrong_or_doubled_is_said() -> None:
    assert wrong_rows([1, 1, 2, 5], [1, 2, 3]) == "1 rows missing [3], 1 wrong [5], 1 twice"


@pytest.mark.soak
def test_thirty_kills_of_the_driver_over_files_and_a_topic_lose_no_row_and_double_none(
    tmp_path: Path, brokers: str
) -> None:
    # At each step, while it starts, and between commits; also on PySpark 4.0 and 4.1: see docs/reliability.md.
    struck = ["files", *(["kafka"] if brokers else [])]
    report = crashes.chain(1, tmp_path / "run", struck, lives=31, faults=0, brokers=brokers)
    print(report)
    assert report["kills"] == 30
    assert report["kills after commits"] * 2 >= report["kills"]
    assert report["read again"] > 0


@pytest.mark.soak
def test_twenty_kills_of_the_driver_over_topics_of_transactions_lose_no_row_and_double_none(
    tmp_path: Path, brokers: str
) -> None:
    if not brokers:
        pytest.skip("no Kafka broker")
    report = crashes.driver_kills(7, tmp_path / "run", brokers)
    assert report["kills"] == report["kills after commits"] == 20
