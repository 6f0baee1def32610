"""The messages of a gateway: JSON, of which no part is used before the whole is checked."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from operator import attrgetter
from types import GenericAlias
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from alignment.codec import Codec
from alignment.events import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import SimpleVersionedSerializer, SourceEvent
from streaming_source.from_data import as_json

MAX_MESSAGE_BYTES: Final = 1 << 20
_MAX_SPLIT_ID: Final = 8192
"""Most characters of a split id: a path of 4,096, and a connector's suffix."""
_KINDS: Final = get_type_hints(RangeReport)
_COLUMNS: Final[Codec[Any]] = Codec(
    make_dataclass("Reports", [(name, GenericAlias(tuple, (kind, ...))) for name, kind in _KINDS.items()]), strict=True
)
"""Reports as they are sent: a list for each field."""
_PATH: Final = re.compile(r"/(\w+)/(\d{1,18})/(\d{1,18})/(\d{1,18})/(\d{1,18})", re.ASCII)
_T = TypeVar("_T")


class Refusal(Enum):
    """Why a message is refused: status and text of the HTTP answer."""

    MALFORMED = (400, "malformed")
    NO_TOKEN = (401, "no token")
    WRONG_TOKEN = (403, "wrong token")
    UNKNOWN_ACTION = (404, "unknown action")
    SLOW = (408, "too slow")
    REPLAYED = (409, "replayed")
    STALE = (410, "of an old micro-batch")
    OVERSIZED = (413, "oversized")
    OTHER_QUERY = (421, "token or message of another query")
    FAILED = (500, "the listener failed")
    CROWDED = (503, "too many at once")

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text


class RefusedError(Exception):
    """A message is refused; the reason quotes no part of the message."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The address at which a task reaches the gateway of its query. Picklable; its text does not show the token.

    `query_id` identifies one run: a restarted planner has another one. Every message must carry it and the token.
    `certificate` is the gateway's own certificate in PEM; None without TLS.
    """

    host: str
    port: int
    query_id: str
    token: str = field(repr=False)
    certificate: bytes | None = field(default=None, repr=False)


class MessageId(NamedTuple):
    """Identifies a message: by micro-batch, reader, task attempt, and an increasing number within the attempt."""

    batch: int
    subtask_id: int
    attempt: int
    number: int = 0

    def path(self, action: str) -> str:
        """Return the path to which the message is posted: `/reports/7/0/12/3`."""
        return "/".join(["", action, *map(str, self)])

    @classmethod
    def parse(cls, path: str) -> tuple[str, MessageId]:
        if not (match := _PATH.fullmatch(path)):
            raise RefusedError(Refusal.UNKNOWN_ACTION)
        action, *numbers = match.groups()
        return action, cls(*map(int, numbers))


def encode_reports(reports: Sequence[RangeReport]) -> bytes:
    """Return reports as a JSON object that has a list for each field. O(n)."""
    return encode({name: list(map(attrgetter(name), reports)) for name in _KINDS})


def decode_reports(body: bytes) -> list[RangeReport]:
    """Return the reports that `encode_reports` wrote; refuse other bytes, and reports with impossible values. O(n)."""
    try:
        columns = _COLUMNS.read(decode(body, dict))
        reports = [RangeReport(*row) for row in zip(*(getattr(columns, name) for name in _KINDS), strict=True)]
    except ValueError:
        raise RefusedError(Refusal.MALFORMED) from None
    if not all(map(_is_possible, reports)):
        raise RefusedError(Refusal.MALFORMED)
    return reports


def _is_possible(report: RangeReport) -> bool:
    return (
        1 <= len(report.split_id) <= _MAX_SPLIT_ID
        and 0 <= report.start <= report.stop
        and report.min_us <= report.max_us
        and (report.min_us == NO_TIMESTAMP) == (report.max_us == NO_TIMESTAMP)
        and report.gaps >= 0
        and 0 <= report.late <= report.records
        and 0 <= report.outside <= report.records
    )


def event_to_json(serializer: SimpleVersionedSerializer[SourceEvent], event: SourceEvent) -> list[Any]:
    """Return an event for JSON: the serializer's version, and its bytes as base64."""
    return [serializer.version, base64.b64encode(serializer.serialize(event)).decode()]


def event_from_json(serializer: SimpleVersionedSerializer[SourceEvent], value: Any) -> SourceEvent:
    """Return the event that `event_to_json` wrote; refuse bytes that the serializer rejects."""
    try:
        version, data = value
        return serializer.deserialize(version, base64.b64decode(data, validate=True))
    except Exception:  # a connector's code, on untrusted bytes: the error's text may quote them
        raise RefusedError(Refusal.MALFORMED) from None


def encode(value: Any) -> bytes:
    """Return a JSON value as bytes."""
    return json.dumps(value, separators=(",", ":")).encode()


def decode(body: bytes, kind: type[_T]) -> _T:
    """Return the value of a JSON text, which must be of type `kind`; refuse any other."""
    with suppress(ValueError, RecursionError):
        if isinstance(value := as_json(body), kind):
            return value
    raise RefusedError(Refusal.MALFORMED)
