"""Vote: one person's approve or deny on exactly one effect at one revision.

Numbered as they run:

1. the review exists, and the vote names its revision and digests: otherwise the person read something else (409);
2. the person is not of the requester's side, serves one of the gates, and Cedar permits it;
3. a review that is settled or whose time is over takes the vote for the record and changes nothing;
4. a deny needs a reason, and so does an approve where a gate says so;
5. until the review settles an approve may become a deny; the same vote again is the same vote, and an approve repeated
   with a stronger step-up counts with that from then on;
6. a deny is final; an approve that meets every gate makes the policy be asked once more before anything is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from countersign.contract import ErrorCode
from policy_service.domain.gates import Gate, is_stronger, merge
from policy_service.domain.question import Facts
from policy_service.domain.quorum import BallotVote, could_serve, serves
from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.pap.bundle import Bundle
from policy_service.storage.alone import alone_with
from policy_service.storage.core import change
from policy_service.storage.database import Tx
from policy_service.storage.ids import new_id
from policy_service.storage.tables import AgentRow, ReviewRow, VoteRow
from policy_service.workflow.asking import (
    ask_again,
    count,
    gather_facts,
    require_current,
    with_one_bundle,
)
from policy_service.workflow.ballots import groups_now, permission, person_key, requesters_side
from policy_service.workflow.cases import Case, read_case
from policy_service.workflow.changes import stale_review
from policy_service.workflow.context import Context
from policy_service.workflow.endings import deny_by_person, expire_effect
from policy_service.workflow.moves import Cause, insert, person_actor, tell_review
from policy_service.workflow.parties import require_deciding
from policy_service.workflow.reading import VoteResult
from policy_service.workflow.ready import settle_answer


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
            lambda tx: _vote(tx, ctx, bundle, voter, ballot, case.review.txn, facts[case.effect.effect_id])
        )

    return await with_one_bundle(ctx, under)


def _vote(
    tx: Tx, ctx: Context, bundle: Bundle, voter: Voter, ballot: Ballot, txn: str, facts: Facts
) -> VoteResult:
    require_current(ctx, bundle)
    tx = alone_with(tx, txn)
    require_deciding(tx, voter.iss, voter.sub)
    case = read_case(tx.conn, ballot.review_id)
    _require_same_bytes(tx, case, ballot)
    cause = Cause(person_actor(voter.iss, voter.sub), "vote")
    _require_eligible(tx, ctx, bundle, case, voter, ballot)
    if case.review.state == "open" and tx.now >= case.review.answer_by:
        expire_effect(tx, case.snapshot, case.effect)
    if case.review.state != "open":
        _record(tx, case, voter, ballot, cause, late=True)
        return VoteResult(ballot.review_id, case.review.state, _verdict(ballot), counted=False)
    _require_reason(case, ballot)
    cast = _already_cast(case, voter, ballot)
    if cast is None:
        _record(tx, case, voter, ballot, cause, late=False)
    elif is_stronger(voter.step_up, cast.step_up):
        _strengthen(tx, case, cast, voter, cause)
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
    reason = why_not(ctx, bundle, case.agent, case.review, case.gates, voter, tx.now)
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    probe = _probe(bundle, voter)
    if ballot.verdict == "approve" and not any(serves(gate, probe) for gate in case.asked):
        raise ForbiddenError(
            "every gate you serve asks for a passkey; passkeys are not set up on this deployment yet",
            code=ErrorCode.STEP_UP_REQUIRED,
        )


def _probe(bundle: Bundle, voter: Voter) -> BallotVote:
    """The approval this person would give, for the domain to judge; Cedar is asked apart."""
    return BallotVote("", voter.key, groups_now(bundle, voter.key, voter.groups), "approve", voter.step_up)


def why_not(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Sequence[Gate],
    voter: Voter,
    now: datetime,
) -> str | None:
    """The sentence that tells this person why their vote would not count, or None when it would."""
    if voter.key == agent.owner:
        return f"you own {agent.name}; nobody approves their own side"
    if voter.key in requesters_side(agent, review):
        return "you changed its arguments; nobody approves what they wrote, so somebody else decides this one"
    probe, merged = _probe(bundle, voter), merge(gates, review.escalated)
    if not any(could_serve(gate, probe) for gate in merged):
        asked = ", ".join(sorted({group for gate in merged for group in gate.voters}))
        return (
            f"this waits for {asked}, and you ({voter.key}) are in none of these groups; the bundle's groups.toml "
            "or your directory says who is"
        )
    granted = permission(
        ctx,
        bundle,
        agent,
        review,
        gates,
        person=voter.key,
        groups=probe.groups,
        assurance=voter.assurance,
        now=now,
    )
    if not granted:
        return (
            granted.reason.text if granted.reason is not None else "the approval policy does not permit you"
        )
    return None


def _require_reason(case: Case, ballot: Ballot) -> None:
    wanted = ballot.verdict == "deny" or any(gate.reason for gate in case.gates)
    if wanted and not (ballot.reason or "").strip():
        raise InvalidRequestError(
            f"say why: a reason is required to {ballot.verdict} this effect", code=ErrorCode.REASON_REQUIRED
        )


def _already_cast(case: Case, voter: Voter, ballot: Ballot) -> VoteRow | None:
    """This person's vote where it is in already; an approve after a deny never arrives here, a deny settles."""
    same = (voter.iss, voter.sub, ballot.verdict)
    standing = (vote for vote in _votes(case) if not vote.late and vote.revoked_at is None)
    return next((vote for vote in standing if (vote.iss, vote.sub, vote.verdict) == same), None)


def _strengthen(tx: Tx, case: Case, cast: VoteRow, voter: Voter, cause: Cause) -> None:
    """The vote stands as it was cast, in its place; what its person has proved since is a line of its own."""
    was, cast.step_up = cast.step_up, voter.step_up
    change(tx.conn, VoteRow, {"vote_id": cast.vote_id}, {"step_up": cast.step_up})
    detail = {"vote_id": cast.vote_id, "step_up": cast.step_up, "was": was}
    tell_review(tx, case.review, "vote_strengthened", cause, effect_digest=cast.effect_digest, **detail)


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
    counted = count(ctx, bundle, case.snapshot, case.effect, case.agent, case.gates, tx.now)
    if counted.met:
        answer = ask_again(tx, ctx, bundle, case.agent, case.snapshot, case.effect, facts, cause)
        settle_answer(tx, bundle, case.snapshot, case.effect, answer, cause)
