"""What a reader emitted, record by record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.timestamps import TimestampAssigner
from streaming_source.api import ReaderOutput, SourceOutput

__all__ = ["CollectingOutput", "EmittedRecord", "ReadBatch"]


class EmittedRecord(NamedTuple):
    """A record that came out of a reader.

    Attributes
    ----------
    split_id, position
        Which record.
    time_us
        Its event time; `NO_TIMESTAMP` for none.
    """

    split_id: str
    position: int
    time_us: int


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One micro-batch.

    Attributes
    ----------
    sequence
        Number of the state that it leads to.
    records
        By reader, in the order in which it emitted them.
    bound_us
        The planner cut every split at its first record later than this; None where another planner had cut them.
    watermark
        The watermark that the batch announces.
    planned_rows
        How many records were planned; None where another planner had.
    """

    sequence: int
    records: tuple[tuple[EmittedRecord, ...], ...]
    bound_us: int | None
    watermark: int
    planned_rows: int | None = None

    @property
    def all_records(self) -> list[EmittedRecord]:
        """Of all readers, one after another."""
        return [record for records in self.records for record in records]


class CollectingOutput(ReaderOutput):
    """Collects records with the event times that the application assigns.

    Parameters
    ----------
    assigner
        The second step of event times.
    schema
        Columns that every batch must have; None if that is not to be looked at.

    Attributes
    ----------
    records
        In the order in which they were emitted.
    open_splits
        Splits that have an output.
    schema
        As it was given.
    """

    def __init__(self, assigner: TimestampAssigner, schema: pa.Schema | None = None) -> None:
        self._assigner = assigner
        self.schema = schema
        self.records: list[EmittedRecord] = []
        self.open_splits: set[str] = set()

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        self.open_splits.add(split_id)
        return _SplitOutput(self, split_id, self._assigner)

    def release_output_for_split(self, split_id: str) -> None:
        self.open_splits.remove(split_id)

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        """Records belong to splits: each goes to the output of its own."""
        raise AssertionError("records were emitted into the output of the reader, not of their split")


class _SplitOutput(SourceOutput):
    def __init__(self, whole: CollectingOutput, split_id: str, assigner: TimestampAssigner) -> None:
        self._whole = whole
        self._split_id = split_id
        self._assigner = assigner

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        if self._split_id not in self._whole.open_splits:
            raise AssertionError(f"records of split {self._split_id!r} were emitted after its output was released")
        if self._whole.schema is not None and not batch.schema.equals(self._whole.schema):
            raise AssertionError(
                f"split {self._split_id!r}: the reader was asked for the columns {self._whole.schema}, and emitted "
                f"{batch.schema}"
            )
        where = np.arange(positions, positions + batch.num_rows) if isinstance(positions, int) else positions
        times = self._assigner.extract(batch, source_timestamps).values
        if not len(where) == len(times) == batch.num_rows:
            raise AssertionError(f"{batch.num_rows} records were emitted with {len(where)} positions")
        self._whole.records += [
            EmittedRecord(self._split_id, position, time)
            for position, time in zip(where.tolist(), times.tolist(), strict=True)
        ]
