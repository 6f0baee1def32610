from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from alignment import WatermarkStrategy
from alignment.exceptions import InvalidArgumentError
from alignment.strategy import AlignmentParameters
from alignment.timestamps import (
    EventTimes,
    FieldTimestampAssigner,
    RecordTimestampAssigner,
    TimestampAssigner,
)
from alignment.watermarks import WatermarkGenerator, WatermarkOutput

BATCH = pa.record_batch({"x": [None]}, schema=pa.schema({"x": pa.string()}))


class Silent(WatermarkGenerator):
    """Of a user's own."""

    def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
        """Nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""

    def snapshot_state(self) -> None:
        """Nothing."""


class Always42(TimestampAssigner):
    def extract(self, batch: pa.RecordBatch, source_timestamps: Any) -> EventTimes:
        return EventTimes.of(np.full(batch.num_rows, 42, dtype=np.int64))


def always_42(batch: pa.RecordBatch, source_timestamps: Any) -> Any:
    return [42] * batch.num_rows


@pytest.mark.parametrize(
    ("assigner", "unit"), [(Always42(), None), (always_42, "us"), (lambda batch, times: np.full(len(times), 42), "us")]
)
def test_st_02_an_assigner_may_be_an_object_or_a_function(assigner: Any, unit: Any) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner, unit)
    assert strategy.timestamp_assigner.extract(BATCH, np.array([13])).values.tolist() == [42]


def test_an_assigner_may_be_the_name_of_a_column() -> None:
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner("payload.at")
    assert strategy.timestamp_assigner == FieldTimestampAssigner("payload.at")


def test_st_04_what_is_added_leaves_the_rest_as_it_was() -> None:
    strategy = (
        WatermarkStrategy.for_monotonous_timestamps()
        .with_watermark_alignment("group-1", "200 ms")
        .with_idleness(timedelta(milliseconds=200))
    )
    assert strategy.alignment == AlignmentParameters("group-1", 200_000, 1_000_000)
    assert strategy.idle_timeout_us == 200_000
    assert strategy.out_of_orderness_us == 0
    assert isinstance(strategy.timestamp_assigner, RecordTimestampAssigner)


def test_st_06_without_alignment_there_are_no_parameters() -> None:
    assert WatermarkStrategy.for_monotonous_timestamps().alignment is None
    assert WatermarkStrategy.for_monotonous_timestamps().idle_timeout_us is None


def test_the_order_of_calls_does_not_matter() -> None:
    steps: list[Callable[[WatermarkStrategy], WatermarkStrategy]] = [
        lambda s: s.with_timestamp_assigner("t"),
        lambda s: s.with_idleness("1 minute"),
        lambda s: s.with_watermark_alignment("g", "5 seconds", "2 seconds"),
    ]
    results = []
    for order in itertools.permutations(steps):
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
        for step in order:
            strategy = step(strategy)
        results.append(strategy)
    assert all(strategy == results[0] for strategy in results)


def test_a_call_leaves_the_strategy_it_is_made_on_alone() -> None:
    plain = WatermarkStrategy.for_monotonous_timestamps()
    plain.with_idleness("1 second")
    assert plain.idle_timeout_us is None


@pytest.mark.parametrize(
    ("strategy", "bound_us"),
    [
        (WatermarkStrategy.no_watermarks(), None),
        (WatermarkStrategy.for_monotonous_timestamps(), 0),
        (WatermarkStrategy.for_bounded_out_of_orderness("7 us"), 7),
        (WatermarkStrategy.for_generator(Silent), None),
    ],
)
def test_a_strategy_has_a_bound_or_a_generator_or_neither(strategy: WatermarkStrategy, bound_us: int | None) -> None:
    assert strategy.out_of_orderness_us == bound_us


def test_each_split_gets_a_generator_of_its_own() -> None:
    strategy = WatermarkStrategy.for_generator(Silent)
    first, second = strategy.create_watermark_generator(), strategy.create_watermark_generator()
    assert type(first) is type(second) is Silent
    assert first is not second


def test_a_strategy_survives_pickling() -> None:
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
        .with_timestamp_assigner(FieldTimestampAssigner("a.b", "ms"))
        .with_idleness("1 minute")
        .with_watermark_alignment("g", "0 seconds")
    )
    assert pickle.loads(pickle.dumps(strategy)) == strategy


def test_a_strategy_with_lambdas_survives_cloudpickle() -> None:
    strategy = WatermarkStrategy.for_generator(lambda: Silent()).with_timestamp_assigner(
        lambda batch, times: [42] * batch.num_rows, unit="us"
    )
    copy = pickle.loads(cloudpickle.dumps(strategy))
    assert copy.timestamp_assigner.extract(BATCH, None).values.tolist() == [42]
    assert type(copy.create_watermark_generator()).__name__ == "Silent"


def test_a_strategy_is_frozen() -> None:
    with pytest.raises(AttributeError):
        WatermarkStrategy.no_watermarks().idle_timeout_us = 5  # type: ignore[misc]


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("max_out_of_orderness", lambda: WatermarkStrategy.for_bounded_out_of_orderness("-1 second")),
    ("max_out_of_orderness", lambda: WatermarkStrategy.for_bounded_out_of_orderness(5)),  # type: ignore[arg-type]
    ("timeout", lambda: WatermarkStrategy.no_watermarks().with_idleness("0 seconds")),
    ("group", lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment(" ", "1 second")),
    ("max_drift", lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("g", "-1 second")),
    (
        "update_interval",
        lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("g", "1 s", "0 s"),
    ),
    ("timestamp_assigner", lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(5)),  # type: ignore[arg-type]
    ("timestamp_assigner", lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(Always42)),
    ("timestamp_assigner", lambda: WatermarkStrategy(timestamp_assigner=always_42)),  # type: ignore[arg-type]
    ("supplier", lambda: WatermarkStrategy.for_generator(Silent())),  # type: ignore[arg-type]
    ("supplier", lambda: WatermarkStrategy.for_generator(lambda: 5).create_watermark_generator()),  # type: ignore
    ("out_of_orderness_us", lambda: WatermarkStrategy(out_of_orderness_us=-1)),
    (
        "out_of_orderness_us",
        lambda: WatermarkStrategy(out_of_orderness_us=1, generator_supplier=Silent),
    ),
    ("idle_timeout_us", lambda: WatermarkStrategy(idle_timeout_us=0)),
    ("max_drift_us", lambda: AlignmentParameters("g", -1)),
    ("update_interval_us", lambda: AlignmentParameters("g", 0, 0)),
]


@pytest.mark.parametrize(("name", "build"), REFUSED)
def test_what_breaks_a_rule_is_refused_at_construction_by_name(name: str, build: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        build()
    assert str(caught.value).startswith(f"{name} = ")
