"""A review with its snapshot, effect and agent, as votes and pages need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final

import structlog
from sqlalchemy import Connection, literal_column, select
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col

from countersign.contract import ContractError
from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service import metrics
from policy_service.domain.gates import Gate, MergedGate, merge
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import decode_args, gates_of
from policy_service.queries.repository import VALID_VOTE, Snapshot
from policy_service.queries.review_models import RecentDenial
from policy_service.storage.core import table
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow, VoteRow


@dataclass(frozen=True)
class ReviewContext:
    """A review, the transaction at its revision, the effect it is about, and the agent."""

    review: ReviewRow
    snapshot: Snapshot
    effect: EffectRow
    agent: AgentRow

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Every gate that ever fired on the effect."""
        return gates_of(self.effect)

    @property
    def gate_titles(self) -> tuple[str, ...]:
        """The titles of the gates, or their policy ids."""
        return tuple(dict.fromkeys(gate.title or gate.policy_id for gate in self.gates))

    @property
    def asked(self) -> tuple[MergedGate, ...]:
        """The merged gates, including groups added by escalation."""
        return merge(self.gates, self.review.escalated)


def read_review_context(conn: Connection, review_id: str) -> ReviewContext:
    """The context of one review.

    Raises:
        NotFoundError: the review, its effect or its agent does not exist.
    """
    return review_context_of(conn, repository.require_review(conn, review_id))


def review_context_of(conn: Connection, review: ReviewRow) -> ReviewContext:
    """The context of a review row.

    Raises:
        NotFoundError: its effect or agent does not exist.
    """
    snapshot = repository.require_transaction(conn, review.txn, review.rev)
    case = _case(review, snapshot, repository.agent_of(conn, review.agent))
    if case is None:
        raise NotFoundError(f"the effect of review {review.review_id!r} is gone")
    return case


def read_review_contexts(conn: Connection, reviews: Sequence[ReviewRow]) -> list[ReviewContext]:
    """The contexts of these reviews, with a constant number of queries; without those whose effect or agent
    is missing.
    """
    snapshots = repository.load_all(conn, [(review.txn, review.rev) for review in reviews])
    agents = repository.agents_of(conn, [review.agent for review in reviews])
    cases = (
        _case(review, snapshots.get((review.txn, review.rev)), agents.get(review.agent)) for review in reviews
    )
    return [case for case in cases if case is not None]


def _case(review: ReviewRow, snapshot: Snapshot | None, agent: AgentRow | None) -> ReviewContext | None:
    effect = None if snapshot is None else snapshot.find(review.effect_id)
    if snapshot is None or effect is None or agent is None:
        return None
    # the snapshot's own instance, so that changes of the row are seen through both
    return ReviewContext(snapshot.review_of(effect) or review, snapshot, effect, agent)


log = structlog.get_logger(__name__)


class Quarantine:
    """Logs an unreadable review instead of raising, so that one damaged row does not break a list or a job.

    The effect behind it can be neither decided nor released: code that needs the row itself gets the error. Database
    errors are raised.
    """

    def __init__(self, review: ReviewRow) -> None:
        self._review = review

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, SQLAlchemyError):
            return False
        row = self._review
        metrics.ROWS_BROKEN.inc()
        log.error("row_broken", review_id=row.review_id, txn=row.txn, rev=row.rev, exc_info=error)
        return True


_CLOSED: Final[Mapping[str, str]] = {
    "met": "this was approved already",
    "denied": "this was denied already",
    "expired": "the time to answer this is over",
    "withdrawn": "the agent has withdrawn this",
    "revoked": "this was approved, and the release was revoked since",
}


def require_text_length(words: str) -> str:
    """The text, if it is not too long.

    Raises:
        InvalidRequestError: it is longer than `MAX_TEXT_CHARS`.
    """
    if len(words) > MAX_TEXT_CHARS:
        raise InvalidRequestError(f"write {MAX_TEXT_CHARS:,} characters at most, not {len(words):,}")
    return words


def closed_review_text(state: str) -> str:
    """Why a review in this state takes no vote."""
    return _CLOSED.get(state, f"this review is closed ({state})")


def not_in_groups_text(groups: Iterable[str], does: str) -> str:
    """Why somebody outside these groups may not do it, and what to do instead."""
    named = " or ".join(groups)
    return (
        f"only people in {named} {does}, and you are not one of them; ask one of them, or ask your administrator to "
        "add you to the group"
    )


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
    .where(_v.verdict == "deny", *VALID_VOTE)
    .order_by(_e.changed_at.desc())
)


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
                review_id=row.review_id,
                at=row.changed_at,
                person_name=row.name,
                reason=row.reason or "",
                differs=_differing(row.args, case.effect.args),
                txn=row.txn,
                person=f"{row.iss}|{row.sub}",
            )
            for row in self._found[_key(case.effect)]
            if (row.effect_id, row.rev) != (case.effect.effect_id, case.effect.rev)
            and _is_recent(case.review, row.changed_at, self._period)
        )[:MAX_SHOWN]


def _key(effect: EffectRow) -> tuple[str, str, str]:
    return effect.agent, effect.tool, effect.resource_key


def _is_recent(review: ReviewRow, at: datetime, period: timedelta) -> bool:
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
