"""Unsatisfiable reviews: open reviews whose gates all known people together could not meet.

Such a review expires by itself; until then a task shows that waiting does not help. Known people are the members of the
bundle's groups and everyone who ever signed in, without the requester's side. A missing passkey does not make a gate
unsatisfiable, because people can enroll one. The task closes once enough people are known or the review settles. If a
person settled the task of a revision ("leave it waiting"), no other opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

import structlog
from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import TaskKind
from policy_service.domain.quorum import BallotVote, GateTally, gates_needing_voters, tally
from policy_service.identity.origin import relying_party_id
from policy_service.identity.people import list_people, list_revoked
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import (
    Quarantine,
    ReviewContext,
    read_review_context,
    read_review_contexts,
)
from policy_service.queries.vote_eligibility import KnownPeople, is_permitted, requesters_side, valid_ballots
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import find
from policy_service.storage.database import Tx
from policy_service.storage.tables import ReviewRow, TaskRow
from policy_service.workflow.effects.open_reviews import escalate
from policy_service.workflow.passkeys.step_up import PASSKEY
from policy_service.workflow.transitions import TransitionReason, close_tasks, open_task, set_columns

log = structlog.get_logger(__name__)

KIND = TaskKind.IMPOSSIBLE_QUORUM
_PAGE = 50  # reviews checked by one query


async def update_unsatisfiable_reviews(ctx: Context) -> int:
    """Open a task for each unsatisfiable review, and close tasks that no longer apply; returns how many changed."""
    due = await _unsatisfiable(ctx) ^ await ctx.db.read(_with_open_task)
    moved = 0
    for review_id in sorted(due):
        try:
            moved += await ctx.db.write(partial(_move, ctx=ctx, review_id=review_id))
        except Exception:
            # The next sweep tries it again; the other reviews must not wait for it.
            log.exception("sweep_failed", review_id=review_id)
    return moved


async def _unsatisfiable(ctx: Context) -> set[str]:
    found: set[str] = set()
    people = KnownPeople(ctx.active.current, await ctx.db.read(list_people))
    after: tuple[datetime, str] | None = None
    while page := await ctx.db.read(partial(repository.list_open_reviews, after=after, limit=_PAGE)):
        found |= await ctx.db.read(partial(_unsatisfiable_in, ctx=ctx, page=page, people=people))
        after = page[-1].answer_by, page[-1].review_id
    return found


async def check_new_reviews(ctx: Context, snapshot: Snapshot) -> Snapshot:
    """Check the reviews of a new revision at once: escalate them or open tasks, without waiting for the next sweep.

    Returns the transaction afterwards.
    """
    if all(review.state != "open" for review in snapshot.reviews.values()):
        return snapshot
    try:
        due = await ctx.db.read(partial(_unsatisfiable_of, ctx=ctx, snapshot=snapshot))
        for review_id in due:
            await ctx.db.write(partial(_move, ctx=ctx, review_id=review_id))
        txn = snapshot.transaction.txn
        return await ctx.db.read(lambda conn: repository.require_transaction(conn, txn)) if due else snapshot
    except Exception:
        # The submission is committed, and the next sweep checks its reviews again.
        log.exception("not_weighed", txn=snapshot.transaction.txn)
        return snapshot


def _unsatisfiable_of(conn: Connection, ctx: Context, snapshot: Snapshot) -> list[str]:
    """The unsatisfiable open reviews of a transaction.

    Most are satisfiable by the people the bundle names, without the revoked ones. Only otherwise is everyone read.
    """
    agent = repository.agent_of(conn, snapshot.transaction.agent)
    effects = [effect for effect in snapshot.effects if effect.effect_id in snapshot.reviews]
    cases = (
        [ReviewContext(snapshot.reviews[e.effect_id], snapshot, e, agent) for e in effects] if agent else []
    )
    short = [case for case in cases if case.review.state == "open"]
    named = KnownPeople(ctx.active.current, list_revoked(conn) if short else ())
    if short := [case for case in short if _missing(ctx, case, named)]:
        everybody = KnownPeople(ctx.active.current, list_people(conn))
        short = [case for case in short if _missing(ctx, case, everybody)]
    return [case.review.review_id for case in short]


def _unsatisfiable_in(
    conn: Connection, ctx: Context, page: Sequence[ReviewRow], people: KnownPeople
) -> set[str]:
    found = set()
    for case in read_review_contexts(conn, page):
        if not _settled_by_person(case):
            with Quarantine(case.review):
                if _missing(ctx, case, people):
                    found.add(case.review.review_id)
    return found


def _with_open_task(conn: Connection) -> set[str]:
    query = (
        select(col(ReviewRow.review_id))
        .where(col(TaskRow.effect_id) == col(ReviewRow.effect_id), col(TaskRow.rev) == col(ReviewRow.rev))
        .where(col(TaskRow.kind) == KIND.value, col(TaskRow.state) == "open")
    )
    return set(conn.execute(query).scalars())


def _move(tx: Tx, ctx: Context, review_id: str) -> bool:
    """Check a review again under its transaction's lock, because it may have been met meanwhile."""
    tx = lock_transaction(tx, read_review_context(tx.conn, review_id).review.txn)
    case = read_review_context(tx.conn, review_id)
    effect, cause = case.effect, TransitionReason.by_service("quorum")
    short = []
    if case.review.state == "open":
        people = KnownPeople(ctx.active.current, list_people(tx.conn))
        short = _missing(ctx, case, people)
        if short and escalate(tx, case.review, effect, _helpful_gates(ctx, case, people), cause):
            short = _missing(ctx, case, people)
    if not short:
        if case.review.unanswerable is not None:
            set_columns(tx, case.review, unanswerable=None)
        return bool(close_tasks(tx, effect, cause, KIND))
    tasks = find(tx.conn, TaskRow, effect_id=effect.effect_id, rev=effect.rev, kind=KIND.value)
    if any(task.state == "open" for task in tasks) or _settled_by_person(case):
        return False
    text = _text(ctx, ctx.active.current, short)
    set_columns(tx, case.review, unanswerable=text)
    open_task(tx, effect, KIND, text, cause)
    return True


