"""`streaming-source advise`: what a delay would cover, on a user's own data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from streaming_source.exceptions import OptionError
from streaming_source.spark.advice import advise_on
from streaming_source.spark.datasource import AlignedDataSource

__all__ = ["run_advise"]


def run_advise(source: str, options: Sequence[str]) -> None:
    """Scan files or a topic and print what came of it; the last line of standard output is JSON.

    Parameters
    ----------
    source
        A path, or, where the options name Kafka's brokers, a topic.
    options
        Each `key=value`.

    Raises
    ------
    OptionError
        If one is not.
    """
    given = {}
    for option in options:
        name, is_given, value = option.partition("=")
        if not is_given:
            raise OptionError(f"-o {option!r}: must be key=value, as in -o eventTimeColumn=ts")
        given[name] = value
    is_topic = any(name.lower() == "kafka.bootstrap.servers" for name in given)
    format_name, place = ("aligned_kafka", "subscribe") if is_topic else ("aligned_files", "path")
    advice = advise_on(AlignedDataSource.of_format(format_name, {place: source, **given}))
    print(advice)
    print(json.dumps(asdict(advice)), flush=True)
