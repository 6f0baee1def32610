"""Where a topic goes on behind the files or the table that were written from it.

extents               which offsets a piece of a history has: by its statistics, else by its columns
cut                   `cut_from`: the next offset of each partition, what is missing, and gaps
"""

from streaming_source.history_cut.cut import Gap, HistoryCut, cut_from

__all__ = ["Gap", "HistoryCut", "cut_from"]
