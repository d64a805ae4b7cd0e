"""Web servers on loopback, of one thread a request, and handlers that say nothing of their own."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


class Quiet(BaseHTTPRequestHandler):
    """A handler that prints nothing, with the two halves of most answers: read all, send all."""

    at: Any  # the server
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Head and body in one packet: sent apart, the second waits 40 ms for the client's receipt."""

    def do_GET(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def respond(self) -> None:
        """Answer a GET or a POST."""
        raise NotImplementedError

    def body(self) -> bytes:
        """What was sent."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The beginning of an answer."""
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """The whole of one."""
        given = {name.lower(): value for name, value in (headers or {}).items()}
        self.head(status, {"content-length": str(len(body))} | given)
        self.wfile.write(body)

    def hang(self) -> None:
        """No answer."""
        self.at.lifted.wait(30)

    def drip(self, piece: bytes) -> None:
        """Again and again this."""
        while not self.at.lifted.wait(0.05):
            self.wfile.write(piece)
            self.wfile.flush()

    def pour(self) -> None:
        """An answer without an end."""
        self.head(200, {"Content-Type": "application/json", "Connection": "close"})
        while not self.at.lifted.is_set():
            self.wfile.write(b" " * 65_536)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *about: Any) -> None:
        """A caller that hung up is what many tests are about."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(*about)


class Loopback:
    """A server: it has its `url` at once and answers while it is entered. It speaks https with a certificate whose key
    is in the same file. `lifted` is set at the end: what hangs is let go.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler], certificate: Path | None = None) -> None:
        self.lifted = threading.Event()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (handler,), {"at": self}))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._server.server_address[1]
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.lifted.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], certificate: Path | None = None) -> Iterator[str]:
    """The address of a server that answers as long as the block lasts."""
    with Loopback(handler, certificate) as server:
        yield server.url
