"""`streaming-source audit`: what a query over Spark's own sources loses to its watermark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from streaming_source.exceptions import OptionError

__all__ = ["audit_query"]


def audit_query(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation: a path, or s3://...")],
    time: Annotated[
        list[str], typer.Option("--time", metavar="COLUMN", help="The column of withWatermark; one for each source.")
    ] = [],  # noqa: B006 (typer copies it)
    window: Annotated[
        str | None,
        typer.Option(
            "--window", help='Size, slide and start of its windows, as in "1 hour, 15 minutes"; the gap of sessions.'
        ),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", help="Its output mode: append, update or complete.")] = "append",
    source: Annotated[
        list[str],
        typer.Option("--source", metavar="PATH|TABLE|TOPIC", help="Where its data is now; one for each source."),
    ] = [],  # noqa: B006
    option: Annotated[
        list[str], typer.Option("--option", "-o", metavar="KEY=VALUE", help="How data is read; see docs/audit.md.")
    ] = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one line of JSON.")] = False,
) -> None:
    """Count what a query of Spark's own sources lost to its watermark: files, Delta, Kafka.

    The query may run or not: its checkpoint and its data are enough, Spark is not started, and nothing is written. The
    exit code is 0 whether rows were dropped or not, and 2 if the checkpoint cannot be audited.
    """
    # Here and not above: the other commands need neither connectors nor pyarrow's readers.
    from streaming_source.auditing import audit

    with _progress_bar() as progress:
        found = audit(
            checkpoint,
            time=time or None,
            window=window,
            mode=mode,
            source=source or None,
            options=key_values(option),
            progress=progress,
        )
    print(json.dumps(found.to_json()) if as_json else found, flush=True)


def key_values(texts: Sequence[str]) -> dict[str, str]:
    """Options as `KEY=VALUE`; an `OptionError` for one that is not."""
    given = {}
    for text in texts:
        name, is_given, value = text.partition("=")
        if not is_given:
            raise OptionError(f"-o {text!r}: must be key=value, as in -o fileFormat=json")
        given[name] = value
    return given


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], Any]]:
    """On a terminal, on its standard error: the output is that of the command alone."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading event times"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("splits", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
