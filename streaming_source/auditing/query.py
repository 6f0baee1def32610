"""`audit`: from a checkpoint to what its watermark dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from streaming_source.auditing.checkpoint import Checkpoint
from streaming_source.auditing.counting import Tally, count_reads, settled_sessions
from streaming_source.auditing.operators import Operator, first_operator, operators_of, rule_of
from streaming_source.auditing.output_mode import output_mode
from streaming_source.auditing.report import Audit
from streaming_source.auditing.result import AuditedQuery, SourceSummary
from streaming_source.auditing.rule import Rule, SessionWindows, Undecided
from streaming_source.auditing.sources import AuditedSource, SplitRead, source_of
from streaming_source.auditing.sources.event_time import EventTime
from streaming_source.auditing.state_windows import windows_of_state
from streaming_source.auditing.watermark_check import watermark_note
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError

__all__ = ["audit"]

_STORAGE: Final = "storage."

Progress = Callable[[int, int], object]
"""Called with how many splits of micro-batches are done, and how many there are."""


def audit(
    checkpoint: str,
    *,
    time: str | Sequence[str] | None = None,
    window: str | None = None,
    mode: str | None = None,
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
        The `checkpointLocation` of a query over files, Delta or Kafka, of Spark 4.0 or later.
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
    storage = StorageOptions.of(
        {key[len(_STORAGE) :]: given.pop(key) for key in list(given) if key.startswith(_STORAGE)}
    )
    found = Checkpoint.open(checkpoint, storage)
    operators = operators_of(found)
    places = range(len(found.source_names))
    first = first_operator(operators, len(places)) if operators else None
    mode = output_mode(found, first, mode)
    if window is None and first is not None and (column := first.window_column) is not None:
        windows = windows_of_state(found, first.number, len(first.key), column)
        window = None if windows is None else str(windows)
    rule = rule_of(operators, len(places), mode, window)
    times = _for_each(time, len(places), "time")
    paths = _for_each(source, len(places), "source")
    zone, unit, pattern = (given.pop(name, None) for name in ("timeZone", "timestampUnit", "timePattern"))
    delay_us = _delay_us(first)
    sources = [
        source_of(
            found,
            place,
            EventTime(times[place], unit, zone, pattern, delay_us),
            path=paths[place],
            options=given,
            storage=storage,
        )
        for place in places
    ]
    counted = list(_counted(found, sources, rule, progress))
    query = AuditedQuery(
        checkpoint=checkpoint,
        query_id=found.log.query_id(),
        sources=tuple(SourceSummary(one.kind, one.name, one.time, one.format_name) for one in sources),
        operator=None if first is None else first.title,
        window=window,
        mode=mode,
        undecided=rule.why if isinstance(rule, Undecided) else None,
        downstream=tuple(one.title for one in reversed(operators[:-1])) if first is not None else (),
    )
    note = watermark_note(found, counted, delay_us)
    notes = [text for one in sources for text in one.notes] + ([] if note is None else [note])
    return Audit.of(query, found, counted, notes)


def _counted(
    checkpoint: Checkpoint, sources: Sequence[AuditedSource], rule: Rule, progress: Progress
) -> Iterator[tuple[int, SplitRead, Tally]]:
    purged = checkpoint.purged_until or [None] * len(sources)
    reads = [list(one.reads(checkpoint.batches, purged[place])) for place, one in enumerate(sources)]
    total, done = sum(map(len, reads)), 0

    def one_done() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    if isinstance(rule, SessionWindows) and rule.waits:
        rule = settled_sessions([read for of_one in reads for read in of_one], rule, checkpoint.emitted_us)
    for place, (one, of_one) in enumerate(zip(sources, reads, strict=True)):
        for read, tally in count_reads(of_one, rule, checkpoint.emitted_us, one.workers, one_done):
            yield place, read, tally


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


def _delay_us(operator: Operator | None) -> int | None:
    """Return the delay of `withWatermark`, if the state has a single one; else None."""
    delays = {field.delay_us for field in operator.event_times} if operator is not None else set()
    return delays.pop() if len(delays) == 1 else None
