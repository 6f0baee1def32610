"""`streaming-source watch`: it follows all that can become of a checkpoint, and only who has the address reads."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from alignment.exceptions import InvalidArgumentError
from streaming_source.checkpoint.offset_log import OffsetLog
from streaming_source.monitoring.micro_batch import CheckpointBatches, MicroBatch
from streaming_source.tools.cli.main import app
from streaming_source.tools.pages.watch import CheckpointWatch, Snapshot, WatchServer
from tests.monitoring.pages import data_of
from tests.monitoring.situations import Situation, at, records

PATIENCE_S = 20


@pytest.fixture(autouse=True)
def _clients_are_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_source.tools.pages.watch._ALIVE_S", 0.1)


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Situation]:
    found = Situation(tmp_path, {"a": records([0]), "b": records([10])})
    yield found
    found.close()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[CheckpointWatch]:
    found = CheckpointWatch(str(tmp_path / "checkpoint"), interval_s=0.02)
    yield found
    found.close()


def go_on(query: Situation, second: int) -> None:
    query.clock.advance("1 second")
    for split in ("a", "b"):
        query.source.go_on(split, at(second))
    query.run()


def after(watch: CheckpointWatch, seen: Snapshot) -> Snapshot:
    found = watch.wait(seen.version, PATIENCE_S)
    assert found is not None, "nothing has changed"
    return found


def shown(watch: CheckpointWatch, what: str) -> Snapshot:
    """The first state whose note or sentence has these words."""
    seen, until = watch.latest, time.monotonic() + PATIENCE_S
    while what not in " ".join([seen.data["note"], *(source["why"] for source in seen.data["sources"])]):
        assert time.monotonic() < until, seen.data["note"]
        seen = watch.wait(seen.version, 1.0) or seen
    return seen


def test_it_waits_for_a_checkpoint_follows_it_and_reports_that_it_is_gone(query: Situation, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.move(checkpoint, tmp_path / "later")
    watch = CheckpointWatch(str(checkpoint), interval_s=0.02)
    watch.start()
    try:
        assert "is not there yet" in watch.latest.data["note"]
        shutil.move(tmp_path / "later", checkpoint)
        shown(watch, "no source of this library")
        query.run()
        seen = shown(watch, "watermark")
        assert seen.data["sources"][0]["splits"]["id"] == ["a", "b"]
        go_on(query, 20)
        until = time.monotonic() + PATIENCE_S
        while len(seen.data["sources"][0]["batches"]) < len(OffsetLog(str(checkpoint)).batches()):
            assert time.monotonic() < until
            seen = after(watch, seen)
        assert seen.data["sources"][0]["batches"] == OffsetLog(str(checkpoint)).batches()
        shutil.rmtree(checkpoint)
        shown(watch, "is not there any more")
    finally:
        watch.close()


def test_a_query_that_starts_anew_on_the_checkpoint_is_followed_from_its_begin(tmp_path: Path) -> None:
    first = Situation(tmp_path / "1", {"old": records([0])}).run()
    go_on_s = iter(range(1, 100))
    first.let_pass(3, lambda: first.source.go_on("old", at(next(go_on_s))))
    second = Situation(tmp_path / "2", {"new": records([500])}).run()
    for query in (first, second):
        query.close()
        # Files may be as old and as long as those before: what differs is the id of the query.
        (query.folder / "checkpoint" / "metadata").write_text(json.dumps({"id": query.folder.name}))
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tmp_path / "1" / "checkpoint", checkpoint)
    watch = CheckpointWatch(str(checkpoint))
    before = watch.latest.data["sources"][0]
    assert (before["splits"]["id"], len(before["batches"])) == (["old"], 4)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "2" / "checkpoint", checkpoint)
    watch.look()
    now = watch.latest.data["sources"][0]
    assert (now["splits"]["id"], now["batches"]) == (["new"], [0])


def test_micro_batches_that_spark_has_removed_stay_on_the_page(query: Situation, watch: CheckpointWatch) -> None:
    for second in range(3):
        go_on(query, 20 + second)
    watch.look()
    before = watch.latest.data["sources"][0]["batches"]
    for folder in ("offsets", "commits"):
        (query.folder / "checkpoint" / folder / "0").unlink()
    go_on(query, 30)
    watch.look()
    assert watch.latest.data["sources"][0]["batches"] == [*before, before[-1] + 1]


def test_no_file_is_read_twice(query: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = OffsetLog.read

    def counted(log: OffsetLog, batch: int) -> Any:
        read.append(batch)
        return original(log, batch)

    monkeypatch.setattr(OffsetLog, "read", counted)
    path = str(query.folder / "checkpoint")
    query.run()
    batches = CheckpointBatches(path)
    for second in range(5):
        go_on(query, 20 + second)
        assert batches.read() == MicroBatch.of_checkpoint(path)
        read.clear()
        assert batches.read() == batches.read()
        assert read == []
    # The commit of a micro-batch changes it, and none before it.
    last = OffsetLog(path).batches()[-1]
    (query.folder / "checkpoint" / "commits" / str(last)).unlink()
    assert not batches.read()[-1].is_committed
    assert read == [last]


def test_damage_is_shown_and_is_over_when_the_file_is_whole(query: Situation, watch: CheckpointWatch) -> None:
    query.run()
    file = query.folder / "checkpoint" / "offsets" / "0"
    text = file.read_text()
    file.write_text(text[:40])
    watch.look()
    assert "The checkpoint cannot be read" in watch.latest.data["note"]
    file.write_text(text)
    watch.look()
    assert watch.latest.data["note"] == ""
    assert watch.latest.data["sources"]


def test_what_is_the_same_is_the_same_version(query: Situation, watch: CheckpointWatch) -> None:
    query.run()
    watch.look()
    version = watch.latest.version
    for _ in range(3):
        watch.look()
    assert watch.latest.version == version


# ---- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(query: Situation, watch: CheckpointWatch) -> Iterator[WatchServer]:
    query.run()
    watch.look()
    threads = threading.active_count()
    found = WatchServer(watch)
    found.start()
    yield found
    found.close()
    assert threading.active_count() == threads


def port_of(server: WatchServer) -> int:
    return urlsplit(server.url).port or 0


def answer(server: WatchServer, method: str = "GET", page: str = "", **headers: str) -> http.client.HTTPResponse:
    return answer_at(server, urlsplit(server.url).path + page, method, **headers)


def answer_at(server: WatchServer, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    return connection.getresponse()


def test_the_page_is_served_with_the_state_and_may_connect_to_its_server_alone(server: WatchServer) -> None:
    with urllib.request.urlopen(server.url, timeout=PATIENCE_S) as response:
        page, headers = response.read().decode(), response.headers
    assert data_of(page)["sources"][0]["splits"]["id"] == ["a", "b"]
    assert 'data-events="events"' in page
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert "connect-src 'self'" in policy
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_events_come_when_the_checkpoint_changes_and_bring_the_new_state(server: WatchServer, query: Situation) -> None:
    with urllib.request.urlopen(f"{server.url}events", timeout=PATIENCE_S) as events:
        assert events.headers["Content-Type"].startswith("text/event-stream")
        first = next_state(events)
        go_on(query, 20)
        found = next_state(events)
        while len(found["sources"][0]["batches"]) < 2:
            # What the page shows while Spark writes is a state of the query, and nothing else.
            assert (found["note"], found["sources"][0]["batches"]) == ("", [0])
            found = next_state(events)
        assert found["version"] != first["version"]
        assert found["sources"][0]["batches"] == [0, 1]


def test_who_comes_back_gets_only_what_is_new(server: WatchServer, watch: CheckpointWatch) -> None:
    seen = watch.latest.version
    response = answer(server, page="events", Last_Event_ID=seen)
    line = response.readline().decode()
    assert line == "event: alive\n" or seen not in line


def next_state(events: Any) -> dict[str, Any]:
    kind = ""
    for line in events:
        text = line.decode().strip()
        if text.startswith("event: "):
            kind = text.removeprefix("event: ")
        if text.startswith("data: ") and kind == "state":
            return dict(json.loads(text.removeprefix("data: ")))
    raise AssertionError("the events have ended")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8400", "127.0.0.1.evil.example", "localhost@evil.example", "", "0.0.0.0"]
)
def test_a_request_under_another_name_is_refused(server: WatchServer, host: str) -> None:
    response = answer(server, Host=host)
    assert response.status == 421
    assert b"splits" not in response.read()
    assert answer(server, page="events", Host=host).status == 421


def test_who_has_not_the_whole_token_gets_nothing(server: WatchServer) -> None:
    token = urlsplit(server.url).path.strip("/")
    assert len(token) == 32
    for form in ("/", "/events", "/?token={}", "/{}", "/{}/", "/{}./", "/{}./events", "//{}/", "/x/../{}/"):
        for method in ("GET", "HEAD"):
            response = answer_at(server, form.format(token[:-1]), method)
            assert response.status == 403, form
            assert "Set-Cookie" not in response.headers
            body = response.read()
            assert b"open the address that streaming-source watch printed" in body or (method == "HEAD" and body == b"")


def test_each_server_has_another_token_unless_it_has_none(server: WatchServer, watch: CheckpointWatch) -> None:
    other, open_to_all = WatchServer(watch), WatchServer(watch, has_token=False)
    try:
        assert urlsplit(other.url).path != urlsplit(server.url).path
        assert answer_at(server, urlsplit(other.url).path).status == 403
        assert urlsplit(open_to_all.url).path == "/"
    finally:
        for each in (other, open_to_all):
            each._server.server_close()


def test_without_a_token_the_page_is_at_the_root(query: Situation, watch: CheckpointWatch) -> None:
    query.run()
    server = WatchServer(watch, has_token=False)
    server.start()
    try:
        assert [answer_at(server, path).status for path in ("/", "/events", "/x", "*")] == [200, 200, 404, 403]
    finally:
        server.close()


def test_an_address_that_was_copied_without_its_last_slash_leads_to_the_page(server: WatchServer) -> None:
    with urllib.request.urlopen(server.url.removesuffix("/"), timeout=PATIENCE_S) as response:
        assert response.url == server.url
        assert data_of(response.read().decode())["sources"]


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "LOCALHOST:8400"])
def test_through_a_tunnel_any_port_will_do(server: WatchServer, host: str) -> None:
    assert answer(server, Host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server: WatchServer, method: str) -> None:
    response = answer(server, method)
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


def test_other_paths_are_not_there_and_head_has_no_body(server: WatchServer) -> None:
    assert answer(server, page="../../etc/passwd").status == 404
    assert answer(server, page="checkpoint").status == 404
    head = answer(server, "HEAD")
    assert head.status == 200
    assert int(head.headers["Content-Length"]) > 10_000
    assert head.read() == b""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no loopback address beside 127.0.0.1")
def test_it_listens_on_loopback_alone(server: WatchServer) -> None:
    # Linux gives each machine all of 127.0.0.0/8: who listens on every address of the machine listens there.
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port_of(server)), timeout=1):
        pass


def test_a_port_that_is_taken_is_refused_with_the_fix(server: WatchServer, watch: CheckpointWatch) -> None:
    with pytest.raises(InvalidArgumentError, match="another program listens there; give another port, or 0"):
        WatchServer(watch, port_of(server))


def test_close_ends_clients_that_wait_and_those_that_send_nothing(query: Situation, watch: CheckpointWatch) -> None:
    query.run()
    threads = threading.active_count()
    server = WatchServer(watch)
    server.start()
    silent = socket.create_connection(("127.0.0.1", port_of(server)))
    events = urllib.request.urlopen(f"{server.url}events", timeout=PATIENCE_S)
    begun = time.monotonic()
    server.close()
    assert time.monotonic() - begun < 5
    assert threading.active_count() == threads
    events.read()
    silent.close()
    events.close()


def test_more_clients_than_it_has_threads_for_are_turned_away(
    query: Situation, watch: CheckpointWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.tools.pages.watch._MAX_CONNECTIONS", 3)
    query.run()
    server = WatchServer(watch)
    server.start()
    try:
        waiting = [urllib.request.urlopen(f"{server.url}events", timeout=PATIENCE_S) for _ in range(3)]
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, ConnectionError)):
            urllib.request.urlopen(server.url, timeout=PATIENCE_S)
        waiting.pop().close()
        until = time.monotonic() + PATIENCE_S
        while True:
            # The server learns that a client has gone when it next writes to it.
            with suppress(urllib.error.URLError, http.client.HTTPException, ConnectionError):
                assert urllib.request.urlopen(server.url, timeout=PATIENCE_S).status == 200
                break
            assert time.monotonic() < until
            time.sleep(0.2)
        for events in waiting:
            events.close()
    finally:
        server.close()


def test_clients_that_show_no_token_make_room_for_one_that_does(
    query: Situation, watch: CheckpointWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.tools.pages.watch._MAX_CONNECTIONS", 3)
    query.run()
    server = WatchServer(watch)
    server.start()
    try:
        events = urllib.request.urlopen(f"{server.url}events", timeout=PATIENCE_S)
        silent = [socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE_S) for _ in range(10)]
        for one in silent:
            with suppress(OSError):
                one.sendall(b"G")
        assert urllib.request.urlopen(server.url, timeout=PATIENCE_S).status == 200
        assert events.readline()
        for one in (*silent, events):
            one.close()
    finally:
        server.close()


# ---- the command -----------------------------------------------------------------------------------------------------


def _takes_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_command_serves_until_ctrl_c_and_ends_without_a_word(query: Situation) -> None:
    query.run()
    program = "from streaming_source.tools.cli import main; main()"
    command = [sys.executable, "-u", "-c", program, "watch", str(query.folder / "checkpoint"), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell without job control starts what is in the background, as the tests may be, with Ctrl-C ignored.
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=_takes_ctrl_c) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        url = line.split(" is shown at ")[1].split()[0]
        assert len(urlsplit(url).path) == 34
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            assert data_of(response.read().decode())["sources"]
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out, err) == (0, "", "")


def test_the_help_has_the_address_and_the_way_from_another_machine() -> None:
    text = " ".join(CliRunner().invoke(app, ["watch", "--help"]).output.split())
    for words in ("127.0.0.1:8400", "ssh -L", "until Ctrl-C", "It need not be there yet", "--port", "--no-token"):
        assert words in text, words


def test_the_command_refuses_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(app, ["watch", str(tmp_path), "--port", port])
    assert done.exit_code == 2
    assert f"--port {port}: another program listens there; give another port" in " ".join(done.stderr.split())
