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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from operator import eq
from typing import Annotated, Any, Final, NamedTuple, Self, TypeAlias

from alignment.arrow_times import BEGIN, micros_of
from alignment.codec import Codec, Form, Wire
from alignment.combine import SplitStatus
from alignment.explain import (
    ROUTE,
    Bounds,
    Cause,
    Explanation,
    FarRecord,
    GroupMember,
    LastBatch,
    SplitExplanation,
    WaitsFor,
)
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, MIN_WATERMARK, watermark_of
from streaming_source.exceptions import OffsetError
from streaming_source.from_data import as_json
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

_LIMITS: Final = (WaitsFor.DRIFT, WaitsFor.ROWS, WaitsFor.MIN_ROWS, WaitsFor.GROUP, WaitsFor.HORIZON)
"""Reasons that are the same for all splits with unread records, since a plan has one limit."""

_STATUSES: Final = tuple(status.name.lower() for status in SplitStatus)
_EXPLANATION: Final = Codec(Explanation, objects=True)
_SPLIT: Final = Codec(SplitExplanation, objects=True)

_Far: TypeAlias = Annotated[FarRecord, Wire(form=Form(tuple, FarRecord._make))]
_MARKED: Final = Form(list, lambda found: dict.fromkeys(found, True))
_OTHERS: Final = Form(
    lambda waits: {str(why): [at for at, one in waits.items() if one is why] for why in dict.fromkeys(waits.values())},
    lambda found: {int(at): WaitsFor(why) for why, numbers in found.items() for at in numbers},
)
_Group: TypeAlias = Annotated[GroupMember | None, Wire(form=Form(astuple, lambda found: GroupMember(*found)))]


@dataclass(frozen=True, slots=True)
class _Facts:
    """The `why` of an offset: fields of an `Explanation` by their names there, and of its splits by their numbers."""

    bounds: Bounds = field(default=Bounds())
    bound_us: Annotated[int, Wire("limit")] = MAX_WATERMARK
    horizon_us: Annotated[int, Wire("horizon")] = MAX_WATERMARK
    reads_at_us: Annotated[int, Wire("readsAt")] = MAX_WATERMARK
    is_draining: Annotated[bool, Wire("availableNow")] = False
    limit: Annotated[WaitsFor, Wire("waitsFor")] = WaitsFor.NOTHING
    behind: tuple[int, ...] = ()
    waits_for: Annotated[Mapping[int, WaitsFor], Wire("others", _OTHERS)] = field(default_factory=dict)
    holds_us: Annotated[Mapping[int, int], Wire("holds")] = field(default_factory=dict)
    next: Mapping[int, tuple[int, str | None]] = field(default_factory=dict)
    group: _Group = None
    rows: int = 0
    reads: str | None = None
    away: str | None = None
    locked: Mapping[int, int] = field(default_factory=dict)
    invalid: Mapping[int, int] = field(default_factory=dict)
    far: Mapping[int, _Far] = field(default_factory=dict)
    earlier: Mapping[int, _Far] = field(default_factory=dict)
    stray: Mapping[int, _Far] = field(default_factory=dict)
    is_outlier: Annotated[Mapping[int, bool], Wire("outliers", _MARKED)] = field(default_factory=dict)
    was_idle: Annotated[Mapping[int, bool], Wire("wasIdle", _MARKED)] = field(default_factory=dict)
    needed_bound_us: Annotated[int | None, Wire("needs")] = None
    routes_late: Annotated[bool, Wire("late", ROUTE)] = False
    upstream: str | None = None
    metrics: Annotated[tuple[tuple[str, int], ...], Wire(form=Form(dict, lambda found: tuple(found.items())))] = ()
    places: tuple[SplitPosition, ...] = ()


