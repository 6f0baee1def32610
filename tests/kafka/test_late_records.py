"""Late records of partitions are counted, whatever the brokers index; and a topic is advised on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from streaming_source.tools.cli.main import app
from tests.kafka.support import reading, to_end
from tests.kafka.topics import Record, Topic
from tests.spark.support import SECOND, T0

T0_MS = T0 // 1000
ROWS = 400


def disordered(partition: int) -> list[Record]:
    """A record a second; each seventh is ten seconds behind."""
    seconds = np.arange(ROWS) - (np.arange(ROWS) % 7 == 6) * 10
    return [Record(T0_MS + second * 1000, b"x", partition=partition) for second in seconds.tolist()]


@pytest.mark.parametrize("late", ["drop", "route"])
def test_what_is_taken_out_is_counted_and_with_the_rest_it_is_the_input(
    topic: Topic, tmp_path: Path, late: str
) -> None:
    topic.create(partitions=2).write([*disordered(0), *disordered(1)])
    with reading(topic, late=late, lateLocation=str(tmp_path)) as begun:
        kept = sum(map(len, to_end(begun, max_rows=100)))
        counted = sum(entry[3] for entry in begun.offset["splits"] if entry[3:])
    assert counted > 0
    assert kept + counted == 2 * ROWS
    assert begun.offset.get("routed", 0) == (counted if late == "route" else 0)


def test_a_topic_is_advised_on(topic: Topic) -> None:
    topic.create(partitions=2).write([*disordered(0), *disordered(1)])
    result = CliRunner().invoke(app, ["advise", topic.name, "-o", f"kafka.bootstrap.servers={topic.broker.bootstrap}"])
    assert result.exit_code == 0, result.output
    advice = json.loads(result.stdout.splitlines()[-1])
    assert [(split["split_id"], split["rows"]) for split in advice["splits"]] == [
        (f"{topic.name}-{partition}", ROWS) for partition in (0, 1)
    ]
    # The latest before it was a second older than its own place in the log.
    assert advice["delays"][-1]["delay_us"] == 9 * SECOND
    assert advice["skew_us"] == 0
