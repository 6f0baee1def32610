"""`audit`: from a checkpoint to what its watermark dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from streaming_source.checkpoint.offset_log import Checkpoint
from streaming_source.checkpoint.operators import Operator, operators_of
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError
from streaming_source.tools.auditing.counting import Tally, count_reads, settled_sessions
from streaming_source.tools.auditing.operators import check_gap, first_operator, output_mode, rule_of, windows_of_state
from streaming_source.tools.auditing.report import Audit
from streaming_source.tools.auditing.result import AuditedQuery, SourceSummary
from streaming_source.tools.auditing.rule import NothingDropped, Rule, SessionWindows, Undecided
from streaming_source.tools.auditing.sources.base import Asked, AuditedSource, EventTime, SplitRead
from streaming_source.tools.auditing.sources.kinds import source_of
from streaming_source.tools.auditing.watermark_check import Check, check_watermarks, latest_times

Progress = Callable[[int, int], object]
"""Called with how many splits of micro-batches are done, and how many there are."""


def audit(
    checkpoint: str,
    *,
    time: str | Sequence[str] | None = None,
    window: str | None = None,
    mode: str | None = None,
    operator: str | Sequence[str] = (),
    source: str | Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress = lambda done, total: None,
) -> Audit:
    """Count what the watermark of a query dropped, from its checkpoint and its sources, without running it.

    Nothing is written, and a running query is not disturbed. Only event times are read; of a Parquet file that is
    wholly before or after the watermark, only the footer.

    Parameters
    ----------
    checkpoint
        The `checkpointLocation` of a query over files, Delta or Kafka, of Spark 3.5 or later.
    time
        The column of `withWatermark`, or one for each source. Absent: the only column of timestamps, or the one from
        which the watermarks in the checkpoint follow; for Kafka the record's timestamp.
    window
        Size, slide and start of the query's windows, as in `"1 hour"` or `"1 hour, 15 minutes"`; for session windows
        the gap. Absent: the windows in the state of Spark's default provider.
    mode
        The query's output mode: `append`, `update` or `complete`. Absent: the state of Spark's default provider shows
        whether it is complete. The other two drop the same rows; between them, rows in windows that have not ended are
        counted as unknown. Only aggregations by event time need it.
    operator
        What Spark 3.5 does not keep: each stateful operator of the query, in its order. One of `aggregation`,
        `sessionWindow`, `dropDuplicates`, `dropDuplicatesWithinWatermark` and `join`.
    source
        Where the data are now: the directory of files, the path of a Delta table. One for each source.
    options
        Options of `aligned_files` and `aligned_kafka` by which data are read (`fileFormat`, `dataSchema`, `header`,
        `kafka.bootstrap.servers`), `storage.*` for object stores, `timestampUnit`, `timeZone`, `timePattern`.
    progress
        Called as splits are done.

    Raises
    ------
    CheckpointError
        If `checkpoint` is no checkpoint, or is damaged.
    OptionError
        If something is missing that the checkpoint does not have, or `mode` contradicts the state.

    Examples
    --------
    >>> found = audit("/checkpoints/orders", window="1 hour")  # doctest: +SKIP
    >>> found.dropped, found.splits().sort_by("dropped")  # doctest: +SKIP
    """
    given = dict(options or {})
    storage = StorageOptions.pop_from(given)
    found = Checkpoint.open(checkpoint, storage.opened(checkpoint))
    named = (operator,) if isinstance(operator, str) else operator
    operators = operators_of(found.log, named)
    numbers = range(len(found.source_folders))
    first = first_operator(operators, len(numbers)) if operators else None
    mode, is_mode_shown = output_mode(found, first, mode)
    shown, window, rule = _windows_and_rule(found, operators, first, mode, window)
    times = _for_each(time, len(numbers), "time")
    paths = _for_each(source, len(numbers), "source")
    zone, unit, pattern = (given.pop(name, None) for name in ("timeZone", "timestampUnit", "timePattern"))
    delays = frozenset(field.delay_us for field in first.event_times) if first is not None else frozenset()
    delay_us = next(iter(delays)) if len(delays) == 1 else None
    event_times = (EventTime(column, unit, zone, pattern, delay_us) for column in times)
    parts = zip(numbers, event_times, paths, strict=True)
    sources = [source_of(Asked(found, number, time, path, given, storage)) for number, time, path in parts]
    counted = list(_counted(found, sources, rule, progress))
    by_time = not isinstance(rule, Undecided | NothingDropped)
    check = _checked(found, sources, counted, delays, has_zone=zone is not None or not by_time)
    undecided = rule.why if isinstance(rule, Undecided) else None
    if check.refuted is not None and by_time:
        is_ordered = not any(one.has_assumed_order for one in sources)
        undecided = _refuted(check, sum(tally.dropped for _, _, tally in counted), is_ordered=is_ordered)
        for _, _, tally in counted:
            tally.undecide()
    query = AuditedQuery(
        checkpoint=checkpoint,
        query_id=found.log.query_id(),
        sources=tuple(SourceSummary(one.kind, one.name, one.time, one.format_name) for one in sources),
        operator=None if first is None else first.title,
        window=window,
        mode=mode,
        undecided=undecided,
        downstream=tuple(one.title for one in reversed((operators or [])[:-1])) if first is not None else (),
        is_window_shown=shown,
        is_mode_shown=is_mode_shown,
        is_operator_shown=not named,
    )
    notes = [text for one in sources for text in one.notes]
    return Audit.of(query, found, counted, [*notes, *_sides(found.source_folders, sources), *_notes(check, query)])


def _windows_and_rule(
    checkpoint: Checkpoint,
    operators: Sequence[Operator] | None,
    first: Operator | None,
    mode: str | None,
    window: str | None,
) -> tuple[bool, str | None, Rule]:
    """Return whether the state shows the windows, the windows in words, and the rule of the first operator."""
    shown = None
    if first is not None:
        shown = windows_of_state(checkpoint.log, first)
        if window is not None:
            check_gap(checkpoint.log, first, window)
    if shown is None:
        return False, window, rule_of(checkpoint, operators, mode, window)
    if shown.changed is not None:
        return True, None, Undecided(shown.changed)
    if window is not None:
        shown.check(window)
    elif shown.windows is not None:
        window = str(shown.windows)
    return shown.windows is not None, window, rule_of(checkpoint, operators, mode, window)


def _checked(
    checkpoint: Checkpoint,
    sources: Sequence[AuditedSource],
    counted: Sequence[tuple[int, SplitRead, Tally]],
    delays_us: frozenset[int],
    *,
    has_zone: bool,
) -> Check:
    """Compare the watermarks. Without a zone (`has_zone`) they must confirm how zone-less times were read.

    An `OptionError` if no row has a time, or the zone of times decides, is not given, and cannot be confirmed.
    """
    zoneless = next((one for one in sources if one.needs_zone), None)
    check = check_watermarks(checkpoint, latest_times(checkpoint, counted), delays_us, needs_zone=zoneless is not None)
    if not check.has_times:
        columns = ", ".join(one.time for one in sources)
        raise OptionError(
            f"time = {columns!r}: {check.refuted}; name the column of withWatermark with --time, and how its times are "
            "written with -o timestampUnit=ms or -o timePattern"
        )
    has_watermark = any(batch.watermark_us or batch.next_us for batch in checkpoint.batches)
    if zoneless is not None and not has_zone and has_watermark and check.unchecked is not None:
        raise OptionError(
            f"the times in {zoneless.time} of {zoneless.name} have no zone, the checkpoint does not keep that of the "
            f"query's session, and {check.unchecked}; give it with -o timeZone=Europe/Berlin or the like"
        )
    return check


def _refuted(check: Check, dropped: int, *, is_ordered: bool) -> str:
    if not is_ordered:
        return (
            f"{check.refuted}; or its schema has the columns of the CSV files in another order than their first line, "
            "which Spark ignores; give it with -o dataSchema"
        )
    bound = f"; if it only filters them, at most {dropped:,} were dropped" if check.is_filtered else ""
    return f"{check.refuted}{bound}"


def _notes(check: Check, query: AuditedQuery) -> Iterator[str]:
    if check.note is not None:
        yield check.note
    is_counted = query.operator is not None and query.undecided is None
    if check.unchecked is not None and is_counted and len(query.sources) > 1:
        yield f"Whether the event times are those of the query could not be checked: {check.unchecked}."


def _sides(folders: Sequence[str], sources: Sequence[AuditedSource]) -> Iterator[str]:
    for folder in dict.fromkeys(folders):
        sides = [number for number, one in enumerate(folders) if one == folder]
        if len(sides) > 1:
            named = " and ".join(map(str, sides))
            note = (
                f"Sources {named} are one stream, which the query joins or unites with itself: each of its rows counts "
                "once for each side."
            )
            if sources[sides[0]].kind == "files":
                # Offsets of files name no directory. Those of other sources name what they read.
                lost = " and ".join(f"sources/{number}" for number in sides[1:])
                note += (
                    f" If they are several directories, then {lost} of the checkpoint is lost, and these counts are of "
                    f"source {sides[0]} alone, once for each."
                )
            yield note


def _counted(
    checkpoint: Checkpoint, sources: Sequence[AuditedSource], rule: Rule, progress: Progress
) -> Iterator[tuple[int, SplitRead, Tally]]:
    purged = checkpoint.purged_until or [None] * len(sources)
    reads = [list(one.reads(checkpoint.batches, purged[number])) for number, one in enumerate(sources)]
    total, done = sum(map(len, reads)), 0

    def one_done() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    if isinstance(rule, SessionWindows) and rule.waits:
        rule = settled_sessions([read for of_one in reads for read in of_one], rule, checkpoint.emitted_us)
    for number, (one, of_one) in enumerate(zip(sources, reads, strict=True)):
        for read, tally in count_reads(of_one, rule, checkpoint.emitted_us, one.workers, one_done):
            yield number, read, tally


def _for_each(given: str | Sequence[str] | None, sources: int, name: str) -> list[str | None]:
    """Return one value for each source; a single one is for all of them."""
    values: list[str | None] = [given] if given is None or isinstance(given, str) else list(given)
    if len(values) == 1:
        return values * sources
    if len(values) != sources:
        raise OptionError(
            f"{name} is given {len(values)} times, and the query has {sources} sources: give one for each"
        )
    return values
