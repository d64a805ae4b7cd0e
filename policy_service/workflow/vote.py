"""Vote: one person's approve or deny on exactly one effect at one revision.

Numbered as they run:

1. the review exists, and the vote names its revision and digests: otherwise the person read something else (409);
2. a review that is settled or whose time is over takes the vote for the record and changes nothing;
3. the person is not of the requester's side, serves one of the gates, and Cedar permits it;
4. a deny needs a reason, and so does an approve where a gate says so;
5. until the review settles an approve may become a deny; the same vote again is the same vote;
6. a deny is final; an approve that meets every gate makes the policy be asked once more before anything is released.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection

from countersign.contract import ErrorCode
from policy_service.domain.gates import merge
from policy_service.domain.question import Facts
from policy_service.domain.quorum import BallotVote, could_serve
from policy_service.errors import ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.storage.database import Tx
from policy_service.storage.ids import new_id
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow, VoteRow
from policy_service.workflow import records
from policy_service.workflow.asking import (
    ask_again,
    count,
    gates_of,
    gather_facts,
    require_current,
    with_one_bundle,
)
from policy_service.workflow.ballots import groups_now, permission, person_key, requesters_side
from policy_service.workflow.changes import stale_review
from policy_service.workflow.context import Context
from policy_service.workflow.endings import deny_by_person, expire_effect
from policy_service.workflow.moves import Cause, insert, person_actor, tell_review
from policy_service.workflow.reading import VoteResult
from policy_service.workflow.ready import settle_answer
from policy_service.workflow.records import Snapshot


@dataclass(frozen=True)
class Voter:
    """Who votes, as their session knows them."""

    iss: str
    sub: str
    name: str
    assurance: str
    groups: frozenset[str] = frozenset()  # from the token, fresh enough; readable sources are asked apart
    step_up: str | None = None

    @property
    def key(self) -> str:
        """Issuer and subject."""
        return person_key(self.iss, self.sub)


@dataclass(frozen=True)
class Ballot:
    """What is voted, and on what."""

    review_id: str
    verdict: str  # "approve" or "deny"
    rev: int
    effect_digest: str
    txn_digest: str
    reason: str | None
    channel: str


@dataclass(frozen=True)
class Case:
    """A review with everything around it, as one unit of work reads it."""

    review: ReviewRow
    snapshot: Snapshot
    effect: EffectRow
    agent: AgentRow


async def vote(ctx: Context, voter: Voter, ballot: Ballot) -> VoteResult:
    """Cast a vote.

    Raises:
        NotFoundError: no such review.
        ConflictError: stale_review, with what changed.
        ForbiddenError: not_eligible, step_up_required.
        InvalidRequestError: reason_required.
    """

    async def under(bundle: Bundle) -> VoteResult:
        case = await ctx.db.read(lambda conn: read_case(conn, ballot.review_id))
        facts = await gather_facts(bundle, [case.effect], ctx.clock())
        return await ctx.db.write(
            lambda tx: _vote(tx, ctx, bundle, voter, ballot, facts[case.effect.effect_id])
        )

    return await with_one_bundle(ctx, under)


def read_case(conn: Connection, review_id: str) -> Case:
    review = records.review_by_id(conn, review_id)
    if review is None:
        raise NotFoundError(f"there is no review {review_id!r}")
    snapshot = records.require(conn, review.txn, review.rev)
    effect = snapshot.find(review.effect_id)
    agent = records.agent_of(conn, review.agent)
    if effect is None or agent is None:
        raise NotFoundError(f"the effect of review {review_id!r} is gone")
    # the snapshot's own row of the review: what moves it here must be seen here
    return Case(snapshot.review_of(effect) or review, snapshot, effect, agent)


def _vote(tx: Tx, ctx: Context, bundle: Bundle, voter: Voter, ballot: Ballot, facts: Facts) -> VoteResult:
    require_current(ctx, bundle)
    case = read_case(tx.conn, ballot.review_id)
    _require_same_bytes(tx, case, ballot)
    cause = Cause(person_actor(voter.iss, voter.sub), "vote")
    if case.review.state == "open" and tx.now >= case.review.answer_by:
        expire_effect(tx, case.snapshot, case.effect)
    if case.review.state != "open":
        _record(tx, case, voter, ballot, cause, late=True)
        return VoteResult(ballot.review_id, case.review.state, _verdict(ballot), counted=False)
    _require_eligible(tx, ctx, bundle, case, voter, ballot)
    _require_reason(case, ballot)
    if not _already_cast(case, voter, ballot):
        _record(tx, case, voter, ballot, cause, late=False)
    # also after the same vote again: it may meet by now what it did not meet then
    _settle(tx, ctx, bundle, case, ballot, facts, cause)
    return VoteResult(ballot.review_id, case.review.state, _verdict(ballot), counted=True)


def _verdict(ballot: Ballot) -> Literal["approve", "deny"]:
    return "approve" if ballot.verdict == "approve" else "deny"


def _require_same_bytes(tx: Tx, case: Case, ballot: Ballot) -> None:
    seen = (ballot.rev, ballot.effect_digest, ballot.txn_digest)
    stands = (case.review.rev, case.effect.effect_digest, case.snapshot.transaction.txn_digest)
    if seen != stands or case.snapshot.superseded_by is not None:
        raise stale_review(tx.conn, case.snapshot, case.effect)


def _require_eligible(tx: Tx, ctx: Context, bundle: Bundle, case: Case, voter: Voter, ballot: Ballot) -> None:
    reason = why_not(ctx, bundle, case, voter, tx.now)
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    gates = merge(gates_of(case.effect))
    if ballot.verdict == "approve" and not any(_suffices(voter, gate.step_up) for gate in gates):
        raise ForbiddenError(
            "every gate of this effect asks for a passkey; passkeys are not set up on this deployment yet",
            code=ErrorCode.STEP_UP_REQUIRED,
        )


def _suffices(voter: Voter, asked: str | None) -> bool:
    return asked is None or voter.step_up == asked


def why_not(ctx: Context, bundle: Bundle, case: Case, voter: Voter, now: datetime) -> str | None:
    """The sentence that tells this person why their vote would not count, or None when it would."""
    if voter.key in requesters_side(case.agent):
        return f"you own {case.agent.name}; nobody approves their own side"
    groups = groups_now(bundle, voter.key, voter.groups)
    granted = permission(
        ctx,
        bundle,
        case.agent,
        case.effect,
        case.review,
        person=voter.key,
        groups=groups,
        assurance=voter.assurance,
        now=now,
    )
    gates = merge(gates_of(case.effect))
    probe = BallotVote("", voter.key, groups, "approve", voter.step_up, permitted=True)
    if not any(could_serve(gate, probe) for gate in gates):
        asked = ", ".join(sorted({group for gate in gates for group in gate.voters}))
        return f"this waits for {asked}, and you are in none of these groups"
    if not granted:
        return (
            granted.reason.text if granted.reason is not None else "the approval policy does not permit you"
        )
    return None


def _require_reason(case: Case, ballot: Ballot) -> None:
    wanted = ballot.verdict == "deny" or any(gate.reason for gate in gates_of(case.effect))
    if wanted and not (ballot.reason or "").strip():
        raise InvalidRequestError(
            f"say why: a reason is required to {ballot.verdict} this effect", code=ErrorCode.REASON_REQUIRED
        )


def _already_cast(case: Case, voter: Voter, ballot: Ballot) -> bool:
    """Whether this person's vote is in already; an approve after a deny never arrives here, a deny settles."""
    mine = [
        v
        for v in case.snapshot.votes_on(case.effect)
        if (v.iss, v.sub) == (voter.iss, voter.sub) and not v.late
    ]
    return any(vote.verdict == ballot.verdict for vote in mine)


