"""What Slack sends to the service, on its way: delivered, delivered twice, by both ways, or replayed.

The signatures here are made from Slack's description of them alone, never by what the service checks with.
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
    """One delivery of Slack."""

    kind: Kind
    payload: Json
    body: bytes
    headers: Mapping[str, str]


class Socket(Protocol):
    """The service's Socket Mode connection, seen from Slack."""

    async def tell(self, envelope: Json) -> Answer: ...


@dataclass
class Deliveries:
    """`how` is the script of manners, by kind."""

    secret: str
    how: Script[Manner] = field(default_factory=Script)
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

    async def send(self, delivery: Delivery) -> Answer:
        """Send it over HTTP."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        url, headers = self.urls[delivery.kind], delivery.headers
        async with aiohttp.ClientSession(timeout=timeout) as http:
            try:
                async with http.post(url, data=delivery.body, headers=headers) as answer:
                    return Answer(answer.status, await answer.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                return Answer(0, repr(error).encode())

    async def send_by_socket(self, delivery: Delivery) -> Answer:
        """Send it over the socket, in an envelope of its own."""
        assert self.socket, "the service holds no Socket Mode connection through the proxy"
        return await self.socket.tell(
            {
                "envelope_id": str(uuid.uuid4()), "type": delivery.kind, "payload": delivery.payload,
                "accepts_response_payload": delivery.kind != "events_api",
            }
        )  # fmt: skip

    async def forge(self, kind: Kind, payload: Json, *, secret: str = "", at: float | None = None) -> Answer:
        """Send what Slack never said, signed with the right secret or with another."""
        return await self.send(Delivery(kind, payload, *signed(kind, payload, secret or self.secret, at)))

    async def _play(self, delivery: Delivery, send: Any, other_way: Any) -> Answer:
        match self.how.step(delivery.kind):
            case Twice():
                answer: Answer = await send(delivery)
                await send(delivery)
                return answer
            case BothWays():
                answer, _ = await asyncio.gather(send(delivery), other_way(delivery))
                return answer
            case Unheard():
                await send(delivery)
                return Answer(0, b"the answer was lost")
        answer = await send(delivery)
        return answer


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
