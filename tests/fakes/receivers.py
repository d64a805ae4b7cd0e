"""A receiver of webhooks on loopback, and a verifier written from the standard alone.

`Receiver` keeps every request with its raw bytes. It answers with the next of `plan`, then for ever with the last of
it: a status, a status with headers, or the name of a fault.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.fakes.http_server import Loopback, Quiet

Step = int | tuple[int, dict[str, str]] | str


@dataclass
class Got:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def id(self) -> str:
        """Its webhook-id."""
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        """Its payload."""
        event: dict[str, Any] = json.loads(self.raw)
        return event


@dataclass
class Receiver(Loopback):
    """A server that answers by its plan; `hold`: answers wait for it."""

    plan: list[Step] = field(default_factory=lambda: [204])
    certificate: Path | None = None
    got: list[Got] = field(default_factory=list)
    hold: threading.Event | None = None

    def __post_init__(self) -> None:
        super().__init__(_Handler, self.certificate)
        self.url += "/hook"
        self._turn = threading.Lock()

    def __exit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.set()
        super().__exit__()

    def take(self, got: Got) -> Step:
        """Note a request; how it is answered."""
        with self._turn:
            self.got.append(got)
            return self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]


class _Handler(Quiet):
    at: Receiver

    def respond(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        step = self.at.take(Got(self.command, self.path, headers, self.body()))
        if self.at.hold is not None:
            self.at.hold.wait(30)
        if isinstance(step, str):
            _FAULTS[step](self)
        else:
            status, more = (step, {}) if isinstance(step, int) else step
            self.answer(status, headers=more)


def _drips(it: _Handler) -> None:
    """A head that never ends."""
    it.wfile.write(b"HTTP/1.1 200 OK\r\n")
    it.drip(b"x: y\r\n")


def _hangs_up(it: _Handler) -> None:
    it.close_connection = True
    it.connection.close()


_FAULTS: dict[str, Callable[[_Handler], None]] = {"silent": _Handler.hang, "endless": _Handler.pour}
_FAULTS |= {"drips": _drips, "hangs up": _hangs_up}


class NotVerifiedError(Exception):
    """A request that a receiver must not believe."""


def verify(key: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> None:
    """Standard Webhooks, as a receiver does it: ``key`` is a whsec_ secret or a whpk_ public key.

    Raises:
        NotVerifiedError: no signature in the header is this key's, or its time is off by more than five minutes.
    """
    stamp = headers["webhook-timestamp"]
    if abs((time.time() if now is None else now) - int(stamp)) > 300:
        raise NotVerifiedError("too old, or too new")
    signed = f"{headers['webhook-id']}.{stamp}.".encode() + body
    prefix, _, encoded = key.partition("_")
    raw, wanted = base64.b64decode(encoded), {"whsec": "v1", "whpk": "v1a"}[prefix]
    for each in headers["webhook-signature"].split(" "):
        version, _, signature = each.partition(",")
        if version == wanted and _fits(prefix, raw, signed, base64.b64decode(signature)):
            return
    raise NotVerifiedError("no signature of this key")


def _fits(prefix: str, raw: bytes, signed: bytes, signature: bytes) -> bool:
    if prefix == "whsec":
        return hmac.compare_digest(hmac.new(raw, signed, hashlib.sha256).digest(), signature)
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, signed)
    except InvalidSignature:
        return False
    return True
