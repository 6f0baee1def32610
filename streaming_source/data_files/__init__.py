"""Files of records: what one is, how it is cut and read, and how its columns become those of a query.

Nothing here depends on how a file was found. A connector that finds files (by listing directories, by the log of a
table) describes each as a `DataFile`, makes its enumerator of `DataFileEnumerator`, its splits of `RangedSplit`, and
has them read by `FileSplitReader`:

    file          DataFile: where it is, and the columns whose values are known without reading it
                  FileBlocks: bounds of its event times, by blocks; one block where only bounds of the file are known
    ranges        files that follow each other in a split, and how their records are cut for readers
    enumerator    the index of event times, and ranges of what a plan admits
    split_reader  the records of ranges
    formats/      what each format knows ahead of reading, and how its rows are decoded
    evolution     columns that a file lacks, has in addition, or has in a narrower type
    stored_names  columns that a file has under other names than the query
    queued        files that are splits of their own: which of them are open, and which wait
    config        the options of reading, the same for every connector that finds files
    stores        what opens a path or URI; renewed_store: with credentials that expire
    faults        which errors are retried, and which files the source skips
"""

__all__: list[str] = []