def _record(tx: Tx, case: Case, voter: Voter, ballot: Ballot, cause: Cause, *, late: bool) -> None:
    row = VoteRow(
        vote_id=new_id("vote", tx.now),
        review_id=case.review.review_id,
        effect_id=case.effect.effect_id,
        rev=case.effect.rev,
        effect_digest=case.effect.effect_digest,
        txn_digest=case.snapshot.transaction.txn_digest,
        iss=voter.iss,
        sub=voter.sub,
        name=voter.name,
        verdict=ballot.verdict,
        reason=(ballot.reason or "").strip() or None,
        assurance=voter.assurance,
        step_up=voter.step_up,
        groups=sorted(voter.groups),
        channel=ballot.channel,
        late=late,
        cast_at=tx.now,
    )
    if late and any((v.iss, v.sub, v.verdict) == (row.iss, row.sub, row.verdict) for v in _votes(case)):
        return  # the same late vote again: it stands on record once
    insert(tx, row)
    case.snapshot.votes.setdefault(row.review_id, []).append(row)
    detail = {"vote_id": row.vote_id, "verdict": row.verdict, "late": late, "channel": row.channel}
    tell_review(tx, case.review, "vote_recorded", cause, effect_digest=row.effect_digest, **detail)


def _votes(case: Case) -> list[VoteRow]:
    return case.snapshot.votes_on(case.effect)


def _settle(
    tx: Tx, ctx: Context, bundle: Bundle, case: Case, ballot: Ballot, facts: Facts, cause: Cause
) -> None:
    if ballot.verdict == "deny":
        deny_by_person(tx, case.snapshot, case.effect, cause)
        return
    counted = count(ctx, bundle, case.snapshot, case.effect, case.agent, gates_of(case.effect), tx.now)
    if counted.met:
        answer = ask_again(tx, ctx, bundle, case.agent, case.snapshot, case.effect, facts, cause)
        settle_answer(tx, bundle, case.snapshot, case.effect, answer, cause)
