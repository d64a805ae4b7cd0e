"""The story of an effect, told from the log: one line for each row a person cares about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from countersign.contract import load
from policy_service.pap.bundle import Bundle
from policy_service.storage.tables import AuditRow
from policy_service.workflow.reading import EventLine

_Body = Mapping[str, Any]


def event_line(bundle: Bundle, row: AuditRow) -> EventLine | None:
    """One line, or None for a row that says nothing new to a person."""
    tell = _TOLD.get(row.kind)
    body = load(row.body)
    if tell is None or not isinstance(body, dict):
        return None
    return EventLine(at=row.at, kind=row.kind, text=tell(body), actor=_actor(bundle, row.actor))


def _actor(bundle: Bundle, actor: str) -> str:
    kind, _, name = actor.partition(":")
    if kind == "person":
        return bundle.directory.name_of(name) or name
    return name or kind


_ASKED = {  # by what made us ask again; at first it is just asked
    "vote": "Asked again after the vote, the policy",
    "activation": "Asked again under new rules, the policy",
    "redeem": "Asked again before it was spent, the policy",
    "renew": "Asked again for more time to fire, the policy",
}
_ANSWERED = {
    "release": "lets it go without asking anybody",
    "review": "lets it go only when people agree",
    "deny": "forbids it",
}
_WITHDRAWN = {
    "sibling": "Withdrawn: another effect of its transaction ended",
    "superseded": "Withdrawn: a newer revision replaced it",
    "withdrawn": "Taken back by its agent",
}


def _decision(body: _Body) -> str:
    asked = _ASKED.get(body["cause"], "The policy")
    return f"{asked} {_ANSWERED[body['outcome']]} (bundle {str(body['bundle'])[:8]})"


def _vote(body: _Body) -> str:
    late = ", too late: it changed nothing" if body.get("late") else ""
    return f"Voted to {body['verdict']}{late}"


_TOLD: dict[str, Callable[[_Body], str]] = {
    "effect_submitted": lambda body: "Submitted",
    "decision_made": _decision,
    "review_opened": lambda body: "Asked people",
    "review_reopened": lambda body: "Asked people again",
    "vote_recorded": _vote,
    "vote_strengthened": lambda body: f"Proved themselves again, by {body['step_up']}",
    "effect_released": lambda body: "Released",
    "effect_review": lambda body: "Waits for people again",
    "effect_denied": lambda body: "Denied by policy" if body["why"] == "policy" else "Denied",
    "effect_expired": lambda body: "Expired; nothing fired",
    "effect_withdrawn": lambda body: _WITHDRAWN.get(body["why"], "Withdrawn"),
    "effect_redeemed": lambda body: "Release spent",
    "effect_fired": lambda body: "Fired",
    "effect_failed": lambda body: "Failed; nothing happened",
    "effect_unused": lambda body: "Not used; nothing fired",
    "effect_unknown": lambda body: "We do not know whether this fired",
    "effect_compensating": lambda body: "Being taken back",
    "effect_compensated": lambda body: "Taken back",
    "effect_compensation_failed": lambda body: "Could not be taken back",
    "task_opened": lambda body: f"A person must settle it: {body['text']}",
}
