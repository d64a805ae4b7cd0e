"""A proxy on loopback that breaks as networks do: it hangs, drips, cuts, answers for somebody else, or is not there.

It has the service's public address, so both sides speak to it as if it were the other. A fault is named for
the beginning of a path and stays until it is lifted; `forwards` says whether the service still gets the request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Final

from tests.fakes.http_server import Loopback, Quiet

_SERVICE_S: Final = 30.0
_OPEN_END: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@dataclass(frozen=True)
class Fault:
    """What happens to the answers of one path."""

    how: str
    forwards: bool


class Flaky(Loopback):
    """Forwards to `service` what no fault keeps from it."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.service = ""  # host:port, known once the service has been started behind us
        self.faults: dict[str, Fault] = {}
        self.rewrite: Callable[[str, bytes], bytes] = lambda _, body: body

    def breaks(self, path: str, how: str, *, forwards: bool = False) -> None:
        """From now on this happens to every request whose path begins like this."""
        self.lifted.clear()
        self.faults[path] = Fault(how, forwards)

    def lift(self) -> None:
        """From now on everything gets through; what hangs is let go."""
        self.faults.clear()
        self.rewrite = lambda _, body: body
        self.lifted.set()


class _Handler(Quiet):
    at: Flaky

    def respond(self) -> None:
        body, proxy = self.body(), self.at
        fault = next((one for start, one in proxy.faults.items() if self.path.startswith(start)), None)
        if fault is None or fault.forwards:
            status, headers, answer = self._forward(proxy.rewrite(self.path, body))
        if fault is None:
            kept = {k: v for k, v in headers.items() if k.lower() not in {"transfer-encoding", "connection"}}
            self.answer(status, answer, kept)
        else:
            self.close_connection = True
            _FAULTS[fault.how](self)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.at.service, timeout=_SERVICE_S)
        with closing(connection):
            headers = {k: v for k, v in self.headers.items() if k.lower() != "content-length"}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()


def _cut(handler: _Handler) -> None:
    handler.connection.close()


def _half(handler: _Handler) -> None:
    handler.wfile.write(_OPEN_END + b'{"txn":')


def _drip(handler: _Handler) -> None:
    handler.wfile.write(_OPEN_END)
    handler.drip(b" ")


def _page(status: int) -> Callable[[_Handler], None]:
    page = b"<html>The upstream server is unavailable</html>"
    return lambda handler: handler.answer(status, page, {"Content-Type": "text/html"})


_FAULTS: dict[str, Callable[[_Handler], None]] = {"cut": _cut, "half an answer": _half, "drips": _drip}
_FAULTS |= {str(status): _page(status) for status in (500, 502, 503)}
_FAULTS |= {"half-open": _Handler.hang, "200 with a page": _page(200)}
FAULTS: Final = tuple(_FAULTS)
