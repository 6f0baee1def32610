"""Option overlap over a topic: what becomes of records outside of the range that follow its first record."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from alignment.arrow_times import format_timestamp
from streaming_source.exceptions import OutOfRangeError
from tests.kafka.support import by_split, reading
from tests.kafka.topics import Topic
from tests.spark.support import SECOND, T0

FROM, UNTIL = T0 + 250 * SECOND, T0 + 500 * SECOND
RANGE: dict[str, Any] = {"eventTimeFrom": format_timestamp(FROM), "eventTimeUntil": format_timestamp(UNTIL)}


@pytest.mark.parametrize("overlap", ["drop", "keep", "fail"])
@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_records_outside_are_left_out_or_kept_and_counted_or_fail(
    topic: Topic, indexing: str, overlap: str, tmp_path: Any
) -> None:
    """Against the log itself: a partition starts at its first record of the range, and others follow that."""
    rng = np.random.default_rng(3)
    times = {p: T0 + np.arange(600) * SECOND + rng.integers(-40, 41, 600) * SECOND for p in range(3)}
    topic.create(partitions=3).write_logs(times)
    starts = {p: int(np.argmax(at >= FROM)) for p, at in times.items()}
    read = {
        p: [(offset, at) for offset, at in enumerate(of.tolist()) if offset >= starts[p]] for p, of in times.items()
    }
    inside = {p: [offset for offset, at in of if FROM <= at < UNTIL] for p, of in read.items()}
    expected = inside if overlap == "drop" else {p: [offset for offset, _ in of] for p, of in read.items()}
    options = {**RANGE, "overlap": overlap, "startingOffsets": None, "indexing": indexing, "bounded": "true"}
    options |= {"maxOutOfOrderness": "80 seconds", "watermarkRows": "true", "maxRowsPerTrigger": "200"}
    if indexing == "off":
        options["reportLocation"] = str(tmp_path)
    found: dict[int, list[int]] = {}
    message = (
        r"split .*, position \d+: event time \S+ is outside of eventTimeFrom = \S+ and eventTimeUntil = \S+, and option"
    )
    refused = pytest.raises(OutOfRangeError, match=message) if overlap == "fail" else nullcontext()
    with reading(topic, **options) as begun:
        with refused:
            while (table := begun.next()) is not None:
                for partition, offsets in by_split(table).items():
                    found.setdefault(partition, []).extend(offsets)
        offset = begun.offset
    if overlap == "fail":
        return
    assert {p: sorted(offsets) for p, offsets in found.items()} == expected
    outside = sum(map(len, read.values())) - sum(map(len, inside.values()))
    counted = offset.get("out_of_range", 0)
    assert offset["why"]["metrics"]["outOfRangeRecords"] == counted
    # The index of the brokers does not show how many of a large block are outside.
    assert counted == outside or (indexing == "auto" and counted < outside)
