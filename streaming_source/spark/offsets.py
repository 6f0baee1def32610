"""Offsets: the state of a source as JSON, which a person can read in Spark's progress and checkpoint.

    {"v": 1, "source": "aligned_files", "id": "5b2c0f6e", "n": 7, "watermark": 1357034399999999,
     "enumerator": [1, {...}], "splits_v": 1, "splits": [[["AA", 5120, "part-03", 120, 4], 1357034399999999, "active"]]}

`n` counts the states of the query. An entry of `splits` has the split as the connector writes it, its watermark (null
before the first), and its status; then, if there are any, the number of late records, and the time since which the
split has had nothing to read, in microseconds since the epoch. `empty_since` is the time since which the source has had
no split, where it had one before. `run`, where runs are counted (AvailableNow without `idleTimeout`), has the splits
that brought nothing in it and count, whether the source was `empty`, and whether the run has `ended`. `routed` counts
the late records that were routed; it is left out if there were none. `furthest` is the largest watermark of a split
that has finished, where that is beyond the source's. `late_log` is the id of the late log, which locates them.
`time_limit`, with `maxFutureSkew`, is the event time from which on times are invalid in the micro-batch that the offset
ends. With a user's watermark generator, `generators` has its state by split id: a version, the state, and, if it is not
the split's position, the position up to which the generator has read; then, with `maxFutureSkew`, the limits of the
micro-batches in between, each as its last position and the limit. Equal states give equal texts. `why` has the reasons
for the watermark: see `streaming_source.monitoring.report`. `finished` counts the splits that the last micro-batch read
to their ends and that are not in `splits`, as they follow from the enumerator's state, and their records. `fixed` has
the options by which event times are read. They must stay the same for the life of a checkpoint: its watermarks are
valid for these event times alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from alignment.arrow_times import format_timestamp, may_lack_zone
from alignment.codec import Codec
from alignment.column_paths import column_at, event_time_names
from alignment.explain import Explanation
from alignment.plan import WatermarkTable
from alignment.timestamps import FieldTimestampAssigner, RecordTimestampAssigner
from alignment.watermarks import MIN_WATERMARK, known_watermark, watermark_of
from streaming_source.api import Source
from streaming_source.api.serializer import json_to_bytes
from streaming_source.coordinator import ReadRules, SourceState
from streaming_source.exceptions import OffsetError
from streaming_source.monitoring.report import OFFSET_VERSION, WrittenSplit, check_version, facts_of
from streaming_source.spark.options import FRAME_OPTIONS, STRATEGY_OPTIONS

if TYPE_CHECKING:
    from alignment.split_generators import GeneratorState
    from streaming_source.checkpoint.offset_log import OffsetLog

LATE_LOG: Final = "late_log"
"""Key of the late log's id in an offset; offsets of a query that never routed lack it."""

_WITH_FINISHED: Final = 1
"""The version of offsets that have all splits, which earlier versions of this library read too."""
_SHOWN: Final = 200
"""Characters of an offset that an error shows."""

_STATE: Final[Codec[SourceState[Any, Any]]] = Codec(SourceState)
_KEYS: Final = (
    *("v", "source", "id", "n", "watermark", "furthest", "time_limit", "generators", "enumerator", "empty_since"),
    *("run", "routed", "out_of_range", "fixed", "finished", "splits_v", "splits"),
)
"""The order of an offset, which is compared as text."""

Offset: TypeAlias = dict[str, Any]


