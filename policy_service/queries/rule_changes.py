"""What new rules changed about an open review, for the people it waits for.

Told are the answers that differ from the one before: who is asked now and was not, what forbids it now, what no rule
asks any more. What a rule no longer asks still holds this revision: asking again only adds (design section 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from sqlalchemy import Connection

from countersign.contract import Verdict
from policy_service.pap.bundle import Bundle
from policy_service.queries.review_models import RuleChange
from policy_service.storage.core import find
from policy_service.storage.tables import DecisionRow, EffectRow


def changes_of(conn: Connection, bundle: Bundle, effect: EffectRow) -> tuple[RuleChange, ...]:
    """Every change of the answer about this revision under another bundle, the newest first."""
    decisions = find(conn, DecisionRow, effect_id=effect.effect_id, rev=effect.rev)
    decisions.sort(key=lambda row: (row.decided_at, row.decision_id))
    told = (_change(bundle, before, after) for before, after in pairwise(decisions))
    return tuple(change for change in told if change is not None)[::-1]


def _change(bundle: Bundle, before: DecisionRow, after: DecisionRow) -> RuleChange | None:
    if before.bundle == after.bundle:
        return None
    new, gone = _only_in(after.gates, before.gates), _only_in(before.gates, after.gates)
    if after.outcome == Verdict.DENY and before.outcome != Verdict.DENY:
        text = f"It is forbidden now{_whence(bundle, after)}"
    elif before.outcome == Verdict.DENY and after.outcome != Verdict.DENY:
        text = "It is not forbidden any more"
    elif new:
        text = f"People are now asked by {_named(bundle, new)}"
    elif gone:
        text = f"No rule asks any more what {_named(bundle, gone)} asked; this revision still waits for it"
    else:
        return None
    return RuleChange(at=after.decided_at, before=before.commit, commit=after.commit, text=text)


def _whence(bundle: Bundle, decision: DecisionRow) -> str:
    """The rules that forbid it, or why none of them was even asked: another manifest of the tool is reviewed now."""
    if decision.policies:
        return f", by {_named(bundle, decision.policies)}"
    return f": {'; '.join(reason['text'] for reason in decision.reasons)}"


def _only_in(these: Sequence[str], those: Sequence[str]) -> list[str]:
    return [policy_id for policy_id in these if policy_id not in those]


def _named(bundle: Bundle, policy_ids: Iterable[str]) -> str:
    known = ((policy_id, bundle.describe(policy_id)) for policy_id in policy_ids)
    return " and ".join(policy_id if source is None else source.title for policy_id, source in known)
