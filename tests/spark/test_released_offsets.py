"""Offsets of each release are read for ever: what was planned is read again, and what follows once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streaming_source.connectors.kafka import KafkaSource
from streaming_source.exceptions import OffsetError
from streaming_source.spark.offsets import OffsetCodec
from tests.spark.released_offsets import RELEASED, begin, rows_of, write_input

KEPT = sorted(RELEASED.glob("*/*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_query_goes_on_from_the_offsets_of_a_release(path: Path, tmp_path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if path.stem.startswith("kafka"):
        codec = OffsetCodec(KafkaSource.of("nowhere:1", "orders"))
        for offset, positions in kept["offsets"]:
            state = codec.decode(offset)
            assert {split.split_id: split.position for split in state.splits} == positions
            assert codec.decode(codec.encode(state)).checkpoint == state.checkpoint
        return
    write_input(tmp_path)
    with begin(path.stem, tmp_path) as reading:
        # A path is part of the digest, and that of the first machine is not here.
        here = {"id": reading.offset["id"]}
        end = {**kept["end"], **here}
        assert rows_of(reading.between({**kept["start"], **here}, end)) == kept["last"]
        reading.offset = end
        rows = [*kept["before"], *kept["last"]]
        while (table := reading.next()) is not None:
            rows += rows_of(table)
    per_split = 30 if path.stem == "files-directory" else 10 if path.stem.startswith("files") else 20
    assert sorted(rows) == [[split, n] for split in sorted({row[0] for row in rows}) for n in range(per_split)]
    assert len(rows) == (40 if path.stem == "datagen-plain" else 60)


@pytest.mark.parametrize("what", ["v", "splits_v", "enumerator"])
@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_offset_of_a_newer_release_is_refused_with_the_fix(path: Path, what: str, tmp_path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if path.stem.startswith("kafka"):
        codec, offset = OffsetCodec(KafkaSource.of("nowhere:1", "orders")), kept["offsets"][-1][0]
    else:
        write_input(tmp_path)
        with begin(path.stem, tmp_path) as reading:
            codec = OffsetCodec(reading.reader.source)
        offset = {**kept["end"], "id": codec.source_id}
    newer = {"v": 2, "splits_v": 2, "enumerator": [2, offset["enumerator"][1]]}[what]
    with pytest.raises(OffsetError, match=r"version 2, this (library|code) reads up to 1.*upgrade"):
        codec.decode({**offset, what: newer})
