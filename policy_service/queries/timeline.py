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
    tell = _TOLD.get(row.kind)
    body = parse_stored_json(row.body)
    if tell is None or not isinstance(body, dict):
        return None
    return EventLine(
        at=row.at,
        kind=row.kind,
        text=tell(body),
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


_ASKED = {  # by the cause of the re-evaluation
    "vote": "Asked again after the vote, the policy",
    "break_glass": "Asked again after an emergency signature, the policy",
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
    "settled": "Withdrawn by a person: nobody could approve it",
}


_WHENCE = {"web": " on the web", "api": " over the API", "slack": " in Slack"}
_DECLINED = {"taken_back": "Took back the proposed arguments"}
_LAPSED = {"replaced": "Proposed something else instead"}


def _submitted(body: _Body) -> str:
    if body["to"] == "unknown":
        return "Known again"
    return "Submitted with changed arguments" if body.get("edits") else "Submitted"


def _decision(body: _Body) -> str:
    if body["cause"] == "recalled":
        return "It was released before a restore; what decided it is lost"
    asked = _ASKED.get(body["cause"], "The policy")
    return f"{asked} {_ANSWERED[body['outcome']]} (bundle {str(body['bundle'])[:8]})"


def _unknown(body: _Body) -> str:
    if body["why"] in {"restored", "recalled"}:
        return "The database was restored: this may have fired since"
    return "We do not know whether this fired"


def _vote(body: _Body) -> str:
    return f"Voted to {body['verdict']}{_late(body)}"


def _late(body: _Body) -> str:
    return ", too late: it changed nothing" if body.get("late") else ""


def _opened(body: _Body) -> str:
    return "BREAK-GLASS: opened " + ("by one person alone" if body["people"] == 1 else "by two people")


def _whence(body: _Body) -> str:
    side = ", for the agent's side" if body.get("for_requester") else ""
    return f"{_WHENCE.get(body['channel'], '')}{side}"


def _escalated(body: _Body) -> str:
    why = "nobody else can answer it" if body["why"] == "quorum" else "nobody has answered"
    return f"Asked {', '.join(body['groups'])} as well: {why}"


def _by_word(body: _Body) -> str:
    return ", by a person's word" if body.get("why") == "settled" else ""


def _task_settled(body: _Body) -> str:
    if "answer" not in body:
        return "What a person was to settle settled itself"
    return f"Settled by a person: {str(body['answer']).replace('_', ' ')}"


_TOLD: dict[str, Callable[[_Body], str]] = {
    "effect_submitted": _submitted,
    "decision_made": _decision,
    "review_opened": lambda body: "Asked people",
    "review_reopened": lambda body: "Asked people again",
    "review_reminded": lambda body: "Reminded those who are asked",
    "review_escalated": _escalated,
    "comment_written": lambda body: "Commented" + _whence(body),
    "question_asked": lambda body: "Asked the agent something" + _whence(body),
    "question_answered": lambda body: "Answered what it was asked",
    "vote_recorded": _vote,
    "break_glass_signed": lambda body: "Signed to open it without the people its gates ask" + _late(body),
    "break_glass_opened": _opened,
    "vote_strengthened": lambda body: f"Proved themselves again, by {body['step_up']}",
    "proposal_opened": lambda body: "Proposed other arguments",
    "proposal_accepted": lambda body: "Accepted the proposed arguments: a new revision is asked about",
    "proposal_declined": lambda body: _DECLINED.get(body["why"], "Declined the proposed arguments"),
    "proposal_lapsed": lambda body: _LAPSED.get(body["why"], "What was proposed lapsed with the question"),
    "effect_released": lambda body: "Released",
    "effect_review": lambda body: "Waits for people again",
    "effect_denied": lambda body: "Denied by policy" if body["why"] == "policy" else "Denied",
    "effect_expired": lambda body: "Expired; nothing fired",
    "effect_withdrawn": lambda body: _WITHDRAWN.get(body["why"], "Withdrawn"),
    "effect_redeemed": lambda body: "Release spent",
    "effect_fired": lambda body: "Fired" + _by_word(body),
    "effect_failed": lambda body: "Failed; nothing happened" + _by_word(body),
    "effect_unused": lambda body: "Not used; nothing fired" + _by_word(body),
    "effect_unknown": _unknown,
    "redemption_recalled": lambda body: "A receipt from before a restore proves that it was redeemed",
    "effect_compensating": lambda body: "Being taken back",
    "effect_compensated": lambda body: "Taken back" + _by_word(body),
    "effect_compensation_failed": lambda body: "Could not be taken back",
    "task_opened": lambda body: f"A person must settle it: {body['text']}",
    "task_settled": _task_settled,
    "outcome_contradicted": lambda body: f"Reported as {body['told']}, against the record; the record stands",
}


def rule_changes_of(conn: Connection, bundle: Bundle, effect: EffectRow) -> tuple[RuleChange, ...]:
    """The changed decisions about this revision under other bundles, newest first."""
    decisions = find(conn, DecisionRow, effect_id=effect.effect_id, rev=effect.rev)
    decisions.sort(key=lambda row: (row.decided_at, row.decision_id))
    told = (_change(bundle, before, after) for before, after in pairwise(decisions))
    return tuple(change for change in told if change is not None)[::-1]


def _change(bundle: Bundle, before: DecisionRow, after: DecisionRow) -> RuleChange | None:
    if before.bundle == after.bundle:
        return None
    new, gone = _only_in(after.gates, before.gates), _only_in(before.gates, after.gates)
    if after.outcome == Verdict.DENY and before.outcome != Verdict.DENY:
        text = f"It is forbidden now{_whence_of_answer(bundle, after)}"
    elif before.outcome == Verdict.DENY and after.outcome != Verdict.DENY:
        text = "It is not forbidden any more"
    elif new:
        text = f"People are now asked by {_named(bundle, new)}"
    elif gone:
        text = f"No rule asks any more what {_named(bundle, gone)} asked; this revision still waits for it"
    else:
        return None
    return RuleChange(at=after.decided_at, before=before.commit, commit=after.commit, text=text)


def _whence_of_answer(bundle: Bundle, decision: DecisionRow) -> str:
    """The policies that forbid it, or the reasons if another manifest of the tool is in force."""
    if decision.policies:
        return f", by {_named(bundle, decision.policies)}"
    return f": {'; '.join(reason['text'] for reason in decision.reasons)}"


def _only_in(these: Sequence[str], those: Sequence[str]) -> list[str]:
    return [policy_id for policy_id in these if policy_id not in those]


def _named(bundle: Bundle, policy_ids: Iterable[str]) -> str:
    known = ((policy_id, bundle.describe(policy_id)) for policy_id in policy_ids)
    return " and ".join(policy_id if source is None else source.title for policy_id, source in known)
