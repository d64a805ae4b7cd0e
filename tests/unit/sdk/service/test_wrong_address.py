"""An address at which no policy service answers is told as that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from countersign import Runtime, ServiceUnavailable
from tests.fakes.desk import Desk


class Stranger(BaseHTTPRequestHandler):
    """Another web server."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """It says nothing."""


@contextmanager
def stranger() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("scheme", "told"),
    [
        ("http", "answered 404 .*COUNTERSIGN_URL may name no policy service"),
        ("https", r"https://127\.0\.0\.1:\d+ speaks no https .*correct COUNTERSIGN_URL"),
    ],
)
def test_another_server_is_not_told_as_nobody(desk: Desk, scheme: str, told: str) -> None:
    with stranger() as port:
        settings = replace(desk.runtime.settings, url=f"{scheme}://127.0.0.1:{port}", retries=0)
        with Runtime(settings) as runtime, pytest.raises(ServiceUnavailable, match=told):
            runtime.client().manifest("refund")
