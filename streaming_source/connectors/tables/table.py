"""A table, whatever its format: what a user decides of it, and what a format answers its enumerator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias, get_args

import pyarrow as pa
from pyarrow import fs

from alignment.durations import parse_duration_us
from alignment.timestamps import TimestampAssigner
from alignment.watermarks import Claim
from streaming_source.api.options import boolean, choice, duration_field, durations_as_timedelta, option_field
from streaming_source.connectors.claims import open_claims
from streaming_source.connectors.tables.claimed import ClaimedCommits
from streaming_source.connectors.tables.commits import ChangeRules, NewestMicroBatches
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.data_files.config import ClaimOptions, ReadingConfig
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, StorageOptions

ForeignWriters: TypeAlias = Literal["late", "fail"]

_SHORTEST_US: Final = 1000


@dataclass(frozen=True, kw_only=True, repr=False)
class Table(ClaimOptions, ReadingConfig):
    """A table as a user names it, and as its enumerator finds it. How its files are read is in `ReadingConfig`."""

    bounded: bool = option_field(
        False,
        "bounded",
        boolean,
        "The source ends after what the table has at the start. A query ends with it only in AvailableNow.",
    )
    discovery_interval: timedelta | str = duration_field(
        "1 second",
        "discoveryInterval",
        _SHORTEST_US,
        "How often to look for new commits, beside whenever a trigger finds nothing to read and looks take less than "
        "20 ms.",
    )
    foreign_writers: ForeignWriters = option_field(
        "late",
        "foreignWriters",
        choice(*get_args(ForeignWriters)),
        "With `watermarkFrom`: what to do with rows of a writer that it does not name, at or below the claim of those "
        "that it names. `late`: they are late, and counted by writer; `fail`: at the first file with such rows.",
    )
    storage: StorageOptions = NO_STORAGE_OPTIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        durations_as_timedelta(self)

    @property
    @abstractmethod
    def title(self) -> str:
        """The table in a message, as `Delta table /data/clicks`."""

    @abstractmethod
    def open_files(self) -> fs.FileSystem:
        """Return the file system in which the paths of `TableLister.data_file` are. On executors too."""

    @abstractmethod
    def open_lister(self, schema: pa.Schema, assigner: TimestampAssigner) -> TableLister:
        """Look at the table; `schema` are the columns that the query reads, with event times by `assigner`."""

    @abstractmethod
    def newest_micro_batches(
        self, queries: Collection[str], last: int | None = None, known: NewestMicroBatches | None = None
    ) -> NewestMicroBatches:
        """Find the last commit of each of these queries up to a version, None for the newest. No data file is listed.

        `known` is what an earlier look found, which need not be read again.
        """

    @property
    @abstractmethod
    def _change_rules(self) -> ChangeRules:
        """Return what a stream does with commits that remove rows."""

    @property
    def discovery_interval_us(self) -> int:
        """Return how often to look for new commits."""
        return parse_duration_us(self.discovery_interval, name="discovery_interval")

    def _open_claims(
        self, schema: pa.Schema, assigner: TimestampAssigner, known: Iterable[Claim]
    ) -> ClaimedCommits | None:
        """Look at the checkpoints of its writers, whose last claims are `known`; None if no watermark is theirs."""
        if not self.emits_watermark:
            return None
        writers = open_claims(self, self.storage, schema, assigner, known)
        return ClaimedCommits(writers, fails=self.foreign_writers == "fail")
