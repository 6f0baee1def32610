"""Columns by dotted path: a column, or a field inside of structs, whose names may contain dots themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.exceptions import InvalidArgumentError


def column_at(batch: pa.RecordBatch, dotted: str) -> pa.Array:
    """Return the column at a dotted path; null where a struct on the way is null.

    At each level the longest name that exists goes first: a column called ``a.b`` hides the field ``b`` of ``a``.
    Raises an `InvalidArgumentError` if there is no such column (with the nearest name), or two of that name.
    """
    index = batch.schema.get_field_index(dotted)
    if index >= 0:
        return batch.column(index)
    segments = dotted.split(".")
    array: pa.Array | None = None
    names: list[str] = list(batch.schema.names)
    while segments:
        taken = _longest(segments, names.__contains__)
        if taken == 0:
            raise InvalidArgumentError(_missing(dotted, ".".join(segments), segments[0], names))
        name = ".".join(segments[:taken])
        if names.count(name) > 1:
            raise InvalidArgumentError(f"column {dotted!r} is ambiguous: the data has two columns {name!r}; rename one")
        index = names.index(name)
        array = batch.column(index) if array is None else pc.struct_field(array, [index])
        segments = segments[taken:]
        if segments:
            if not pa.types.is_struct(array.type):
                raise InvalidArgumentError(
                    f"column {dotted!r} does not exist: {name!r} is {array.type}, not a struct with "
                    f"fields; name {name!r} itself"
                )
            names = [array.type.field(i).name for i in range(array.type.num_fields)]
    return array


def exact_path(schema: pa.Schema, dotted: str) -> str:
    """Return a dotted path with the names of the data, from one that may differ in upper and lower case, as in Spark.

    A name that exists as it is written goes first. A path without a column is returned unchanged. Raises an
    `InvalidArgumentError` if two names differ from the path only in case.
    """
    segments = dotted.split(".")
    path: list[str] = []
    fields: list[pa.Field] = list(schema)
    while segments:
        found = None
        for n in range(len(segments), 0, -1):
            if (found := _field(fields, ".".join(segments[:n]), dotted)) is not None:
                segments = segments[n:]
                break
        if found is None:
            return dotted
        path.append(found.name)
        kind = found.type
        fields = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    return ".".join(path)


def fields_on_path(schema: pa.Schema, dotted: str) -> tuple[pa.Field, ...]:
    """Return a column and the fields inside of it on the way to which a dotted path leads, as in `column_at`.

    Empty if it leads nowhere.
    """
    segments, path, level = dotted.split("."), list[pa.Field](), schema
    while segments:
        if path and not pa.types.is_struct(level):
            return ()
        taken = _longest(segments, partial(_has_field, level))
        if taken == 0:
            return ()
        path.append(level.field(".".join(segments[:taken])))
        level, segments = path[-1].type, segments[taken:]
    return tuple(path)


def top_level_column(dotted: str, names: Collection[str]) -> str:
    """Return the column in which a dotted path begins: as in `column_at` the longest name that exists.

    If there is none, that is the first segment of the path.
    """
    segments = dotted.split(".")
    return ".".join(segments[: _longest(segments, names.__contains__) or 1])


def _has_field(level: Any, name: str) -> bool:
    """Return whether a schema, or a type of structs, has a field of that name, and no other one of it."""
    return bool(level.get_field_index(name) >= 0)


def _longest(segments: Sequence[str], exists: Callable[[str], bool]) -> int:
    """Return of how many segments, from the first one on, the longest name is that exists; 0 if none does."""
    return next((n for n in range(len(segments), 0, -1) if exists(".".join(segments[:n]))), 0)


def _field(fields: list[pa.Field], name: str, dotted: str) -> pa.Field | None:
    same = [field for field in fields if field.name == name]
    same = same or [field for field in fields if field.name.lower() == name.lower()]
    names = {field.name for field in same}
    if len(names) > 1:
        both = " and ".join(map(repr, sorted(names)))
        raise InvalidArgumentError(f"column {dotted!r} is ambiguous: the data has {both}; write one as it is")
    return same[0] if same else None


def _missing(dotted: str, rest: str, segment: str, names: list[str]) -> str:
    prefix = dotted.removesuffix(rest)
    by_lowered = {name.lower(): name for name in names}
    near = get_close_matches(rest.lower(), by_lowered, n=1) or get_close_matches(segment.lower(), by_lowered, n=1)
    if near:
        return f"column {dotted!r} is not in the data; did you mean {prefix + by_lowered[near[0]]!r}?"
    known = ", ".join(repr(prefix + name) for name in names) or "none"
    return f"column {dotted!r} is not in the data; the columns are: {known}; name one of them"


def event_time_names(source: str, fixed: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names under which the frame of a source has the event time, the likeliest first; it may lack some.

    `fixed` are the options by which event times are read, as an offset of the source has them.
    """
    column, added = fixed.get("eventTimeColumn"), fixed.get("eventTimeAs")
    own = () if added is None else (str(added),)
    if column is None:
        return own + (("timestamp",) if source == "aligned_kafka" else () if own else ("event_time",))
    if column == "a function":
        return own
    # Of a number or a nested field the frame has a column of its own for it.
    has_own = not own and (fixed.get("timestampUnit") or "." in column)
    return (column, *own, "event_time") if has_own else (column, *own)
