"""The report of one source after one micro-batch: as a value, as JSON, and in its offset.

`why` in an offset is not part of the state: from it a checkpoint alone shows why the watermark stands where it does.

    "why": {"bounds": {"maxOutOfOrderness": "5 seconds", "maxDrift": "10 minutes", "idleTimeout": "1 minute"},
            "limit": 1357034400000000, "waitsFor": "drift", "behind": [0, 812, 0]}

It is as of the plan of the micro-batch, and decoding a state ignores it. `behind` counts the unread records of each of
the offset's splits: splits with some wait for `waitsFor`, the others for records. These fields are there if they are
not empty: `others` (splits that wait for something else), `holds`, `next`, `outliers`, `wasIdle`, `stray`, `locked`,
`invalid`, `far` and `earlier` (see `SplitExplanation`), all by the numbers of splits in the offset; `horizon`,
`readsAt`, `availableNow`, `group` (a `GroupMember`), and `places`, of splits that are not written as `[id, position,
...]`. `rows` are the records of the micro-batch, `reads` is what the source reads, `needs` the bound with which no
record would have been late, `late` is the option, if that is `route`, `upstream` the checkpoint of a writer that holds
the watermark, and `note` names the notes of the query's planners: see `planner_note`.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from operator import eq
from typing import Any, Final, Self, TypeAlias

import numpy as np

from alignment.arrow_times import format_timestamp
from alignment.combine import SplitStatus
from alignment.durations import format_duration, parse_duration_us
from alignment.explain import Bounds, Cause, Explanation, FarRecord, GroupMember, LastBatch, SplitExplanation, WaitsFor
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.exceptions import OffsetError
from streaming_source.monitoring.causes.answer import cause_of, sentence

Offset: TypeAlias = Mapping[str, Any]
SplitPosition: TypeAlias = tuple[str, int]

OFFSET_VERSION: Final = 2
"""`v` of the offsets that this library writes, and the latest that it reads."""

WHY: Final = "why"
NOTE: Final = "note"
"""Keys of an offset: the reasons, and in these the name of the planner's note."""

_KAFKA: Final = "aligned_kafka"
_BEHIND: Final = "OffsetsBehindLatest"
"""Name of the source whose positions are offsets."""

_BEGIN: Final = "the beginning"
_END: Final = "the end"
"""Of time: a limit before, or after, all event times."""
_LIMITS: Final = (WaitsFor.DRIFT, WaitsFor.ROWS, WaitsFor.MIN_ROWS, WaitsFor.GROUP, WaitsFor.HORIZON)
"""Reasons that are the same for all splits with unread records, since a plan has one limit."""

_STATUSES: Final = {status: status.name.lower() for status in SplitStatus}
_REASONS: Final = {reason: reason.value for reason in WaitsFor}
"""Their texts in JSON. They are kept, since Python is slow to look up the value of a member."""

_BOUNDS: Final = {
    "maxOutOfOrderness": "out_of_orderness_us",
    "maxDrift": "max_drift_us",
    "idleTimeout": "idle_timeout_us",
}


