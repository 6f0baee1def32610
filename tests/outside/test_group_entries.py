"""What another member leaves in `alignmentLocation` removes no file, and reaches no plan as anything but a report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.coordinator.group_location import GroupFile, GroupLocation
from streaming_source.data_files.stores import Root
from streaming_source.exceptions import SourceError
from streaming_source.spark.group_directory import GroupDirectory

EVIL = "e" * 32

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def directory(folder: Path) -> GroupDirectory:
    location = GroupDirectory(Root(str(folder)), _now_us, lambda: time.time_ns() // 1000)
    location.look_s = 0.0
    return location


def joined(location: GroupLocation) -> GroupExchange:
    exchange = GroupExchange(location, "g", 60_000_000, 1_000_000, _now_us, name="victim")
    exchange.join()
    return exchange


def left_by_another(folder: Path, change: Change, name: str = EVIL) -> Path:
    """Write an entry as a member would, but for a change of what is around the member and of the member."""
    (own,) = folder.rglob(f"{'[0-9a-f]' * 32}.json")
    entry = json.loads(own.read_text())
    member = {**json.loads(entry["member"]), "source_id": EVIL}
    text = change(entry, member)
    path = own.with_name(f"{name}.json")
    path.write_text(text if isinstance(text, str) else json.dumps({**entry, "member": json.dumps(member)}))
    return path


def ended(source_id: str) -> Change:
    def change(_: dict[str, Any], member: dict[str, Any]) -> None:
        member.update(source_id=source_id, until_us=member["at_us"])

    return change


@pytest.mark.parametrize("name", [EVIL, "evil"])
@pytest.mark.parametrize("place", ["{tmp}/victim", "../../victim", "../victim", "{own}"])
def test_an_entry_that_names_another_file_removes_nothing(tmp_path: Path, place: str, name: str) -> None:
    exchange = joined(directory(tmp_path / "groups"))
    (own,) = tmp_path.rglob("*.json")
    for folder in (tmp_path, tmp_path / "groups"):
        (folder / "victim.json").write_text("{}")
    before = {
        *tmp_path.rglob("*.json"),
        left_by_another(tmp_path, ended(place.format(tmp=tmp_path, own=own.stem)), name),
    }
    for _ in range(2):
        try:
            exchange.location.exchange("g", None, lambda _: True)
        except SourceError as error:
            assert f"{EVIL}.json" in str(error)  # noqa: PT017
        exchange.join()
    assert {*tmp_path.rglob("*.json")} == before


def member(**values: object) -> Change:
    return lambda _, of: of.update(values)


def entry(**values: object) -> Change:
    return lambda of, _: of.update(values)


def report(**values: object) -> Change:
    return lambda _, of: of["report"].update(values)


def text(text: str) -> Change:
    return lambda *_: text


WRONG: dict[str, Change] = {
    "a process of 70 bits": member(pid=2**70),
    "a process of 40 bits": member(pid=2**40),
    "a process of text": member(pid="x"),
    "all processes": member(pid=-1),
    "a lease of text": member(until_us="x"),
    "no time": member(at_us=None),
    "a lease of 80 bits": member(until_us=2**80),
    "a lease that is true": member(until_us=True),
    "a name that is a list": member(name=[1]),
    "no report": member(report=None),
    "one more field": member(more=1),
    "a watermark of text": report(watermark="x"),
    "a watermark that is no integer": report(watermark=1.5),
    "a watermark of 64 bits": report(watermark=2**63),
    "a status that is none": report(status=77),
    "a status of text": report(status="x"),
    "a drift below 0": report(max_drift_us=-1),
    "a part that is a list": report(part=[1]),
    "a part of text": report(part={"calls": "x"}),
    "a look ahead of nothing": report(part={"lookahead": {"stop_us": "x"}}),
    "a shift of text": entry(host="elsewhere", shift_us="x"),
    "a shift that is no number": entry(host="elsewhere", shift_us=float("nan")),
    "a host that is a list": entry(host=[]),
    "a version of text": entry(v="2"),
    "lists in lists": text("[" * 200_000),
    "objects in objects": text('{"v":' * 200_000),
    "no JSON": text("x"),
    "a number": text("1"),
    "digits": text("1" * 10_000),
    "bytes": text("\x00"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_entry_with_wrong_values_is_named_by_the_error(tmp_path: Path, change: Change) -> None:
    exchange = joined(directory(tmp_path / "groups"))
    path = left_by_another(tmp_path, change)
    with pytest.raises(SourceError, match=rf"alignmentLocation: .*{EVIL}\.json"):
        exchange.location.exchange("g", None, lambda _: False)
    # A plan goes on as it does where the location cannot be reached.
    exchange.start_plan()
    path.unlink()
    exchange.location.exchange("g", None, lambda _: False)


@pytest.mark.parametrize("change", [*WRONG.values()][:20], ids=[*WRONG][:20])
def test_a_damaged_report_on_the_drivers_host_is_an_error_that_names_the_file(tmp_path: Path, change: Change) -> None:
    location = GroupFile(tmp_path / "groups.sqlite")
    exchange = joined(location)
    with location._open() as file:
        ((written,),) = file.execute("SELECT report FROM member").fetchall()
        of = {**json.loads(written), "source_id": EVIL}
        changed = change({}, of)
        of_text = changed if isinstance(changed, str) else json.dumps(of)
        file.execute("INSERT INTO member VALUES ('g', ?, 'host', ?)", (EVIL, of_text))
    with pytest.raises(SourceError, match=r"groups\.sqlite has a damaged report"):
        location.exchange("g", None, lambda _: False)
    exchange.start_plan()
