"""The part of an offset beside a table's open files: which table, and up to where files were opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignment.watermarks import Claim
from streaming_source.api import SimpleVersionedSerializer
from streaming_source.api.serializer import check_version
from streaming_source.connectors.tables.waiting import Key, Progress, Step
from streaming_source.exceptions import OffsetError


@dataclass(frozen=True, slots=True)
class TableCheckpoint:
    """The memory of a table beside its open files; all of it is None before the table was looked at.

    `digest` is that of the last commit whose files are known, None where `TableLister` has none.
    `indexing` is the option of that name: where a table has no statistics, the order of its files follows from it. A
    `bounded` source ends with what was listed at its start. `first` is where the stream started, in the state of its
    first micro-batch alone: any other starts where the state before ends. What is committed before `from_ms` is passed
    over; None once something was committed then. With `watermarkFrom` it has the last `claims`
    of the table's writers, how many late records each writer has brought (`late_by`), and whose the versions are of
    which files are open (`writers`).
    """

    table_id: str | None = None
    progress: Progress | None = None
    digest: str | None = None
    indexing: str = "auto"
    bounded: bool = False
    first: Progress | None = None
    from_ms: int | None = None
    claims: tuple[Claim, ...] = ()
    late_by: Mapping[str, int] = field(default_factory=dict)
    writers: Mapping[int, str] = field(default_factory=dict)


class TableCheckpointSerializer(SimpleVersionedSerializer[TableCheckpoint]):
    """`{"table": id, "after": version, "snapshot": true, "steps": [[version, key], ...], ...}`.

    `"first": [version, is a snapshot]` is where the stream started. Entries that are the default are left out; a key is
    `[low_us, path, version]`.
    """

    version = 1

    def serialize(self, value: TableCheckpoint) -> bytes:
        state: dict[str, Any] = {"table": value.table_id}
        if value.progress is not None:
            state["after"] = value.progress.after
            state |= {"snapshot": True} if value.progress.in_snapshot else {}
            state |= {"steps": value.progress.steps} if value.progress.steps else {}
        state |= {"digest": value.digest} if value.digest else {}
        if value.first is not None:
            state["first"] = [value.first.after, value.first.in_snapshot]
        state |= {} if value.from_ms is None else {"from": value.from_ms}
        state |= {"indexing": value.indexing} if value.indexing != "auto" else {}
        state |= {"bounded": True} if value.bounded else {}
        state |= {"claims": [[*claim] for claim in value.claims]} if value.claims else {}
        state |= {"lateBy": dict(value.late_by)} if value.late_by else {}
        state |= {"writers": {str(version): one for version, one in value.writers.items()}} if value.writers else {}
        return json.dumps(state, separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> TableCheckpoint:
        check_version(version, self.version, "enumerator")
        try:
            state = json.loads(data)
            progress = None
            if "after" in state:
                steps = tuple(Step(int(last), _key(opened)) for last, opened in state.get("steps", ()))
                progress = Progress(int(state["after"]), bool(state.get("snapshot", False)), steps)
            after, in_snapshot = state.get("first", (None, False))
            first = None if after is None else Progress(int(after), bool(in_snapshot))
            return TableCheckpoint(
                table_id=state["table"],
                progress=progress,
                digest=state.get("digest"),
                indexing=state.get("indexing", "auto"),
                bounded=bool(state.get("bounded", False)),
                first=first,
                from_ms=None if "from" not in state else int(state["from"]),
                claims=Claim.from_json(state.get("claims", ())),
                late_by={str(writer): int(count) for writer, count in state.get("lateBy", {}).items()},
                writers={int(version): str(writer) for version, writer in state.get("writers", {}).items()},
            )
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise OffsetError(f"damaged offset: {data!r} is no state of a table: {error!r}") from error


def _key(value: list[Any] | None) -> Key | None:
    return None if value is None else Key(int(value[0]), str(value[1]), int(value[2]))
