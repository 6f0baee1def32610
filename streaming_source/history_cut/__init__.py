"""Where a topic goes on behind the files or the table that were written from it.

extents               the pieces of a history, of files or of a table
extent                which offsets a piece has: by its statistics, else by its columns
cut                   `cut_from`: the next offset of each partition, what is missing, and gaps
"""

from streaming_source.history_cut.cut import Gap, HistoryCut, cut_from

__all__ = ["Gap", "HistoryCut", "cut_from"]
