"""The load that a query can keep up with, and the time from a record to its window: Little's law for micro-batches.

Rows arrive at `rate`. A micro-batch of `n` rows takes

    T(n) = overhead + n * row time

where the row time is that of a reader, divided by how many readers there are: where its queue holds at least one fetch,
fetching and emitting overlap, and the slower of the two counts. Triggers follow each other, so that each reads what has
arrived during the one before it: `n = rate * T(n)`. Little's law, `rows = rate * time`, is then

    T = overhead / (1 - rate * row time),    n = rate * T,    rows in the system = rate * latency

A record waits for half a trigger, as a mean, and is out at the end of the next one. See `docs/performance.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from alignment.exceptions import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A source, and a query that reads it.

    In each of the `splits` `rate` rows arrive in a second. Each of the `readers` of a micro-batch, its tasks, has so
    many `fetchers`, threads, and `queue_depth` fetches that wait in it; with none, it fetches and emits in turn. A row
    takes one fetcher `fetch_row_us`, and one reader after it, with all that follows, `emit_row_us` microseconds; a
    micro-batch takes `overhead_s` more than its rows. `max_rows` is a read limit, None for none. Between two triggers
    there are `interval_s` at least, as in `trigger(processingTime=...)`; 0 for one after the other. The watermark is
    `out_of_orderness_s` behind the latest record of a split.
    """

    splits: int
    rate: float
    overhead_s: float
    emit_row_us: float
    fetch_row_us: float = 0.0
    readers: int = 1
    fetchers: int = 1
    queue_depth: int = 2
    max_rows: int | None = None
    interval_s: float = 0.0
    out_of_orderness_s: float = 0.0

    def __post_init__(self) -> None:
        least = {"splits": 1, "readers": 1, "fetchers": 1, "max_rows": 1}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value < least.get(field.name, 0):
                raise InvalidArgumentError(f"{field.name} = {value}: must be at least {least.get(field.name, 0)}")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The course of a `Load`. All is infinite but the two rates where more arrives than can be read.

    Over all splits `max_rate` rows a second can be read; `utilisation` is what arrives, as a part of that. A
    micro-batch takes `trigger_s`, and reads `rows_per_trigger`. As a mean, a record takes `latency_s` from its arrival
    to the end of the micro-batch that reads it, and `rows_in_system` have arrived and are not through: rate times
    latency. `window_latency_s` is from the end of a window to its result, where event times are those of arrival: until
    a record comes that takes the watermark past it, which is read, and one more micro-batch, in which Spark closes the
    window.
    """

    max_rate: float
    utilisation: float
    trigger_s: float
    rows_per_trigger: float
    latency_s: float
    rows_in_system: float
    window_latency_s: float


def capacity(load: Load) -> Capacity:
    """Return what a load comes to when it has settled.

    Examples
    --------
    >>> steady = capacity(Load(splits=10, rate=20_000, overhead_s=0.1, emit_row_us=2, max_rows=100_000))
    >>> round(steady.max_rate), round(steady.trigger_s, 3), round(steady.rows_per_trigger)
    (333333, 0.167, 33333)
    >>> round(steady.latency_s, 2), round(steady.rows_in_system)
    (0.25, 50000)
    """
    fetch_us = load.fetch_row_us / load.fetchers
    reader_us = max(fetch_us, load.emit_row_us) if load.queue_depth else fetch_us + load.emit_row_us
    row_s = reader_us / 1e6 / load.readers
    rate = load.splits * load.rate
    if load.max_rows is not None:
        longest_s = load.overhead_s + load.max_rows * row_s
        max_rate = load.max_rows / max(longest_s, load.interval_s) if max(longest_s, load.interval_s) else float("inf")
    else:
        max_rate = 1 / row_s if row_s else float("inf")
    utilisation = rate / max_rate
    if utilisation >= 1:
        never = float("inf")
        return Capacity(
            max_rate=max_rate,
            utilisation=utilisation,
            trigger_s=never,
            rows_per_trigger=never,
            latency_s=never,
            rows_in_system=never,
            window_latency_s=never,
        )
    period_s = max(load.overhead_s / (1 - rate * row_s), load.interval_s)
    rows = rate * period_s
    trigger_s = load.overhead_s + rows * row_s
    latency_s = period_s / 2 + trigger_s
    next_record_s = 1 / load.rate if load.rate else 0.0
    window_s = load.out_of_orderness_s + next_record_s + latency_s + period_s
    return Capacity(
        max_rate=max_rate,
        utilisation=utilisation,
        trigger_s=trigger_s,
        rows_per_trigger=rows,
        latency_s=latency_s,
        rows_in_system=rate * latency_s,
        window_latency_s=window_s,
    )