class OffsetCodec:
    """Writes and reads the offsets of one source; its `source_id` is a digest of what is read and how it is split.

    `fixed` are the options that must be the same as when an offset was written; None checks no options.
    """

    def __init__(self, source: Source[Any, Any], fixed: Mapping[str, Any] | None = None) -> None:
        self._source = source
        self._fixed = fixed
        self.source_id = _digest(source.identity)
        self._known_ids = {self.source_id, *map(_digest, source.former_identities)}

    def is_of_source(self, offset: Any) -> bool:
        """Return whether this is an offset of the source: of its format, and of the same data."""
        if not isinstance(offset, dict) or offset.get("source") != self._source.name:
            return False
        return isinstance(offset.get("id"), str) and offset["id"] in self._known_ids

    def logged(self, log: OffsetLog, batch: int, what: str) -> Offset | None:
        """Return the source's offset after a micro-batch of a query, None where it has none yet.

        An `OffsetError` that begins with `what` if the query does not read the source once.
        """
        offsets = log.read(batch).parsed()
        own = [offset for offset in offsets if self.is_of_source(offset)]
        if len(own) > 1 or (not own and None not in offsets):
            raise OffsetError(
                f"{what}: the query of {log.checkpoint} reads this source {len(own)} times; it must be once: give the "
                "checkpointLocation of the query that reads this very frame, with the same options"
            )
        return own[0] if own else None

    def encode(self, state: SourceState[Any, Any], explanation: Explanation | None = None) -> Offset:
        """Return the state as JSON values, keys always in the same order; with the reasons, if any are given. O(n).

        See `streaming_source.monitoring.report`; `decode` ignores the reasons.
        """
        state = state.as_written(self._source)
        write, remember = self._source.split_serializer, self._source.enumerator_checkpoint_serializer
        columns = (state.table.watermarks, state.table.statuses, state.late, state.silent_since_us)
        known = (column.tolist() for column in columns)
        splits = WrittenSplit.write(zip(map(write.to_json, state.splits), *known, strict=True))
        by_id = zip(state.table.split_ids, state.generators, strict=True) if any(state.generators) else ()
        generators = {split_id: _generators().write(one) for split_id, one in by_id if one is not None}
        offset = _STATE.write(state) | {
            "v": OFFSET_VERSION if any(state.left_out) else _WITH_FINISHED,
            "source": self._source.name,
            "id": self.source_id,
            "watermark": known_watermark(state.table.combined),
            **({} if state.table.furthest == MIN_WATERMARK else {"furthest": state.table.furthest}),
            **({"generators": generators} if generators else {}),
            "enumerator": None if state.checkpoint is None else [remember.version, remember.to_json(state.checkpoint)],
            **({} if self._fixed is None else {"fixed": self._fixed}),
            "splits_v": write.version,
            "splits": splits,
        }
        offset = {key: offset[key] for key in _KEYS if key in offset}
        if explanation is None:
            return offset
        positions = [(split.split_id, split.position) for split in state.splits]
        return {**offset, "why": facts_of(explanation, positions, offset)}

    def decode(self, offset: Offset) -> SourceState[Any, Any]:
        """Return the state in an offset; refuse an offset of another source, other options or a newer version. O(n)."""
        self._check(offset)
        try:
            serializer, version = self._source.split_serializer, int(offset["splits_v"])
            entries = [WrittenSplit.read(entry) for entry in offset["splits"]]
            splits = tuple(serializer.deserialize(version, json_to_bytes(entry.split)) for entry in entries)
            table = WatermarkTable(
                split_ids=tuple(split.split_id for split in splits),
                watermarks=np.array([entry.watermark for entry in entries], np.int64),
                statuses=np.array([entry.status for entry in entries], np.int8),
                combined=watermark_of(offset["watermark"]),
                furthest=watermark_of(offset.get("furthest")),
            )
            remember, written = self._source.enumerator_checkpoint_serializer, offset["enumerator"]
            checkpoint = None if written is None else remember.deserialize(written[0], json_to_bytes(written[1]))
            generators = {split_id: _generators().read(one) for split_id, one in offset.get("generators", {}).items()}
            return replace(
                _STATE.read(offset),
                splits=splits,
                table=table,
                late=np.array([entry.late for entry in entries], np.int64),
                silent_since_us=np.array([entry.silent_since_us for entry in entries], np.int64),
                checkpoint=checkpoint,
                generators=tuple(map(generators.get, table.split_ids)) if generators else (),
            )
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            if isinstance(error, OffsetError) and not str(error).startswith("damaged"):
                raise
            is_explained = isinstance(error, OffsetError)
            what = error if is_explained else f"damaged offset of {self._source.name}: {error!r} in {_shown(offset)}"
            raise OffsetError(f"{what}; restore the checkpoint, or use a new checkpointLocation") from None

    def _check(self, offset: Offset) -> None:
        name = self._source.name
        if not isinstance(offset, dict) or "v" not in offset or "source" not in offset:
            raise OffsetError(
                f"this is not an offset of {name}: {_shown(offset)}; the checkpoint belongs to another source: "
                "use a new checkpointLocation"
            )
        check_version(offset)
        if not self.is_of_source(offset) and not self._continues(offset):
            raise OffsetError(
                f"the offset is of another source ({offset['source']}, id {offset.get('id')}), not of this one "
                f"({name}, id {self.source_id}, {self._source.identity[:_SHOWN]}): what is read, or how it is split, "
                f"has changed{_changed(offset, self._source.identity)}; use a new checkpointLocation"
            )
        if self._fixed is not None and isinstance(before := offset.get("fixed"), dict):
            _check_fixed(before, self._fixed)

    def _continues(self, offset: Offset) -> bool:
        """Return whether the source can continue from an offset of another source of its format."""
        written, serializer = offset.get("enumerator"), self._source.enumerator_checkpoint_serializer
        if offset["source"] != self._source.name or not isinstance(written, list) or len(written) != 2:
            return False
        try:
            return self._source.continues(serializer.deserialize(written[0], json_to_bytes(written[1])))
        except OffsetError:
            return False


