"""What a connection may cost before anybody knows whose it is: bytes of a request's head, and time for its bytes.

The server reads a head of any length and waits for ever for its end, so one stranger with a slow hand could hold every
socket, and one with a long header all memory. Here a head has a size and a time, and a body a time; its size is the
gate's to bound, who knows what is asked. Nobody's identity is counted, for there is none yet: how many connections one
address may open is for whatever stands in front.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536  # a proof and a session take less than 4 KB, a provider's answer less than 8
HEAD_S = 15.0
BODY_S = 60.0  # the largest body over a bad line


class _TooLargeError(Exception):
    """The head of a request is longer than one may be."""


class BoundedConnection(HttpToolsProtocol):
    """One connection of the public door."""

    head_s: ClassVar[float] = HEAD_S
    body_s: ClassVar[float] = BODY_S

    _head_bytes = 0
    _in_head = True
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there: now they have to say something."""
        super().connection_made(transport)
        self._wait_no_longer_than(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """They are gone."""
        self._be_patient()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what arrives as long as it is no body; what is unfinished is kept by the parser."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """A request begins, perhaps the second of this connection."""
        if self._patience is None:
            self._wait_no_longer_than(self.head_s)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there. What was counted may hold the beginning of the body: the parts tell the head's size."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            raise _TooLargeError
        self._in_head, self._head_bytes = False, 0
        self._wait_no_longer_than(self.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it is there; how long the answer takes is ours."""
        self._be_patient()
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is refused, and the connection with it."""
        self._be_patient()
        super().send_400_response(msg)

    def _refuse(self) -> None:
        self.send_400_response(f"The head of a request has {MAX_HEAD_BYTES} bytes at most.")

    def _wait_no_longer_than(self, seconds: float) -> None:
        self._be_patient()
        self._patience = self.loop.call_later(seconds, self._give_up)

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        """Nothing is answered: whoever is slow on purpose would be slow to read it, too."""
        self._patience = None
        if not self.transport.is_closing():
            self.transport.close()
