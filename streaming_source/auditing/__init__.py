"""What a query over Spark's own sources loses to its watermark, by its checkpoint and its data alone.

    operators             which stateful operator sees rows first, and its rule
    state_windows         size and slide of windows, by the keys in the state
    output_mode           the output mode, by the keys in the state
    rule                  which rows an operator drops, as bounds of event time: without I/O
    sources/              what each micro-batch read of each split, one module a kind
      kinds                 which of them a source is, by its offsets
      base                  a split of a micro-batch: blocks of rows with bounds of their event times
      event_time            the column of event times, as given or as the recorded watermarks show
      files                 Spark's file sources: the source's log, formats, archived and moved files
      kafka                 ranges of offsets, re-read once; what retention has deleted
      tables                a table's snapshot and commits, bounds by its metadata (table_reads: in Spark's order)
    counting              rows of blocks against bounds: a block is read only where a bound lies inside of it
    watermark_check       whether the event times lead to the watermarks that Spark had; if not, all is unknown
    result                the counts as Arrow tables; which splits carried the watermark away
    text                  the same in words
    report                `Audit`: all of that, and JSON
    advice                the lines of `read_stream` that end the loss
    html_page             a page that draws it (page/: its script)
    query                 `audit`: from a checkpoint to an `Audit`

A row of micro-batch n is dropped by the watermark of micro-batch n-1, which the offset log has. So nothing is
simulated: what the log no longer has is counted as unknown. In each micro-batch and split five numbers add up to the
rows that were read: dropped, emitted, open, unknown, and rows without an event time.
"""

from streaming_source.auditing.query import audit
from streaming_source.auditing.report import Audit
from streaming_source.auditing.result import AuditedQuery, Carrier, Counts, SourceSummary

__all__ = ["Audit", "AuditedQuery", "Carrier", "Counts", "SourceSummary", "audit"]
