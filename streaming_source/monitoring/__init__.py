"""Reports of a query on its watermarks: read from its progress, or from its checkpoint alone; without Spark.

`report` is the value, its JSON, and what an offset has of it; `micro_batch` has those of all sources, and Spark's
statistics, from a progress or from a checkpoint. `explained` has the last of them in words, with advice,
`history` all as Arrow tables, and `html_page` draws them.
"""

__all__: list[str] = []
