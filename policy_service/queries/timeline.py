"""The timeline of an effect and the rule changes during its review, both from the audit log.

A rule change is a decision that differs from the one before. A gate that no longer fires still holds this
revision: re-evaluation only adds gates (design section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from countersign.contract import Verdict
from policy_service.pap.bundle import Bundle
from policy_service.queries.review_models import EventLine, RuleChange
from policy_service.storage.core import find
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import DecisionRow, EffectRow
from policy_service.storage.types import parse_stored_json

_Body = Mapping[str, Any]


def event_line(bundle: Bundle, row: AuditRow, names: Mapping[str, str]) -> EventLine | None:
    """One line of the timeline, or None for a row that is not shown.

    ``names`` are the names of people at sign-in, by issuer and subject; names of the bundle's directory take
    precedence.
    """
    text_of = _TEXTS.get(row.kind)
    body = parse_stored_json(row.body)
    if text_of is None or not isinstance(body, dict):
        return None
    return EventLine(
        at=row.at,
        kind=row.kind,
        text=text_of(body),
        actor=_actor(bundle, row.actor, names),
        channel=str(body.get("channel") or _CHANNELS.get(row.actor.partition(":")[0], "")),
        commit=str(body.get("commit") or ""),
        line=row.audit_id,
    )


_CHANNELS = {"agent": "api", "operator": "cli"}  # agents and operators have one channel each


def person_of(row: AuditRow) -> str | None:
    """The person who acted, as ``iss|sub``."""
    kind, _, key = row.actor.partition(":")
    return key if kind == "person" else None


def _actor(bundle: Bundle, actor: str, names: Mapping[str, str]) -> str:
    kind, _, name = actor.partition(":")
    if kind == "person":
        return bundle.directory.name_of(name) or names.get(name) or name
    return name or kind


_CAUSES = {  # by the cause of the re-evaluation
    "vote": "Evaluated again after the vote, the policy",
    "break_glass": "Evaluated again after a break-glass signature, the policy",
    "activation": "Evaluated again under a new bundle, the policy",
    "redeem": "Evaluated again before redemption, the policy",
    "renew": "Evaluated again for a renewal, the policy",
}
_OUTCOMES = {
    "release": "releases it without approval",
    "review": "requires approval",
    "deny": "forbids it",
}
_WITHDRAWN = {
    "sibling": "Withdrawn: another effect of its transaction ended",
    "superseded": "Withdrawn: a newer revision replaced it",
    "withdrawn": "Withdrawn by its agent",
    "settled": "Withdrawn by a person: it could not be approved",
}


_CHANNEL_TEXTS = {"web": " on the web", "api": " over the API", "slack": " in Slack"}
_DECLINED = {"taken_back": "Withdrew the proposal"}
_LAPSED = {"replaced": "Replaced by another proposal"}


def _submitted(body: _Body) -> str:
    if body["to"] == "unknown":
        return "Its outcome is known again"
    return "Submitted with changed arguments" if body.get("edits") else "Submitted"


def _decision(body: _Body) -> str:
    if body["cause"] == "recalled":
        return "It was released before a restore; its decision is lost"
    asked = _CAUSES.get(body["cause"], "The policy")
    return f"{asked} {_OUTCOMES[body['outcome']]} (bundle {str(body['bundle'])[:8]})"


def _unknown(body: _Body) -> str:
    if body["why"] in {"restored", "recalled"}:
        return "The database was restored: this may have fired since"
    return "We do not know whether this fired"


def _vote(body: _Body) -> str:
    return f"Voted to {body['verdict']}{_late(body)}"


def _late(body: _Body) -> str:
    return ", too late to count" if body.get("late") else ""


def _break_glass_opened(body: _Body) -> str:
    return "BREAK-GLASS: released " + ("by one person alone" if body["people"] == 1 else "by two people")


def _channel_text(body: _Body) -> str:
    side = ", for the requester's side" if body.get("for_requester") else ""
    return f"{_CHANNEL_TEXTS.get(body['channel'], '')}{side}"


def _escalated(body: _Body) -> str:
    why = "its gates cannot be satisfied" if body["why"] == "quorum" else "no votes yet"
    return f"Escalated to {', '.join(body['groups'])}: {why}"


def _settled_by(body: _Body) -> str:
    return ", as settled by a person" if body.get("why") == "settled" else ""


def _task_settled(body: _Body) -> str:
    if "answer" not in body:
        return "The task closed automatically"
    return f"Settled by a person: {str(body['answer']).replace('_', ' ')}"


_TEXTS: dict[str, Callable[[_Body], str]] = {
    "effect_submitted": _submitted,
    "decision_made": _decision,
    "review_opened": lambda body: "A review was opened",
    "review_reopened": lambda body: "The review was reopened",
    "review_reminded": lambda body: "Reminded the reviewers",
    "review_escalated": _escalated,
    "comment_written": lambda body: "Commented" + _channel_text(body),
    "question_asked": lambda body: "Asked the agent a question" + _channel_text(body),
    "question_answered": lambda body: "Answered the question",
    "vote_recorded": _vote,
    "break_glass_signed": lambda body: "Signed for break-glass" + _late(body),
    "break_glass_opened": _break_glass_opened,
    "vote_strengthened": lambda body: f"Confirmed their vote by {body['step_up']}",
    "proposal_opened": lambda body: "Proposed other arguments",
    "proposal_accepted": lambda body: "Accepted the proposal: a new revision is reviewed",
    "proposal_declined": lambda body: _DECLINED.get(body["why"], "Declined the proposal"),
    "proposal_lapsed": lambda body: _LAPSED.get(body["why"], "The proposal lapsed with its review"),
    "effect_released": lambda body: "Released",
    "effect_review": lambda body: "Waits for approval again",
    "effect_denied": lambda body: "Denied by policy" if body["why"] == "policy" else "Denied",
    "effect_expired": lambda body: "Expired; nothing fired",
    "effect_withdrawn": lambda body: _WITHDRAWN.get(body["why"], "Withdrawn"),
    "effect_redeemed": lambda body: "Release redeemed",
    "effect_fired": lambda body: "Fired" + _settled_by(body),
    "effect_failed": lambda body: "Failed; nothing happened" + _settled_by(body),
    "effect_unused": lambda body: "Not used; nothing fired" + _settled_by(body),
    "effect_unknown": _unknown,
    "redemption_recalled": lambda body: "A receipt from before a restore proves that it was redeemed",
    "effect_compensating": lambda body: "Being undone",
    "effect_compensated": lambda body: "Undone" + _settled_by(body),
    "effect_compensation_failed": lambda body: "Could not be undone",
    "task_opened": lambda body: f"A person must settle it: {body['text']}",
    "task_settled": _task_settled,
    "outcome_contradicted": lambda body: (
        f"Reported as {body['told']}, which contradicts the record; the record is kept"
    ),
}


def rule_changes_of(conn: Connection, bundle: Bundle, effect: EffectRow) -> tuple[RuleChange, ...]:
    """The changed decisions about this revision under other bundles, newest first."""
    decisions = find(conn, DecisionRow, effect_id=effect.effect_id, rev=effect.rev)
    decisions.sort(key=lambda row: (row.decided_at, row.decision_id))
    found = (_change(bundle, before, after) for before, after in pairwise(decisions))
    return tuple(change for change in found if change is not None)[::-1]


def _change(bundle: Bundle, before: DecisionRow, after: DecisionRow) -> RuleChange | None:
    if before.bundle == after.bundle:
        return None
    new, gone = _only_in(after.gates, before.gates), _only_in(before.gates, after.gates)
    if after.outcome == Verdict.DENY and before.outcome != Verdict.DENY:
        text = f"It is forbidden now{_reason(bundle, after)}"
    elif before.outcome == Verdict.DENY and after.outcome != Verdict.DENY:
        text = "It is not forbidden any more"
    elif new:
        text = f"People are now asked by {_named(bundle, new)}"
    elif gone:
        text = f"No rule asks any more what {_named(bundle, gone)} asked; this revision still waits for it"
    else:
        return None
    return RuleChange(at=after.decided_at, before=before.commit, commit=after.commit, text=text)


def _reason(bundle: Bundle, decision: DecisionRow) -> str:
    """The policies that forbid it, or the reasons if another manifest of the tool is in force."""
    if decision.policies:
        return f", by {_named(bundle, decision.policies)}"
    return f": {'; '.join(reason['text'] for reason in decision.reasons)}"


def _only_in(these: Sequence[str], those: Sequence[str]) -> list[str]:
    return [policy_id for policy_id in these if policy_id not in those]


def _named(bundle: Bundle, policy_ids: Iterable[str]) -> str:
    known = ((policy_id, bundle.describe(policy_id)) for policy_id in policy_ids)
    return " and ".join(policy_id if source is None else source.title for policy_id, source in known)
