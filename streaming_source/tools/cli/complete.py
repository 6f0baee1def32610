"""`streaming-source complete`: up to which event time a table is complete."""

from __future__ import annotations

import json
import time
from typing import Annotated, Final

import typer

from alignment.durations import parse_duration_us
from alignment.time_texts import iso8601_us
from streaming_source.exceptions import OptionError
from streaming_source.tools.cli.given_source import key_values

_LOOKS_S: Final = 1.0
"""From one look at the table to the next."""


def complete_table(
    table: Annotated[
        str,
        typer.Argument(help="Folder of a Delta table, name of an Iceberg table, or directory of Spark's file sink."),
    ],
    checkpoint: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            help="The checkpointLocation of a query that writes it; one for each. 'old -> new' where one has replaced "
            "another.",
        ),
    ],
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Exit 0 if all rows before TIME have been written. UTC unless it has a zone.",
        ),
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help='For how long to wait for it, as in "1 hour".')
    ] = "0 seconds",
    column: Annotated[
        str | None, typer.Option("--column", help="The table's column; else the one that the claim is on by itself.")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay", help="How far that may be behind the writer's watermark, where you know it: claimDelay."
        ),
    ] = None,
    option: Annotated[
        list[str],
        typer.Option("--option", "-o", metavar="KEY=VALUE", help="Of the format: storage.*, and catalog.* of Iceberg."),
    ] = [],  # noqa: B006 (typer copies it)
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one line of JSON.")] = False,
) -> None:
    """Print up to when a table is complete, since when, by which version, and why not further.

    Only the table's newest commits and the checkpoints of its writers are read. The exit code is 0 if the table is
    complete until the time that is given (without one: if anything is claimed), 1 if it is not, and 2 if it cannot be
    told.
    """
    # Imported here: the other commands do not need it.
    from streaming_source.tools.completeness import WatchedTable

    until_us = None if until is None else iso8601_us(until)
    if until is not None and until_us is None:
        raise OptionError(f"--until {until!r}: must be a time such as 2026-01-01T13:00; give one in ISO-8601")
    deadline = time.monotonic() + parse_duration_us(wait, name="--wait") / 1e6
    watched = WatchedTable(table, checkpoint, column, delay, key_values(option))
    while True:
        found = watched.look()
        is_complete = found.until_us is not None if until_us is None else found.covers(until_us)
        left_s = deadline - time.monotonic()
        if is_complete or left_s <= 0:
            break
        time.sleep(min(_LOOKS_S, left_s))
    print(json.dumps(found.to_json()) if as_json else found, flush=True)
    if not is_complete:
        raise typer.Exit(1)
