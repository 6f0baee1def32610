"""What one task says to its gateway."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from alignment.reports import RangeReport
from streaming_source.api import SimpleVersionedSerializer, SourceEvent
from streaming_source.exceptions import EventNotDeliveredError, UnsupportedOperationError
from streaming_source.gateway.messages import (
    EVENT,
    REPORTS,
    TAKE_EVENTS,
    MessageHeader,
    decode_event,
    encode_event,
    encode_reports,
)
from streaming_source.gateway.refusals import RefusedError

if TYPE_CHECKING:
    from streaming_source.gateway.client import GatewayClient

__all__ = ["TaskMessages"]

_log = logging.getLogger(__name__)

_TASK_S: Final = 5.0
_QUICK_S: Final = 0.05
"""A call that takes no longer is not counted: a task may ask for events as long as it reads."""

_TRIES: Final = 2
_MAX_REPORTS: Final = 2_000
_REPORT_NUMBERS_BYTES: Final = 80


class TaskMessages:
    """What one attempt at a task sends to its gateway; on the task's thread.

    Parameters
    ----------
    client
        Who sends it.
    header
        Of the first message.
    event_serializer
        Of the source's events; None if it has none.
    """

    def __init__(
        self,
        client: GatewayClient,
        header: MessageHeader,
        event_serializer: SimpleVersionedSerializer[SourceEvent] | None,
    ) -> None:
        self._client = client
        self._next = header
        self._serializer = event_serializer
        self._left_s = _TASK_S

    def send_reports(self, reports: Sequence[RangeReport]) -> bool:
        """Report what was read; whether all of it arrived. Many reports go in several messages."""
        return all(self._send(REPORTS, encode_reports(part), _TRIES) is not None for part in self._parts(reports))

    def send_event(self, event: SourceEvent, *, required: bool = False) -> bool:
        """Send an event to the enumerator, at most once; whether it arrived.

        As in Flink an event that is lost is no error, unless its sender says that it is one.

        Parameters
        ----------
        required
            Whether it is an error if it does not arrive.

        Raises
        ------
        EventNotDeliveredError
            If it was required, and did not arrive.
        UnsupportedOperationError
            If the source has no serializer for events.
        """
        arrived = self._send(EVENT, encode_event(self._events_as_bytes, event), _TRIES) is not None
        if required and not arrived:
            address = self._client.address
            raise EventNotDeliveredError(
                f"a {type(event).__name__} did not reach the enumerator: the gateway at {address.host}:{address.port} "
                "is out of reach, or refused it; see the worker's log, and options gatewayHost and gatewayPort"
            )
        return arrived

    def take_events(self) -> list[SourceEvent]:
        """Events from the enumerator that this reader was not given yet; none if the gateway is out of reach.

        An answer that is lost on its way is lost: it is not asked for again.

        Raises
        ------
        UnsupportedOperationError
            If the source has no serializer for events.
        """
        serializer = self._events_as_bytes
        answers = self._send(TAKE_EVENTS, b"", tries=1) or []
        events = []
        for answer in answers:
            try:
                events.append(decode_event(serializer, answer))
            except RefusedError:
                _log.error("an event from the enumerator is left out: %s cannot read it", type(serializer).__name__)
        return events

    @property
    def _events_as_bytes(self) -> SimpleVersionedSerializer[SourceEvent]:
        if self._serializer is None:
            raise UnsupportedOperationError(
                "this source has no serializer for source events: override Source.source_event_serializer"
            )
        return self._serializer

    def _send(self, action: str, body: bytes, tries: int) -> list[bytes] | None:
        header = self._next
        self._next = MessageHeader(header.query_id, header.batch, header.subtask_id, header.attempt, header.number + 1)
        if len(body) > self._client.address.max_message_bytes:
            _log.error("a message of %d bytes is not sent: the gateway refuses such", len(body))
            return None
        if self._left_s <= 0:
            return None
        began = self._client.clock()
        try:
            return self._client.call(action, header.encode() + body, self._left_s, tries)
        finally:
            took_s = self._client.clock() - began
            self._left_s -= took_s if took_s > _QUICK_S else 0.0

    def _parts(self, reports: Sequence[RangeReport]) -> Iterator[Sequence[RangeReport]]:
        """Reports in messages that the gateway takes, each within half of what it takes at most."""
        most = self._client.address.max_message_bytes // 2
        begin = size = 0
        for end, report in enumerate(reports):
            own = _REPORT_NUMBERS_BYTES + len(report.split_id.encode())
            if end > begin and (end - begin >= _MAX_REPORTS or size + own > most):
                yield reports[begin:end]
                begin, size = end, 0
            size += own
        if begin < len(reports):
            yield reports[begin:]
