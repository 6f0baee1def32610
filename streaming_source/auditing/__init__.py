"""The loss of a query over Spark's own sources to its watermark, by its checkpoint and its data alone.

A row of micro-batch n is dropped by the watermark of micro-batch n-1, which the offset log has. So nothing is
simulated: what the log no longer has is counted as unknown. In each micro-batch and split five numbers add up to the
rows that were read: dropped, emitted, open, unknown, and rows without an event time.
"""

from streaming_source.tools.auditing.query import audit
from streaming_source.tools.auditing.report import Audit
from streaming_source.tools.auditing.result import AuditedQuery, Carrier, Counts, SourceSummary

__all__ = ["Audit", "AuditedQuery", "Carrier", "Counts", "SourceSummary", "audit"]
