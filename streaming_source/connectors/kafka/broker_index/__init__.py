"""The brokers' index by time: what they know of timestamps, and where partitions are cut by it."""

__all__: list[str] = []
