"""The source model in Spark: data source, readers, offsets, watermark rows.

`streaming_source` exports its public functions. Nothing is imported here: planners and tasks need only parts of it.
"""

__all__: list[str] = []
