"""Deletion vectors, written as the protocol of Delta has them: `deltalake` reads them, and writes none."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake

__all__ = ["delete_rows"]

_MAGIC = 1_681_511_377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def _bitmap(rows: list[int]) -> bytes:
    """A RoaringBitmapArray of rows below 2**16: one bitmap of 32 bits, of one array container."""
    header = struct.pack("<iqi", _MAGIC, 1, 0)
    container = struct.pack("<iiHHi", 12_346, 1, 0, len(rows) - 1, 16)
    return header + container + struct.pack(f"<{len(rows)}H", *rows)


def _z85(data: bytes) -> str:
    """ZeroMQ's base 85, of a multiple of four bytes."""
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(_Z85[word // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))


def delete_rows(path: Path, rows: Iterable[int], number: int = 0, file: str | None = None) -> None:
    """Let these rows of a file, by its number or path, be deleted by a vector: one commit, as Spark writes it."""
    wanted = sorted(rows)
    log = path / "_delta_log"
    version = deltalake.DeltaTable(str(path)).version()
    adds: dict[str, dict[str, Any]] = {}
    for commit in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        added = {action["add"]["path"]: action["add"] for action in actions if "add" in action}
        gone = {action["remove"]["path"] for action in actions if "remove" in action} - {*added}
        adds = {path: add for path, add in adds.items() if path not in gone} | added
    add = list(adds.values())[number] if file is None else adds[file]
    data = _bitmap(wanted)
    padded = data + b"\0" * (-len(data) % 4)
    vector = {"storageType": "i", "pathOrInlineDv": _z85(padded), "sizeInBytes": len(data), "cardinality": len(wanted)}
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    if "deletionVector" in add:
        removed["deletionVector"] = add["deletionVector"]
    stats = json.dumps({**json.loads(add["stats"]), "tightBounds": False})
    actions = [
        {"commitInfo": {"operation": "DELETE", "timestamp": 1}},
        {"protocol": protocol},
        {"remove": removed},
        {"add": {**add, "deletionVector": vector, "stats": stats}},
    ]
    (log / f"{version + 1:020}.json").write_text("\n".join(map(json.dumps, actions)))
