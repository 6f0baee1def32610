"""What an offset holds beside the state of its source, so that a checkpoint alone says why its watermark stands.

    "why": {"bounds": {"maxOutOfOrderness": "5 seconds", "maxDrift": "10 minutes", "idleTimeout": "1 minute"},
            "limit": 1357034400000000, "waitsFor": "drift", "behind": [0, 812, 0]}

All of it is as it was when the micro-batch was planned, and decoding a state ignores it. `behind` counts the records of
each of the offset's splits that were there and not read: those wait for `waitsFor`, the others for records. Where they
say something there follow `others` (splits that wait for something else), `holds` and `next` (see `SplitExplanation`),
all by the numbers of splits in the offset; `horizon`, `availableNow`, `group` (a `GroupMember`), and `places`, of
splits that are not written as `[id, position, ...]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Final, TypeAlias

from alignment.combine import SplitStatus
from alignment.explain import Explanation, GroupMember, SplitExplanation, WaitsFor
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.report import KAFKA, WatermarkReport, bounds_from_json, bounds_to_json

__all__ = ["facts_of", "positions_of_offset", "report_of_offset"]

Offset: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[str, int]

_LIMITS: Final = (WaitsFor.DRIFT, WaitsFor.ROWS, WaitsFor.GROUP, WaitsFor.HORIZON)
"""What all splits wait for that have records, since one plan sets one limit."""


def facts_of(explanation: Explanation, places: Sequence[Place], offset: Offset) -> dict[str, Any]:
    """What an offset must hold beside the state for `report_of_offset` to give this explanation. O(n).

    Parameters
    ----------
    explanation
        Of the engine, when the state was planned.
    places
        Id and position of each split of the offset, in its order.
    offset
        As `OffsetCodec` wrote it.
    """
    by_id = {split.split_id: split for split in explanation.splits}
    splits = {at: by_id[split_id] for at, (split_id, _) in enumerate(places) if split_id in by_id}
    behind = [splits[at].behind if at in splits else 0 for at in range(len(places))]
    limit = next((s.waits_for for s in splits.values() if s.behind and s.waits_for in _LIMITS), WaitsFor.NOTHING)
    facts = {
        "bounds": bounds_to_json(explanation.bounds),
        "limit": _unless(explanation.bound_us, MAX_WATERMARK),
        "horizon": _unless(explanation.horizon_us, MAX_WATERMARK),
        "availableNow": explanation.is_draining,
        "waitsFor": None if limit is WaitsFor.NOTHING else limit.value,
        "behind": behind if any(behind) else None,
        "others": _numbers_by_reason(splits, limit),
        "holds": {str(at): split.holds_us for at, split in splits.items() if split.holds_us != split.watermark},
        "next": {str(at): (split.next_us, split.place) for at, split in splits.items() if split.next_us is not None},
        "group": None if explanation.group is None else astuple(explanation.group),
        "places": None if places == _places(offset) else places,
    }
    return {name: value for name, value in facts.items() if value}


def positions_of_offset(offset: Offset) -> dict[str, int]:
    """Of each split of an offset, finished ones too, the position of its next record. O(n)."""
    return dict(offset.get("why", {}).get("places") or _places(offset))


def report_of_offset(offset: Offset, at_us: int = 0, stands_since_us: int = 0) -> WatermarkReport:
    """What an offset says of its source. O(n).

    Parameters
    ----------
    offset
        As it stands in the offset log, parsed.
    at_us, stands_since_us
        Processing time of its micro-batch, and of the one since which the watermark stands there.

    Raises
    ------
    ValueError
        If it is no offset of this library.
    """
    try:
        facts = offset.get("why", {})
        places = positions_of_offset(offset).items()
        behind = facts.get("behind") or [0] * len(places)
        others = {at: WaitsFor(why) for why, numbers in facts.get("others", {}).items() for at in numbers}
        splits = tuple(
            _split(at, place, entry, rows, facts, others.get(at))
            for at, (place, entry, rows) in enumerate(zip(places, offset["splits"], behind, strict=True))
            if entry[2] != "finished"
        )
        explanation = Explanation(
            _or(offset["watermark"], MIN_WATERMARK),
            at_us,
            stands_since_us,
            splits,
            facts.get("limit", MAX_WATERMARK),
            facts.get("horizon", MAX_WATERMARK),
            bounds_from_json(facts.get("bounds", {})),
            facts.get("availableNow", False),
            GroupMember(*facts["group"]) if "group" in facts else None,
        )
        return WatermarkReport(offset["source"], offset["n"], explanation)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not an offset of an aligned source: {error!r} in {offset!r}") from error


def _numbers_by_reason(splits: Mapping[int, SplitExplanation], limit: WaitsFor) -> dict[str, list[int]]:
    """What splits wait for that do not wait for `limit` with records, and for records without."""
    found: dict[str, list[int]] = {}
    for at, split in splits.items():
        if split.waits_for is not _expected(split.behind, limit):
            found.setdefault(split.waits_for.value, []).append(at)
    return found


def _expected(behind: int, limit: WaitsFor) -> WaitsFor:
    return limit if behind else WaitsFor.RECORDS


def _split(
    at: int, place: Place, entry: Sequence[Any], behind: int, facts: Mapping[str, Any], other: WaitsFor | None
) -> SplitExplanation:
    split_id, position = place
    watermark = _or(entry[1], MIN_WATERMARK)
    since_us = entry[4] if len(entry) > 4 else NO_TIMESTAMP
    waits_for = other or _expected(behind, WaitsFor(facts.get("waitsFor", WaitsFor.NOTHING)))
    return SplitExplanation(
        split_id,
        SplitStatus[entry[2].upper()],
        watermark,
        facts.get("holds", {}).get(str(at), watermark),
        position,
        behind,
        waits_for,
        None if since_us == NO_TIMESTAMP or behind else since_us,
        entry[3] if len(entry) > 3 else 0,
        *facts.get("next", {}).get(str(at), ()),
    )


def _places(offset: Offset) -> list[Place]:
    """Id and position of each split, if they are where the connectors here write them."""
    source = offset["source"]
    return [_kafka_place(*entry[0]) if source == KAFKA else _place(entry[0]) for entry in offset["splits"]]


def _place(written: Any) -> Place:
    if isinstance(written, Mapping):
        return written.get("split_id", ""), written.get("position", 0)
    return tuple([*written, "", 0][:2]) if isinstance(written, list) else ("", 0)


def _kafka_place(topic: str, partition: int, position: int, _: int, *others: Any) -> Place:
    incarnation = f"@{others[1]}" if others[1:] else ""
    return f"{topic}-{partition}{incarnation}", position


def _unless(value: int, nothing: int) -> int | None:
    return None if value == nothing else value


def _or(value: int | None, nothing: int) -> int:
    return nothing if value is None else value
