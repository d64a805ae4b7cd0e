"""What people denied a short while ago and are asked again: the same agent, tool and resource, in other words.

It is context for whoever decides now, never a decision: no vote is carried over, and nothing is denied by itself. An
agent that is told no finds another way to ask, and the next approver should know that it is the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, literal_column, select
from sqlmodel import col

from countersign.contract import ContractError
from policy_service.queries.context import Context
from policy_service.queries.effects import decode_args
from policy_service.queries.review_context import ReviewContext
from policy_service.storage.core import table
from policy_service.storage.tables import EffectRow, ReviewRow, VoteRow

MAX_SHOWN = 5  # the newest; whoever was told no five times in a day needs no sixth line

_e, _v = table(EffectRow).c, table(VoteRow).c
# The state is written out, for a partial index serves no parameter.
_DENIALS = (
    select(
        *(_e.effect_id, _e.rev, _e.txn, _e.agent, _e.tool, _e.resource_key, _e.args),
        *(_e.changed_at, _v.review_id, _v.iss, _v.sub, _v.name, _v.reason),
    )
    .join(table(VoteRow), (_v.effect_id == _e.effect_id) & (_v.rev == _e.rev))
    .where(literal_column("effects.state = 'denied'"))
    .where(_v.verdict == "deny", _v.late.is_(False), _v.revoked_at.is_(None))
    .order_by(_e.changed_at.desc())
)


@dataclass(frozen=True, slots=True)
class RecentDenial:
    """One denial of nearly the same. ``differs`` names the arguments that are others now; none: exactly the same."""

    review_id: str
    txn: str
    at: datetime
    iss: str
    sub: str
    person_name: str
    reason: str | None
    differs: tuple[str, ...]


def lookback_period(ctx: Context) -> timedelta:
    """How long people are told of a denial."""
    return timedelta(hours=ctx.settings.denied_before_hours)


class RecentDenials:
    """The denials that may be about some cases; one query for all of them."""

    def __init__(self, conn: Connection, cases: Sequence[ReviewContext], period: timedelta) -> None:
        self._period = period
        self._found: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
        if not cases:
            return
        effects = [case.effect for case in cases]
        query = _DENIALS.where(
            col(EffectRow.agent).in_({effect.agent for effect in effects}),
            col(EffectRow.tool).in_({effect.tool for effect in effects}),
            col(EffectRow.resource_key).in_({effect.resource_key for effect in effects}),
            col(EffectRow.changed_at) >= min(case.review.opened_at for case in cases) - period,
        )
        for row in conn.execute(query):
            self._found[row.agent, row.tool, row.resource_key].append(row)

    def before(self, case: ReviewContext) -> tuple[RecentDenial, ...]:
        """Those of the period before this review was opened, and while it was open; the newest first."""
        return tuple(
            RecentDenial(
                *(row.review_id, row.txn, row.changed_at, row.iss, row.sub, row.name, row.reason),
                _differing(row.args, case.effect.args),
            )
            for row in self._found[_of(case.effect)]
            if (row.effect_id, row.rev) != (case.effect.effect_id, case.effect.rev)
            and _is_of(case.review, row.changed_at, self._period)
        )[:MAX_SHOWN]


def _of(effect: EffectRow) -> tuple[str, str, str]:
    return effect.agent, effect.tool, effect.resource_key


def _is_of(review: ReviewRow, at: datetime, period: timedelta) -> bool:
    """Whether who decides this review should know of it: also what is denied while it is open."""
    return review.opened_at - period <= at and (review.settled_at is None or at < review.settled_at)


def _differing(before: bytes, now: bytes) -> tuple[str, ...]:
    """The arguments that are not the same, by name; of secret ones too, whose values are told nowhere."""
    given = decode_args(now)
    try:
        then = decode_args(before)
    except (ContractError, TypeError):
        then = {}  # from what cannot be read any more, everything differs
    return tuple(
        sorted(
            name
            for name in then.keys() | given.keys()
            if (name in then) != (name in given) or then.get(name) != given.get(name)
        )
    )
