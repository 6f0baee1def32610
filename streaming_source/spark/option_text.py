"""Options as a Python program gives them, and the text that Spark carries to a data source.

Spark has the options of a source in its plans, which `explain`, the event log and the user interface show. It redacts
options whose names match `spark.redaction.regex`: by default `secret`, `password`, `token`. Other options with secrets,
such as `kafka.sasl.jaas.config` and `storage.account_key`, are therefore packed into one option whose name matches.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, Literal, TypedDict

from pyspark.sql.types import ArrayType, DataType, StructType

from alignment.durations import format_duration
from alignment.shown import has_secret
from streaming_source.api import OptionSet
from streaming_source.exceptions import OptionError
from streaming_source.spark.options import SECRET_OPTIONS, STRATEGY_OPTIONS


class FrameKeywords(TypedDict, total=False):
    """The options of the frame as keywords, for editors and type checkers; written by `docs/make_options.py`."""

    event_time_as: str
    lateness: Literal["bounded", "none"]
    late: Literal["keep", "drop", "fail", "route"]
    late_location: str
    invalid_timestamp: Literal["fail", "null", "drop"]
    max_future_skew: timedelta | str
    event_time_from: datetime | date | str
    event_time_until: datetime | date | str
    overlap: Literal["drop", "keep", "fail"]
    no_data_micro_batches: bool
    available_now_checkpoint: str
    include_metadata: bool
    alignment_scope: Literal["application", "query"]
    alignment_location: str
    max_rows_per_trigger: int | None
    min_rows_per_trigger: int | None
    max_trigger_delay: timedelta | str
    num_readers: int | None
    allow_unaligned_source_splits: bool
    report_location: str
    gateway_host: str
    gateway_port: int
    gateway_certificate: str
    gateway_key: str
    warn_after: timedelta | str
    event_log: str
    indexing: Literal["auto", "off"]


def option_text(name: str, value: Any) -> str:
    """Write one value as the option's parser reads it: durations with units, truths in lower case, paths as they are.

    An `OptionError` for a list, a dictionary, or another object that no option is made of.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return format_duration(value // timedelta(microseconds=1))
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, StructType):
        return columns_text(value)
    if isinstance(value, Mapping):
        raise OptionError(f"option {name} = {value!r}: is a dictionary; give it as text, as json.dumps writes it")
    if isinstance(value, bytes) or (isinstance(value, Iterable) and not isinstance(value, str)):
        raise OptionError(
            f"option {name} = {value!r}: is a {type(value).__name__}; give it as text, such as 'a,b' for two names"
        )
    return str(value)


def path_text(path: Any) -> str:
    """Write the argument of `load` as option `path` reads it: several paths are a JSON list."""
    if isinstance(path, str | os.PathLike):
        return str(os.fspath(path))
    if isinstance(path, list | tuple) and path and all(isinstance(one, str | os.PathLike) for one in path):
        return json.dumps([str(os.fspath(one)) for one in path])
    raise OptionError(f"load: path = {path!r} is no path: give one, as in .load('/data/logs'), or a list of them")


def keyword_options(keywords: Mapping[str, Any]) -> dict[str, str]:
    """Turn keywords of `from_source` into options; None leaves one at its default."""
    of_strategy = {option.name.lower() for option in STRATEGY_OPTIONS}
    known = {keyword.replace("_", ""): keyword for keyword in FrameKeywords.__annotations__}
    options = {}
    for keyword, value in keywords.items():
        name = keyword.replace("_", "").lower()
        if name in of_strategy:
            raise OptionError(f"option {keyword} is part of the watermark_strategy here; set it there")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {known[nearest[0]]}?" if nearest else f"it has {', '.join(known.values())}"
            raise OptionError(f"from_source has no keyword {keyword!r}; {hint}")
        if value is not None:
            options[name] = option_text(keyword, value)
    return options


def columns_text(schema: StructType) -> str:
    """Write a schema as option `dataSchema` reads it."""
    return ", ".join(f"`{field.name.replace('`', '``')}` {_type(field.dataType)}" for field in schema)


def _type(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return f"struct<{columns_text(kind)}>"
    return f"array<{_type(kind.elementType)}>" if isinstance(kind, ArrayType) else kind.simpleString()


def with_secrets_hidden(options: Mapping[str, str], known: OptionSet) -> dict[str, str]:
    """Return options for Spark: those with secret values are packed into one option, as JSON."""
    every = with_secrets_shown(options)
    secret = {
        name: value
        for name, value in every.items()
        if name not in options or known.is_secret(name) or has_secret(value)
    }
    if not secret:
        return every
    return {name: every[name] for name in every if name not in secret} | {SECRET_OPTIONS: json.dumps(secret)}


def with_secrets_shown(options: Mapping[str, str]) -> dict[str, str]:
    """Return the user's options; raises an `OptionError`, which shows no value, if the packed option is no JSON."""
    shown, secret = {}, {}
    for name, value in options.items():
        if name.lower() == SECRET_OPTIONS.lower():
            secret = _parsed(value)
        else:
            shown[name] = value
    for name, value in secret.items():
        if shown.get(name, value) != value:
            raise OptionError(
                f"option {name} is given by itself and in {SECRET_OPTIONS}, with another value; give it once"
            )
    return {**shown, **secret}


def _parsed(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(value, str) for value in parsed.values()):
        raise OptionError(
            f"option {SECRET_OPTIONS}: must be a JSON object of options, all of text; write it with json.dumps, as in "
            "json.dumps({'storage.secret_key': key})"
        )
    return parsed
