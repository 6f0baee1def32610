"""A source that computes its records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa

from streaming_source.api import (
    Boundedness,
    OptionSet,
    SimpleVersionedSerializer,
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
)
from streaming_source.api.options import arguments
from streaming_source.connectors.datagen.config import GeneratorConfig
from streaming_source.connectors.datagen.enumerator import GeneratorSplitEnumerator
from streaming_source.connectors.datagen.generator import SCHEMA
from streaming_source.connectors.datagen.split import (
    GeneratedSplit,
    GeneratedSplitSerializer,
    GeneratorCheckpoint,
    GeneratorCheckpointSerializer,
)
from streaming_source.connectors.datagen.split_reader import GeneratorSplitReader

__all__ = ["DataGeneratorSource"]

_ARRIVAL_ONLY: Final = ("bounded", "discovery_interval")
"""Attributes that decide when records arrive, and not what they are."""

_IN_US: Final = {"disorder": "disorder_us", "start_time": "start_us", "idle_for": "idle_for_us"}
"""Attribute -> the same in microseconds."""


@dataclass(frozen=True)
class DataGeneratorSource(GeneratorConfig, Source[GeneratedSplit, GeneratorCheckpoint]):
    """Splits of records that are a function of seed, split and position: for demos and tests.

    A record has a `key`, a `value` and its event time, both as the column `ts` and as source record timestamp. The
    formulas are those of `streaming_source.connectors.datagen.generator`; the arguments are those of `GeneratorConfig`.

    Examples
    --------
    >>> DataGeneratorSource(splits=2, skew=4, rows_per_split=100, bounded=True).schema().names
    ['key', 'value', 'ts']
    """

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_datagen")` beside those of every format."""
        return OptionSet.of(GeneratorConfig)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> DataGeneratorSource:
        """From parsed values of `options`.

        Raises
        ------
        OptionError
            If options contradict each other.
        """
        return cls(**arguments(cls, values))

    @property
    def name(self) -> str:
        """See `Source`."""
        return "aligned_datagen"

    @property
    def identity(self) -> str:
        """See `Source`. All that decides what the records are."""
        names = [_IN_US.get(field.name, field.name) for field in fields(self) if field.name not in _ARRIVAL_ONLY]
        return json.dumps({name: getattr(self, name) for name in names})

    @property
    def boundedness(self) -> Boundedness:
        """See `Source`."""
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def has_source_timestamps(self) -> bool:
        """Event times need no column."""
        return True

    @property
    def source_timestamp_column(self) -> str:
        """See `Source`."""
        return "ts"

    def schema(self) -> pa.Schema:
        """`key` (int64), `value` (double) and `ts` (timestamp)."""
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[GeneratedSplit]) -> GeneratorSplitEnumerator:
        """See `Source`."""
        return GeneratorSplitEnumerator(self, context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[GeneratedSplit], checkpoint: GeneratorCheckpoint
    ) -> GeneratorSplitEnumerator:
        """See `Source`."""
        return GeneratorSplitEnumerator(self, context, checkpoint)

    def create_split_reader(self, context: SourceReaderContext) -> GeneratorSplitReader:
        """See `Source`."""
        return GeneratorSplitReader(self.generator, context.schema)

    @property
    def split_serializer(self) -> SimpleVersionedSerializer[GeneratedSplit]:
        """See `Source`."""
        return GeneratedSplitSerializer()

    @property
    def enumerator_checkpoint_serializer(self) -> SimpleVersionedSerializer[GeneratorCheckpoint]:
        """See `Source`."""
        return GeneratorCheckpointSerializer()
