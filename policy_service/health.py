"""Health checks of this service: what fails, since when, and what to do about it.

Each component reports a failure when it happens, so "since" does not depend on how often health is read. The table
CHECKS says which checks stop traffic: those whose failure could make responses wrong or lose them. All others are
warnings.

Findings are public: they hold names, numbers and digests, and quote nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from policy_service import metrics


@dataclass(frozen=True, slots=True)
class Check:
    """One health check. ``stops``: while it fails the service must not receive traffic. ``do``: the remedy."""

    stops: bool
    do: str


CHECKS: Final[dict[str, Check]] = {
    "database": Check(
        True, "check that the database runs and is reachable; the service then recovers by itself"
    ),
    "writer": Check(
        True, "see the service's log, free disk space or repair the database; restart if it hangs"
    ),
    "log": Check(True, "see the service's log for sequencer_pass_failed; restart if it has no such entry"),
    "epoch": Check(True, "make the keys folder writable by the service; see docs/reference/observability.md"),
    "clock": Check(True, "set this host's clock (chronyc tracking), or the database server's"),
    "watch": Check(True, "the process hangs or its event loop is blocked: restart it"),
    "disk": Check(False, "free space on the disk of the data folder before writes fail"),
    "keys": Check(
        False, "restore the files and modes of the keys folder, or restart to sign with the new key"
    ),
    "bundle": Check(
        False,
        "read the error with GET /v1/policies as a person; fix it with a new commit, or see "
        "docs/how-to/policies-from-git.md",
    ),
    "activation": Check(
        False, "wait, and see the service's log for asking_failed; redemption evaluates again meanwhile"
    ),
    "shadow": Check(
        False, "run policy-service check on the candidate's folder and fix it, or unset shadow_dir"
    ),
    "sweeps": Check(False, "see the service's log for job_failed; expiry is still checked at every use"),
    "outbox": Check(False, "see the service's log for outbox_delivery_failed and repair the receiver"),
    "webhooks": Check(
        False,
        "see the error with policy-service webhooks list; repair the receiver, then policy-service webhooks retry NAME",
    ),
    "slack": Check(
        False,
        "decide on the web; policy-service slack status shows Slack's error. Waiting messages are sent once when Slack "
        "accepts them again: docs/how-to/slack.md",
    ),
    "frozen": Check(
        False,
        "policy-service freeze list shows the reason; end it with policy-service unfreeze when it is safe",
    ),
    "facts": Check(
        False, "see the service's log for fact_source_failed, and check that the source is reachable"
    ),
    "groups": Check(
        False, "see the service's log for directory_unreadable, and check that the directory has these groups"
    ),
    "issuers": Check(False, "check that the identity provider is reachable from this host"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A failing check."""

    check: str
    wrong: str
    since: datetime

    @property
    def stops(self) -> bool:
        """Whether the service must not receive traffic."""
        return CHECKS[self.check].stops

    @property
    def do(self) -> str:
        """The remedy."""
        return CHECKS[self.check].do


class Health:
    """The findings of one service. Thread-safe."""

    def __init__(self, clock: Callable[[], datetime], patience_s: float) -> None:
        """``patience_s``: after so many seconds without a run of the health monitor, that is a finding itself."""
        self._clock = clock
        self._patience_s = patience_s
        self._looked = (time.monotonic(), clock())
        self._findings: dict[tuple[str, str], Finding] = {}
        self._lock = threading.Lock()
        for check in CHECKS:
            metrics.CHECK_FAILING.labels(check).set(0)

    def bad(self, check: str, wrong: str, about: str = "", since: datetime | None = None) -> None:
        """Report a failure. A check that already fails keeps its start time."""
        with self._lock:
            before = self._findings.get((check, about))
            began = before.since if before is not None else since or self._clock()
            self._findings[check, about] = Finding(check, wrong, began)
        metrics.CHECK_FAILING.labels(check).set(1)

    def good(self, check: str, about: str = "") -> None:
        """Report that the check passes again."""
        if (check, about) not in self._findings:
            return
        with self._lock:
            self._findings.pop((check, about), None)
            left = any(name == check for name, _ in self._findings)
        metrics.CHECK_FAILING.labels(check).set(left)

    def say(self, check: str, wrong: str | None, about: str = "", since: datetime | None = None) -> None:
        """Call :meth:`bad` for a sentence, :meth:`good` for None."""
        if wrong is None:
            self.good(check, about)
        else:
            self.bad(check, wrong, about, since)

    def signal(self, check: str, about: str = "") -> Signal:
        """A reporter for one check, for a component that should not see the others."""
        return Signal(self, check, about)

    def now(self) -> datetime:
        """The clock of the findings."""
        return self._clock()

    def looked(self) -> None:
        """Record that the health monitor ran."""
        self._looked = (time.monotonic(), self._clock())
        self.good("watch")

    def findings(self) -> list[Finding]:
        """All failing checks: those that stop traffic first, then the oldest."""
        at, when = self._looked
        if time.monotonic() - at > self._patience_s:
            self.bad("watch", "the health monitor has not run for too long", since=when)
        with self._lock:
            found = list(self._findings.values())
        return sorted(found, key=lambda one: (not one.stops, one.since, one.check, one.wrong))


class Signal:
    """Reports one check of :class:`Health`; without one it only keeps its state."""

    def __init__(self, health: Health | None = None, check: str = "", about: str = "") -> None:
        self._health, self._check, self._about = health, check, about
        self.wrong: str | None = None

    def bad(self, wrong: str) -> None:
        """Report a failure."""
        self.wrong = wrong
        if self._health is not None:
            self._health.bad(self._check, wrong, self._about)

    def good(self) -> None:
        """Report that the check passes."""
        if self.wrong is None:
            return
        self.wrong = None
        if self._health is not None:
            self._health.good(self._check, self._about)
