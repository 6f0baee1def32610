"""Up to which event time a table is complete, by the checkpoints of the queries that write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import numpy as np
from pyarrow import fs

from alignment.arrow_times import micros_of
from alignment.claims import SinkCommit
from alignment.codec import Codec, Form, Wire
from alignment.durations import parse_duration_us
from alignment.exceptions import AlignmentError
from alignment.sentence import moment
from alignment.shown import shown
from alignment.watermarks import MAX_WATERMARK, Claim, known_watermark, watermark_of
from streaming_source.checkpoint.writer import TableWriters, Writer, declared_writers
from streaming_source.connectors.tables.commits import NewestMicroBatches
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError
from streaming_source.monitoring.explained import explain_again
from streaming_source.monitoring.micro_batch import CheckpointBatches

if TYPE_CHECKING:
    from streaming_source.connectors.tables.source import TableSource

_Planned: TypeAlias = Callable[[str], CheckpointBatches]
"""Of each checkpoint of a writer what was read of it, from look to look."""

_END: Final = "9999-12-31T23:59:59.999999Z"
"""The end of time in JSON: all rows have come."""


_TIME: Final = Form(lambda us: _END if us == MAX_WATERMARK else f"{np.datetime64(us, 'us')}Z", micros_of)


@dataclass(frozen=True, slots=True)
class WriterCompleteness:
    """One writer of a table: the query `id`, and what its last commit claims.

    `batch` and `version` are those of its last commit, and `until_us` is what that claims; None before there is one.
    The claim stands there since `since_us`, in processing time. `why` says why it is not further, and `held_by` has the
    splits that hold it, of a query over sources of this library.
    """

    id: str
    checkpoint: str
    batch: int | None = None
    version: int | None = None
    until_us: Annotated[int | None, Wire("complete_until", _TIME)] = None
    since_us: Annotated[int | None, Wire("since", _TIME)] = None
    why: str | None = None
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completeness:
    """Up to when a table is complete: no later commit has a row whose `column` is at or before `until_us`.

    But late ones, which are behind the watermark of their writer. `until_us` is None as long as a writer has claimed
    nothing; `version` is that of the newest commit of its writers. Its `str` is for people.
    """

    table: Annotated[str, Wire("-")]
    column: str
    version: int | None
    until_us: Annotated[int | None, Wire("complete_until", _TIME)]
    writers: tuple[WriterCompleteness, ...]

    def covers(self, until_us: int) -> bool:
        """Return whether all rows before an event time are there, in microseconds."""
        return self.until_us is not None and self.until_us >= until_us - 1

    @property
    def holder(self) -> WriterCompleteness:
        """The writer whose claim is the smallest."""
        return min(self.writers, key=lambda one: watermark_of(one.until_us))

    def to_json(self) -> dict[str, Any]:
        """Return it with times as ISO-8601 in UTC, to the microsecond."""
        written: dict[str, Any] = Codec(Completeness, whole=True).write(self)
        return written

    def __str__(self) -> str:
        holder = self.holder
        if self.until_us is None:
            first = f"{self.table} has no claim yet"
        elif self.until_us == MAX_WATERMARK:
            first = f"{self.table} is complete: all rows of its writers have come"
        else:
            first = f"{self.table} is complete until {moment(self.until_us)} by {self.column}"
        since = "" if holder.since_us is None else f", since {moment(holder.since_us)}"
        by = "" if holder.version is None else f", by version {holder.version}"
        lines = [f"{first}{since}{by}."]
        if holder.why is not None and self.until_us != MAX_WATERMARK:
            of = f" of {len(self.writers)}" if self.writers[1:] else ""
            lines.append(f"Not further, because of the writer {holder.id}{of} ({holder.checkpoint}): {holder.why}")
        return "\n".join(map(shown, lines))


def complete_until(
    table: str,
    checkpoints: str | Sequence[str],
    *,
    column: str | None = None,
    delay: timedelta | str | None = None,
    options: Mapping[str, str] | None = None,
) -> Completeness:
    """Return up to which event time a table is complete, by what its writers have committed.

    The table's newest commits are read, and a few small files of each checkpoint; no data file is listed or opened, and
    Spark is not started.

    Parameters
    ----------
    table
        The folder of a Delta table, the name of an Iceberg table, or a directory that Spark's file sink writes.
    checkpoints
        The `checkpointLocation` of each query that writes the table, running or stopped. `"old -> new"` is one that
        another has replaced.
    column
        The column of the table; None for the one that the claim is on by itself, as `window.end`.
    delay
        How far a row's column may be behind its writer's watermark, where that does not follow from what the query
        does; you vouch for it. None for what follows alone.
    options
        As those of the format that reads it: `storage.*`, and `catalog.*` of an Iceberg table.

    Raises
    ------
    ClaimError
        If no claim can be had of a writer; names it, the reason and the fix.
    CheckpointError, OptionError
        If a checkpoint is damaged, or there is no such table.

    Examples
    --------
    >>> found = complete_until("silver", "checkpoints/silver")  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP
    silver is complete until 2026-01-01 12:40:00 UTC by window.end, since 2026-01-01 12:41:07 UTC, by version 17.
    """
    return WatchedTable(table, checkpoints, column, delay, options or {}).look()


@dataclass
class WatchedTable:
    """A table that is looked at from time to time: what one look has read of it and its writers the next one does not.

    The attributes are the parameters of `complete_until`.
    """

    table: str
    checkpoints: str | Sequence[str]
    column: str | None = None
    delay: timedelta | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    _known: NewestMicroBatches | None = field(default=None, init=False, repr=False)
    _planned: _Planned = field(default_factory=lambda: cache(CheckpointBatches), init=False, repr=False)

    def __post_init__(self) -> None:
        self._others = dict(self.options)
        self._storage = StorageOptions.pop_from(self._others)

    def look(self) -> Completeness:
        """Return up to which event time it is complete now; raises what `complete_until` does."""
        delay_us = None if self.delay is None else parse_duration_us(self.delay, name="delay")
        # Anew each time: in the checkpoint of a writer another query may have begun.
        writers = TableWriters(declared_writers(self.checkpoints, self.column, delay_us, self._storage.opened))
        self._known = self._newest(writers)
        commits = self._known.commits
        writers.take(SinkCommit(version, [(query, batch)]) for query, (batch, version) in reversed([*commits.items()]))
        current = [(writers.writer(one), claim) for one, claim in writers.claims.current]
        described = tuple(_described(writer, claim, commits, self._planned) for writer, claim in current)
        version = next((version for _, version in commits.values()), None)
        return Completeness(self.table, writers.column, version, known_watermark(writers.claims.until_us), described)

    @cached_property
    def _source(self) -> TableSource | None:
        """The table; None for a directory."""
        # Imported here: each kind of table needs a package of its own.
        given = {"path": self.table, **self.options}
        if any(name.lower().startswith("catalog.") for name in self.options):
            from streaming_source.connectors import IcebergSource

            return IcebergSource.from_options(IcebergSource.options().parse(given))
        filesystem, root = self._storage.at(self.table).open()
        if filesystem.get_file_info(f"{root}/_delta_log").type is fs.FileType.Directory:
            from streaming_source.connectors import DeltaSource

            return DeltaSource.from_options(DeltaSource.options().parse(given))
        return None

    def _newest(self, writers: TableWriters) -> NewestMicroBatches:
        queries = writers.ids
        if self._source is not None:
            return self._source.newest_micro_batches(queries, known=self._known)
        if self._others:
            names = ", ".join(self._others)
            raise OptionError(f"options {names}: of a directory only storage.* is known; leave them out")
        from streaming_source.connectors.files.sink_log import last_micro_batch

        log = self._storage.at(self.table).open()
        batch = last_micro_batch(*log)
        if batch is None:
            raise OptionError(
                f"{self.table} is no Delta table, and has no log of Spark's file sink (_spark_metadata), which has "
                "what was committed; give a directory that writeStream writes, or the name of an Iceberg table with "
                "its catalog"
            )
        if len(queries) > 1:
            raise OptionError(
                f"{self.table} is written by Spark's file sink, whose log is of one query, and {len(queries)} "
                "checkpoints are given; give that of the query"
            )
        writers.check_directory(self.table, lambda: last_micro_batch(*log))
        return NewestMicroBatches(batch, frozenset(queries), dict.fromkeys(queries, (batch, batch)))


def _described(
    writer: Writer,
    claim: Claim | None,
    commits: Mapping[str, tuple[int, int]],
    planned: _Planned,
) -> WriterCompleteness:
    batch, version = commits.get(writer.id, (None, None))
    if batch is None or claim is None or writer.progress(claim.batch) is None:
        why = "it has committed nothing to this table" if batch is None else "its last claim is not known any more"
        return WriterCompleteness(writer.id, writer.checkpoint, batch, version, why=why)
    times = known_watermark(claim.until_us), writer.since_us(claim.batch)
    return WriterCompleteness(
        writer.id, writer.checkpoint, claim.batch, claim.version, *times, *_why(writer, claim.batch, planned)
    )


def _why(writer: Writer, batch: int, planned: _Planned) -> tuple[str, tuple[str, ...]]:
    """Return why a claim is not further, and the splits that hold it."""
    if (next_us := writer.next_us(batch)) is not None:
        return (
            f"its next micro-batch claims {moment(next_us)}. If it has no data, it comes with the next trigger, unless "
            "spark.sql.streaming.noDataMicroBatches.enabled is false: then it waits for data"
        ), ()
    if not writer.is_ours:
        return (
            "it reads Spark's own sources, and its watermark is the latest event time that it has read, less its delay",
            (),
        )
    try:
        reports = [source.report for source in explain_again(planned(writer.checkpoint)).sources]
    except (AlignmentError, OSError):
        reports = []
    slowest = min(reports, key=lambda report: report.explanation.watermark, default=None)
    return ("its sources are not known yet", ()) if slowest is None else (slowest.sentence, slowest.explanation.held_by)
