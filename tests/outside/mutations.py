"""Changes of what is read from disk: bytes, values of JSON, and the pieces that others would put there."""

from __future__ import annotations

import json
from random import Random
from typing import Any

__all__ = ["mutated"]

_WORSE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70, 1.5, 1e308, float("nan")),
    *("", "x", "../victim", "/etc/passwd", "a\0b", "\x1b[2J\nERROR", "s3://b?endpoint_override=127.0.0.1:9", "é" * 300),
    *([], [[]], {}, {"v": 1}, [1, "a", None], {"a": {"b": []}}, "0", "1" * 5_000, [0] * 100),
)
_PIECES = (b"", b"\0", b"\xff", b"{", b"}", b"[", b"]", b'"', b"\n", b"v1", b"v9", b"-1", b"e999", b"NaN", b"null")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        found += _paths(one, (*path, key))
    return found


def _with(value: Any, path: tuple[Any, ...], random: Random) -> Any:
    if not path:
        kind = random.randrange(8)
        if kind == 0 and isinstance(value, dict) and value:
            return {key: one for key, one in value.items() if key != random.choice([*value])}
        if kind == 1 and isinstance(value, list) and value:
            return value * 2 if random.random() < 0.5 else value[:-1]
        if kind == 2 and type(value) is int:
            return value + random.choice([-1, 1, 2**40, -(2**40), 2**62])
        if kind == 3 and isinstance(value, str):
            return value + random.choice(["x", "/..", "\0", "'"])
        return random.choice(_WORSE)
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _with(value[key], tuple(rest), random)
    return copy


def _of_bytes(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    match random.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + random.choice(_PIECES) + data[at:]
        case 2:
            return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
        case 3:
            return data[:at] + data[max(at - random.randrange(1, 40), 0) :]
        case _:
            return (
                data[:at] + random.choice([b"[", b'{"a":', b"(", b"9"]) * random.choice([50, 2_000, 50_000]) + data[at:]
            )


def mutated(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to three changes; of lines of JSON mostly one of their values."""
    for _ in range(random.choice([1, 1, 2, 3])):
        lines = data.split(b"\n")
        number = random.randrange(len(lines))
        try:
            value = json.loads(lines[number])
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, (dict, list)) or random.random() < 0.2:
            data = _of_bytes(data, random)
            continue
        changed = _with(value, random.choice(_paths(value)), random)
        lines[number] = json.dumps(changed).encode()
        data = b"\n".join(lines)
    return data
