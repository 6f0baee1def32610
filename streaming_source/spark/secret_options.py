"""Options with secret values, passed to Spark in one option that Spark redacts.

Spark has the options of a source in its plans, which `explain`, the event log and the user interface show. It redacts
options whose names match `spark.redaction.regex`: by default `secret`, `password`, `token`. Other options with secrets,
such as `kafka.sasl.jaas.config` and `storage.account_key`, are therefore packed into one option whose name matches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from alignment.shown import has_secret
from streaming_source.api import OptionSet
from streaming_source.exceptions import OptionError
from streaming_source.spark.options import SECRET_OPTIONS


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
