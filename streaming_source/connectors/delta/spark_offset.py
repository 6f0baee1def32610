"""Offsets of Spark's own Delta source, as its checkpoints have them."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["SparkDeltaOffset"]


class SparkDeltaOffset(NamedTuple):
    """A position: after the file of that `number` in the snapshot or the commit of a version; negative before it."""

    table_id: str
    version: int
    number: int
    in_snapshot: bool

    @classmethod
    def parse(cls, text: str) -> SparkDeltaOffset:
        """Parse `{"reservoirId": .., "reservoirVersion": 7, "index": 3, "isStartingVersion": false}`.

        Raises a `ValueError`, `TypeError` or `LookupError` if it is none.
        """
        found = json.loads(text)
        place = (int(found["reservoirVersion"]), int(found["index"]), bool(found["isStartingVersion"]))
        return cls(found["reservoirId"], *place)

    @property
    def listed_up_to(self) -> int:
        """The version up to which all files are read, or known one by one; a negative `number` is before a commit."""
        return self.version if self.in_snapshot or self.number >= 0 else self.version - 1