_FACTS: Final = Codec(_Facts)
_OF_SOURCE: Final = sorted({one.name for one in fields(_Facts)} & {one.name for one in fields(Explanation)})
_OF_FEW: Final = ("locked", "invalid", "far", "earlier", "stray", "is_outlier", "was_idle")
"""Attributes of splits that few of them have."""


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
            "why": self.sentence,
            "cause": self.cause.value,
            "heldBy": list(explanation.held_by),
            **_EXPLANATION.write(explanation),
            "rowsLate": explanation.late,
            "rowsBehind": sum(split.behind for split in explanation.splits),
        }
        if self.source == _KAFKA:
            found["metrics"] = {**found.get("metrics", {}), **self._behind()}
        splits = found["splits"] = {}
        for split in explanation.splits:
            written = _SPLIT.write(split)
            if split.holds_us == split.watermark:
                del written["holds"]
            splits[written.pop("id")] = written
        return found

    def _behind(self) -> dict[str, str]:
        """Return metrics as text, by the names that Spark's own source over Kafka uses in `sources[].metrics`."""
        behind = [split.behind for split in self.explanation.splits] or [0]
        found = {"min": min(behind), "max": max(behind), "avg": sum(behind) / len(behind)}
        return {f"{name}{_BEHIND}": str(value) for name, value in found.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Make it from what `to_json` returned; raises a `ValueError` if it is no such report.

        Unknown fields are ignored, and missing ones have their defaults.
        """
        try:
            # The metrics of all splits follow from the splits.
            own = {name: value for name, value in found.get("metrics", {}).items() if not name.endswith(_BEHIND)}
            explanation = _EXPLANATION.read({"standsSince": found["at"], **found, "metrics": own})
            splits = [
                _SPLIT.read({"id": split_id, "holds": split.get("watermark", BEGIN), **split})
                for split_id, split in found["splits"].items()
            ]
            return cls(found["source"], found["n"], replace(explanation, splits=tuple(splits)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"this is not a report of an aligned source: {error!r} in {json.dumps(found)}") from error

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> list[Self | None]:
        """Return the report of each source in a progress, or its JSON.

        None for a source that is not of this library. Before Spark 4.2 there is the offset in the place of a report.
        """
        offsets = [parsed(source["latestOffset"]) for source in progress["sources"]]
        at_us = micros_of(progress.get("timestamp", "1970-01-01T00:00:00Z"))
        return [cls._of_latest(offset, at_us) for offset in offsets]

    @classmethod
    def _of_latest(cls, offset: Any, at_us: int) -> Self | None:
        if not isinstance(offset, Mapping) or not {"why", "splits"} <= offset.keys():
            return None
        if "v" not in offset:
            return cls.from_json(offset)
        found = report_of_offset(offset, at_us, at_us)
        return cls(found.source, found.sequence, found.explanation, found.note)


def parsed(offset: Any) -> Any:
    """Parse an offset in a query's progress, which is JSON for sources of this library; of PySpark 4.0 it is Python.

    What is neither stays text.
    """
    if isinstance(offset, str) and offset.startswith("{"):
        for parse in (as_json, literal_eval):
            with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return parse(offset)
    return offset


def sets_watermark(latest: Any) -> bool:
    """Return whether a source sets Spark's watermark by rows, by its report or, before Spark 4.2, by its offset."""
    if not isinstance(latest, Mapping):
        return False
    return bool(latest.get("watermarkRows") or latest.get("fixed", {}).get("watermarkRows"))


def check_version(offset: Offset) -> None:
    """Raise an `OffsetError` for an offset that a newer version of this library wrote."""
    if not isinstance(offset["v"], int) or offset["v"] > OFFSET_VERSION:
        raise OffsetError(
            f"the offset has version {offset['v']!r}, this library reads up to {OFFSET_VERSION}: it was written by a "
            "newer one; upgrade spark-watermark-alignment"
        )


class WrittenSplit(NamedTuple):
    """An entry of `splits` in an offset: a split as its connector writes it, and what the planner knows of it.

    It has had nothing to read since `silent_since_us`; `LONG_AGO_US` if it has something, or is finished.
    """

    split: Any
    watermark: int
    status: SplitStatus
    late: int = 0
    silent_since_us: int = LONG_AGO_US

    @classmethod
    def read(cls, entry: Sequence[Any]) -> WrittenSplit:
        """Take it from an offset."""
        split, watermark, status, *more = entry
        return cls(split, watermark_of(watermark), SplitStatus[status.upper()], *more[:2])

    @staticmethod
    def write(splits: Iterable[Sequence[Any]]) -> list[list[Any]]:
        """Return splits, by their fields, as an offset has them: what is as in most is left out at the end. O(n)."""
        written = []
        for split, watermark, status, late, silent_us in splits:
            entry = [split, None if watermark == MIN_WATERMARK else watermark, _STATUSES[status]]
            more = [late, silent_us] if silent_us != LONG_AGO_US else [late] if late else ()
            written.append([*entry, *more])
        return written


def facts_of(explanation: Explanation, positions: Sequence[SplitPosition], offset: Offset) -> dict[str, Any]:
    """Return what an offset must have in addition to the state, so that `report_of_offset` can restore this. O(n).

    `positions` has id and position of each split of the offset, in its order.
    """
    by_id = {split.split_id: split for split in explanation.splits}
    splits = {at: by_id[split_id] for at, (split_id, _) in enumerate(positions) if split_id in by_id}
    limit = next((s.waits_for for s in splits.values() if s.behind and s.waits_for in _LIMITS), WaitsFor.NOTHING)
    behind = tuple([splits[at].behind if at in splits else 0 for at in range(len(positions))])
    given: dict[str, Any] = {name: getattr(explanation, name) for name in _OF_SOURCE}
    given |= {name: {at: found for at, one in splits.items() if (found := getattr(one, name))} for name in _OF_FEW}
    expected = {at: limit if split.behind else WaitsFor.RECORDS for at, split in splits.items()}
    facts = _Facts(
        **given,
        limit=limit,
        behind=behind if any(behind) else (),
        waits_for={at: one.waits_for for at, one in splits.items() if one.waits_for is not expected[at]},
        holds_us={at: split.holds_us for at, split in splits.items() if split.holds_us != split.watermark},
        next={at: (split.next_us, split.place) for at, split in splits.items() if split.next_us is not None},
        rows=(explanation.batch and explanation.batch.rows) or 0,
        places=() if all(map(eq, positions, _positions(offset))) else tuple(positions),
    )
    written: dict[str, Any] = _FACTS.write(facts)
    return written


def report_of_offset(
    offset: Offset, at_us: int = 0, stands_since_us: int = 0, batch: LastBatch | None = None
) -> WatermarkReport:
    """Return the report in an offset, as of a time, with the time at which the watermark moved last. O(n).

    `batch` is what else is known of its micro-batch. Raises a `ValueError` if it is no offset of this library.
    """
    try:
        why = offset.get(WHY, {})
        facts = _FACTS.read(why)
        positions = facts.places or list(_positions(offset))
        behind = facts.behind or (0,) * len(positions)
        silent = frozenset(offset.get("run", {}).get("silent", ()))
        splits = []
        for at, ((split_id, position), entry) in enumerate(zip(positions, offset["splits"], strict=True)):
            split = WrittenSplit.read(entry)
            if split.status is not SplitStatus.FINISHED:
                is_silent = split.silent_since_us != LONG_AGO_US and not behind[at]
                next_us, place = facts.next.get(at, (None, None))
                own: dict[str, Any] = {
                    "holds_us": split.watermark,
                    "waits_for": facts.limit if behind[at] else WaitsFor.RECORDS,
                }
                own |= {name: known[at] for name in (*own, *_OF_FEW) if at in (known := getattr(facts, name))}
                splits.append(
                    SplitExplanation(
                        split_id=split_id,
                        status=split.status,
                        watermark=split.watermark,
                        position=position,
                        behind=behind[at],
                        silent_since_us=split.silent_since_us if is_silent else None,
                        late=split.late,
                        next_us=next_us,
                        place=place,
                        missed_run=split_id in silent,
                        **own,
                    )
                )
        explanation = Explanation(
            watermark=watermark_of(offset["watermark"]),
            at_us=at_us,
            stands_since_us=stands_since_us,
            splits=tuple(splits),
            counts_runs="run" in offset,
            batch=None if batch is None else replace(batch, rows=facts.rows if why else None),
            **{name: getattr(facts, name) for name in _OF_SOURCE},
        )
        return WatermarkReport(offset["source"], int(offset["n"]), explanation, note_name(offset))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is not an offset of an aligned source: {error!r} in {offset!r}") from error


def note_name(offset: Any) -> str | None:
    """Return the name of the planner's note in an offset; None without one."""
    why = offset.get(WHY) if isinstance(offset, Mapping) else None
    name = why.get(NOTE) if isinstance(why, Mapping) else None
    return name if isinstance(name, str) else None


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