def _settled_by_person(case: ReviewContext) -> bool:
    return any(settled["kind"] == KIND.value for settled in case.effect.settlements)


def _missing(ctx: Context, case: ReviewContext, people: KnownPeople) -> list[GateTally]:
    """The gates that stay short even if all known people approved."""
    gates, excluded = case.asked, requesters_side(case.agent, case.snapshot.transaction)
    votes, enough = _valid_ballots(ctx, case, people), 1
    for vote in _possible_approvals(ctx, case, people):
        votes.append(vote)
        if (
            len(votes) >= enough
        ):  # counted at every doubling, because the first few people suffice for most gates
            enough = 2 * len(votes)
            if tally(gates, votes, excluded=excluded).met:
                return []
    counted = tally(gates, votes, excluded=excluded)
    return [] if counted.met else [entry for entry in counted.per_gate if not entry.met]


def _helpful_gates(ctx: Context, case: ReviewContext, people: KnownPeople) -> frozenset[str]:
    """The keys of the gates that more voters could help to meet, given that all known people are too few."""
    excluded = requesters_side(case.agent, case.snapshot.transaction)
    votes = [*_valid_ballots(ctx, case, people), *_possible_approvals(ctx, case, people)]
    return gates_needing_voters(case.asked, votes, excluded=excluded)


def _valid_ballots(ctx: Context, case: ReviewContext, people: KnownPeople) -> list[BallotVote]:
    return valid_ballots(ctx, people.bundle, case.snapshot, case.effect, case.agent, ctx.clock())


def _possible_approvals(ctx: Context, case: ReviewContext, people: KnownPeople) -> Iterator[BallotVote]:
    """An approval by each known person that the gates ask and Cedar permits."""
    # People without a passkey may enroll one, unless the deployment's address permits no passkeys.
    step_up, now = None if relying_party_id(ctx.settings.public_url) is None else PASSKEY, ctx.clock()
    asked = frozenset[str]().union(*(gate.voters for gate in case.asked))
    for person, groups in people.of(asked):
        if is_permitted(ctx, people.bundle, case, person, groups, now):
            yield BallotVote(f"possible: {person}", person, groups, "approve", step_up)


def _text(ctx: Context, bundle: Bundle, short: Sequence[GateTally]) -> str:
    counts = "; ".join(
        f"{' or '.join(sorted(bundle.directory.title_of(group) for group in entry.gate.voters))} "
        f"can give {entry.have} of {entry.need}{', with a ' + entry.gate.step_up if entry.gate.step_up else ''}"
        for entry in short
    )
    known = "; people who sign in for the first time count from then on" if ctx.settings.providers else ""
    asks = any(entry.gate.step_up for entry in short) and relying_party_id(ctx.settings.public_url) is None
    where = "; passkeys cannot be used at this deployment's address: docs/how-to/passkeys.md" if asks else ""
    return f"this review cannot be approved now: {counts}{known}{where}"
