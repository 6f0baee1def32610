"""The suite that every connector should pass, for pytest. Subclass `SourceConformance` in a test module, and run it.

    class TestMySource(SourceConformance):
        def create_source(self, bounded):
            return MySource("localhost:9000", bounded=bounded)

        def write(self, split, times_us):
            my_client.append(self.split_id(split), times_us)

What else can be set of a connector is in `ConnectorUnderTest`. All is deterministic, on one thread and in time that
stands still, but for the tests that are about threads.
"""

import pytest

# Before they are imported: a test that fails shows what was compared.
pytest.register_assert_rewrite("streaming_source.tools.testing.conformance")

from streaming_source.tools.testing.conformance.connector import ConnectorUnderTest, Expected  # noqa: E402
from streaming_source.tools.testing.conformance.reading import GrowingSuite, ReadingSuite  # noqa: E402
from streaming_source.tools.testing.conformance.recovery import EnumeratingSuite, RecoverySuite, SerializingSuite  # noqa: E402

__all__ = ["ConnectorUnderTest", "Expected", "SourceConformance"]


class SourceConformance(ReadingSuite, RecoverySuite, GrowingSuite, EnumeratingSuite, SerializingSuite):
    """All of it; see `ConnectorUnderTest` for what a subclass has to say."""
