"""Whoever can write a checkpoint or a table's metadata does not choose which host gets this process's credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming_source.connectors import DeltaSource
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import MalformedDataError
from streaming_source.from_data import Location, as_id, as_place, path_below
from streaming_source.tools.cli.main import app
from tests.iceberg import tables as iceberg
from tests.monitoring.situations import silent_split
from tests.outside.loopback import Listening, give_credentials, listening

AUDIT = ("--time", "ts", "--window", "1 minute", "--mode", "append", "--operator", "aggregation")
PLACES = (
    "s3://bucket/x?endpoint_override={address}&scheme=http&region=us-east-1",
    "s3://bucket?endpoint_override={address}&scheme=http&region=us-east-1",
    "s3a://key:secret@bucket?endpoint_override={address}&scheme=http",
    "s3://bucket/x%3Fendpoint_override={address}&scheme=http&region=us-east-1",
    "gs://anonymous@bucket?endpoint_override={address}&scheme=http&retry_limit_seconds=1",
    "abfs://account@{address}/container/x",
    "abfss://account@{address}/container/x?enable_tls=false",
    "http://{address}/x",
    "hdfs://user@{address}/x",
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    give_credentials(monkeypatch)
    with listening() as found:
        yield found
        assert found.requests == []


def sent(folder: Path, uri: str) -> Path:
    """Write a checkpoint of a query over files, all of them below a URI."""
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "11111111-1111-1111-1111-111111111111"}))
    for n in (0, 1):
        known = {"batchWatermarkMs": 0, "batchTimestampMs": 1_767_225_600_000 + n, "conf": {}}
        (folder / f"offsets/{n}").write_text(f'v1\n{json.dumps(known)}\n{{"logOffset":{n}}}')
        (folder / f"commits/{n}").write_text('v1\n{"nextBatchWatermarkMs":0}')
        one = {"path": f"{uri}/a.parquet", "timestamp": 1, "batchId": n}
        (folder / f"sources/0/{n}").write_text(f"v1\n{json.dumps(one)}")
    return folder


def ends_with_a_fix(*command: str) -> str:
    done = CliRunner().invoke(app, [*command])
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("place", PLACES)
def test_audit_of_a_checkpoint_that_was_sent_contacts_no_host_of_its_choice(
    tmp_path: Path, host: Listening, place: str
) -> None:
    uri = place.format(address=host.address)
    said = ends_with_a_fix("audit", str(sent(tmp_path / "checkpoint", uri)), *AUDIT)
    assert "option" in said
    assert "secret" not in said


@pytest.mark.parametrize("place", [one for one in PLACES if "%3F" not in one])
def test_explain_of_the_writers_upstream_contacts_no_host_of_their_choice(
    tmp_path: Path, host: Listening, place: str
) -> None:
    query = silent_split(tmp_path / "query")
    query.close()
    checkpoint = query.folder / "checkpoint"
    for path in (checkpoint / "offsets").iterdir():
        head, known, offset = path.read_text().split("\n")
        found = json.loads(offset)
        found["why"] = {**found["why"], "upstream": place.format(address=host.address)}
        path.write_text("\n".join([head, known, json.dumps(found)]))
    said = ends_with_a_fix("explain", str(checkpoint), "--through")
    assert "Name it yourself" in said


@pytest.mark.parametrize("place", PLACES)
def test_a_table_of_iceberg_does_not_say_where_its_files_are_asked_for(
    tmp_path: Path, host: Listening, place: str
) -> None:
    iceberg.create(tmp_path)
    files = iceberg.harness(tmp_path).source.open_files()  # type: ignore[attr-defined]
    for uri in (place, f"{place}/x.parquet"):
        if "%3F" in uri or "/x?" in uri:
            continue  # A part of the path: a location is not escaped.
        with pytest.raises(MalformedDataError, match="Name it yourself"):
            files.open_input_file(uri.format(address=host.address))


def test_properties_of_a_table_of_iceberg_do_not_say_how_its_store_is_opened(tmp_path: Path, host: Listening) -> None:
    table = iceberg.create(tmp_path)
    iceberg.append(table, [1_000_000])
    with table.transaction() as change:
        change.set_properties({"s3.endpoint": f"http://{host.address}", "client.region": "us-east-1"})
    source = iceberg.harness(tmp_path).source
    loaded = source._load()  # type: ignore[attr-defined]
    assert loaded.properties["s3.endpoint"]
    assert not {"s3.endpoint", "client.region"} & {*loaded.io.properties}


def test_a_delta_table_does_not_say_where_its_files_are_asked_for(tmp_path: Path, host: Listening) -> None:
    storage = StorageOptions.of({"access_key": "a", "secret_key": "b", "region": "us-east-1"})
    source = DeltaSource("s3://bucket/table", storage=storage)
    for place in PLACES:
        if "%3F" in place or "/x?" in place:
            continue
        try:
            assert source._locate(place.format(address=host.address)) is None
        except MalformedDataError as error:
            assert "Name it yourself" in str(error)  # noqa: PT017


def test_a_uri_of_an_option_may_have_a_query(host: Listening) -> None:
    filesystem, path = Root(f"s3://bucket/x?endpoint_override={host.address}&scheme=http&region=us-east-1").open()
    assert path == "bucket/x"
    with pytest.raises(OSError, match=r"ACCESS_DENIED|403"):
        filesystem.get_file_info("bucket/x")
    assert host.requests
    host.requests.clear()


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/data/a?b", ("", "", "/data/a?b")),
        ("file:/data/a%20b", ("", "", "/data/a%20b")),
        ("s3a://b/p=a%2Fb/c#d", ("s3a", "b", "p=a%2Fb/c#d")),
        ("hdfs://nn:8020/x", ("hdfs", "nn:8020", "x")),
        ("hdfs:///x", ("hdfs", "", "x")),
        ("abfss://c@acc.dfs.core.windows.net/x", ("abfss", "c@acc.dfs.core.windows.net", "x")),
    ],
)
def test_a_location_is_a_store_and_a_path(text: str, location: tuple[str, str, str]) -> None:
    assert Location.of(text) == location


def test_a_scheme_that_an_option_names_may_be_in_data() -> None:
    assert Location.of("oss://b/x", ["oss://b/checkpoint"]).root == "oss://b/"
    assert as_place("oss://b/x", ["oss://b/checkpoint"]) == "oss://b/x"
    with pytest.raises(MalformedDataError, match="'oss'"):
        Location.of("oss://b/x", ["/checkpoint"])


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", ".", "a/..", "/root", "a\0b", "/rooted/x"])
def test_a_path_elsewhere_is_not_below_a_root(path: str) -> None:
    assert path_below("/root", path) is None


def test_a_path_below_a_root_has_no_dots() -> None:
    assert path_below("/root", "a/./b/../c") == "a/c"
    assert path_below("bucket/root", "a//b") == "a/b"
    assert path_below("/root", "/root/x/..y") == "x/..y"


@pytest.mark.parametrize("text", ["", "../x", "a/b", "0" * 11, "A" * 12, "0" * 12 + "\n", 12, None, ["0" * 12]])
def test_an_id_has_the_form_of_ours(text: object) -> None:
    with pytest.raises(MalformedDataError, match="no id"):
        as_id(text)
