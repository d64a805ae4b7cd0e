"""Connections of the public HTTP server: limits that hold before a sender is authenticated.

uvicorn accepts heads of any length, merges trailer fields into the headers after the application has started, and has
no timeout for reading. These rules hold for each connection and every route:

- the head is limited in size, number of fields and time; so is the framing of the body (chunk sizes and extensions,
  trailers), and the body is limited in time;
- trailer fields are counted and dropped, never merged into the headers (RFC 9110, 6.5.1);
- a request that two parsers could read differently (its end, target or protocol) is refused and its connection closed;
- unfinished heads of all connections share one memory limit with the bodies of unidentified senders
  (`requests.UNIDENTIFIED`).

The route limits the size of the body when it reads it. The proxy in front limits connections per address.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import ClassVar, Final, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from countersign.contract import ErrorCode
from policy_service import metrics
from policy_service.channels.requests import UNIDENTIFIED
from policy_service.errors import InvalidRequestError, ServiceError

MAX_HEAD_BYTES: Final = 65_536  # a proof and a session take less than 4 KB, a provider's redirect less than 8
MAX_FIELDS: Final = 100  # browsers send about 20; a parsed field costs ten times its bytes
MAX_PIPELINED: Final = 16  # requests queued behind the current one; each costs some KB
MAX_DISCARDED_BYTES: Final = 8_388_608  # of a body after its response; many clients read last
PIECE_BYTES: Final = 16_384  # the server reads up to 256 KB at once
RECEIVE_BUFFER_BYTES: Final = 65_536  # of the kernel; the default is several MB
HEAD_S = 15.0
BODY_S = 60.0  # the largest body over a slow line
WRITE_S = 60.0  # for a client to read its pending response

_VERSIONS: Final = frozenset({"1.0", "1.1"})


class BoundedConnection(HttpToolsProtocol):
    """One connection of the public server."""

    head_s: ClassVar[float] = HEAD_S
    body_s: ClassVar[float] = BODY_S
    write_s: ClassVar[float] = WRITE_S

    _in_head = True
    _fields = 0
    _framing_bytes = 0  # of the current request: everything received except the body
    _body_bytes = 0
    _discarded_bytes = 0
    _closes_after_body = False
    _refusal: ServiceError | None = None
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first head."""
        super().connection_made(transport)
        accepted = transport.get_extra_info("socket")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._limit_reading(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel every timeout."""
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data in small pieces: the limits are checked after each one."""
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing():
                return
            self._take(data[start : start + PIECE_BYTES])

    def _take(self, data: bytes) -> None:
        """Count everything received; `on_body` subtracts the body."""
        if self._in_head and self._reading is None and self._is_idle():
            self._limit_reading(self.head_s)  # also for an empty line, which starts no request
        self._framing_bytes += len(data)
        was_in_head = self._in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if was_in_head and not self._in_head:
            self.flow.pause_reading()  # until the route reads the body
        if self._framing_bytes > MAX_HEAD_BYTES + self._body_bytes:
            self._refusal = _too_large()
            self.send_400_response("")
        elif self._in_head and self._reading is not None:
            UNIDENTIFIED.hold(self, self._framing_bytes, self._give_up)

    def on_message_begin(self) -> None:
        """Start the timeout for the head of this request, which need not be the first of its connection."""
        if self._reading is None:
            self._limit_reading(self.head_s)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field of the head or a trailer; keep only those of the head."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            self._refuse(_too_large())
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the whole head. Its size is the sum of its parts, because the byte count may include some body."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(InvalidRequestError(f"at most {MAX_PIPELINED} requests may be pipelined"))
        self._require_unambiguous()
        self._in_head = False
        UNIDENTIFIED.release(self)
        self._limit_reading(self.body_s)
        super().on_headers_complete()
        self.cycle.transport = _ResponseTransport(self.transport, self._close_after_body)
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser cannot continue after an upgrade

    def on_body(self, body: bytes) -> None:
        """Subtract the body from the count; discard it once the response is complete."""
        self._framing_bytes -= len(body)
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self._refuse(_too_large())
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete. The route decides how long its response takes."""
        self._stop_reading()
        self._in_head = True
        self._fields = self._framing_bytes = self._body_bytes = self._discarded_bytes = 0
        super().on_message_complete()
        if self._closes_after_body:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Release a body that the route did not read."""
        if self.cycle.response_complete:  # otherwise it belongs to a later, pipelined request
            self.cycle.body = bytearray()
        if self._closes_after_body:
            self.pipeline.clear()
        if self.transport.is_closing():
            self._limit_writing()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and abort it if the client does not read the last response."""
        self._limit_writing()
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """The client does not read its response: limit the time."""
        self._limit_writing()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        if not self.transport.is_closing():
            self._stop_writing()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request and close the connection; respond only if the client cannot mistake the response."""
        refusal = self._refusal or InvalidRequestError(msg.rstrip("."))
        metrics.REFUSALS.labels(refusal.code.value).inc()
        self._stop_reading()
        self._limit_writing()
        if self._may_answer():
            self.transport.write(_raw_response(refusal, self.server_state.default_headers))
        self.transport.close()

    def _refuse(self, refusal: ServiceError) -> NoReturn:
        """Stop parsing from a parser callback; the server then calls `send_400_response`."""
        self._refusal = refusal
        raise refusal

    def _require_unambiguous(self) -> None:
        """Refuse a head that another parser could read differently.

        Raises:
            InvalidRequestError: the version or the transfer coding is unknown (RFC 9112, 2.3 and 6.1), an upgrade
                has a body, the target has a fragment or an unknown form (RFC 9112, 3.2); or misdirected_host: the
                target names another host than the Host field.
        """
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            self._refuse(InvalidRequestError("send HTTP/1.1"))
        values = dict(self.headers)  # the parser refuses a second Content-Length
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version != "1.1"):
            self._refuse(InvalidRequestError("send the body with a Content-Length, or chunked by HTTP/1.1"))
        has_body = bool(codings) or values.get(b"content-length", b"0").strip(b"0") != b""
        if self.parser.should_upgrade() and has_body:
            self._refuse(InvalidRequestError("send no body with an Upgrade"))
        if b"#" in self.url:
            self._refuse(InvalidRequestError("send the target without a fragment"))
        if self.url.startswith(b"/"):
            return
        scheme, slashes, rest = self.url.partition(b"://")
        if not slashes or scheme.lower() not in (b"http", b"https"):
            self._refuse(InvalidRequestError("send a path as the target, or an http or https URL"))
        authority = rest.partition(b"/")[0].partition(b"?")[0]
        if authority.lower() != values.get(b"host", b"").strip().lower():
            self._refuse(
                InvalidRequestError(
                    "the target names another host than Host", code=ErrorCode.MISDIRECTED_HOST
                )
            )

    def _is_idle(self) -> bool:
        begun = self.cycle is not None  # None before the first request
        return not begun or self.cycle.response_complete

    def _may_answer(self) -> bool:
        """Whether the client reads the next bytes as the response to the refused request."""
        if self.pipeline:
            return False
        return self._is_idle() if self._in_head else not self.cycle.response_started

    def _close_after_body(self) -> None:
        """Close after reading the rest of the body: a client that still sends would lose the response (RFC 9112,
        9.6)."""
        if self._in_head:
            self.transport.close()
        else:
            self._closes_after_body = True
            self.transport.write_eof()

    def _limit_reading(self, seconds: float) -> None:
        self._stop_reading()
        self._reading = self.loop.call_later(seconds, self._give_up)

    def _stop_reading(self) -> None:
        UNIDENTIFIED.release(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _limit_writing(self) -> None:
        if self._writing is None:
            self._writing = self.loop.call_later(self.write_s, self.transport.abort)

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _give_up(self) -> None:
        """Close without a response: a client that sends slowly on purpose would also read it slowly."""
        self._stop_reading()
        if not self.transport.is_closing():
            self._limit_writing()
            self.transport.close()


class _ResponseTransport(asyncio.Transport):
    """The connection's transport with another way to close it."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._transport, self._close = transport, close

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._close()


def _too_large() -> InvalidRequestError:
    return InvalidRequestError(
        f"a request has {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields besides its body, at most"
    )


def _raw_response(refusal: ServiceError, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    body = json.dumps(refusal.to_problem()).encode()
    headers = [
        *default_headers,
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
    ]
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body])
