"""Tools for tests of connectors: a source that follows a script, and a harness that runs any source without Spark.

`streaming_source.testing.conformance` has the suite that every connector should pass; it needs pytest.
"""

from streaming_source.tools.testing import micro_batch as micro_batch
from streaming_source.tools.testing.fakes import FakeClock, InlineWorkers, TestingEnumeratorContext
from streaming_source.tools.testing.harness import SourceHarness
from streaming_source.tools.testing.micro_batch import CollectingOutput, EmittedRecord, ReadBatch
from streaming_source.tools.testing.source import ABORT, EOF, Abort, Gap, Pause, TestingAbort, TestingSource

__all__ = [
    "ABORT",
    "EOF",
    "Abort",
    "CollectingOutput",
    "EmittedRecord",
    "FakeClock",
    "Gap",
    "InlineWorkers",
    "Pause",
    "ReadBatch",
    "SourceHarness",
    "TestingAbort",
    "TestingEnumeratorContext",
    "TestingSource",
]
