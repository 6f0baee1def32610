"""Random files of text by hand: records of odd values, in random types, by options that both readers know."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from collections.abc import Callable
from operator import eq
from typing import Any, Final

from tests.parity.oracle import Case

__all__ = ["csv_case", "json_case", "json_records", "quoted_csv_case", "text_case"]

FILES: Final = 10
LINES: Final = 40

TIMES: Final = (
    *("2024-01-01", "2024-01-01T10:20:30Z", "2024-1-5 3:07:09", "2024-01-01 00:00:00 UTC", "2024-01-01T00:00:00+19:00"),
    *("2024-01-01 00:00:00.5+1", "2024-01-01 00:00:00 Europe/Berlin", "2024-01-01T10:20Z", "2024-02-30", "2024"),
    *("0001-01-01", "9999-12-31T23:59:59.999999", "2024-03-31 02:30:00", "1582-10-10", "soon"),
)
WRITTEN_TIMES: Final = ("05.01.2024 10:20", "5.1.2024 3:07", "31.12.2024 24:00", "05.01.2024", "2024-01-01 10:20")
NUMBERS: Final = (
    "1",
    "-5",
    "0",
    "200",
    "70000",
    "3000000000",
    "9223372036854775808",
    "1e2",
    "1.0",
    "1.5",
    "1.005",
    "-0.0",
)
NUMBERS_OF_CSV: Final = (
    *NUMBERS,
    *("+5", " 5", "5 ", "0x1f", "007", "1d", "inf", "Inf", "-Inf", "NaN", "nan", "1,000.5", "1e400", "-0"),
)
TYPES: Final = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(8,2)", "decimal(38,10)"),
    *("string", "timestamp", "timestamp_ntz", "date"),
)
_MODES: Final = ("PERMISSIVE", "PERMISSIVE", "DROPMALFORMED")
_ENDS: Final = ("\n", "\r\n", "\r")


def _files(r: random.Random, make: Callable[[], str], encoding: str = "UTF-8") -> tuple[str, tuple[bytes, ...]]:
    """Return the ending of some files beside that of their format, and their contents."""
    contents = [make().encode(encoding, "replace") for _ in range(FILES)]
    ending, compress = r.choice([("", bytes), ("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
    return ending, tuple(compress(content) for content in contents)


def _json_value(r: random.Random, depth: int = 0) -> str:
    kind = r.randint(0, 12)
    if kind < 2:
        return r.choice([*NUMBERS, "true", "false", "null", "NaN", "-Infinity"])
    if kind < 5:
        return json.dumps(r.choice(TIMES + WRITTEN_TIMES))
    if kind < 8:
        texts = ["", "1", "1.005", "1,000.5", "+1", " 1", "NaN", "+INF", "é\u0301", "😀", 'a"b', "\\", "\0", "it's"]
        return json.dumps(r.choice(texts), ensure_ascii=r.random() < 0.5)
    if kind == 8 or depth > 2:
        return r.choice(["'x'", "'a\"b'", "'2024-01-01'", '"\\ud800"', '"aGVsbG8="'])
    parts = [_json_value(r, depth + 1) for _ in range(r.randint(0, 3))]
    if kind < 11:
        return f"[{r.choice([',', ', ']).join(parts)}]"
    return "{" + ",".join(f'"{r.choice("abAk")}": {part}' for part in parts) + "}"


def _json_type(r: random.Random, depth: int = 0) -> str:
    kind = r.randint(0, 8)
    if kind == 0 and depth < 2:
        return f"struct<a:{_json_type(r, depth + 1)},b:{_json_type(r, depth + 1)}>"
    if kind == 1 and depth < 2:
        return f"array<{_json_type(r, depth + 1)}>"
    if kind == 2 and depth < 2:
        return f"map<string,{_json_type(r, depth + 1)}>"
    return r.choice([*TYPES, "binary"])


def _of_times(r: random.Random) -> dict[str, str]:
    patterns = {"timestampFormat": "dd.MM.yyyy HH:mm", "dateFormat": "dd.MM.yyyy"}
    return {name: pattern for name, pattern in patterns.items() if r.random() < 0.15}


def _without_ntz(columns: str, options: dict[str, str]) -> str:
    """Return columns of which `timestampFormat` is not also that of times without a zone: a rule of docs/parity.md."""
    return columns.replace("timestamp_ntz", "date") if "timestampFormat" in options else columns


_ODD_JSON: Final = (
    *("5", "null", "[]", '"a"', "{", "", "  ", '{"x":1} {"x":2}', "[1]", '  {"x":1}', '{"x":1}}', '{"x":1,}', "tru"),
)


def _json_record(r: random.Random) -> str:
    return "{" + ",".join(f'"{r.choice("xxyyzqX")}":{_json_value(r)}' for _ in range(r.randint(0, 4))) + "}"


def _json_columns(r: random.Random, options: dict[str, str]) -> str:
    return _without_ntz(", ".join(f"{name} {_json_type(r)}" for name in "xyz"), options)


def json_records(r: random.Random) -> tuple[list[str], str, dict[str, str]]:
    """Return texts of JSON by themselves, most of them objects; columns, and options that both readers know."""
    options = _of_times(r)
    texts = [r.choice(_ODD_JSON) if r.random() < 0.05 else _json_record(r) for _ in range(FILES * LINES)]
    return texts, _json_columns(r, options), options


def json_case(r: random.Random) -> Case:
    """Return files of JSON, a record a line or an array a file."""
    options = {"mode": r.choice(_MODES), **_of_times(r)}
    columns = _json_columns(r, options)
    if r.random() < 0.3 and options["mode"] == "PERMISSIVE":
        columns += ", _corrupt_record string"

    def lines() -> str:
        return r.choice(_ENDS).join(r.choice(_ODD_JSON) if r.random() < 0.05 else _json_record(r) for _ in range(LINES))

    ending, files = _files(r, lines)
    return Case("json", f"json{ending}", files, columns, options, alike=_but_for_lost if "binary" in columns else eq)


def _but_for_lost(ours: Any, sparks: Any) -> bool:
    """Return whether rows are the same, or Spark has lost the record for a text that is no base64."""
    is_lost = not any(value is not None for name, value in sparks.items() if name != "_corrupt_record")
    return is_lost or bool(ours == sparks)


def csv_case(r: random.Random) -> Case:
    """Return files of CSV with a separator, and quotes around some fields."""
    types = [r.choice([*TYPES, "binary"]) for _ in range(3)]
    sep, null = r.choice(",;|\t"), r.choice(["", "NA"])
    options = {"sep": sep, "nullValue": null, "mode": r.choice(_MODES), **_of_times(r)}
    encoding = r.choice(["UTF-8", "UTF-8", "ISO-8859-1"])
    if encoding != "UTF-8":
        options["encoding"] = encoding
    if r.random() < 0.2:
        options["comment"] = "#"
    if r.random() < 0.3:
        options["header"] = "true"
    if r.random() < 0.2:
        options["quote"] = r.choice(["", "'"])

    def field() -> str:
        others = ("", '""', "true", "tRue", "1", " true", "é", "NA", "#a")
        text = r.choice(r.choice([TIMES + WRITTEN_TIMES, NUMBERS_OF_CSV, others]))
        quote = options.get("quote") or '"'
        text = text if sep not in text or r.random() < 0.1 else f"{quote}{text}{quote}"
        return f"{quote}{text}{quote}" if r.random() < 0.2 and quote not in text else text

    def lines() -> str:
        found = [sep.join(field() for _ in range(r.choice([3, 3, 3, 3, 2, 4]))) for _ in range(LINES)]
        found += ["", "  ", "#x"]
        r.shuffle(found)
        first = ["x0" + sep + "x1" + sep + "x2"] if "header" in options else []
        return r.choice(_ENDS).join(first + found)

    columns = ", ".join(f"x{number} {kind}" for number, kind in enumerate(types))
    if r.random() < 0.3 and options["mode"] == "PERMISSIVE":
        columns += ", _corrupt_record string"
    ending, files = _files(r, lines, encoding)
    return Case("csv", f"csv{ending}", files, _without_ntz(columns, options), options)


def quoted_csv_case(r: random.Random) -> Case:
    """Return files of CSV of nothing but separators, quotes and escapes."""
    letters, escape = r.choice(['a",\\ ', 'a"",\\b\t', '"a,', '"\\a,', 'a" ,']), r.choice(["\\", '"'])
    columns = f"x1 string, x2 {r.choice(['string', 'string', 'int'])}, x3 string, _corrupt_record string"

    def lines() -> str:
        return "\n".join("".join(r.choice(letters) for _ in range(r.randint(0, 9))) for _ in range(LINES))

    ending, files = _files(r, lines)
    return Case("csv", f"csv{ending}", files, columns, {"escape": escape} | ({"quote": ""} if r.random() < 0.1 else {}))


def text_case(r: random.Random) -> Case:
    """Return files of lines."""
    ending, files = _files(r, lambda: "".join(r.choice("ab \t\n\n\ré") for _ in range(4 * LINES)))
    return Case("text", f"txt{ending}", files, "value string")
