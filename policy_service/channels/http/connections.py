"""Connections of the public HTTP server: what a request may cost before its sender is known.

The server underneath reads a head of any length, adds trailer fields to the headers after the application has begun,
and waits without end. These rules hold for each connection, whatever the route:

- the head has a size, a number of fields and a time; so has what frames the body (chunk sizes and extensions,
  trailers), and the body has a time;
- trailer fields are counted and dropped, never merged into the headers (RFC 9110, 6.5.1);
- a request whose end, target or protocol two parsers could read differently is refused, and its connection closed;
- unfinished heads of all connections share one limit with the bodies of unidentified senders (`shared_limit`).

The size of a body is bounded where it is read, by the route. How many connections one address may open is for the
proxy in front.
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
from policy_service.channels.shared_limit import UNIDENTIFIED
from policy_service.errors import InvalidRequestError, ServiceError

MAX_HEAD_BYTES: Final = 65_536  # a proof and a session take less than 4 KB, a provider's answer less than 8
MAX_FIELDS: Final = 100  # browsers send about 20; a field costs ten times its bytes once it is parsed
MAX_PIPELINED: Final = 16  # requests behind the one being answered; each costs some KB
MAX_DISCARDED_BYTES: Final = 8_388_608  # of a body after its answer; many clients read last
PIECE_BYTES: Final = 16_384  # one read of the server has up to 256 KB
RECEIVE_BUFFER_BYTES: Final = 65_536  # in the kernel; without it, several MB
HEAD_S = 15.0
BODY_S = 60.0  # the largest body over a bad line
WRITE_S = 60.0  # for a client to take what the connection holds for it

_VERSIONS: Final = frozenset({"1.0", "1.1"})


class BoundedConnection(HttpToolsProtocol):
    """One connection of the public server."""

    head_s: ClassVar[float] = HEAD_S
    body_s: ClassVar[float] = BODY_S
    write_s: ClassVar[float] = WRITE_S

    _in_head = True
    _fields = 0
    _framing_bytes = 0  # of the current request: all that arrived and is no body
    _body_bytes = 0
    _discarded_bytes = 0
    _closes_after_body = False
    _refusal: ServiceError | None = None
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the first head."""
        super().connection_made(transport)
        accepted = transport.get_extra_info("socket")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._limit_reading(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every clock."""
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what arrives in pieces: one may go beyond a limit before that is noticed."""
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing():
                return
            self._take(data[start : start + PIECE_BYTES])

    def _take(self, data: bytes) -> None:
        """Count all that arrives; `on_body` takes off what is body."""
        if self._in_head and self._reading is None and self._is_idle():
            self._limit_reading(self.head_s)  # also by an empty line, which begins no request
        self._framing_bytes += len(data)
        was_in_head = self._in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if was_in_head and not self._in_head:
            self.flow.pause_reading()  # until the route reads the body, if it does
        if self._framing_bytes > MAX_HEAD_BYTES + self._body_bytes:
            self._refusal = _too_large()
            self.send_400_response("")
        elif self._in_head and self._reading is not None:
            UNIDENTIFIED.hold(self, self._framing_bytes, self._give_up)

    def on_message_begin(self) -> None:
        """Start the time for the head of this request, perhaps not the first of its connection."""
        if self._reading is None:
            self._limit_reading(self.head_s)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field, of the head or a trailer; keep it only of the head."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            self._refuse(_too_large())
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the whole head. What was counted may hold the beginning of the body: the parts tell the head's size."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(InvalidRequestError(f"at most {MAX_PIPELINED} requests may wait for an answer"))
        self._require_unambiguous()
        self._in_head = False
        UNIDENTIFIED.release(self)
        self._limit_reading(self.body_s)
        super().on_headers_complete()
        self.cycle.transport = _ResponseTransport(self.transport, self._close_after_body)
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser cannot go on behind it

    def on_body(self, body: bytes) -> None:
        """Take body off what was counted; drop it once the request has its answer."""
        self._framing_bytes -= len(body)
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self._refuse(_too_large())
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole. How long its answer takes is the route's to say."""
        self._stop_reading()
        self._in_head = True
        self._fields = self._framing_bytes = self._body_bytes = self._discarded_bytes = 0
        super().on_message_complete()
        if self._closes_after_body:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Let go of a body that the route did not read."""
        if self.cycle.response_complete:  # else it belongs to a later request, pipelined
            self.cycle.body = bytearray()
        if self._closes_after_body:
            self.pipeline.clear()
        if self.transport.is_closing():
            self._limit_writing()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and drop it if the client does not take the last answer."""
        self._limit_writing()
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """The client does not take what it asked for: give it some time."""
        self._limit_writing()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        if not self.transport.is_closing():
            self._stop_writing()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what arrived and close the connection; answer only where no other answer could be meant."""
        refusal = self._refusal or InvalidRequestError(msg.rstrip("."))
        metrics.REFUSALS.labels(refusal.code.value).inc()
        self._stop_reading()
        self._limit_writing()
        if self._may_answer():
            self.transport.write(_raw_response(refusal, self.server_state.default_headers))
        self.transport.close()

    def _refuse(self, refusal: ServiceError) -> NoReturn:
        """End parsing from one of its callbacks; the server then calls `send_400_response`."""
        self._refusal = refusal
        raise refusal

    def _require_unambiguous(self) -> None:
        """Refuse a head whose request another parser could read otherwise.

        Raises:
            InvalidRequestError: the version or the transfer coding is unknown (RFC 9112, 2.3 and 6.1), an upgrade
                comes with a body, the target has a fragment or no known form (RFC 9112, 3.2); or misdirected_host,
                the target names another host than the Host field.
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
        begun = self.cycle is not None  # but there is none until the first request
        return not begun or self.cycle.response_complete

    def _may_answer(self) -> bool:
        """Whether the next bytes the client gets are read as the answer to what is refused."""
        if self.pipeline:
            return False
        return self._is_idle() if self._in_head else not self.cycle.response_started

    def _close_after_body(self) -> None:
        """Close, but read what is left of the body first: a close would take the answer from a client that still sends
        (RFC 9112, 9.6).
        """
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
        """Close without an answer: a client that sends slowly on purpose would read it slowly, too."""
        self._stop_reading()
        if not self.transport.is_closing():
            self._limit_writing()
            self.transport.close()


class _ResponseTransport(asyncio.Transport):
    """What an answer is written to: the connection's transport, but for how it is closed."""

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
        f"a request has {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields beside its body, at most"
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
