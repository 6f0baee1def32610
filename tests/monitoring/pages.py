"""Pages to look at: of queries of a few splits that ran, and of histories of thousands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from alignment.combine import SplitStatus
from alignment.explain import Bounds, Explanation, SplitExplanation, WaitsFor
from streaming_source.monitoring.explained import explain_batches
from streaming_source.monitoring.history import History
from streaming_source.monitoring.micro_batch import MicroBatch, Statistics
from streaming_source.monitoring.report import WatermarkReport
from streaming_source.tools.pages.html_page import html_report
from tests.monitoring.situations import SECOND, START_US, Situation, at, records


def data_of(page: str) -> dict[str, Any]:
    """What a page draws."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def write_page(query: Situation, title: str = "Watermarks: /checkpoints/orders") -> Path:
    """The page of a query that ran, as `streaming-source report` writes it, at the time of its clock."""
    history = History.of_checkpoint(str(query.folder / "checkpoint"))
    page = query.folder / "report.html"
    page.write_text(html_report(history, query.explain_checkpoint(), title, query.clock.now_us()), encoding="utf-8")
    return page


def four_kinds(folder: Path) -> Situation:
    """One split holds the watermark, one is at the limit, one is idle, one goes on."""
    speeds = {"held": 1, "ahead": 5, "idle": 1, "middle": 1.3}
    query = Situation(folder, {split: records(range(3)) for split in speeds}, drift="20 seconds", idle="5 seconds")
    query.run()
    for second in range(1, 31):
        query.clock.advance("1 second")
        for split, speed in speeds.items():
            if split != "idle" or second < 12:
                query.source.go_on(split, *records([2 + speed * second]))
        query.run(1)
    return query


def batches_of(splits: int, batches: int, first: int = 0) -> Iterable[MicroBatch]:
    """Micro-batches of a query with so many splits: every seventh paused, every eleventh idle, `split-1` is slowest."""
    for number in range(first, first + batches):
        yield _micro_batch(splits, number)


def page_of(splits: int, batches: int, name: str = "split-{0}") -> str:
    """The page of these, written one second after the last; `name` is formatted with the number of a split."""
    history, made = History(splits * batches), [_renamed(batch, name) for batch in batches_of(splits, batches)]
    for batch in made:
        history.add(batch)
    return html_report(history, explain_batches(made[-2:], at(batches)), "Watermarks: many", at(batches))


def _renamed(batch: MicroBatch, name: str) -> MicroBatch:
    (report,) = batch.sources
    assert report is not None
    splits = tuple(
        split._replace(split_id=name.format(int(split.split_id.removeprefix("split-"))))
        for split in report.explanation.splits
    )
    return replace(batch, sources=(replace(report, explanation=replace(report.explanation, splits=splits)),))


def _micro_batch(splits: int, number: int) -> MicroBatch:
    statuses = {0: SplitStatus.PAUSED, 4: SplitStatus.IDLE}
    found = tuple(
        SplitExplanation(
            split_id=f"split-{k}",
            status=SplitStatus.ACTIVE if k == 1 else statuses.get(k % 7 if k % 11 else 4, SplitStatus.ACTIVE),
            watermark=(watermark := at(number) if k == 1 else at(number + 1 + k % 50)),
            holds_us=watermark,
            position=number * 10 + k,
            behind=k % 13,
            waits_for=WaitsFor.NOTHING if k % 13 else WaitsFor.RECORDS,
            late=k % 3,
        )
        for k in range(splits)
    )
    now = at(number)
    explanation = Explanation(
        at(number), now, now, found, bound_us=at(number + 60), bounds=Bounds(max_drift_us=60 * SECOND)
    )
    report = WatermarkReport("aligned_kafka", number + 1, replace(explanation, reads="topic orders"))
    counted = Statistics((7,), None, None, None, None, 1_000_000, 100 + number % 10, 5_000, 0)
    return MicroBatch(number, START_US + number * SECOND, 0, True, (report,), counted)
