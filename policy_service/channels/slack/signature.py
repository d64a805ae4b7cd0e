"""Whether a delivery is Slack's: its signature over the raw bytes, not older than five minutes.

Numbered as they run; whatever goes wrong in any of them is a refusal:

1. there is one signature and one time, no more;
2. the time is a whole number, at most five minutes from ours either way;
3. the signature is that of this time and exactly these bytes by our secret, compared in constant time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal

from slack_sdk.signature import Clock, SignatureVerifier

SIGNATURE: Final = "x-slack-signature"
TIMESTAMP: Final = "x-slack-request-timestamp"
WINDOW_S: Final = 300

Check = Literal["signature", "time"]


class _OurClock(Clock):
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def now(self) -> float:
        return self._now().timestamp()


class Signatures:
    """Checks by one secret."""

    def __init__(self, secret: str, now: Callable[[], datetime]) -> None:
        self._clock = _OurClock(now)
        self._verifier = SignatureVerifier(secret, self._clock)

    def failed(self, body: bytes, headers: Sequence[tuple[str, str]]) -> Check | None:
        """Which check says that this delivery is not Slack's; None where it is. Never raises."""
        given = {name: [v for n, v in headers if n.lower() == name] for name in (SIGNATURE, TIMESTAMP)}
        if any(len(values) != 1 for values in given.values()):
            return "signature"
        [signature], [timestamp] = given[SIGNATURE], given[TIMESTAMP]
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
            return "time"
        try:
            if abs(self._clock.now() - int(timestamp)) > WINDOW_S:
                return "time"
            return None if self._verifier.is_valid(body, timestamp, signature) else "signature"
        except Exception:  # noqa: BLE001  doubt is a refusal, whatever the doubt is about
            return "signature"
