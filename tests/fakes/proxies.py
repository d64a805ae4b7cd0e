"""A proxy on loopback that tunnels by CONNECT (RFC 9110 section 9.3.6), and records what it is asked."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.fakes.http_server import Quiet, served


@dataclass
class Tunnels:
    """The address of a proxy, and the request lines that it got."""

    url: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def tunnelling() -> Iterator[Tunnels]:
    """A proxy for as long as a block. It answers 502 to what is not CONNECT."""
    tunnels = Tunnels()

    class Handler(Quiet):
        def tunnel(self) -> None:
            tunnels.asked.append(f"CONNECT {self.path}")
            self.close_connection = True
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=5) as there:
                self.head(200, {})
                self.wfile.flush()
                _join(self.connection, there)

        def respond(self) -> None:
            tunnels.asked.append(f"{self.command} {self.path}")
            self.send_error(502)

        do_CONNECT = tunnel  # noqa: N815 - the name http.server calls

    with served(Handler) as tunnels.url:
        yield tunnels


def _join(one: socket.socket, other: socket.socket) -> None:
    while True:
        for ready in select.select([one, other], [], [], 5)[0]:
            data = ready.recv(65_536)
            if not data:
                return
            (other if ready is one else one).sendall(data)