@dataclass(frozen=True, slots=True)
class WatermarkReport:
    """The place of the watermark of one source after one micro-batch, its reason, and how far each split is.

    `source` is its name, such as `aligned_files`; `sequence` is `n` of its offset, which names the `note` of its
    planner, if it does.
    """

    source: str
    sequence: int
    explanation: Explanation
    note: str | None = field(default=None, compare=False)

    @property
    def sentence(self) -> str:
        """Why the watermark stands where it does; `sentence` of the explanation. O(n)."""
        return sentence(self.explanation)

    @property
    def cause(self) -> Cause:
        """The same in one word. O(n)."""
        return cause_of(self.explanation)

    @property
    def called(self) -> str:
        """Its name and what it reads, for people."""
        return " ".join(filter(None, (self.source, self.explanation.reads)))

    def to_json(self) -> dict[str, Any]:
        """Return it as in the progress of a query, under `sources[].latestOffset`: ISO-8601 times, no null. O(n)."""
        explanation = self.explanation
        found = {
            "source": self.source,
            "n": self.sequence,
            "at": _text(explanation.at_us),
            "watermark": _text(explanation.watermark),
            "why": self.sentence,
            "cause": self.cause.value,
            "heldBy": list(explanation.held_by),
            "standsSince": _text(explanation.stands_since_us),
            "limit": _text(_unless(explanation.bound_us, MAX_WATERMARK), _BEGIN),
            "horizon": _text(_unless(explanation.horizon_us, MAX_WATERMARK), _BEGIN),
            "bounds": {**_bounds_to_json(explanation.bounds)},
            "availableNow": explanation.is_draining or None,
            "countsRuns": explanation.counts_runs or None,
            "group": None if explanation.group is None else _member_to_json(explanation.group),
            "readsAt": _text(_unless(explanation.reads_at_us, MAX_WATERMARK)),
            "batch": None if explanation.batch is None else _batch_to_json(explanation.batch),
            "probedAt": _text(explanation.probed_us),
            "reads": explanation.reads,
            "away": explanation.away,
            "neededBound": None if (needed := explanation.needed_bound_us) is None else format_duration(needed),
            "rowsLate": explanation.late,
            "rowsBehind": sum(split.behind for split in explanation.splits),
            "metrics": self._metrics() or None,
            "late": "route" if explanation.routes_late else None,
            "upstream": explanation.upstream,
        }
        splits = {split.split_id: _split_to_json(split) for split in explanation.splits}
        return {**_known(found), "splits": splits}

    def _metrics(self) -> dict[str, str]:
        """Return metrics as text, by the names that Spark's own sources use in `sources[].metrics`."""
        own = {name: str(value) for name, value in self.explanation.metrics}
        if self.source != _KAFKA:
            return own
        behind = [split.behind for split in self.explanation.splits] or [0]
        found = {"min": min(behind), "max": max(behind), "avg": sum(behind) / len(behind)}
        return own | {f"{name}{_BEHIND}": str(value) for name, value in found.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Make it from what `to_json` returned; raises a `ValueError` if it is no such report.

        Unknown fields are ignored, and missing ones have their defaults.
        """
        try:
            at_us = micros_of(found["at"])
            explanation = Explanation(
                watermark=micros_of(found.get("watermark"), MIN_WATERMARK),
                at_us=at_us,
                stands_since_us=micros_of(found.get("standsSince"), at_us),
                splits=tuple(_split_from_json(split_id, split) for split_id, split in found["splits"].items()),
                bound_us=micros_of(found.get("limit"), MAX_WATERMARK),
                horizon_us=micros_of(found.get("horizon"), MAX_WATERMARK),
                bounds=_bounds_from_json(found.get("bounds", {})),
                is_draining=bool(found.get("availableNow", False)),
                counts_runs=bool(found.get("countsRuns", False)),
                group=_member_from_json(found["group"]) if "group" in found else None,
                reads_at_us=micros_of(found.get("readsAt"), MAX_WATERMARK),
                batch=_batch_from_json(found["batch"]) if "batch" in found else None,
                probed_us=micros_of(found["probedAt"]) if "probedAt" in found else None,
                reads=found.get("reads"),
                away=found.get("away"),
                needed_bound_us=_duration_of(found.get("neededBound")),
                metrics=_metrics_from(found.get("metrics", {})),
                routes_late=found.get("late") == "route",
                upstream=found.get("upstream"),
            )
            return cls(found["source"], found["n"], explanation)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not a report of an aligned source: {error!r} in {json.dumps(found)}") from error

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> list[Self | None]:
        """Return the report of each source in a progress, or its JSON.

        None for a source that is not of this library. Before Spark 4.2 there is the offset in the place of a report.
        """
        offsets = [parsed(source["latestOffset"]) for source in progress["sources"]]
        at_us = micros_of(progress.get("timestamp"), 0)
        return [cls._of_latest(offset, at_us) for offset in offsets]

    @classmethod
    def _of_latest(cls, offset: Any, at_us: int) -> Self | None:
        if not isinstance(offset, Mapping) or not {"why", "splits"} <= offset.keys():
            return None
        if "v" not in offset:
            return cls.from_json(offset)
        found = report_of_offset(offset, at_us, at_us)
        return cls(found.source, found.sequence, found.explanation, found.note)


def _split_to_json(split: SplitExplanation) -> dict[str, Any]:
    found: dict[str, Any] = {"status": _STATUSES[split.status]}
    if split.watermark > MIN_WATERMARK:
        found["watermark"] = _text(split.watermark)
    if split.holds_us != split.watermark:
        found["holds"] = _text(split.holds_us, _BEGIN)
    found |= {"position": split.position, "rowsBehind": split.behind, "waitsFor": _REASONS[split.waits_for]}
    if split.silent_since_us is not None:
        found["silentSince"] = _text(split.silent_since_us)
    if split.late:
        found["rowsLate"] = split.late
    if split.next_us is not None:
        found["nextRecord"] = _text(split.next_us)
    if split.locked:
        found["rowsLocked"] = split.locked
    if split.invalid:
        found["invalid"] = split.invalid
    if split.far is not None:
        found["farRecord"] = {"time": _text(split.far.time_us), "place": split.far.place}
    if split.earlier is not None:
        found["earlierRecord"] = {"time": _text(split.earlier.time_us), "place": split.earlier.place}
    if split.is_outlier:
        found["isOutlier"] = True
    if split.missed_run:
        found["missedRun"] = True
    if split.was_idle:
        found["wasIdle"] = True
    if split.stray is not None:
        found["strayRecord"] = {"time": _text(split.stray.time_us), "place": split.stray.place}
    return found if split.place is None else found | {"place": split.place}


def _split_from_json(split_id: str, found: Mapping[str, Any]) -> SplitExplanation:
    watermark = micros_of(found.get("watermark"), MIN_WATERMARK)
    return SplitExplanation(
        split_id=split_id,
        status=SplitStatus[found["status"].upper()],
        watermark=watermark,
        holds_us=micros_of(found.get("holds"), watermark),
        position=found["position"],
        behind=found["rowsBehind"],
        waits_for=WaitsFor(found["waitsFor"]),
        silent_since_us=micros_of(found["silentSince"]) if "silentSince" in found else None,
        late=found.get("rowsLate", 0),
        next_us=micros_of(found["nextRecord"]) if "nextRecord" in found else None,
        place=found.get("place"),
        locked=found.get("rowsLocked", 0),
        invalid=found.get("invalid", 0),
        far=_far_from_json(found["farRecord"]) if "farRecord" in found else None,
        is_outlier=found.get("isOutlier", False),
        missed_run=found.get("missedRun", False),
        was_idle=found.get("wasIdle", False),
        stray=_far_from_json(found["strayRecord"]) if "strayRecord" in found else None,
        earlier=_far_from_json(found["earlierRecord"]) if "earlierRecord" in found else None,
    )


def _far_from_json(found: Mapping[str, Any]) -> FarRecord:
    return FarRecord(micros_of(found["time"]), found["place"])


def _member_to_json(member: GroupMember) -> dict[str, Any]:
    times = {"watermark": member.watermark, "reportedAt": member.reported_us, "countsUntil": member.until_us}
    written = {name: _text(us) for name, us in times.items()}
    return {"name": member.group, "source": member.source, "pid": member.pid, **_known(written)}


def _member_from_json(found: Mapping[str, Any]) -> GroupMember:
    watermark = micros_of(found.get("watermark"), MIN_WATERMARK)
    reported_us, until_us = micros_of(found["reportedAt"]), micros_of(found["countsUntil"])
    return GroupMember(found["name"], found["source"], found["pid"], watermark, reported_us, until_us)


def _batch_to_json(batch: LastBatch) -> dict[str, Any]:
    share = None if batch.share is None else round(batch.share, 3)
    times = {"plannedAt": _text(batch.planned_us), "doneAt": _text(batch.done_us)}
    return _known({"number": batch.number, **times, "rows": batch.rows, "share": share})


def _batch_from_json(found: Mapping[str, Any]) -> LastBatch:
    done_us = micros_of(found["doneAt"]) if "doneAt" in found else None
    planned_us = micros_of(found["plannedAt"])
    return LastBatch(planned_us, found.get("rows"), done_us, found.get("share"), found.get("number"))


@lru_cache(maxsize=1)
def _bounds_to_json(bounds: Bounds) -> dict[str, Any]:
    """Return bounds by the names of their options, without missing ones. They are the same as long as a query runs."""
    given = _known({name: getattr(bounds, field) for name, field in _BOUNDS.items()})
    written = {name: format_duration(value) for name, value in given.items()}
    return {**written, **_known({"maxRowsPerTrigger": bounds.max_rows, "minRowsPerTrigger": bounds.min_rows})}


def _bounds_from_json(found: Mapping[str, Any]) -> Bounds:
    given = {field: parse_duration_us(found[name], name=name) for name, field in _BOUNDS.items() if name in found}
    return Bounds(**given, max_rows=found.get("maxRowsPerTrigger"), min_rows=found.get("minRowsPerTrigger"))


def _duration_of(text: str | None) -> int | None:
    return None if text is None else parse_duration_us(text, name="neededBound")


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


def _text(us: int | None, begin: str | None = None) -> str | None:
    """Return a time as text; `begin` for `MIN_WATERMARK`, which is none unless it is a limit."""
    if us is None or us == MIN_WATERMARK:
        return None if us is None else begin
    return _END if us == MAX_WATERMARK else format_timestamp(us)


def parsed(offset: Any) -> Any:
    """Parse an offset in a query's progress, which is JSON for sources of this library; of PySpark 4.0 it is Python."""
    if not (isinstance(offset, str) and offset.startswith("{")):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return literal_eval(offset)


def sets_watermark(latest: Any) -> bool:
    """Return whether a source sets Spark's watermark by rows, by its report or, before Spark 4.2, by its offset."""
    if not isinstance(latest, Mapping):
        return False
    return bool(latest.get("watermarkRows") or latest.get("fixed", {}).get("watermarkRows"))


def micros_of(text: str | None, default: int | None = None) -> int:
    """Return microseconds since the epoch of an ISO-8601 time in UTC."""
    if text is None and default is not None:
        return default
    if text in (_BEGIN, _END):
        return MIN_WATERMARK if text == _BEGIN else MAX_WATERMARK
    assert text is not None
    # Event times may be in years that Python's own type does not have.
    return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64))


