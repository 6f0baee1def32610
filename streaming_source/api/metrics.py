"""Numbers that a connector's enumerator keeps of itself."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Counter", "MetricGroup"]


class Counter:
    """Counts up."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def inc(self, by: int = 1) -> None:
        """Count `by` more."""
        self.count += by


class MetricGroup:
    """Counters and gauges by name.

    Examples
    --------
    >>> metrics = MetricGroup()
    >>> metrics.counter("looks").inc()
    >>> metrics.gauge("unassignedSplits", lambda: 3)
    >>> metrics.values()
    {'looks': 1, 'unassignedSplits': 3}
    """

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def counter(self, name: str) -> Counter:
        """The counter of that name, the same at each call."""
        return self._counters.setdefault(name, Counter())

    def gauge(self, name: str, value: Callable[[], float]) -> None:
        """Have a value asked for when the metrics are. The last one of a name holds."""
        self._gauges[name] = value

    def values(self) -> dict[str, float]:
        """All of them, as they are now."""
        counted = {name: counter.count for name, counter in self._counters.items()}
        return {**counted, **{name: value() for name, value in self._gauges.items()}}