def _changed(offset: Offset, identity: str) -> str:
    """Return what was read when an offset was written, or the changed option alone, if that is known."""
    why = offset.get("why")
    before = why.get("reads") if isinstance(why, dict) else None
    if not isinstance(before, str) or len(before) >= _SHOWN or before == identity:
        return ""
    was, is_ = before.split(":"), identity.split(":")
    gone, came = [part for part in was if part not in is_], [part for part in is_ if part not in was]
    if _is_option(gone, came):
        return f": option {gone[0]} is not given, and was when the checkpoint was written; give it as it was"
    if _is_option(came, gone):
        return f": option {came[0]} is given, and was not when the checkpoint was written; give it as it was"
    return f": it was {before}"


def _is_option(parts: Sequence[str], others: Sequence[str]) -> bool:
    return not others and len(parts) == 1 and parts[0].isalpha()


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:8]


def fixed_options(
    source: Source[Any, Any], rules: ReadRules, schema: pa.Schema, event_time: str | None = None
) -> dict[str, Any]:
    """Return the options by which event times are read from the columns `schema`, without options that are not set.

    Claims need the column `event_time` of the frame, which may differ from run to run: it is among them where it does
    not follow from the others.
    """
    assigner = rules.strategy.timestamp_assigner
    fixed: dict[str, Any] = {}
    if isinstance(assigner, FieldTimestampAssigner):
        unit, pattern = assigner.unit, assigner.pattern
        fixed = {"eventTimeColumn": assigner.column, "timestampUnit": unit, "timePattern": pattern}
        no_rows = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        if may_lack_zone(column_at(no_rows, assigner.column).type):
            fixed["timeZone"] = assigner.zone
    elif not isinstance(assigner, RecordTimestampAssigner):
        fixed = {"eventTimeColumn": "a function"}
    is_known = event_time is None or event_time.lower() in map(str.lower, event_time_names(source.name, fixed))
    fixed["eventTimeAs"] = None if is_known else event_time
    fixed["watermarkRows"] = rules.options.watermark_rows or None
    if (times := rules.planning.times) is not None:
        for name, bound_us in (("eventTimeFrom", times.from_us), ("eventTimeUntil", times.until_us)):
            fixed[name] = None if bound_us is None else format_timestamp(bound_us)
        fixed["overlap"] = "keep" if times.overlap == "keep" else None
    return {name: value for name, value in fixed.items() if value is not None}


def _check_fixed(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for one in STRATEGY_OPTIONS | FRAME_OPTIONS:
        was, is_ = before.get(one.name), now.get(one.name)
        # If only one of the two has a zone, the column's type has changed.
        if one.fixed and was != is_ and (one.name != "timeZone" or (was and is_)):
            absent = "drop or fail" if one.name == "overlap" else "not given"
            is_text, was_text = (absent if value is None else repr(value) for value in (is_, was))
            raise OffsetError(
                f"option {one.name} is {is_text}, and was {was_text} when the checkpoint was written: {one.fixed}; "
                "give it as it was, or use a new checkpointLocation"
            )
    if "watermarkRows" in now and "watermarkRows" not in before:
        raise OffsetError(
            "the checkpoint is of a query with a plain withWatermark: Spark's watermark in it may be ahead of the "
            "exact one, and Spark would drop records that are not late; load with spark.readStream as before, or use a "
            "new checkpointLocation"
        )


@cache
def _generators() -> Codec[GeneratorState]:
    # Imported here: most queries have no generators.
    from alignment.split_generators import GeneratorState

    return Codec(GeneratorState, ("version", "text", "position", "time_limits"))


def _shown(offset: Any) -> str:
    """Return the first characters of an offset, enough to recognise it."""
    text = json.dumps(offset)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
