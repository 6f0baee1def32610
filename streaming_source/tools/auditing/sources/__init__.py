"""Reads of each micro-batch from each split, one module a kind of source."""

from streaming_source.tools.auditing.sources.base import AuditedSource, SplitRead, TimeBlock
from streaming_source.tools.auditing.sources.kinds import source_of

__all__ = ["AuditedSource", "SplitRead", "TimeBlock", "source_of"]
