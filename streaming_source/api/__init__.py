"""The source model of FLIP-27: what a connector implements, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alignment import lazy_names
from streaming_source.api.clients import KeptClients, RetryPolicy
from streaming_source.api.enumerator import SplitEnumerator, SplitRange, SupportsEventTimeIndex
from streaming_source.api.enumerator_context import ReaderInfo, SplitEnumeratorContext, SplitsAssignment
from streaming_source.api.options import Option, OptionSet
from streaming_source.api.reader import (
    BlockEmitter,
    InputStatus,
    ReaderMetrics,
    ReaderOutput,
    RecordEmitter,
    RecordEvaluator,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
    SplitState,
)
from streaming_source.api.serializer import (
    DataclassEventSerializer,
    JsonSerializer,
    SimpleVersionedSerializer,
    SourceEvent,
)
from streaming_source.api.source import Boundedness, Fetching, Source
from streaming_source.api.split import (
    CaughtUp,
    RecordBlock,
    RecordsBySplits,
    RecordSplit,
    RecordsWithSplitIds,
    SourceSplit,
    SplitReader,
    SplitsAddition,
    SplitsChange,
    SplitsRemoval,
)

__all__ = [
    "BlockEmitter",
    "Boundedness",
    "CaughtUp",
    "DataclassEventSerializer",
    "DiscoveredSplits",
    "DiscoveredSplitsSerializer",
    "DiscoveringSource",
    "DiscoveringSplitEnumerator",
    "Fetching",
    "InputStatus",
    "JsonSerializer",
    "KeptClients",
    "Option",
    "OptionSet",
    "ReaderInfo",
    "ReaderMetrics",
    "ReaderOutput",
    "RecordBlock",
    "RecordEmitter",
    "RecordEvaluator",
    "RecordSplit",
    "RecordsBySplits",
    "RecordsWithSplitIds",
    "RetryPolicy",
    "SimpleVersionedSerializer",
    "Source",
    "SourceEvent",
    "SourceOutput",
    "SourceReader",
    "SourceReaderContext",
    "SourceSplit",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitRange",
    "SplitReader",
    "SplitState",
    "SplitsAddition",
    "SplitsAssignment",
    "SplitsChange",
    "SplitsRemoval",
    "SupportsEventTimeIndex",
]

if TYPE_CHECKING:
    from streaming_source.api.discovery import (
        DiscoveredSplits,
        DiscoveredSplitsSerializer,
        DiscoveringSource,
        DiscoveringSplitEnumerator,
    )

if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.
    _HOMES = {".discovery": [name for name in __all__ if name.startswith("Discover")]}
    __getattr__ = lazy_names(__name__, _HOMES)
