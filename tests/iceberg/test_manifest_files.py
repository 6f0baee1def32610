"""Manifests whose lengths lie: no memory beside a file is read, none takes long, and whole ones say the same."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from pyiceberg.table import Table

from streaming_source.connectors.iceberg import manifest_files
from streaming_source.connectors.iceberg.manifest_files import checked, with_checked_manifests
from streaming_source.exceptions import MalformedDataError, UnsupportedOperationError
from tests.iceberg.tables import append, create, harness, rows

SYNC = b"s" * 16


def number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def file_of(schema: object, block: bytes, records: int = 1, codec: bytes = b"null") -> bytes:
    meta = text(b"avro.codec") + text(codec) + text(b"avro.schema") + text(json.dumps(schema).encode())
    head = b"Obj\x01" + number(2) + meta + b"\0" + SYNC
    return head + number(records) + text(block) + SYNC


def record(*types: object, name: str = "r") -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": one} for i, one in enumerate(types)]}


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


PAIR = record("int", "bytes", name="pair")
GROWS = "null"
for level in range(60):
    GROWS = record(GROWS, f"r{level - 1}" if level else "null", name=f"r{level}")  # type: ignore[assignment]

LIES = {
    "a text beyond the end": (record("string"), number(1_000) + b"a", 1),
    "a text of negative length": (record("string"), number(-5) + b"aaaaa", 1),
    "a text of 2^40 bytes": (record("string"), number(2**40), 1),
    "bytes of a map beyond the end": (record(array(PAIR)), number(1) + number(5) + number(90) + b"aa\0", 1),
    "a map of a million entries": (record(array(PAIR)), number(10**6) + b"aa\0", 1),
    "numbers that are not there": (record(array(record("int", "long", name="n"))), number(10**6) + b"aa\0", 1),
    "more records than bytes": (record("long"), b"\2", 2**60),
    "fewer records than bytes": (record("long"), b"\2\2", 1),
    "records without bytes": (record("null"), b"", 2**60),
    "items without bytes": (record(array("null")), number(2**60) + b"\0", 1),
    "no such branch": (record(["null", "long"]), b"\6\0", 1),
    "a number without an end": (record("long"), b"\xff" * 12, 1),
    "a type in itself": (record(["null", "r"]), b"\2" * 50, 1),
    "a fixed of negative length": (record({"type": "fixed", "name": "x", "size": -1}, "int"), b"\2", 1),
    "types that double": (record(GROWS, "int"), b"\2", 1),
}


@pytest.mark.parametrize("what", LIES)
def test_a_length_that_lies_is_an_error_before_it_is_decoded(what: str) -> None:
    schema, block, records = LIES[what]
    with pytest.raises((ValueError, LookupError)):
        checked(file_of(schema, block, records))


@pytest.mark.parametrize("codec", [b"deflate", b"zstandard", b"bzip2"])
def test_a_block_that_becomes_a_hundred_times_its_size_is_refused(
    codec: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.avro.codecs import KNOWN_CODECS

    monkeypatch.setattr(manifest_files, "_MOST_BYTES", manifest_files._MOST_BYTES >> 5)
    block = number(6 << 20) + b"\0" * (6 << 20)
    packed = zlib.compress(block)[2:-4] if codec == b"deflate" else KNOWN_CODECS[codec.decode()].compress(block)[0]  # type: ignore[index, union-attr]
    with pytest.raises(ValueError, match="too many bytes"):
        checked(file_of(record("string"), packed, 1, codec))


def test_whole_manifests_say_the_same(tmp_path: Path) -> None:
    table = create(tmp_path, rows([0], part="a", n=0.5).schema)
    with table.update_spec() as spec:
        spec.add_identity("part")
    for part in ("x", "é /"):
        append(table, [3, None], part=part, n=[0.5, None])
    there = with_checked_manifests(table)
    for kind in ("entries", "files", "manifests"):
        theirs, ours = (getattr(one.inspect, kind)() for one in (table, there))
        assert theirs.equals(ours)
        assert ours.num_rows == 2


def manifests(table: Table) -> list[Path]:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    places = [snapshot.manifest_list, snapshot.manifests(table.io)[0].manifest_path]
    return [Path(place.removeprefix("file://")) for place in places]


@pytest.mark.parametrize("which", [0, 1], ids=["list", "manifest"])
def test_a_query_over_damaged_manifests_names_the_snapshot(tmp_path: Path, which: int) -> None:
    table = create(tmp_path)
    append(table, [1_000_000])
    path = manifests(table)[which]
    whole = path.read_bytes()
    for size in (0, 3, 40, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UnsupportedOperationError, match="are damaged, or cannot be read"):
            harness(tmp_path).run()


def test_metadata_do_not_say_by_whom_a_manifest_is_asked_for(tmp_path: Path) -> None:
    files = with_checked_manifests(create(tmp_path)).io
    for place in ("http://127.0.0.1:9/x", "abfs://a@127.0.0.1/x", "s3://key:secret@b/x"):
        with pytest.raises(MalformedDataError, match="Name it yourself"):
            files.new_input(place)
