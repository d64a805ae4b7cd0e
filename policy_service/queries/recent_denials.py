"""Recent denials of nearly the same effect: same agent, tool and resource.

They are context for the reviewer, because an agent may rephrase a denied request. No vote is carried over and
nothing is denied automatically.
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

MAX_SHOWN = 5  # newest first; five are enough to see the pattern

_e, _v = table(EffectRow).c, table(VoteRow).c
# The state is a literal, because a partial index cannot serve a bound parameter.
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
    """One denial. ``differs`` names the arguments that changed; empty if all are the same."""

    review_id: str
    txn: str
    at: datetime
    iss: str
    sub: str
    person_name: str
    reason: str | None
    differs: tuple[str, ...]


def lookback_period(ctx: Context) -> timedelta:
    """How long a denial is shown."""
    return timedelta(hours=ctx.settings.denied_before_hours)


class RecentDenials:
    """The denials that may concern some reviews, read with one query."""

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
        """The denials from the lookback period before this review opened until it settled, newest first."""
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
    """Whether the denial falls between the lookback period before the review and its settlement."""
    return review.opened_at - period <= at and (review.settled_at is None or at < review.settled_at)


def _differing(before: bytes, now: bytes) -> tuple[str, ...]:
    """The names of arguments that differ, secret ones included; their values are not shown."""
    given = decode_args(now)
    try:
        then = decode_args(before)
    except (ContractError, TypeError):
        then = {}  # unreadable stored arguments count as different
    return tuple(
        sorted(
            name
            for name in then.keys() | given.keys()
            if (name in then) != (name in given) or then.get(name) != given.get(name)
        )
    )
