"""All that is different on PySpark 4.0 and 4.1, where Spark tells a Python streaming source less.

Spark 4.2 tells a source where a micro-batch starts, a limit of rows, and that a run is an AvailableNow run. Before, it
calls `latestOffset()` alone. `ReaderBefore42` stands between Spark and a reader of this library, and works out the
rest from the order of Spark's calls (measured on 4.0.2 and 4.1.4):

    new query            latestOffset, initialOffset, partitions(initial, end)
    restart              partitions(last, last), [partitions(start, last) if that was not committed,] latestOffset,
                         partitions(last, end)
    AvailableNow, where `WRAPPER` is true:
      new query          latestOffset, initialOffset, latestOffset, initialOffset, partitions(initial, end)
      restart            latestOffset, partitions(last, last), [partitions(start, last),] latestOffset,
                         partitions(last, end)
    AvailableNow, where it is false: one micro-batch, as of another trigger

With the wrapper the first answer of `latestOffset` is the end of the only micro-batch with records, and a second one
without records closes windows. At a restart that answer is due before Spark has said where the query is; so it is
looked up in the query's checkpoint, which option `availableNowCheckpoint` names.

One micro-batch then reads all there is: the *steps* that 4.2 would make micro-batches of. Its offset is that of the
last step, and has the others under `STEPS`, so that the same steps are read when it is read again: also by Spark 4.2
or later, after an upgrade.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import pyarrow as pa
from pyspark import __version__ as PYSPARK
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from alignment.shown import log_of
from streaming_source.exceptions import OptionError, UnsupportedOperationError, plainly

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import TimeType

    from streaming_source.api import Source
    from streaming_source.spark.input_partition import AlignedInputPartition
    from streaming_source.spark.offsets import Offset

__all__ = [
    "IS_BEFORE_4_2",
    "STEPS",
    "WRAPPER",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReaderBefore42",
    "SupportsTriggerAvailableNow",
    "TimeType",
    "arrow_schema",
    "prepare_session",
    "read_steps",
]

_log = log_of(__name__)

IS_BEFORE_4_2: Final = tuple(map(int, PYSPARK.split(".")[:2])) < (4, 2)

WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""Setting of Spark 3.5 and later: whether AvailableNow runs over a source without support end with a micro-batch
without records."""

STEPS: Final = "steps"
"""Key of an offset: the offsets before it that its micro-batch passes."""

