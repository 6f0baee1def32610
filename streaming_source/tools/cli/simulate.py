"""`streaming-source simulate`: what other settings would have come to, of a recorded query or a described workload."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from alignment.durations import parse_duration_us
from alignment.exceptions import InvalidArgumentError
from alignment.simulation.scenario import Planning
from streaming_source.tools.cli.given_source import given_source

if TYPE_CHECKING:
    from alignment.simulation import Comparison, Faults, Settings, SourceScenario, SourceTrace

_DRIFTS: Final = ("30 seconds", "none")
_MAX_ROWS: Final = 1000
_OF_DATA: Final = {"source": "--source", "option": "--option", "format_name": "--format"}


def simulate_source(
    context: typer.Context,
    log: Annotated[
        Path | None, typer.Argument(help="What option eventLog of a query wrote: a file, or a folder with one.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|TABLE|TOPIC", help="With LOG: where its data is. Event times that LOG lacks are read there."
        ),
    ] = None,
    option: Annotated[
        list[str], typer.Option("--option", "-o", metavar="KEY=VALUE", help="Of --source, as of the query.")
    ] = [],  # noqa: B006 (typer copies it)
    format_name: Annotated[str | None, typer.Option("--format", help="Of --source, as in `advise`.")] = None,
    max_drift: Annotated[
        list[str], typer.Option(help="How far a split may be ahead of the slowest; 'none' for no limit.")
    ] = [],  # noqa: B006 (typer copies it)
    max_out_of_orderness: Annotated[
        list[str], typer.Option(help="How far a record may be behind the latest of its split.")
    ] = [],  # noqa: B006
    idle_timeout: Annotated[list[str], typer.Option(help="After which a silent split is idle; 'none' for never.")] = [],  # noqa: B006
    max_rows: Annotated[list[str], typer.Option(help="Rows of a micro-batch; 'none' for no limit.")] = [],  # noqa: B006
    planning: Annotated[
        Planning, typer.Option(help="Event times known ahead of reading, or only reported.")
    ] = Planning.REACTIVE,
    splits: Annotated[int, typer.Option(min=1, help="How many splits.")] = 8,
    records: Annotated[int, typer.Option(min=1, help="Records in each split.")] = 10_000,
    spacing: Annotated[str, typer.Option(help="Event time from one record of a split to the next.")] = "100 ms",
    unevenness: Annotated[float, typer.Option(min=1, help="By which factor densities vary.")] = 2.0,
    skew: Annotated[str, typer.Option(help="Splits begin within this span of event time.")] = "5 minutes",
    disorder: Annotated[str, typer.Option(help="By how much records are out of order.")] = "0 s",
    first_rows: Annotated[int, typer.Option(min=1, help="What a split of unknown density is admitted.")] = 100,
    lost: Annotated[float, typer.Option(min=0, max=1, help="Share of the reports that get lost.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides all that is drawn.")] = 1,
) -> None:
    """Compare settings of a source: late records, rows in state, micro-batches.

    With LOG, the simulation replays the splits that a query read; without, it draws splits from a description. Settings
    can be given several times: there is a row for each combination, after one for the query's own settings. Of the data
    only event times are read, and only with --source; Spark is not started. The last line of standard output is JSON,
    with all durations and event times in microseconds. See docs/simulate.md.
    """
    # Imported here: no other command plans.
    from alignment.simulation import Faults, RecordedWorkload, SourceScenario

    varied = {
        "max_drift": max_drift,
        "max_out_of_orderness": max_out_of_orderness,
        "idle_timeout": idle_timeout,
        "max_rows": max_rows,
    }
    if log is not None:
        for name in context.params.keys() - {"log", *_OF_DATA, *varied}:
            given = context.get_parameter_source(name)
            if given is not None and given.name != "DEFAULT":
                given_as = "--" + name.replace("_", "-")
                raise InvalidArgumentError(
                    f"{given_as} describes a workload, and LOG has one: leave out one of the two"
                )
        known = None
        if source is not None:
            data = given_source("simulate --source", source, option, format_name)
            # Imported here: without --source no data is read.
            from streaming_source.tools.advise import event_times_of

            known = event_times_of(data)
        comparison = RecordedWorkload.of_log(log, known).compare(**varied)
    else:
        for name, given_as in _OF_DATA.items():
            if context.params[name]:
                raise InvalidArgumentError(f"{given_as} is of the data of a query: give its LOG, or leave it out")
        described = SourceScenario(
            planning=planning,
            splits=splits,
            records=records,
            spacing_us=parse_duration_us(spacing, name="--spacing"),
            unevenness=unevenness,
            skew_us=parse_duration_us(skew, name="--skew"),
            disorder_us=parse_duration_us(disorder, name="--disorder"),
            first_rows=first_rows,
        )
        comparison = _compared(described, Faults(lost=lost), seed, varied)
    print(comparison)
    print(json.dumps([outcome.to_json() for outcome in comparison.outcomes]), flush=True)


def _compared(source: SourceScenario, faults: Faults, seed: int, varied: Mapping[str, Sequence[str]]) -> Comparison:
    from alignment.simulation import Comparison, Scenario, Settings, combinations, simulate

    def play(settings: Settings) -> SourceTrace:
        return simulate(Scenario(sources=(replace(source, **asdict(settings)),), faults=faults), seed).sources[0]

    base = Settings(max_drift_us=None, out_of_orderness_us=source.disorder_us, idle_timeout_us=None, max_rows=_MAX_ROWS)
    workload = f"{source.splits * source.records:,} records of {source.splits:,} splits, drawn from seed {seed}"
    settings = combinations(base, **{**varied, "max_drift": varied["max_drift"] or _DRIFTS})
    return Comparison.of(play, settings, workload)
