"""Tables by event time: what all table formats share. A format is one module: a lister of files with bounds.

    lister       the contract of a table format: a snapshot's files, and the commits after it
    files        a file of a table with its bounds, files as columns, and bounds of event times by statistics
    commits      what each commit added, and which micro-batch wrote it; whether all are known; what a stream reads
    claimed      the claims of its writers, by its commits
    split        a file of a version as a split, and how offsets write it and up to where files were opened
    waiting      the queue of files, up to where they were opened, and which of them the table needs no more
    enumerator   finds files by a lister, opens them in the order of their lower bounds, checks the bounds
    source       what a user decides of a table, whatever its format

`connectors.delta` and `connectors.iceberg` are such formats. A connector of tables imports this package, and no other
one.
"""

__all__: list[str] = []