if not TYPE_CHECKING:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ModuleNotFoundError:

        class ReadLimit:
            """In the place of Spark's."""

        class ReadAllAvailable(ReadLimit):
            """No limit of rows."""

        @dataclass(frozen=True)
        class ReadMaxRows(ReadLimit):
            """At most so many rows."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """The calls of Spark 4.2 to a source that AvailableNow reads."""

            def getDefaultReadLimit(self) -> ReadLimit:
                return ReadAllAvailable()

            def reportLatestOffset(self) -> None:
                return None

    try:
        from pyspark.sql.types import TimeType
    except ImportError:  # before 4.1

        class TimeType:
            """No column has it."""


def arrow_schema(frame: StructType) -> pa.Schema:
    """Return the Arrow schema of a frame, as Spark expects its batches."""
    return to_arrow_schema(frame) if IS_BEFORE_4_2 else to_arrow_schema(frame, timezone="UTC")


def prepare_session(spark: Any, is_ours: Callable[[str], bool], *, is_bounded: bool, checkpoint: str | None) -> None:
    """Set `WRAPPER` in the session of a frame that can be read so, unless it is set or another source may suffer.

    Spark then asks each source without support where its data ends before it says where the query is. A Python source
    of somebody else, which counts on the order of the calls, would read from its start again.
    """
    if not IS_BEFORE_4_2 or not (is_bounded or checkpoint is not None) or spark.conf.get(WRAPPER, None) is not None:
        return
    others = sorted(name for name in _python_sources(spark) if not is_ours(name))
    why = f"the session has other Python sources ({', '.join(others)}), which may not expect it" if others else None
    if why is None:
        try:
            spark.conf.set(WRAPPER, "true")
        except Exception as error:  # a platform or a pipeline that refuses settings, each with an error of its own
            why = f"it cannot be set here ({type(error).__name__})"
    if why is not None:
        _log.warning(
            "PySpark %s: %s is not true, and %s. A run with trigger(availableNow=True) is then one micro-batch, and "
            "windows that it closes come out with the next run; set it to true before the query starts, if all sources "
            "of the session allow it",
            PYSPARK,
            WRAPPER,
            why,
        )


def _python_sources(spark: Any) -> list[str]:
    """Return the names of the Python sources of a classic session; none under Spark Connect, which does not tell."""
    names: list[str] = []
    # Spark has no call for this, and may rename its fields.
    with suppress(Exception):
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        for name in ("runtimeDataSourceBuilders", "staticDataSourceBuilders"):
            field = manager.getClass().getDeclaredField(name)
            field.setAccessible(True)
            found = field.get(manager)
            names += list(found) if isinstance(found, Mapping) else found.keys().mkString("\n").split()
    return names


class Reader42(Protocol):
    """The calls of Spark 4.2 to a reader."""

    source: Source[Any, Any]

    def initialOffset(self) -> Offset: ...
    def getDefaultReadLimit(self) -> ReadLimit: ...
    def prepareForTriggerAvailableNow(self) -> None: ...
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset: ...
    def reportLatestOffset(self) -> Offset | None: ...
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]: ...
    def commit(self, end: Offset) -> None: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...
    def stop(self) -> None: ...


@dataclass(eq=False)
class ReaderBefore42(DataSourceStreamReader):
    """Calls a reader as Spark 4.2 does.

    Parameters
    ----------
    reader
        The reader for 4.2.
    checkpoint
        Option `availableNowCheckpoint`: the checkpoint of a query that runs in AvailableNow; None without.
    is_bounded
        Whether the source ends: its first micro-batch reads all there is, too.
    knows_ahead
        Whether event times are known before records are read. If not, a step follows from what was read before it.
    is_of_late
        Whether it reads the late records of another query, which no option gives a checkpoint.
    """

    reader: Reader42
    checkpoint: str | None = None
    is_bounded: bool = False
    knows_ahead: bool = True
    is_of_late: bool = False
    # The micro-batch that was planned last; before the first, `_end` is where the query is, if Spark has said it.
    _start: Offset | None = field(default=None, init=False)
    _end: Offset | None = field(default=None, init=False)
    # What it reads, if that is known already.
    _parts: list[InputPartition] | None = field(default=None, init=False)
    # Whether Spark has asked where a new query starts; or has asked for an end before it said where the query is.
    _is_new: bool = field(default=False, init=False)
    _is_unsure: bool = field(default=False, init=False)
    # Whether the run is one of AvailableNow with the wrapper; whether all there is was planned.
    _is_wrapped: bool = field(default=False, init=False)
    _is_drained: bool = field(default=False, init=False)
    # Whether the last micro-batch in the checkpoint is not committed: its run has not ended.
    _continues_run: bool = field(default=False, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_start": None, "_end": None, "_parts": None}

    # ---- in the planner ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        self._is_new = True
        return self.reader.initialOffset()

    @plainly
    def latestOffset(self) -> Offset:  # type: ignore[override]
        if self._end is None:
            logged = None if self.checkpoint is None else self._logged(self.checkpoint)
            self._is_unsure = True
            return self._plan(self.reader.initialOffset() if logged is None else logged)
        if self._is_unsure:
            # With another trigger Spark has no second question before it reads.
            self._see_wrapper()
        if self._is_wrapped:
            return self._end
        if self._is_drained and self.checkpoint is not None:
            raise OptionError(
                f"option availableNowCheckpoint = {self.checkpoint!r} is for trigger(availableNow=True), and this "
                "query continues after the data that existed at its start; leave it out, or start it with that trigger"
            )
        return self._plan(self._end)

    @plainly
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end and not self._is_new:
            self._stand_at(end)
            return []
        self._is_unsure = False
        if start == self._start and end == self._end and self._parts is not None:
            return self._parts
        if end == self._end:
            return self.reader.partitions(start, end)
        # What was planned behind it writes its late log again when it is read.
        self._parts = None
        return _by_another(self.reader, start, end)

    def commit(self, end: Offset) -> None:
        self.reader.commit(end)

    def stop(self) -> None:
        self.reader.stop()

    # ---- on an executor ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reader.read(partition)

    def _plan(self, start: Offset) -> Offset:
        """Plan the micro-batch that follows `start`, and return its end: one step, or all that there are."""
        if self.knows_ahead and (self.is_bounded or self.checkpoint is not None):
            end, self._parts = self._drain(start)
        else:
            end, self._parts = self.reader.latestOffset(start, self.reader.getDefaultReadLimit()), None
        # For the note of the planner: Spark does not ask for it.
        self.reader.reportLatestOffset()
        # As Spark will return it.
        self._start, self._end = start, end if end is start else json.loads(json.dumps(end))
        return end

    def _drain(self, start: Offset) -> tuple[Offset, list[InputPartition]]:
        if not self._is_drained:
            self.reader.prepareForTriggerAvailableNow()
            self.reader.getDefaultReadLimit()
            self._is_drained = True
        steps, parts = [_as_open(start) if self._continues_run else start], []
        while (end := self.reader.latestOffset(steps[-1], ReadAllAvailable())) is not steps[-1]:
            parts.append(self.reader.partitions(steps[-1], end))
            steps.append(end)
        if not parts:
            return start, []
        passed = [_state(step) for step in steps[1:-1]]
        return {**steps[-1], STEPS: passed} if passed else steps[-1], _of_steps(parts)

    def _stand_at(self, last: Offset) -> None:
        """Spark says where the query is: at its last offset."""
        if self._end is None:
            self._end = last
            self.reader.getDefaultReadLimit()
        elif self._is_unsure:
            if self._start != last:
                if _state(self._end) != _state(last):
                    raise self._no_position()
                # All that a bounded source has was read before.
                self._start, self._parts = last, []
            self._see_wrapper()

    def _see_wrapper(self) -> None:
        """It is an AvailableNow run with the wrapper; raise if not all was planned."""
        self._is_unsure, self._is_wrapped = False, True
        if not self.knows_ahead:
            raise UnsupportedOperationError(
                f"trigger(availableNow=True) on PySpark {PYSPARK} with {WRAPPER} = true reads all there is in one "
                "micro-batch, and the watermarks of this source are known after it alone; leave indexing at auto, or "
                "set that to false: windows then come out with the next run"
            )
        if not self._is_drained:
            raise self._no_position()

    def _no_position(self) -> OptionError:
        if self.is_of_late:
            return OptionError(
                f"late records on PySpark {PYSPARK} with {WRAPPER} = true: Spark plans a run with "
                "trigger(availableNow=True) before it reads where the query is; set that to false before this query "
                "starts: no window of late records waits for a next run"
            )
        return OptionError(
            f"option availableNowCheckpoint is missing: PySpark {PYSPARK} with {WRAPPER} = true plans a run with "
            "trigger(availableNow=True) before it reads where the query is; give the checkpointLocation of the query "
            "with it, or set that to false: windows then come out with the next run"
        )

    def _logged(self, checkpoint: str) -> Offset | None:
        """Return the last offset of this source in the checkpoint of the query; None for a new query."""
        # Imported here: tasks, and queries of another trigger, do not read it.
        from streaming_source.checkpoint.offset_log import OffsetLog
        from streaming_source.spark.offsets import OffsetCodec

        log = OffsetLog(checkpoint)
        if not (numbers := log.batches()):
            return None
        self._continues_run = numbers[-1] not in log.committed()
        return OffsetCodec(self.reader.source).logged(log, numbers[-1], "option availableNowCheckpoint")


def _as_open(offset: Offset) -> Offset:
    """The offset of a run that goes on: one micro-batch was all of it, and has its end."""
    run = offset.get("run")
    return {**offset, "run": {**run, "ended": False}} if isinstance(run, dict) and "ended" in run else offset


def read_steps(reader: Reader42, start: Offset, end: Offset) -> list[InputPartition]:
    """Return what a micro-batch with `STEPS` reads that an earlier process has planned; the reader is then at its end.

    A split that was found and read to its end within one is in neither of its offsets.
    """
    passed = [start, *end[STEPS]]
    last = {name: value for name, value in end.items() if name != STEPS}
    return _of_steps([*(_by_another(reader, *step) for step in pairwise(passed)), reader.partitions(passed[-1], last)])


def _by_another(reader: Reader42, start: Offset, end: Offset) -> Sequence[InputPartition]:
    """Plan what was planned before; a planner does so from the offsets alone before it does anything else."""
    planner = copy(reader)
    try:
        return planner.partitions(start, end)
    finally:
        planner.stop()


def _of_steps(parts: Sequence[Sequence[InputPartition]]) -> list[InputPartition]:
    """Return what all steps read: the watermark row of the last one alone, as Spark takes the largest."""
    *passed, last = parts or [[]]
    read = cast("list[AlignedInputPartition]", [part for step in passed for part in step])
    return [*(replace(part, watermark_row_us=None) for part in read if part.splits), *last]


def _state(offset: Offset) -> Offset:
    # Imported here: tasks, and each process of a later Spark, import this module too.
    from streaming_source.monitoring.report import WHY

    return {name: value for name, value in offset.items() if name not in (WHY, STEPS)}