def check_version(offset: Offset) -> None:
    """Raise an `OffsetError` for an offset that a newer version of this library wrote."""
    if not isinstance(offset["v"], int) or offset["v"] > OFFSET_VERSION:
        raise OffsetError(
            f"the offset has version {offset['v']!r}, this library reads up to {OFFSET_VERSION}: it was written by a "
            "newer one; upgrade spark-watermark-alignment"
        )


def facts_of(explanation: Explanation, positions: Sequence[SplitPosition], offset: Offset) -> dict[str, Any]:
    """Return what an offset must have in addition to the state, so that `report_of_offset` can restore this. O(n).

    `positions` has id and position of each split of the offset, in its order.
    """
    by_id = {split.split_id: split for split in explanation.splits}
    splits = {at: by_id[split_id] for at, (split_id, _) in enumerate(positions) if split_id in by_id}
    limit = next((s.waits_for for s in splits.values() if s.behind and s.waits_for in _LIMITS), WaitsFor.NOTHING)
    # Splits with other reasons: neither the limit with unread records, nor records without any.
    others: dict[str, list[int]] = {}
    for at, split in splits.items():
        if split.waits_for is not (limit if split.behind else WaitsFor.RECORDS):
            others.setdefault(split.waits_for.value, []).append(at)
    behind = [splits[at].behind if at in splits else 0 for at in range(len(positions))]
    facts = {
        "bounds": _bounds_to_json(explanation.bounds),
        "limit": _unless(explanation.bound_us, MAX_WATERMARK),
        "horizon": _unless(explanation.horizon_us, MAX_WATERMARK),
        "readsAt": _unless(explanation.reads_at_us, MAX_WATERMARK),
        "availableNow": explanation.is_draining or None,
        "waitsFor": None if limit is WaitsFor.NOTHING else limit.value,
        "behind": behind if any(behind) else None,
        "others": others,
        "holds": {str(at): split.holds_us for at, split in splits.items() if split.holds_us != split.watermark},
        "next": {str(at): (split.next_us, split.place) for at, split in splits.items() if split.next_us is not None},
        "locked": {str(at): split.locked for at, split in splits.items() if split.locked},
        "group": None if explanation.group is None else astuple(explanation.group),
        "rows": None if explanation.batch is None else explanation.batch.rows or None,
        "reads": explanation.reads,
        "away": explanation.away,
        "invalid": {str(at): split.invalid for at, split in splits.items() if split.invalid},
        "far": {str(at): split.far for at, split in splits.items() if split.far is not None},
        "earlier": {str(at): split.earlier for at, split in splits.items() if split.earlier is not None},
        "outliers": [at for at, split in splits.items() if split.is_outlier],
        "stray": {str(at): split.stray for at, split in splits.items() if split.stray is not None},
        "wasIdle": [at for at, split in splits.items() if split.was_idle],
        "needs": explanation.needed_bound_us,
        "late": "route" if explanation.routes_late else None,
        "upstream": explanation.upstream,
        "metrics": dict(explanation.metrics),
        "places": None if all(map(eq, positions, _positions(offset))) else positions,
    }
    return {name: value for name, value in facts.items() if value not in (None, [], {}, "")}


