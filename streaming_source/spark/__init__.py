"""Where the source model meets Spark: data source, readers, offsets, watermark rows.

`streaming_source` exports what users call of it. It is not imported here: planners and tasks do without.
"""

__all__: list[str] = []
