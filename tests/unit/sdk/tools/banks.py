"""Local HTTP services for `RestApi`: a bank with configured responses, and a server that sends malformed bytes."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from countersign import Placeholder, RestApi
from tests.fakes.desk import Desk
from tests.fakes.http_server import served
from tests.fakes.running import order_tool

PATIENCE_S = 30.0
SECRET = "Bearer s3cr3t-t0ken"


@dataclass
class Bank:
    """A server with configured responses."""

    url: str = ""
    status: int = 201
    statuses: list[int] = field(default_factory=list)  # of the first answers
    body: bytes = b'{"charge_id": "c-1"}'
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    keeps_connections: bool = False
    connections: list[tuple[int, str]] = field(default_factory=list)  # by client port


@pytest.fixture
def bank() -> Iterator[Bank]:
    world = Bank()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = property(lambda _: "HTTP/1.1" if world.keeps_connections else "HTTP/1.0")  # type: ignore[assignment]

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            world.connections.append((self.client_address[1], self.path))
            world.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
            if world.hang_up:
                self.close_connection = True
                return
            self.send_response(world.statuses.pop(0) if world.statuses else world.status)
            for name, value in world.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(world.body)))
            self.end_headers()
            self.wfile.write(world.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - the names of http.server

        def log_message(self, *_: Any) -> None:
            """Silent."""

    with served(Handler) as url:
        world.url = f"{url}/v1"
        yield world


@pytest.fixture
def api(bank: Bank) -> Iterator[RestApi]:
    with RestApi(bank.url, headers=lambda: {"Authorization": SECRET}) as opened:
        yield opened


def charge_tool(desk: Desk, api: RestApi, **changes: Any) -> Callable[[str, int], Placeholder[Any]]:
    @order_tool(desk, **changes)
    def charge(order_id: str, amount_cents: int) -> Any:
        """Charge an order."""
        path = "/orders/{order_id}/charges"
        return api.post(path, {"order_id": order_id}, json={"cents": amount_cents}).json

    return charge


@contextmanager
def speaking(*parts: bytes, drips: bytes = b"", resets: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends these bytes, then these without end, and hangs up; with what it was asked."""
    asked: list[bytes] = []

    def answer(line: socket.socket) -> None:
        asked.append(line.recv(65536))
        for part in parts:
            line.sendall(part)
        try:
            while drips:
                line.sendall(drips)
                over.wait(0.01)
        except OSError:  # the client has closed the connection
            asked.append(b"hung up")
        if resets:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def serve() -> None:
        line, _ = listening.accept()
        with line:
            answer(line)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        server.join(PATIENCE_S)
    assert not server.is_alive()


def head(status: int, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Said", *lines, "", ""]).encode()
