"""The source model of FLIP-27: what a connector implements, without Spark."""

from streaming_source.api.clients import KeptClients
from streaming_source.api.discovery import (
    DiscoveredSplits,
    DiscoveredSplitsSerializer,
    DiscoveringSource,
    DiscoveringSplitEnumerator,
)
from streaming_source.api.enumerator import ReaderInfo, SplitEnumerator, SplitEnumeratorContext, SplitsAssignment
from streaming_source.api.event_time_index import SplitRange, SupportsEventTimeIndex
from streaming_source.api.events import DataclassEventSerializer, SourceEvent
from streaming_source.api.options import Option, OptionSet
from streaming_source.api.output import (
    BlockEmitter,
    ReaderOutput,
    RecordEmitter,
    RecordEvaluator,
    SourceOutput,
    SplitState,
)
from streaming_source.api.reader import InputStatus, ReaderMetrics, SourceReader, SourceReaderContext
from streaming_source.api.retry import RetryPolicy
from streaming_source.api.serializer import JsonSerializer, SimpleVersionedSerializer
from streaming_source.api.source import Boundedness, Fetching, Source
from streaming_source.api.split import RecordSplit, SourceSplit
from streaming_source.api.split_reader import (
    CaughtUp,
    RecordBlock,
    RecordsBySplits,
    RecordsWithSplitIds,
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
