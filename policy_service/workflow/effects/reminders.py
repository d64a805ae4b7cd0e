"""When people are asked again and others as well, while a review waits: its times, worked out from its gates.

Rules: a reminder goes out at every `remind` after the question was opened (opened again: after that); a gate that names
further groups asks them once half of the time to answer has passed, each gate once. A gate that fires late brings
either forward and puts neither off. What is due is a column; the sweeps go by it (`reviews/remind.py` and
`reviews/escalate.py`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime, timedelta
from typing import Any

from policy_service.domain.gates import Gate, merge
from policy_service.storage.tables import ReviewRow
from policy_service.storage.types import time_text


def reminder_interval(gates: Sequence[Gate]) -> timedelta | None:
    """The shortest pause between reminders that any gate asks for."""
    return min((gate.remind for gate in gates if gate.remind is not None), default=None)


def reminder_columns(
    gates: Sequence[Gate],
    now: datetime,
    until: datetime,
    *,
    escalated: Container[str] = (),
    before: ReviewRow | None = None,
) -> dict[str, Any]:
    """The columns of a review that say when it reminds and escalates, from now on and until it has to be answered.

    ``before``: the review as it waits already; without it, it waits from now on.
    """
    escalates = dict(before.escalates) if before is not None else {}
    halfway = time_text(now + (until - now) / 2)
    wanted = [gate.key for gate in merge(gates) if gate.escalate and gate.key not in escalated]
    escalates = {key: min(escalates.get(key, halfway), halfway) for key in wanted}
    every = reminder_interval(gates)
    reminds = [now + every] if every is not None else []
    if before is not None and before.remind_at is not None:
        reminds.append(before.remind_at)
    return {"remind_at": min(reminds, default=None), **escalation_columns(escalates)}


def escalation_columns(escalates: dict[str, str]) -> dict[str, Any]:
    """What each gate will do, and the earliest of it as the column that is swept."""
    first = min(escalates.values(), default=None)
    return {"escalates": escalates, "escalate_at": None if first is None else datetime.fromisoformat(first)}


def next_reminder(due: datetime, every: timedelta, now: datetime) -> datetime:
    """The first time of the series after now: what was missed meanwhile is one reminder."""
    return due + every * max(1, (now - due) // every + 1)
