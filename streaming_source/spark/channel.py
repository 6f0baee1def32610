"""Between a query's planner and its tasks at work: reports of event times, and events of the connector's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from alignment.events import RangeReport
from streaming_source.api import SimpleVersionedSerializer, SourceEvent, SourceSplit
from streaming_source.coordinator import SourceCoordinator
from streaming_source.gateway import GatewayAddress, GatewayServer, TaskMessages
from streaming_source.spark.observed_times import ObservedTimes
from streaming_source.spark.options import FrameOptions

__all__ = ["PlannerChannel", "ReaderChannel"]

_TURN_S: Final = 0.5
"""How long a task that wants something waits for the planner to be free. If it is not, it is answered later."""


class PlannerChannel:
    """The planner's end: listens once it is asked for its address, and hands on what comes.

    Parameters
    ----------
    coordinator
        Told what readers say.
    event_serializer
        Of the source's events, if it has any.
    options
        Where to listen.
    turn
        Held by whoever lets the coordinator work.
    """

    def __init__(
        self,
        coordinator: SourceCoordinator[Any, Any],
        event_serializer: SimpleVersionedSerializer[SourceEvent] | None,
        options: FrameOptions,
        turn: threading.RLock,
    ) -> None:
        self._coordinator = coordinator
        self._turn = turn
        self._server = GatewayServer(
            self,
            event_serializer,
            host=options.gateway_host or "127.0.0.1",
            port=options.gateway_port,
            certificate=_path(options.gateway_certificate),
            key=_path(options.gateway_key),
        )

    def address(self) -> GatewayAddress:
        """Where tasks find it.

        Raises
        ------
        OptionError
            If it cannot listen there.
        """
        return self._server.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    # ---- what tasks say: on the gateway's threads -------------------------------------------------------------------

    def on_reports(self, reports: Sequence[RangeReport]) -> None:
        """See `GatewayListener`."""
        self._coordinator.runtime.take_reports(reports)

    def on_event(self, subtask_id: int, event: SourceEvent) -> None:
        """See `GatewayListener`."""
        self._coordinator.runtime.take_event(subtask_id, event)
        if self._turn.acquire(timeout=_TURN_S):
            try:
                self._coordinator.runtime.work()
            finally:
                self._turn.release()

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        """See `GatewayListener`."""
        if not self._turn.acquire(timeout=_TURN_S):
            return []
        try:
            return self._coordinator.runtime.take_events(subtask_id)
        finally:
            self._turn.release()


class ReaderChannel:
    """A task's end.

    Parameters
    ----------
    messages
        Where to send.
    observed
        Where event times are summed up; None if they are not to be reported.

    Attributes
    ----------
    ANSWERS_S
        How often a reader that has sent an event is given what the enumerator answered.
    awaits_events
        Whether something was sent that the enumerator may answer.
    """

    ANSWERS_S: ClassVar = 0.1

    def __init__(self, messages: TaskMessages, observed: ObservedTimes | None = None) -> None:
        self._messages = messages
        self.observed = observed
        self.awaits_events = False
        self._asks_at = 0.0

    def report(self, ranges: Sequence[SourceSplit]) -> None:
        """These were read to their ends."""
        if self.observed is not None and ranges:
            self._messages.send_reports(self.observed.take(ranges))

    def send_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator; if it does not arrive that is no error, as in Flink."""
        self.awaits_events = True
        self._messages.send_event(event)

    def take_events(self) -> list[SourceEvent]:
        """What the enumerator answered so far; nothing, if that was asked a moment ago."""
        now = time.monotonic()
        if not self.awaits_events or now < self._asks_at:
            return []
        self._asks_at = now + self.ANSWERS_S
        return self._messages.take_events()


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)
