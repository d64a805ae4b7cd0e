"""What is wrong with this service, since when, and what to do about it.

Whoever finds something out notes it here at that moment, so "since" is true however seldom anybody asks. One table says
which checks there are and which of them mean that the service must not take traffic: those whose answers could be wrong
or lost. Everything else is a warning: it works, and somebody should look.

What is noted may be read by anybody: it holds names, numbers and digests, and quotes nothing.
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
    """One thing that can be wrong. ``stops``: the service must then not take traffic."""

    stops: bool
    do: str


CHECKS: Final[dict[str, Check]] = {
    "database": Check(True, "see that the database runs and can be reached; the service goes on by itself"),
    "writer": Check(True, "see the service's log, free the disk or mend the database; restart if it hangs"),
    "log": Check(True, "see the service's log for sequencer_pass_failed; restart if nothing is there"),
    "epoch": Check(
        True, "make the keys folder writable for the service; see docs/reference/observability.md"
    ),
    "clock": Check(True, "set this host's clock (chronyc tracking), or the database server's"),
    "watch": Check(True, "the process hangs or its event loop is blocked: restart it"),
    "disk": Check(False, "free space on the disk of the data folder before writes fail"),
    "keys": Check(
        False, "give the keys folder back its files and modes, or restart to sign with the new key"
    ),
    "bundle": Check(
        False,
        "GET /v1/policies as a person tells what is wrong and where; mend it with a new commit, or see "
        "docs/how-to/policies-from-git.md",
    ),
    "activation": Check(
        False, "wait, and see the service's log for asking_failed; redemption asks again meanwhile"
    ),
    "shadow": Check(
        False, "run policy-service check on the candidate's folder and mend it, or unset shadow_dir"
    ),
    "sweeps": Check(
        False, "see the service's log for job_failed; expiry is still checked wherever it matters"
    ),
    "outbox": Check(False, "see the service's log for outbox_delivery_failed and mend the receiver"),
    "webhooks": Check(
        False,
        "policy-service webhooks list tells why; mend the receiver, then policy-service webhooks retry NAME",
    ),
    "slack": Check(
        False,
        "decide on the web; policy-service slack status tells what Slack says, and what waits is told once when Slack "
        "takes it again: docs/how-to/slack.md",
    ),
    "frozen": Check(
        False,
        "policy-service freeze list shows it and why; end it with policy-service unfreeze when it is safe",
    ),
    "facts": Check(False, "see the service's log for fact_source_failed, and that the source can be reached"),
    "groups": Check(
        False, "see the service's log for directory_unreadable, and that it has the groups asked for"
    ),
    "issuers": Check(False, "see that the identity provider can be reached from this host"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has to say."""

    check: str
    wrong: str
    since: datetime

    @property
    def stops(self) -> bool:
        """Whether the service must not take traffic."""
        return CHECKS[self.check].stops

    @property
    def do(self) -> str:
        """What a person does about it."""
        return CHECKS[self.check].do


class Health:
    """The findings of one service. From any thread."""

    def __init__(self, clock: Callable[[], datetime], patience_s: float) -> None:
        """``patience_s``: how long nobody may look before that is a finding itself."""
        self._clock = clock
        self._patience_s = patience_s
        self._looked = (time.monotonic(), clock())
        self._findings: dict[tuple[str, str], Finding] = {}
        self._lock = threading.Lock()
        for check in CHECKS:
            metrics.CHECK_FAILING.labels(check).set(0)

    def bad(self, check: str, wrong: str, about: str = "", since: datetime | None = None) -> None:
        """Note that something is wrong; what was wrong already keeps its beginning."""
        with self._lock:
            before = self._findings.get((check, about))
            began = before.since if before is not None else since or self._clock()
            self._findings[check, about] = Finding(check, wrong, began)
        metrics.CHECK_FAILING.labels(check).set(1)

    def good(self, check: str, about: str = "") -> None:
        """Note that it is well again."""
        if (check, about) not in self._findings:
            return
        with self._lock:
            self._findings.pop((check, about), None)
            left = any(name == check for name, _ in self._findings)
        metrics.CHECK_FAILING.labels(check).set(left)

    def say(self, check: str, wrong: str | None, about: str = "", since: datetime | None = None) -> None:
        """:meth:`bad` with a sentence, :meth:`good` with None."""
        if wrong is None:
            self.good(check, about)
        else:
            self.bad(check, wrong, about, since)

    def signal(self, check: str, about: str = "") -> Signal:
        """One thing to speak about, for whoever knows of nothing else."""
        return Signal(self, check, about)

    def now(self) -> datetime:
        """The time findings are noted by."""
        return self._clock()

    def looked(self) -> None:
        """The watch has been round."""
        self._looked = (time.monotonic(), self._clock())
        self.good("watch")

    def findings(self) -> list[Finding]:
        """Everything that is wrong now, what stops first, then the oldest."""
        at, when = self._looked
        if time.monotonic() - at > self._patience_s:
            self.bad("watch", "nobody has looked after this service for too long", since=when)
        with self._lock:
            found = list(self._findings.values())
        return sorted(found, key=lambda one: (not one.stops, one.since, one.check, one.wrong))


class Signal:
    """One place in :class:`Health`; without one, nobody listens."""

    def __init__(self, health: Health | None = None, check: str = "", about: str = "") -> None:
        self._health, self._check, self._about = health, check, about
        self.wrong: str | None = None

    def bad(self, wrong: str) -> None:
        """It is not well, and why."""
        self.wrong = wrong
        if self._health is not None:
            self._health.bad(self._check, wrong, self._about)

    def good(self) -> None:
        """It is well."""
        if self.wrong is None:
            return
        self.wrong = None
        if self._health is not None:
            self._health.good(self._check, self._about)
