"""What Slack sends to the service, on its way: delivered, delivered twice, by both ways, or replayed.

Everything that came is kept, with its raw body and headers, so that it can be sent again later, as it was or signed
anew. The signatures here are made from Slack's description of them alone, never by what the service checks with.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args
from urllib.parse import parse_qs, parse_qsl, urlencode

import aiohttp

from tests.fakes.scripted import Script

Json = dict[str, Any]
Kind = Literal["interactive", "slash_commands", "events_api"]
JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
RETRIED: Final = {"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"}
_ANSWER_S: Final = 30.0


@dataclass(frozen=True)
class Twice:
    """Again after the first was answered."""


@dataclass(frozen=True)
class BothWays:
    """By HTTP and by socket, in addition to Slack's choice."""


@dataclass(frozen=True)
class Unheard:
    """The service gets it; Slack never hears the answer."""


Manner = Twice | BothWays | Unheard


@dataclass(frozen=True)
class Answer:
    """What the service said: a status and a body over HTTP, an ack's payload (status 200) over the socket.

    Status 0: it said nothing; the body is why.
    """

    status: int
    body: bytes

    @property
    def json(self) -> Json:
        said: Json = json.loads(self.body or b"{}")
        return said


@dataclass
class Delivery:
    """One delivery of Slack, and the answer of the service to each attempt."""

    kind: Kind
    payload: Json
    body: bytes
    headers: Mapping[str, str]
    at: float = field(default_factory=time.time)
    answers: list[Answer] = field(default_factory=list)


class Socket(Protocol):
    """The service's Socket Mode connection, seen from Slack."""

    async def tell(self, envelope: Json) -> Answer: ...


@dataclass
class Deliveries:
    """`how` is the script of manners, by kind; `kept` is everything that came, in order."""

    secret: str
    how: Script[Manner] = field(default_factory=Script)
    kept: list[Delivery] = field(default_factory=list)
    urls: dict[Kind, str] = field(default_factory=dict)
    rewrite: Callable[[Json], Json] = lambda payload: payload
    socket: Socket | None = None
    clock: Callable[[], float] = time.time

    def to(self, url: str) -> None:
        """Where the service listens."""
        self.urls = dict.fromkeys(get_args(Kind), url)

    async def by_http(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Slack delivers over HTTP; what Slack is to hear."""
        kind, payload = read(body, headers)
        sent = self.rewrite(payload)
        if sent is not payload or self.clock is not time.time:
            at = float(headers["X-Slack-Request-Timestamp"]) if self.clock is time.time else self.clock()
            body, headers = signed(kind, sent, self.secret, at)
        delivery = Delivery(kind, sent, body, headers)
        return await self._play(delivery, self.send, self.send_by_socket)

    async def by_socket(self, kind: Kind, payload: Json) -> Answer:
        """Slack delivers over the socket; what Slack is to hear."""
        sent = self.rewrite(payload)
        delivery = Delivery(kind, sent, *signed(kind, sent, self.secret))
        return await self._play(delivery, self.send_by_socket, self.send)

    async def send(
        self, delivery: Delivery, *, secret: str | None = None, at: float | None = None, **headers: str
    ) -> Answer:
        """Send it over HTTP as it came; or signed anew when a secret or a time is given."""
        body, said = delivery.body, dict(delivery.headers)
        if secret is not None or at is not None:
            body, said = signed(delivery.kind, delivery.payload, secret or self.secret, at)
        answer = await self._post(delivery.kind, body, {**said, **headers})
        delivery.answers.append(answer)
        return answer

    async def send_by_socket(self, delivery: Delivery, **more: Any) -> Answer:
        """Send it over the socket, in an envelope of its own."""
        assert self.socket, "the service holds no Socket Mode connection through the proxy"
        answer = await self.socket.tell(envelope(delivery.kind, delivery.payload, **more))
        delivery.answers.append(answer)
        return answer

    async def forge(self, kind: Kind, payload: Json, *, secret: str = "", at: float | None = None) -> Answer:
        """Send what Slack never said, signed with the right secret or with another."""
        return await self.send(Delivery(kind, payload, *signed(kind, payload, secret or self.secret, at)))

    async def _play(self, delivery: Delivery, send: Any, other_way: Any) -> Answer:
        self.kept.append(delivery)
        match self.how.step(delivery.kind):
            case Twice():
                answer = await _first(send(delivery))
                again = _retry(delivery.kind, by_http=send == self.send)
                await send(delivery, **again)
                return answer
            case BothWays():
                return await _first(send(delivery), other_way(delivery))
            case Unheard():
                await send(delivery)
                return Answer(0, b"the answer was lost")
        return await _first(send(delivery))

    async def _post(self, kind: Kind, body: bytes, headers: Mapping[str, str]) -> Answer:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            try:
                async with http.post(self.urls[kind], data=body, headers=headers) as answer:
                    return Answer(answer.status, await answer.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                return Answer(0, repr(error).encode())


async def _first(*sent: Any) -> Answer:
    answers: list[Answer] = await asyncio.gather(*sent)
    return answers[0]


def _retry(kind: Kind, *, by_http: bool) -> Json:
    """What Slack adds to a retry; it retries events only, so a press comes again without a word."""
    if kind != "events_api":
        return {}
    return dict(RETRIED) if by_http else {"retry_attempt": 1, "retry_reason": "timeout"}


def read(body: bytes, headers: Mapping[str, str]) -> tuple[Kind, Json]:
    """Which of Slack's three forms this has, and what it says."""
    if headers["Content-Type"].startswith(JSON):
        return "events_api", json.loads(body)
    form = parse_qs(body.decode())
    if "payload" in form:
        return "interactive", json.loads(form["payload"][0])
    return "slash_commands", dict(parse_qsl(body.decode(), keep_blank_values=True))


def signed(kind: Kind, payload: Json, secret: str, at: float | None = None) -> tuple[bytes, dict[str, str]]:
    """The body Slack would send for this, and its headers."""
    match kind:
        case "events_api":
            text, form = json.dumps(payload), JSON
        case "interactive":
            text, form = urlencode({"payload": json.dumps(payload)}), FORM
        case "slash_commands":
            text, form = urlencode(payload), FORM
    body = text.encode()
    return body, {"Content-Type": form, **signature(body, secret, at)}


def signature(body: bytes, secret: str, at: float | None = None) -> dict[str, str]:
    """The two headers by which Slack signs a body."""
    stamp = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={digest}"}


def envelope(kind: Kind, payload: Json, **more: Any) -> Json:
    """What Socket Mode wraps it in."""
    return {
        "envelope_id": str(uuid.uuid4()), "type": kind, "payload": payload,
        "accepts_response_payload": kind != "events_api", **more,
    }  # fmt: skip
