"""Errors of the client: which are repeated, which are hopeless, and what is done about records that are lost."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from streaming_source.api import RetryPolicy
from streaming_source.exceptions import DataLossError

__all__ = [
    "GONE",
    "HOPELESS",
    "OF_GROUPS",
    "REFUSALS",
    "SILENCE",
    "BrokerRetries",
    "TopicsRefusedError",
    "code_of",
    "is_answer",
    "report_loss",
]

_log = logging.getLogger(__name__)

GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Codes of errors by which a topic or partition does not exist."""

SILENCE: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
)
"""Codes of errors where no broker has answered."""

REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""Codes of errors of connections that a broker refuses; they end a query whose brokers have never answered."""

HOPELESS: Final = frozenset(
    {
        KafkaError._INVALID_ARG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        *REFUSALS,
    }
)
"""Codes of errors that are raised at once: another call would fail as well."""

OF_GROUPS: Final = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.INVALID_GROUP_ID})
"""Codes of errors about consumer groups, which prevent nothing here.

A consumer of librdkafka must have the name of a group, and looks for the coordinator of that group by itself. The
coordinator is not used: partitions are assigned from given offsets, no group is joined and no offset is committed.
"""


class TopicsRefusedError(KafkaException):  # type: ignore[misc]  # confluent_kafka has no types
    """A broker refuses to describe these topics to the user."""

    def __init__(self, topics: Iterable[str]) -> None:
        super().__init__(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        self.topics = tuple(sorted(topics))


class BrokerRetries(RetryPolicy):
    """Repeats calls of the client that failed, unless the error is `HOPELESS`."""

    def passes(self, error: Exception) -> bool:
        return isinstance(error, KafkaException) and code_of(error) not in HOPELESS


def code_of(error: KafkaException) -> int | None:
    """Return the code of an error of the client; None if it has none."""
    cause = error.args[0] if error.args else None
    return cause.code() if isinstance(cause, KafkaError) else None


def is_answer(error: KafkaException) -> bool:
    """Return whether an error is the answer of a broker. The client gives negative codes to errors of its own."""
    return (code_of(error) or 0) > 0


def report_loss(what: str, to_go_on: str, *, fails: bool) -> None:
    """Raise a `DataLossError` for records that no longer exist, or log that reading goes on without them."""
    if fails:
        raise DataLossError(f"{what}. Start with a new checkpointLocation, or set failOnDataLoss = false {to_go_on}")
    _log.warning("%s; reading goes on, since failOnDataLoss = false", what)
