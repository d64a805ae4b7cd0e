"""What people denied a short while ago and are asked again: the same agent, tool and resource, in other words.

It is context for whoever decides now, never a decision: no vote is carried over, and nothing is denied by itself. An
agent that is told no finds another way to ask, and the next approver should know that it is the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, literal_column, select
from sqlmodel import col

from countersign.contract import JSON, load
from policy_service.storage.core import table
from policy_service.storage.tables import EffectRow, ReviewRow, VoteRow
from policy_service.workflow.cases import Case
from policy_service.workflow.context import Context

MOST = 5  # the newest; whoever was told no five times in a day needs no sixth line

_e, _v = table(EffectRow).c, table(VoteRow).c
# The state is written out, for a partial index serves no parameter.
_DENIALS = (
    select(
        *(_e.effect_id, _e.rev, _e.txn, _e.agent, _e.tool, _e.resource_type, _e.resource_id, _e.args),
        *(_e.changed_at, _v.review_id, _v.iss, _v.sub, _v.name, _v.reason),
    )
    .join(table(VoteRow), (_v.effect_id == _e.effect_id) & (_v.rev == _e.rev))
    .where(literal_column("effects.state = 'denied'"))
    .where(_v.verdict == "deny", _v.late.is_(False), _v.revoked_at.is_(None))
    .order_by(_e.changed_at.desc())
)


@dataclass(frozen=True, slots=True)
class EarlierDenial:
    """One denial of nearly the same. ``differs`` names the arguments that are others now; none: exactly the same."""

    review_id: str
    txn: str
    at: datetime
    iss: str
    sub: str
    person_name: str
    reason: str | None
    differs: tuple[str, ...]


def period_of(ctx: Context) -> timedelta:
    """How long people are told of a denial."""
    return timedelta(hours=ctx.settings.denied_before_hours)


def denied_before(
    conn: Connection, cases: Sequence[Case], period: timedelta
) -> dict[str, tuple[EarlierDenial, ...]]:
    """The denials of this period before each review was opened, by review, the newest first; one query for all."""
    if not cases:
        return {}
    effects = [case.effect for case in cases]
    query = _DENIALS.where(
        col(EffectRow.agent).in_({effect.agent for effect in effects}),
        col(EffectRow.tool).in_({effect.tool for effect in effects}),
        col(EffectRow.resource_type).in_({effect.resource_type for effect in effects}),
        col(EffectRow.resource_id).in_({effect.resource_id for effect in effects}),
        col(EffectRow.changed_at) >= min(case.review.opened_at for case in cases) - period,
    )
    found = defaultdict(list)
    for row in conn.execute(query):
        found[row.agent, row.tool, row.resource_type, row.resource_id].append(row)
    return {
        case.review.review_id: tuple(
            EarlierDenial(
                *(row.review_id, row.txn, row.changed_at, row.iss, row.sub, row.name, row.reason),
                _differing(row.args, case.effect.args),
            )
            for row in found[_of(case.effect)]
            if (row.effect_id, row.rev) != (case.effect.effect_id, case.effect.rev)
            and _is_of(case.review, row.changed_at, period)
        )[:MOST]
        for case in cases
    }


def _of(effect: EffectRow) -> tuple[str, str, str, str]:
    return effect.agent, effect.tool, effect.resource_type, effect.resource_id


def _is_of(review: ReviewRow, at: datetime, period: timedelta) -> bool:
    """Whether who decides this review should know of it: also what is denied while it is open."""
    return review.opened_at - period <= at and (review.settled_at is None or at < review.settled_at)


def _differing(before: bytes, now: bytes) -> tuple[str, ...]:
    """The arguments that are not the same, by name; of secret ones too, whose values are told nowhere."""
    then, given = _members(before), _members(now)
    return tuple(
        sorted(
            name
            for name in then.keys() | given.keys()
            if (name in then) != (name in given) or then.get(name) != given.get(name)
        )
    )


def _members(args: bytes) -> dict[str, JSON]:
    value = load(args)
    return value if isinstance(value, dict) else {}
