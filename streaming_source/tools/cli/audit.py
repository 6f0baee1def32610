"""`streaming-source audit`: what a query over Spark's own sources loses to its watermark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from alignment.durations import format_duration
from alignment.exceptions import AlignmentError
from streaming_source.tools.cli.given_source import key_values

if TYPE_CHECKING:
    from streaming_source.tools.auditing.report import Fix

_SCANNED: Final = 20_000_000
"""Most rows for which all event times are read to compute the bound, unless the user sets an option."""


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
    mode: Annotated[
        str | None, typer.Option("--mode", help="Its output mode, where the state does not show it: see docs/audit.md.")
    ] = None,
    operator: Annotated[
        list[str],
        typer.Option("--operator", metavar="NAME", help="Of Spark 3.5: each stateful operator; see docs/audit.md."),
    ] = [],  # noqa: B006
    source: Annotated[
        list[str],
        typer.Option("--source", metavar="PATH|TABLE|TOPIC", help="Where its data is now; one for each source."),
    ] = [],  # noqa: B006
    option: Annotated[
        list[str], typer.Option("--option", "-o", metavar="KEY=VALUE", help="How data is read; see docs/audit.md.")
    ] = [],  # noqa: B006
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Draw it on one page, too.", dir_okay=False)
    ] = None,
    advice: Annotated[
        bool | None,
        typer.Option(
            "--advise/--no-advise",
            help=f"Read all event times, twice, for the bound of the fix; else up to {_SCANNED:,} rows.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one line of JSON.")] = False,
) -> None:
    """Count what a query of Spark's own sources lost to its watermark: files, tables, Kafka.

    The query may be running or stopped: only its checkpoint and its data are read, Spark is not started, and nothing is
    written. The exit code is 0 whether rows were dropped or not, and 2 if the checkpoint cannot be audited.
    """
    # Imported here: the other commands need neither connectors nor pyarrow's readers.
    from streaming_source.auditing import audit
    from streaming_source.tools.auditing.report import fixes

    with _progress_bar() as progress:
        found = audit(
            checkpoint,
            time=time or None,
            window=window,
            mode=mode,
            operator=operator,
            source=source or None,
            options=key_values(option),
            progress=progress,
        )
    fixed = [_bounded(fix, found.read, advice) for fix in fixes(found, key_values(option))] if found.dropped else []
    if html is not None:
        from streaming_source.tools.auditing.html_page import html_page

        html.write_text(html_page(found, f"Audit: {checkpoint}", [*map(_shown, fixed)]), encoding="utf-8")
    if as_json:
        print(json.dumps({**found.to_json(), "fixes": [fix.to_json() for fix in fixed]}), flush=True)
        return
    print("\n\n".join([str(found), *map(_shown, fixed)]), flush=True)


def _bounded(fix: Fix, rows: int, wanted: bool | None) -> Fix:
    """Add the bound that covers all current records, if they are few enough or `wanted` is set."""
    if not (rows <= _SCANNED if wanted is None else wanted):
        return fix
    # Imported here: the audit itself needs no PySpark.
    try:
        from streaming_source.spark.datasource import AlignedDataSource
        from streaming_source.tools.advise import advise_on
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        return replace(fix, no_bound="that needs PySpark; pip install 'spark-watermark-alignment[pyspark]'")
    place = {} if fix.path is None else {"path": fix.path}
    try:
        advice = advise_on(AlignedDataSource.of_format(fix.format, {**fix.options, **place}))
    except (AlignmentError, OSError) as error:
        return replace(fix, no_bound=" ".join(str(error).splitlines()))
    bound = advice.delays[-1]
    options = {**fix.options, "maxOutOfOrderness": format_duration(bound.delay_us)}
    return replace(fix, options=options, records=advice.rows, late=bound.late + advice.invalid)


def _shown(fix: Fix) -> str:
    if fix.no_bound is not None:
        return f"These lines lose nothing to skew; their maxOutOfOrderness could not be found: {fix.no_bound}\n\n{fix}"
    if fix.records is None:
        advise = "the bound maxOutOfOrderness is found by --advise"
        return f"These lines lose nothing to skew; {advise}:\n\n{fix}"
    counted = fix.records - (fix.late or 0)
    bound = fix.options["maxOutOfOrderness"]
    return f"With maxOutOfOrderness = {bound}, {counted:,} of the {fix.records:,} records there are on time:\n\n{fix}"


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], Any]]:
    """Show progress on standard error if that is a terminal; standard output has only the command's result."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading event times"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("splits", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
