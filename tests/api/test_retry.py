"""What fails for a moment is tried again, and what fails for ever is not."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from streaming_source.api import RetryPolicy


class Away:
    """Fails some times, and then answers; its clock goes on by a second with each look."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left, self.error, self.asked, self.now = times, error, 0, 0.0

    def ask(self) -> str:
        self.asked += 1
        if self.asked <= self.left:
            raise self.error
        return "here"

    def clock(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize("error", [ConnectionResetError("away"), TimeoutError("slow")])
def test_a_source_that_is_away_for_a_moment_is_asked_again(error: Exception) -> None:
    away = Away(2, error)
    assert RetryPolicy(30).run(away.ask) == "here"
    assert away.asked == 3


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    away = Away(1, ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        RetryPolicy(30).run(away.ask)
    assert away.asked == 1
    assert RetryPolicy(30, passing=ValueError).run(Away(1, ValueError("busy")).ask) == "here"
    with pytest.raises(ConnectionError):
        RetryPolicy(30, retries=2, pause_s=0.01).run(Away(3, ConnectionError("away")).ask)


def test_the_last_error_is_raised_when_the_time_is_over_and_sooner_where_nothing_ever_answered() -> None:
    away = Away(99, ConnectionError("away"))
    policy = RetryPolicy(3, away.clock, first_s=1)
    with pytest.raises(ConnectionError, match="away"):
        policy.run(away.ask)
    never = away.asked
    away.left = 0
    policy.run(away.ask)
    away.left, away.asked = 99, 0
    with pytest.raises(ConnectionError):
        policy.run(away.ask)
    assert never < away.asked


def test_nothing_is_tried_again_after_the_end() -> None:
    away, policy = Away(99, ConnectionError("away")), RetryPolicy(60)
    policy.end()
    with pytest.raises(ConnectionError):
        policy.run(away.ask)
    assert away.asked == 1


def test_an_http_source_that_answers_503_is_asked_again_and_one_that_answers_404_is_not() -> None:
    answers = [503, 503, 200, 404]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop(0))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            pass

    class HttpPolicy(RetryPolicy):
        def passes(self, error: Exception) -> bool:
            return isinstance(error, HTTPError) and error.code >= 500

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

        def get() -> bytes:
            try:
                with urlopen(f"http://127.0.0.1:{server.server_address[1]}/") as answer:
                    body: bytes = answer.read()
                    return body
            except HTTPError as error:
                error.close()
                raise

        policy = HttpPolicy(30, pause_s=0.01)
        assert policy.run(get) == b"[]"
        with pytest.raises(HTTPError, match="404"):
            policy.run(get)
        server.shutdown()
    assert answers == []
