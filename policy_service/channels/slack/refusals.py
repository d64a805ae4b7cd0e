"""Deliveries that are refused: each is counted, and what did not hold is told in the log, for the operator alone.

Whoever sent it reads no more than that it was refused. Anybody may send some, so each check has one line in ten seconds
at most, which says how many more there were since the one before; nothing of what was sent is in it, but for the ids of
the workspace and the app where the signature held.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

import structlog

from policy_service import metrics
from policy_service.errors import ServiceError, UnauthenticatedError

log = structlog.get_logger(__name__)

EVERY_S: Final = 10.0
"""Between two lines about the same check."""


class NotOursError(UnauthenticatedError):
    """It is not Slack's, or not for this app. ``check`` is what did not hold; ``told`` is for the log."""

    def __init__(self, detail: str, check: str, **told: str) -> None:
        super().__init__(detail)
        self.check, self.told = check, told


class Refusals:
    """Those of one way by which deliveries come."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._said: dict[str, float] = {}  # by check, of which there are a few
        self._more: Counter[str] = Counter()

    def note(self, refusal: ServiceError) -> None:
        """Count it, and tell it unless there was a line about such a one just now."""
        metrics.SLACK_DELIVERIES.labels(self._way, "refused").inc()
        check = refusal.check if isinstance(refusal, NotOursError) else "content"
        now, said = time.monotonic(), self._said.get(check)
        if said is not None and now - said < EVERY_S:
            self._more[check] += 1
            return
        self._said[check] = now
        told = refusal.told if isinstance(refusal, NotOursError) else {}
        log.warning(
            "slack_delivery_refused",
            way=self._way,
            code=refusal.code.value,
            check=check,
            more=self._more.pop(check, 0),
            **told,
        )
