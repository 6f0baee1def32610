"""The stateful operators of a query, by the metadata and schemas that Spark keeps beside their state."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from streaming_source.auditing.checkpoint import Checkpoint
from streaming_source.auditing.rule import NothingDropped, RowTimes, Rule, SessionWindows, Undecided, Windows
from streaming_source.exceptions import CheckpointError, OptionError

__all__ = ["EventTimeField", "Operator", "first_operator", "operators_of", "rule_of"]

_RESTORE: Final = "restore it from a copy of the checkpoint"
_AGGREGATE: Final = "stateStoreSave"
_SESSIONS: Final = "sessionWindowStateStoreSaveExec"
_JOIN: Final = "symmetricHashJoin"
_BY_ROW: Final = ("dedupe", "dedupeWithinWatermark", _JOIN)
_TITLES: Final = {
    _AGGREGATE: "aggregation",
    _SESSIONS: "session windows",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    _JOIN: "stream-stream join",
}
_DELAY: Final = "spark.watermarkDelayMs"
_JOINED: Final = re.compile(r"(left|right)-keyWithIndexToValue.*")


@dataclass(frozen=True, slots=True)
class EventTimeField:
    """A column of the state with a watermark: its name, the delay, and whether it is a window."""

    name: str
    delay_us: int
    is_window: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator. `event_times` are columns of its key, or of each side of a join with a watermark.

    They are known if `is_known`: if the schema of its state is of a supported version. `key` has the names of the
    columns of its key.
    """

    number: int
    name: str
    event_times: tuple[EventTimeField, ...]
    is_known: bool
    key: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The operator as users call it."""
        if self.name == _AGGREGATE and any(field.is_window for field in self.event_times):
            return "windowed aggregation"
        return _TITLES.get(self.name, self.name)

    @property
    def window_column(self) -> int | None:
        """The index of the key's column that is a window, of an aggregation; None if none is."""
        names = [field.name for field in self.event_times if field.is_window]
        return self.key.index(names[0]) if names and self.name == _AGGREGATE else None

    @property
    def time_column(self) -> int | None:
        """The index of the key's column, a window or a time, that the watermark is compared with; None if none is."""
        if self.window_column is not None or self.name != _AGGREGATE or not self.event_times:
            return self.window_column
        return self.key.index(self.event_times[0].name)

    @property
    def depends_on_mode(self) -> bool:
        """Whether the output mode decides what is dropped or emitted: it aggregates by event time."""
        return self.name == _SESSIONS or self.time_column is not None

    @property
    def is_join(self) -> bool:
        """Whether it joins two streams."""
        return self.name == _JOIN


def operators_of(checkpoint: Checkpoint) -> list[Operator]:
    """Return the stateful operators in the order of their numbers: results of a later one go to an earlier one.

    Raises
    ------
    CheckpointError
        If the state was written by a Spark before 4.0, which does not keep what its operators are; or is damaged.
    """
    numbers = sorted(int(name) for name in checkpoint.names_in("state") if name.isdigit())
    return [_operator(checkpoint, number) for number in numbers]


def first_operator(operators: Sequence[Operator], sources: int) -> Operator | None:
    """Return the first operator that gets the rows of all sources; None if it cannot be determined.

    Spark numbers operators from the sink back, so that in a chain the last number is the first operator. A query with
    several sources may have several chains.
    """
    if len(operators) == 1 or sources == 1:
        return operators[-1]
    is_one_chain = operators[-1].is_join and sources == 2 and not any(one.is_join for one in operators[:-1])
    return operators[-1] if is_one_chain else None


