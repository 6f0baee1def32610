"""Tables by event time: what all table formats share. A format is one module: a lister of files with bounds.

    lister       the contract of a table format: a snapshot's files, and the commits after it
    files        a file of a table with its bounds, and files as columns
    commits      what each commit added, and which micro-batch wrote it; whether all are known; what a stream reads
    time_bounds  how a table's statistics of the event-time column become bounds of event times
    split        a file of a version as a split, and how offsets write it
    waiting      the queue of files, and up to where they were opened: what an offset has of them
    checkpoint   that, written down
    expiry       files that wait while the table does not need them any more
    enumerator   finds files by a lister, opens them in the order of their lower bounds, checks the bounds
    source       what a user decides of a table, whatever its format

`connectors.delta` and `connectors.iceberg` are such formats. A connector of tables imports this package, and no other
one.
"""

__all__: list[str] = []
