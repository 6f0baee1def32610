"""The source model of FLIP-27: what a connector implements, without Spark."""

from streaming_source.api.enumerator import SplitEnumerator, SplitEnumeratorContext, SplitRange
from streaming_source.api.options import Option, OptionSet
from streaming_source.api.output import ReaderOutput, SourceOutput
from streaming_source.api.reader import InputStatus, SourceReader, SourceReaderContext
from streaming_source.api.source import Boundedness, Source
from streaming_source.api.split import SimpleVersionedSerializer, SourceSplit
from streaming_source.api.split_reader import RecordBlock, RecordsWithSplitIds, SplitReader, SplitsAddition

__all__ = [
    "Boundedness",
    "InputStatus",
    "Option",
    "OptionSet",
    "ReaderOutput",
    "RecordBlock",
    "RecordsWithSplitIds",
    "SimpleVersionedSerializer",
    "Source",
    "SourceOutput",
    "SourceReader",
    "SourceReaderContext",
    "SourceSplit",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitRange",
    "SplitReader",
    "SplitsAddition",
]