def report_of_offset(
    offset: Offset, at_us: int = 0, stands_since_us: int = 0, batch: LastBatch | None = None
) -> WatermarkReport:
    """Return the report in an offset, as of a time, with the time at which the watermark moved last. O(n).

    `batch` is what else is known of its micro-batch. Raises a `ValueError` if it is no offset of this library.
    """
    try:
        facts = offset.get("why", {})
        positions = facts.get("places") or list(_positions(offset))
        behind = facts.get("behind") or [0] * len(positions)
        limit = WaitsFor(facts.get("waitsFor", WaitsFor.NOTHING))
        waits_for = [limit if rows else WaitsFor.RECORDS for rows in behind]
        for why, numbers in facts.get("others", {}).items():
            for at in numbers:
                waits_for[at] = WaitsFor(why)
        silent = frozenset(offset.get("run", {}).get("silent", ()))
        splits = []
        for at, ((split_id, position), entry) in enumerate(zip(positions, offset["splits"], strict=True)):
            _, written, status, *more = entry
            if status != "finished":
                watermark = MIN_WATERMARK if written is None else int(written)
                next_us, place = facts.get("next", {}).get(str(at), (None, None))
                silent_since_us = more[1] if len(more) > 1 and not behind[at] else None
                splits.append(
                    SplitExplanation(
                        split_id=split_id,
                        status=SplitStatus[status.upper()],
                        watermark=watermark,
                        holds_us=facts.get("holds", {}).get(str(at), watermark),
                        position=position,
                        behind=behind[at],
                        waits_for=waits_for[at],
                        silent_since_us=silent_since_us,
                        late=more[0] if more else 0,
                        next_us=next_us,
                        place=place,
                        locked=facts.get("locked", {}).get(str(at), 0),
                        invalid=facts.get("invalid", {}).get(str(at), 0),
                        far=FarRecord(*far) if (far := facts.get("far", {}).get(str(at))) else None,
                        is_outlier=at in facts.get("outliers", ()),
                        missed_run=split_id in silent,
                        was_idle=at in facts.get("wasIdle", ()),
                        stray=FarRecord(*stray) if (stray := facts.get("stray", {}).get(str(at))) else None,
                        earlier=FarRecord(*early) if (early := facts.get("earlier", {}).get(str(at))) else None,
                    )
                )
        explanation = Explanation(
            watermark=MIN_WATERMARK if offset["watermark"] is None else int(offset["watermark"]),
            at_us=at_us,
            stands_since_us=stands_since_us,
            splits=tuple(splits),
            bound_us=facts.get("limit", MAX_WATERMARK),
            horizon_us=facts.get("horizon", MAX_WATERMARK),
            bounds=_bounds_from_json(facts.get("bounds", {})),
            is_draining=facts.get("availableNow", False),
            counts_runs="run" in offset,
            group=GroupMember(*facts["group"]) if "group" in facts else None,
            reads_at_us=facts.get("readsAt", MAX_WATERMARK),
            batch=None if batch is None else replace(batch, rows=facts.get("rows", 0 if facts else None)),
            reads=facts.get("reads"),
            away=facts.get("away"),
            needed_bound_us=facts.get("needs"),
            metrics=tuple(facts.get("metrics", {}).items()),
            routes_late=facts.get("late") == "route",
            upstream=facts.get("upstream"),
        )
        return WatermarkReport(offset["source"], int(offset["n"]), explanation, note_name(offset))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is not an offset of an aligned source: {error!r} in {offset!r}") from error


def note_name(offset: Any) -> str | None:
    """Return the name of the planner's note in an offset; None without one."""
    why = offset.get(WHY) if isinstance(offset, Mapping) else None
    name = why.get(NOTE) if isinstance(why, Mapping) else None
    return name if isinstance(name, str) else None


def _metrics_from(found: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    # Those of all splits follow from the splits.
    return tuple([(name, int(value)) for name, value in found.items() if not name.endswith(_BEHIND)])


def _positions(offset: Offset) -> Iterator[SplitPosition]:
    """Id and position of each split, if they are where the connectors here write them."""
    source = offset["source"]
    return (_kafka_position(*entry[0]) if source == _KAFKA else _position(entry[0]) for entry in offset["splits"])


def _position(written: Any) -> SplitPosition:
    if isinstance(written, Mapping):
        return written.get("split_id", ""), written.get("position", 0)
    return tuple([*written, "", 0][:2]) if isinstance(written, list) else ("", 0)


def _kafka_position(topic: str, partition: int, position: int, _: int, *others: Any) -> SplitPosition:
    incarnation = f"@{others[1]}" if others[1:] else ""
    return f"{topic}-{partition}{incarnation}", position


def _unless(value: int, nothing: int) -> int | None:
    return None if value == nothing else value
