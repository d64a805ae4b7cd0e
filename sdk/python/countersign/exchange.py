"""One HTTP exchange, whichever way its caller waits: what is asked, and how much of an answer is read, for how long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import httpx2

from countersign.errors import ServiceUnavailable


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request, complete."""

    method: str
    target: str  # path and query, exactly as they go over the wire and into the proof
    headers: dict[str, str]
    body: bytes
    connect_seconds: float
    read_seconds: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One HTTP answer, read whole and within its limit."""

    status: int
    headers: httpx2.Headers
    body: bytes


class AnswerBody:
    """What has been read of an answer: no more than its limit, and not for longer than it was given.

    The timeouts of a connection begin anew with each piece that comes, so a peer that sends a byte now and then would
    keep an agent, and the database sessions of its live effects, for ever.
    """

    def __init__(self, asked: Asked) -> None:
        self.read = bytearray()
        self._asked = asked
        self._max_bytes = asked.max_bytes
        self._seconds = asked.connect_seconds + asked.read_seconds
        self._until = time.monotonic() + self._seconds

    def require_plain(self, headers: httpx2.Headers) -> None:
        """Refuse what is compressed although nobody asked for it: a thousandth of the limit unpacks to all of it.

        Raises:
            ServiceUnavailable: it is.
        """
        coding = headers.get("Content-Encoding", "identity")
        if coding.strip().lower() != "identity":
            raise self._refused(f"is compressed ({coding[:40]!r})")

    def add(self, chunk: bytes) -> None:
        """One more piece.

        Raises:
            ServiceUnavailable: it is larger than the request allows.
            httpx2.ReadTimeout: it is still not complete when its time is up.
        """
        self.read += chunk
        if len(self.read) > self._max_bytes:
            raise self._refused(f"is larger than {self._max_bytes} bytes")
        if time.monotonic() > self._until:
            raise httpx2.ReadTimeout(f"the answer was not complete after {self._seconds:g} s")

    def _refused(self, why: str) -> ServiceUnavailable:
        return ServiceUnavailable(f"{self._asked.method} {self._asked.target}", f"its answer {why}")


def arguments_of(asked: Asked) -> dict[str, Any]:
    """The request as both of the library's clients take it."""
    return {
        "method": asked.method,
        "url": asked.target,
        "headers": asked.headers,
        "content": asked.body,
        "timeout": httpx2.Timeout(asked.read_seconds, connect=asked.connect_seconds),
        "follow_redirects": False,  # a redirect could lead to other keys; the address in the settings is the address
    }