def rule_of(operators: Sequence[Operator], sources: int, mode: str | None, window: str | None) -> Rule:
    """Return the rule of the first stateful operator. `window` describes its windows as the user gives them.

    `mode` None is append or update.

    Raises
    ------
    OptionError
        If it has windows and `window` is None.
    """
    if not operators:
        return NothingDropped()
    operator = first_operator(operators, sources)
    if operator is None:
        names = ", ".join(one.title for one in reversed(operators))
        return Undecided(f"the query has {sources} sources and several stateful operators ({names})")
    if operator.name not in (_AGGREGATE, _SESSIONS, *_BY_ROW):
        return Undecided(f"whether {operator.name} drops a row is decided by code of the query's own")
    if not operator.is_known:
        return Undecided(f"the schema of the state of {operator.name} is of an unknown version")
    if mode == "complete" and len(operators) == 1 and operator.name == _AGGREGATE:
        return NothingDropped(any(field.is_window for field in operator.event_times))
    if operator.name == _SESSIONS:
        return SessionWindows(Windows.parse(_given(window, operator)).size_us, waits=mode == "append")
    if operator.is_join and any(field.is_window for field in operator.event_times):
        return Undecided("it joins windows of two streams")
    if operator.name in _BY_ROW:
        return RowTimes() if operator.event_times or not operator.is_join else NothingDropped()
    if not operator.event_times:
        return NothingDropped()
    waits = None if mode is None else mode == "append"
    if not any(field.is_window for field in operator.event_times):
        return RowTimes(waits=waits)
    found = Windows.parse(_given(window, operator))
    return Windows(found.size_us, found.slide_us, found.start_us, waits=waits)


def _given(window: str | None, operator: Operator) -> str:
    if window is None:
        what = "the gap" if operator.name == _SESSIONS else "the size (and the slide, where there is one)"
        raise OptionError(
            f"the checkpoint shows that the query has {operator.title}, and not {what}; give it with --window, as in "
            '--window "1 hour" or --window "1 hour, 15 minutes"'
        )
    return window


def _operator(checkpoint: Checkpoint, number: int) -> Operator:
    folder = f"state/{number}"
    data = checkpoint.bytes_of(f"{folder}/_metadata/metadata") or checkpoint.bytes_of(f"{folder}/_metadata/v2/0")
    if data is None and not checkpoint.names_in(f"{folder}/_metadata"):
        raise CheckpointError(
            f"{checkpoint.path}/{folder} has no metadata of its operator, which Spark 4.0 and later keep: the query "
            "was run by an older one, whose rule for late rows is another; run one micro-batch of it with Spark 4"
        )
    try:
        _, _, text = (data or b"").decode().partition("\n")
        known = json.loads(text)
        name, stores = known["operatorInfo"]["operatorName"], [store["storeName"] for store in known["stateStoreInfo"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint.path}/{folder}/_metadata/metadata is damaged ({error!r}); {_RESTORE}"
        ) from None
    event_times: list[EventTimeField] = []
    is_known = False
    key: tuple[str, ...] = ()
    for place in _schema_files(folder, stores):
        if (schema := checkpoint.bytes_of(place)) is None:
            continue
        structs = _structs(schema, f"{checkpoint.path}/{place}")
        if structs is None:
            continue
        is_known = True
        key = key or tuple(str(field["name"]) for field in structs[0]["fields"])
        # Sessions and joins have their event times in the value.
        event_times += _event_times(structs[1 if name in (_SESSIONS, _JOIN) else 0])
    return Operator(number, name, tuple(event_times), is_known, key)


def _schema_files(folder: str, stores: Sequence[str]) -> Iterator[str]:
    for store in stores:
        if store == "default":
            yield f"{folder}/0/_metadata/schema"
        elif _JOINED.fullmatch(store):
            yield f"{folder}/0/{store}/_metadata/schema"


def _structs(schema: bytes, path: str) -> list[Mapping[str, Any]] | None:
    """Return the key and the value of a schema file; None if it is of an unknown version."""
    stream = BytesIO(schema)

    def text() -> str:
        (length,) = struct.unpack(">H", stream.read(2))
        return stream.read(length).decode()

    def long_text() -> str:
        (pieces,) = struct.unpack(">i", stream.read(4))
        return "".join(text() for _ in range(pieces))

    try:
        version = text()
        if version not in ("v1", "v2"):
            return None
        return [json.loads(text() if version == "v1" else long_text()) for _ in range(2)]
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {_RESTORE}") from None


def _event_times(columns: Mapping[str, Any]) -> Iterator[EventTimeField]:
    for field in columns["fields"]:
        metadata = field.get("metadata", {})
        if _DELAY in metadata:
            is_window = isinstance(field["type"], Mapping)
            yield EventTimeField(str(field["name"]), int(metadata[_DELAY]) * 1_000, is_window)
