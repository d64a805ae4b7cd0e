"""An address at which no policy service answers is told as that."""

from __future__ import annotations

from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest

from countersign import Runtime, ServiceUnavailable
from tests.fakes.desk import Desk
from tests.fakes.http_server import served


class Stranger(BaseHTTPRequestHandler):
    """Another web server."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """It says nothing."""


@pytest.mark.parametrize(
    ("scheme", "told"),
    [
        ("http", "answered 404 .*COUNTERSIGN_URL may name no policy service"),
        ("https", r"https://127\.0\.0\.1:\d+ speaks no https .*correct COUNTERSIGN_URL"),
    ],
)
def test_another_server_is_not_told_as_nobody(desk: Desk, scheme: str, told: str) -> None:
    with served(Stranger) as url:
        settings = replace(desk.runtime.settings, url=url.replace("http", scheme, 1), retries=0)
        with Runtime(settings) as runtime, pytest.raises(ServiceUnavailable, match=told):
            runtime.client().manifest("refund")
