"""A proxy on loopback that breaks as networks do: it hangs, drips, cuts, answers for somebody else, or is not there.

It stands where the service's public address is, so both sides speak to it as if it were the other. A fault is named for
the beginning of a path and stays until it is lifted; `forwards` says whether the service still gets the request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_SERVICE_S: Final = 30.0
_OPEN_END: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@dataclass(frozen=True)
class Fault:
    """What happens to the answers of one path."""

    how: str
    forwards: bool


class Flaky:
    """Forwards to `service` what no fault keeps from it."""

    def __init__(self) -> None:
        self.service = ""  # host:port, known once the service has been started behind us
        self.faults: dict[str, Fault] = {}
        self.asked: list[str] = []
        self.broken: list[
            str
        ] = []  # what a fault happened to; where it forwards, the service has answered by then
        self.rewrite: Callable[[str, bytes], bytes] = lambda _, body: body
        self._lifted = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def breaks(self, path: str, how: str, *, forwards: bool = False) -> None:
        """From now on this happens to whatever begins like this."""
        self._lifted.clear()
        self.faults[path] = Fault(how, forwards)

    def lift(self) -> None:
        """From now on everything gets through; what hangs is let go."""
        self.faults.clear()
        self.rewrite = lambda _, body: body
        self._lifted.set()

    def fault_of(self, path: str) -> Fault | None:
        """What happens to this path now."""
        return next((fault for start, fault in self.faults.items() if path.startswith(start)), None)

    def until_lifted(self, seconds: float) -> bool:
        """Wait; whether the fault is over."""
        return self._lifted.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """A client that went away is what this is about."""


def _handler(proxy: Flaky) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            proxy.asked.append(f"{self.command} {self.path}")
            fault = proxy.fault_of(self.path)
            if fault is None or fault.forwards:
                status, headers, answer = self._forward(proxy.rewrite(self.path, body))
            if fault is None:
                self._send(status, headers, answer)
            else:
                self.close_connection = True
                proxy.broken.append(f"{self.command} {self.path}")
                with suppress(OSError):
                    _FAULTS[fault.how](self, proxy)

        do_GET = do_POST = handle_one  # noqa: N815 - the names http.server calls

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = HTTPConnection(proxy.service, timeout=_SERVICE_S)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() != "content-length"}
                connection.request(self.command, self.path, body or None, headers)
                response = connection.getresponse()
                return response.status, response.getheaders(), response.read()
            finally:
                connection.close()

        def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    return Handler


def _cut(handler: BaseHTTPRequestHandler, _: Flaky) -> None:
    handler.connection.close()


def _half(handler: BaseHTTPRequestHandler, _: Flaky) -> None:
    handler.wfile.write(_OPEN_END + b'{"txn":')


def _silent(_: BaseHTTPRequestHandler, proxy: Flaky) -> None:
    proxy.until_lifted(_SERVICE_S)


def _drip(handler: BaseHTTPRequestHandler, proxy: Flaky) -> None:
    handler.wfile.write(_OPEN_END)
    while not proxy.until_lifted(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def _page(status: int) -> Callable[[BaseHTTPRequestHandler, Flaky], None]:
    def answer(handler: BaseHTTPRequestHandler, _: Flaky) -> None:
        page = b"<html>The upstream server is unavailable</html>"
        handler.send_response_only(status)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page)

    return answer


_FAULTS: Final[dict[str, Callable[[BaseHTTPRequestHandler, Flaky], None]]] = {
    "cut": _cut,
    "half an answer": _half,
    "half-open": _silent,
    "drips": _drip,
    "500": _page(500),
    "502": _page(502),
    "503": _page(503),
    "200 with a page": _page(200),
}
FAULTS: Final = tuple(_FAULTS)
