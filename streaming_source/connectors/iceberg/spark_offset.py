"""Offsets of Spark's own Iceberg source, as its checkpoints have them."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["SparkIcebergOffset"]


class SparkIcebergOffset(NamedTuple):
    """A position: before file `position` of what a snapshot added, or of all that it has if the stream `reads_all`."""

    snapshot_id: int
    position: int
    reads_all: bool

    @classmethod
    def parse(cls, text: str) -> SparkIcebergOffset:
        """Parse `{"version": 1, "snapshot_id": 17, "position": 3, "scan_all_files": false}`.

        Raises a `ValueError`, `TypeError` or `LookupError` if it is none.
        """
        found = json.loads(text)
        if found["version"] != 1:
            raise ValueError(f"version {found['version']}")
        # A negative position is before the first file.
        return cls(int(found["snapshot_id"]), max(int(found["position"]), 0), bool(found["scan_all_files"]))
