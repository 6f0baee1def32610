"""Whatever stands in an offset or in an option gives an error of this library, or what it says."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.exceptions import AlignmentError, OffsetError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.spark.options import FRAME_OPTIONS, STRATEGY_OPTIONS
from tests.examples import examples
from tests.spark.released_offsets import RELEASED

SOURCES = {
    "aligned_delta": DeltaSource("/data/in"),
    "aligned_files": FileSource("/data/in"),
    "aligned_iceberg": IcebergSource("db.t"),
    "aligned_kafka": KafkaSource.of("nowhere:1", "orders"),
    "aligned_datagen": DataGeneratorSource(),
}
OFFSETS = [
    offset
    for path in sorted(RELEASED.glob("*/*.json"))
    for kept in [json.loads(path.read_text(encoding="utf-8"))]
    for offset in [kept["end"] if "end" in kept else kept["offsets"][-1][0]]
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values inside of one of JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


@settings(max_examples=examples(60))
@given(offset=st.sampled_from(OFFSETS), data=st.data())
def test_any_change_in_an_offset_gives_an_offset_or_is_refused(offset: dict[str, Any], data: st.DataObject) -> None:
    codec = OffsetCodec(SOURCES[offset["source"]], {"eventTimeColumn": "t", "watermarkRows": True})
    changed: Any = {**copy.deepcopy(offset), "id": codec.source_id}
    for _ in range(data.draw(st.integers(1, 3))):
        *way, key = data.draw(st.sampled_from(places(changed)[1:]))
        inner = changed
        for step in way:
            inner = inner[step]
        if data.draw(st.booleans()):
            inner[key] = data.draw(JSON)
        else:
            del inner[key]
        if not places(changed)[1:]:
            break
    try:
        state = codec.decode(changed)
    except OffsetError:
        return
    # What it is taken for is what is written, again and again: without finished splits that follow from the rest.
    written = json.loads(json.dumps(codec.encode(state)))
    assert codec.decode(written).splits == state.as_written(SOURCES[offset["source"]]).splits
    assert json.loads(json.dumps(codec.encode(codec.decode(written)))) == written


KINDS = {
    "aligned_delta": DeltaSource.options(),
    "aligned_iceberg": IcebergSource.options(),
    "aligned_files": FileSource.options(),
    "aligned_datagen": DataGeneratorSource.options(),
    "aligned_kafka": KAFKA_OPTIONS,
}
REQUIRED = {
    "aligned_iceberg": {"path": "db.in", "eventTimeColumn": "t"},
    "aligned_delta": {"path": "/data/in", "eventTimeColumn": "t"},
    "aligned_files": {"path": "/data/in", "eventTimeColumn": "t"},
    "aligned_datagen": {},
    "aligned_kafka": {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "orders"},
}
VALUES = (
    st.text(max_size=12)
    | st.integers().map(str)
    | st.floats().map(str)
    | JSON.map(json.dumps)
    | st.sampled_from(
        ["true", "none", "5 seconds", "-1 ms", "1e400", "latest", '{"orders": {"0": -3}}', "[", "a,b", "%", "\0"]
    )
)


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=examples(80))
@given(data=st.data())
def test_any_value_of_an_option_makes_a_source_or_is_refused(kind: str, data: st.DataObject) -> None:
    names = sorted(option.name.replace("*", "x") for option in STRATEGY_OPTIONS | FRAME_OPTIONS | KINDS[kind])
    given = data.draw(st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=3))
    with contextlib.suppress(AlignmentError):
        AlignedDataSource.of_format(kind, {**REQUIRED[kind], **given})
