"""The cut at which a topic goes on where the files or the table end that were written from it.

pieces                the pieces of a history, of files or of a table: which offsets each has, by statistics or columns
cut                   `cut_from`: the next offset of each partition, what is missing, and gaps
"""

from streaming_source.tools.history_cut.cut import Gap, HistoryCut, cut_from

__all__ = ["Gap", "HistoryCut", "cut_from"]
