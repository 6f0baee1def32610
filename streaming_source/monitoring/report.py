"""What one source said of itself after one micro-batch, as a value and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from alignment.arrow_times import format_timestamp
from alignment.combine import SplitStatus
from alignment.durations import format_duration, parse_duration_us
from alignment.explain import Bounds, Explanation, GroupMember, SplitExplanation, WaitsFor
from alignment.sentence import sentence
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["KAFKA", "WatermarkReport", "bounds_from_json", "bounds_to_json"]

KAFKA: Final = "aligned_kafka"
"""Name of the source whose positions are offsets."""

_END: Final = "the end"
_BOUNDS: Final = {
    "maxOutOfOrderness": "out_of_orderness_us",
    "maxDrift": "max_drift_us",
    "idleTimeout": "idle_timeout_us",
}


@dataclass(frozen=True, slots=True)
class WatermarkReport:
    """Where the watermark of one source stands after one micro-batch, why, and how far each split is.

    Attributes
    ----------
    source
        Name of the source: `aligned_files`, ...
    sequence
        Counts the states of the source in this query: `n` of its offset.
    explanation
        All else. Times in it are microseconds since the epoch, UTC.
    """

    source: str
    sequence: int
    explanation: Explanation

    @property
    def sentence(self) -> str:
        """Why the watermark is where it is; `sentence` of the explanation. O(n)."""
        return sentence(self.explanation)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the progress of a query, under `sources[].latestOffset`: ISO-8601 times, no null, O(n)."""
        explanation = self.explanation
        found = {
            "source": self.source,
            "n": self.sequence,
            "at": _text(explanation.at_us),
            "watermark": _text(explanation.watermark),
            "why": self.sentence,
            "cause": explanation.cause.value,
            "heldBy": list(explanation.held_by),
            "standsSince": _text(explanation.stands_since_us),
            "limit": None if explanation.bound_us == MAX_WATERMARK else _text(explanation.bound_us),
            "horizon": None if explanation.horizon_us == MAX_WATERMARK else _text(explanation.horizon_us),
            "bounds": bounds_to_json(explanation.bounds),
            "availableNow": explanation.is_draining or None,
            "group": None if explanation.group is None else _member_to_json(explanation.group),
            "rowsLate": explanation.late,
            "rowsBehind": sum(split.behind for split in explanation.splits),
            "metrics": self._offsets_behind() if self.source == KAFKA else None,
        }
        splits = {split.split_id: _split_to_json(split) for split in explanation.splits}
        return {**{name: value for name, value in found.items() if value is not None}, "splits": splits}

    def _offsets_behind(self) -> dict[str, str]:
        """By the names, and as text, as Spark's own Kafka source has them in `sources[].metrics`."""
        behind = [split.behind for split in self.explanation.splits] or [0]
        found = {"min": min(behind), "max": max(behind), "avg": sum(behind) / len(behind)}
        return {f"{name}OffsetsBehindLatest": str(value) for name, value in found.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """What `to_json` wrote. Fields that are not known are ignored; of those that are not there the default holds.

        Raises
        ------
        ValueError
            If it is not such a report.
        """
        try:
            at_us = _micros(found["at"])
            explanation = Explanation(
                _micros(found.get("watermark"), MIN_WATERMARK),
                at_us,
                _micros(found.get("standsSince"), at_us),
                tuple(_split_from_json(split_id, split) for split_id, split in found["splits"].items()),
                _micros(found.get("limit"), MAX_WATERMARK),
                _micros(found.get("horizon"), MAX_WATERMARK),
                bounds_from_json(found.get("bounds", {})),
                bool(found.get("availableNow", False)),
                _member_from_json(found["group"]) if "group" in found else None,
            )
            return cls(found["source"], found["n"], explanation)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not a report of an aligned source: {error!r} in {json.dumps(found)}") from error

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> list[Self | None]:
        """Of each source of a query, in order, from its progress; None of one that is not of this library.

        Parameters
        ----------
        progress
            As `query.lastProgress` gives it, or a listener, or parsed from its JSON.
        """
        return [cls._of_latest(source["latestOffset"]) for source in progress["sources"]]

    @classmethod
    def of_history(cls, history: Iterable[Mapping[str, Any]], source: int) -> list[Self]:
        """Of one source, by its place in the query, from `query.recentProgress`; oldest first."""
        reports = [cls.of_progress(progress)[source] for progress in history]
        return [report for report in reports if report is not None]

    @classmethod
    def _of_latest(cls, offset: Any) -> Self | None:
        found = json.loads(offset) if isinstance(offset, str) and offset.startswith("{") else offset
        if not isinstance(found, Mapping) or "why" not in found or "splits" not in found:
            return None
        return cls.from_json(found)


def _split_to_json(split: SplitExplanation) -> dict[str, Any]:
    found = {
        "status": split.status.name.lower(),
        "watermark": _text(split.watermark),
        "holds": None if split.holds_us == split.watermark else _text(split.holds_us),
        "position": split.position,
        "rowsBehind": split.behind,
        "waitsFor": split.waits_for.value,
        "silentSince": None if split.silent_since_us is None else _text(split.silent_since_us),
        "rowsLate": split.late or None,
        "nextRecord": None if split.next_us is None else _text(split.next_us),
        "place": split.place,
    }
    return {name: value for name, value in found.items() if value is not None}


def _split_from_json(split_id: str, found: Mapping[str, Any]) -> SplitExplanation:
    watermark = _micros(found.get("watermark"), MIN_WATERMARK)
    return SplitExplanation(
        split_id,
        SplitStatus[found["status"].upper()],
        watermark,
        _micros(found.get("holds"), watermark),
        found["position"],
        found["rowsBehind"],
        WaitsFor(found["waitsFor"]),
        _micros(found["silentSince"]) if "silentSince" in found else None,
        found.get("rowsLate", 0),
        _micros(found["nextRecord"]) if "nextRecord" in found else None,
        found.get("place"),
    )


def _member_to_json(member: GroupMember) -> dict[str, Any]:
    times = {"watermark": member.watermark, "reportedAt": member.reported_us, "countsUntil": member.until_us}
    known = {name: _text(us) for name, us in times.items() if us != MIN_WATERMARK}
    return {"name": member.group, "source": member.source, "pid": member.pid, **known}


def _member_from_json(found: Mapping[str, Any]) -> GroupMember:
    times = _micros(found.get("watermark"), MIN_WATERMARK), _micros(found["reportedAt"]), _micros(found["countsUntil"])
    return GroupMember(found["name"], found["source"], found["pid"], *times)


def bounds_to_json(bounds: Bounds) -> dict[str, Any]:
    """By the names of the options; what is not bounded is left out."""
    written: dict[str, Any] = {
        name: format_duration(value)
        for name, field in _BOUNDS.items()
        if (value := getattr(bounds, field)) is not None
    }
    return written if bounds.max_rows is None else written | {"maxRowsPerTrigger": bounds.max_rows}


def bounds_from_json(found: Mapping[str, Any]) -> Bounds:
    """What `bounds_to_json` wrote."""
    given = {field: parse_duration_us(found[name], name=name) for name, field in _BOUNDS.items() if name in found}
    return Bounds(**given, max_rows=found.get("maxRowsPerTrigger"))


def _text(us: int) -> str | None:
    if us == MIN_WATERMARK:
        return None
    return _END if us == MAX_WATERMARK else format_timestamp(us)


def _micros(text: str | None, default: int | None = None) -> int:
    if text is None and default is not None:
        return default
    if text == _END:
        return MAX_WATERMARK
    assert text is not None
    # Event times may be in years that Python's own type does not have.
    return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64))
