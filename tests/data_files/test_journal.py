"""One journal for all that is written beside the data: whole or not there, wherever it is, whatever happens to it."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from streaming_source.connectors.files import FileSource
from streaming_source.data_files import faults
from streaming_source.data_files.journal import Journal, from_json, to_json
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import OffsetError, OptionError, SourceError, StoreError, StoreUnavailableError
from tests.files.stores import SECRET, Store, open_store, without_rights

KINDS = ["local", "fsspec", "fsspec without times", "s3"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, tmp_path, request)


def journal_in(store: Store, folder: str = "log", **arguments: Any) -> Journal:
    root = StorageOptions.of(store.storage).at(f"{store.uri}/journal")
    return Journal(root, "lateLocation", folder=folder, **arguments)


def local(path: Path, **arguments: Any) -> Journal:
    return Journal(Root(str(path)), "lateLocation", **arguments)


def parsed(content: bytes) -> Any:
    return from_json(1, content)["rows"]


def test_what_is_written_is_there_for_any_other_process_until_it_is_removed(store: Store) -> None:
    journal, other = journal_in(store), journal_in(store)
    # A directory that is not there has no entries.
    assert journal.names() == []
    assert journal.read(["a.json"], parsed) == {}
    journal.remove(["a.json"])
    for number, name in enumerate("abcdef"):
        journal.write(f"{name}.json", to_json(1, {"rows": number}))
    journal.write("b.json", to_json(1, {"rows": 70}))
    journal_in(store, "log/another").write("a.json", b"of a folder in it")
    assert other.names() == [f"{name}.json" for name in "abcdef"]
    assert other.read(["c.json", "gone.json", "b.json", *other.names()[3:]], parsed) == {
        "c.json": 2,
        "b.json": 70,
        "d.json": 3,
        "e.json": 4,
        "f.json": 5,
    }
    other.remove(["gone.json", *"abcdefgh", *journal.names()[1:]])
    assert journal.names() == ["a.json"]
    # Nothing of it is left but this, neither a temporary name.
    assert store.names("journal") == ["journal/log/a.json", "journal/log/another/a.json"]


def test_a_directory_that_can_be_written_tells_the_time_of_its_store(store: Store) -> None:
    before_s, told_s = time.time(), journal_in(store).check()
    assert told_s is None or before_s - 2 <= told_s <= time.time() + 2
    assert (told_s is None) == store.uri.startswith("memory:")
    assert store.names("journal") == []


def test_an_entry_that_is_damaged_or_of_another_version_is_named_with_what_to_do(store: Store) -> None:
    journal = journal_in(store, mend="restore it, or start anew")
    whole = to_json(1, {"rows": 1})
    for name, content, error in (
        (
            "half.json",
            whole[: len(whole) // 2],
            r"half\.json is damaged \(JSONDecodeError.*\); restore it, or start anew$",
        ),
        ("empty.json", b"", r"empty\.json is damaged .*; restore it, or start anew$"),
        ("bytes.json", b"\xff\x00", r"bytes\.json is damaged .*; restore it, or start anew$"),
        ("other.json", b'["v"]', r"other\.json is damaged .*; restore it, or start anew$"),
        ("lacks.json", b'{"v": 1}', r"lacks\.json is damaged \(KeyError\('rows'\)\); restore it, or start anew$"),
        (
            "newer.json",
            b'{"v": 2, "rows": 1}',
            r"newer\.json: it is of version 2: upgrade spark-watermark-alignment every",
        ),
    ):
        journal.write(name, content)
        with pytest.raises(OffsetError, match=rf"^option lateLocation: .*/journal/log/{error}"):
            journal.read([name], parsed)
    journal.write("good.json", whole)
    errors: list[SourceError] = []
    assert journal.read(journal.names(), parsed, errors) == {"good.json": 1}
    assert len(errors) == 6


def test_what_a_killed_process_has_half_written_is_no_entry_and_is_written_over(tmp_path: Path) -> None:
    journal = local(tmp_path)
    (tmp_path / "_a.json").write_bytes(b'{"v": 1, "ro')
    assert journal.names() == []
    assert journal.read(["a.json"], parsed) == {}
    journal.write("a.json", to_json(1, {"rows": 1}))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_no_reader_ever_sees_a_part_of_an_entry_that_is_replaced(tmp_path: Path) -> None:
    journal, texts, done = (
        local(tmp_path),
        [to_json(1, {"rows": "x" * size}) for size in (10, 200_000)],
        threading.Event(),
    )
    journal.write("a.json", texts[0])

    def replace() -> None:
        for number in range(100):
            journal.write("a.json", texts[number % 2])
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(journal.read(["a.json"], bytes)["a.json"])
    writer.join()
    assert seen <= {*texts}


@pytest.mark.parametrize("kind", KINDS[:3])
@given(steps=st.lists(st.tuples(st.sampled_from(["write", "remove"]), st.integers(0, 3), st.binary(max_size=3))))
def test_a_journal_is_a_dictionary_of_bytes(
    kind: str,
    steps: list[tuple[str, int, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> None:
    journal, model = journal_in(open_store(kind, tmp_path_factory.mktemp("store"), request)), dict[str, bytes]()
    for step, number, content in steps:
        name = f"{number}.json"
        if step == "write":
            journal.write(name, content)
            model[name] = content
        else:
            journal.remove([name])
            model.pop(name, None)
        assert journal.names() == sorted(model)
        assert journal.read(["0.json", "1.json", "2.json", "3.json"], bytes) == model


def test_entries_of_a_name_go_by_age_and_what_else_is_there_stays(tmp_path: Path) -> None:
    journal, now_s = local(tmp_path), time.time()
    for name, age_s in {"old-1": 100, "_old-2": 100, "new-3": 10, "data.csv": 100, "_data": 100}.items():
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (now_s - age_s, now_s - age_s))
    journal.remove_older(now_s - 50, re.compile(r"(old|new)-\d"))
    assert {path.name for path in tmp_path.iterdir()} == {"new-3", "data.csv", "_data"}


def test_entries_of_a_store_without_times_do_not_go_by_age(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    journal = journal_in(open_store("fsspec without times", tmp_path, request))
    journal.write("old-1", b"")
    journal.remove_older(time.time() + 100, re.compile(r"old-\d"))
    assert journal.names() == ["old-1"]


class Away(Root):
    """A store that does not answer for as many calls as `failures` has errors."""

    def open(self) -> tuple[fs.FileSystem, str]:
        if failures := vars(self)["failures"]:
            raise failures.pop(0)
        return super().open()


def away(path: Path, *failures: Exception, **arguments: Any) -> Journal:
    root = Away(str(path))
    vars(root)["failures"] = [*failures]
    return Journal(root, "stateLocation", **arguments)


CALLS: dict[str, Callable[[Journal], object]] = {
    "write": lambda journal: journal.write("a", b""),
    "names": lambda journal: journal.names(),
    "read": lambda journal: journal.read(["a"], bytes),
    "remove": lambda journal: journal.remove(["a"]),
    "remove_older": lambda journal: journal.remove_older(0, re.compile("")),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_is_away_for_a_moment_is_asked_again(tmp_path: Path, call: str) -> None:
    CALLS[call](away(tmp_path, ConnectionRefusedError("no"), TimeoutError("slow")))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_patient", [True, False])
def test_a_store_that_stays_away_is_an_error_that_says_so(
    tmp_path: Path, call: str, is_patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_patient:
        monkeypatch.setattr(faults, "RETRY_S", 0.01)
    journal = away(tmp_path, *[ConnectionRefusedError("connection refused")] * 100, is_patient=is_patient)
    said = (
        rf"^option stateLocation: {tmp_path}: the store does not answer: connection refused\. Start again when it does"
    )
    with pytest.raises(StoreUnavailableError, match=said):
        CALLS[call](journal)
    with pytest.raises(
        OptionError, match=r"^a file cannot be written there: option stateLocation: .*; name a directory"
    ):
        journal.check()


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_right_is_an_error_that_names_the_directory_and_is_not_tried_again(tmp_path: Path, call: str) -> None:
    journal = local(tmp_path, writers="all planners")
    journal.write("a", b"")
    with without_rights(tmp_path):
        began_s = time.monotonic()
        with pytest.raises(
            StoreError, match=rf"^option lateLocation: {tmp_path}: the store refuses access: .*Permission den"
        ):
            CALLS[call](journal)
        with pytest.raises(OptionError, match=r"refuses access: .*; name a directory that all planners may write to$"):
            journal.check()
        assert time.monotonic() - began_s < 5
    assert journal.names() == ["a"]


def test_a_file_where_the_directory_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(
        OptionError, match=r"written there: option lateLocation: .*/file/log: .*; name a directory that the"
    ):
        local(tmp_path / "file", folder="log").check()


def test_a_bucket_that_is_not_there_and_a_host_that_does_not_answer_are_one_line_without_keys(s3_endpoint: str) -> None:
    keys = {"access_key": "somebody", "secret_key": SECRET, "scheme": "http", "region": "us-east-1"}
    nowhere = {"endpoint_override": "127.0.0.1:9", "connect_timeout": "0.2", "request_timeout": "0.2"}
    for more, said in (({"endpoint_override": s3_endpoint}, "bucket"), (nowhere, "does not answer")):
        root = StorageOptions.of(keys | more).at("s3://no-such-bucket-here/log")
        with pytest.raises(OptionError, match=said) as raised:
            Journal(root, "reportLocation", is_patient=False).check()
        assert SECRET not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_directory_is_opened_with_the_options_of_its_source_and_a_local_one_without(tmp_path: Path) -> None:
    storage = StorageOptions.of({"access_key": "somebody", "secret_key": SECRET})
    source = FileSource("s3://bucket/in", storage=storage)
    assert Journal.root_of(source, "s3://bucket/log") == Root("s3://bucket/log", storage)
    assert Journal.root_of(source, str(tmp_path)) == Root(str(tmp_path))
    assert Journal.root_of(object(), "s3://bucket/log") == Root("s3://bucket/log")
    secret = Journal(Root("s3://user:password@bucket/log?secret=1"), "lateLocation", folder="a")
    assert "password" not in str(secret)
    assert "secret=1" not in str(secret)


def test_an_entry_in_json_can_be_read_by_a_person() -> None:
    assert json.loads(to_json(3, {"rows": [1, 2]})) == {"v": 3, "rows": [1, 2]}
