"""A schema registry of one process: what the client's serializers and this library ask for, over HTTP."""

from __future__ import annotations

import base64
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import certifi
import pytest

__all__ = ["Registry", "serving"]


class Registry:
    """Schemas by id, and versions of subjects."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.fails = False
        self.user = ""
        self.url = ""

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """The schema's id, from 1 on."""
        entry = {"schema": schema, "schemaType": kind, "references": list(references)}
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: list[str], body: Any) -> Any:
        """None if there is nothing like that."""
        match method, path:
            case "POST", ["subjects", subject, "versions"]:
                kind, references = body.get("schemaType", "AVRO"), body.get("references") or ()
                return {"id": self.register(subject, body["schema"], kind, references)}
            case "GET", ["schemas", "ids", number] if 0 < int(number) <= len(self.schemas):
                return self.schemas[int(number) - 1]
            case "GET", ["subjects", subject, "versions", version] if subject in self.subjects:
                versions = self.subjects[subject]
                which = len(versions) if version in ("latest", "-1") else int(version)
                number = versions[which - 1]
                return {"subject": subject, "version": which, "id": number, **self.schemas[number - 1]}
        return None


@cache
def _one_authority() -> str:
    """A file with one of the authorities that a client trusts: it reads all 140 of them each time it is made."""
    known = Path(certifi.where()).read_text(encoding="ascii", errors="ignore")
    end = "-----END CERTIFICATE-----\n"
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(known[: known.index(end) + len(end)])
    return file.name


@contextmanager
def serving(user: str = "") -> Iterator[Registry]:
    """A registry at `url`; with a user and password, as in `user:password`, for those alone."""
    registry = Registry()
    registry.user = user

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer in two packets would wait for the acknowledgement of the first.
        wbufsize: ClassVar[int] = -1

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            path = self.path.split("?")[0]
            registry.asked.append(path)
            expected = "Basic " + base64.b64encode(registry.user.encode()).decode()
            if registry.fails or (registry.user and self.headers.get("Authorization") != expected):
                self._reply(500 if registry.fails else 401, {"error_code": 50001, "message": "not now, or not you"})
                return
            found = registry.answer(self.command, path.strip("/").split("/"), body)
            self._reply(404, {"error_code": 40403, "message": "not found"}) if found is None else self._reply(
                200, found
            )

        do_GET = do_POST = _serve  # noqa: N815  # the names are those of http.server

        def _reply(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    # How often it looks whether it is to end: a test waits for that.
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", _one_authority())
            yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
