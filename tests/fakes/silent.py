"""A TCP proxy on loopback that falls silent: it takes and acknowledges everything, passes nothing on and never closes.

So looks a server that hangs, or one that is gone behind a balancer.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class Silent:
    """Passes everything on to `host:port` while it is not `silent`."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self.silent = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(self._to)
            self._open += [here, there]
            for ends in ((here, there), (there, here)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                if not self.silent.is_set():
                    to.sendall(data)
            if not self.silent.is_set():
                to.shutdown(socket.SHUT_WR)
        except OSError:
            return
