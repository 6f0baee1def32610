"""A report comes back from JSON as it was: from a progress, and from an offset with what it says of its splits."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.combine import SplitStatus
from alignment.explain import Bounds, Explanation, SplitExplanation, WaitsFor
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.causes.answer import sentence
from streaming_source.monitoring.report import WatermarkReport, facts_of, report_of_offset
from tests.examples import examples

SECOND = 1_000_000
TIMES = st.sampled_from([MIN_WATERMARK, -1, 0, 1, 20 * SECOND, 21 * SECOND])
LIMITS = st.one_of(TIMES, st.just(MAX_WATERMARK))
DURATIONS = st.none() | st.sampled_from([0, SECOND])
BOUNDS = st.builds(Bounds, DURATIONS, DURATIONS, st.none() | st.just(SECOND), st.none() | st.just(5))


@st.composite
def split_explanations(draw: st.DrawFn, split_id: str, limit: WaitsFor) -> SplitExplanation:
    behind = draw(st.sampled_from([0, 0, 7]))
    return SplitExplanation(
        split_id,
        draw(st.sampled_from([SplitStatus.ACTIVE, SplitStatus.PAUSED, SplitStatus.IDLE])),
        draw(TIMES),
        draw(TIMES),
        draw(st.integers(0, 9)),
        behind,
        limit if behind else draw(st.sampled_from([WaitsFor.RECORDS, WaitsFor.REPORT])),
        late=draw(st.integers(0, 2)),
        invalid=draw(st.integers(0, 1)),
    )


@st.composite
def explanations(draw: st.DrawFn) -> Explanation:
    limit = draw(st.sampled_from([WaitsFor.DRIFT, WaitsFor.ROWS, WaitsFor.GROUP, WaitsFor.HORIZON]))
    return Explanation(
        watermark=draw(TIMES),
        at_us=30 * SECOND,
        stands_since_us=25 * SECOND,
        splits=tuple([draw(split_explanations(split_id, limit)) for split_id in "abc"[: draw(st.integers(0, 3))]]),
        bound_us=draw(LIMITS),
        horizon_us=draw(LIMITS),
        bounds=Bounds(
            draw(DURATIONS), draw(DURATIONS), draw(st.none() | st.just(SECOND)), draw(st.none() | st.just(5))
        ),
        is_draining=draw(st.booleans()),
        needed_bound_us=draw(DURATIONS),
    )


def offset_of(explanation: Explanation) -> dict[str, Any]:
    """An offset as it is written."""

    def written(us: int) -> int | None:
        return None if us == MIN_WATERMARK else us

    splits = [
        [
            {"split_id": one.split_id, "position": one.position},
            written(one.watermark),
            one.status.name.lower(),
            one.late,
        ]
        for one in explanation.splits
    ]
    offset = {"source": "testing", "n": 1, "watermark": written(explanation.watermark), "splits": splits}
    places = [(split.split_id, split.position) for split in explanation.splits]
    return {**offset, "why": facts_of(explanation, places, offset)}


@settings(max_examples=examples(150))
@given(explanations())
def test_a_report_comes_back_from_json_as_it_was(explanation: Explanation) -> None:
    progress = json.loads(json.dumps(WatermarkReport("testing", 1, explanation).to_json()))
    offset = json.loads(json.dumps(offset_of(explanation)))
    times = explanation.at_us, explanation.stands_since_us
    for found in (WatermarkReport.from_json(progress), report_of_offset(offset, *times)):
        assert found.explanation == explanation
        assert found.sentence == sentence(explanation)
