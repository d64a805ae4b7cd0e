"""Nonces nobody has to store: a keyed hash of the minute.

Two are valid at any time, this period's and the one before, so a proof never fails for crossing a minute. A nonce says
only that the proof was made lately and for this deployment; replays inside that time are harmless because writes are
bound to their body and idempotency key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime

_LABEL = b"countersign/nonce/v1\n"
_BYTES = 18  # 144 bits, 24 characters without padding


class Nonces:
    """The nonces of one deployment."""

    def __init__(self, secret: bytes, period_s: int) -> None:
        self._secret = secret
        self._period_s = period_s

    def current(self, now: datetime) -> str:
        """The nonce an answer carries."""
        return self._of(self._period(now))

    def accepts(self, nonce: str, now: datetime) -> bool:
        """Whether a proof made with this nonce is young enough; compared in constant time."""
        period = self._period(now)
        given = nonce.encode("utf-8", "replace")
        fresh = [hmac.compare_digest(given, self._of(p).encode()) for p in (period, period - 1)]
        return any(fresh)

    def _period(self, now: datetime) -> int:
        return int(now.timestamp()) // self._period_s

    def _of(self, period: int) -> str:
        mac = hmac.digest(self._secret, _LABEL + str(period).encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mac[:_BYTES]).decode().rstrip("=")
