"""Vote: one person's approve or deny on exactly one effect at one revision.

Numbered as they run:

1. the review exists, and the vote names its revision, its digests and what its person was shown: otherwise they read
   something else (409); an approve that was given on a page with folded arguments is refused;
2. the person is not of the requester's side, serves one of the gates, and Cedar permits it;
3. a review that is settled or whose time is over takes the vote for the record and changes nothing;
4. a deny needs a reason, and so do an opening and, where a gate says so, an approve;
5. until the review settles an approve may become a deny; the same vote again is the same vote, and an approve repeated
   with a stronger step-up counts with that from then on; what a passkey signed for it was verified before all this
   (`stepping_up`), against everything the vote says, and is stored with it;
6. a deny is final; an approve that meets every gate, or a signature that opens it in an emergency, makes the policy be
   asked once more before anything is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from countersign.contract import ErrorCode
from policy_service.domain.gates import is_stronger_step_up, merge, satisfies_step_up
from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.domain.policy_request import Facts
from policy_service.domain.quorum import Tally, counts_toward
from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.identity.passkeys import active_passkeys
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.arg_diff import stale_review
from policy_service.queries.context import Context
from policy_service.queries.messages import require_text_length
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.review_models import VoteResult
from policy_service.queries.review_models import VoteVerdict as Verdict
from policy_service.queries.reviews import review_content
from policy_service.queries.view_digest import CHANNELS_REQUIRING_VIEW, folded_args, views_for_channel
from policy_service.queries.vote_eligibility import count_votes, counted_verdict, valid_votes_of
from policy_service.queries.voter import Voter, break_glass_permission, hypothetical_approval, vote_refusal
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import insert_row_or_ignore, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import ViewRow
from policy_service.storage.tables import EffectRow, VoteRow
from policy_service.storage.types import new_id
from policy_service.workflow.authorization import require_active_person, require_effect_agent
from policy_service.workflow.effects.apply_evaluation import apply_evaluation
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.effects.termination import deny_effect, expire_effect
from policy_service.workflow.passkeys.step_up import (
    PASSKEY,
    StepUpProof,
    VerifiedStepUp,
    passkey_required_error,
    record_passkey_use,
    store_assertion,
    verify_step_up,
)
from policy_service.workflow.transitions import TransitionReason, insert, person_actor, publish_review_event


@dataclass(frozen=True)
class VoteInput:
    """What is voted, and on what."""

    review_id: str
    verdict: Verdict
    rev: int
    effect_digest: str
    txn_digest: str
    reason: str | None
    channel: str
    view_digest: str | None = None  # what the person was shown; a program may name none
    view_parts: str = ""  # the same in parts, so that a stale page can be told what moved
    proof: StepUpProof | None = None

    def signed_by(self, voter: Voter) -> dict[str, Any]:
        """Everything the vote says, as a passkey signs it: the members of the challenge but for the nonce."""
        return {
            "review": self.review_id,
            "rev": self.rev,
            "txn_digest": self.txn_digest,
            "effect_digest": self.effect_digest,
            "view_digest": self.view_digest,
            "person": voter.key,
            "verdict": self.verdict,
        }


class FactsTimeoutError(Exception):
    """The sources of facts took longer than whoever votes can wait; nothing was cast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteOutcome(VoteResult):
    """The result, with the case as it is after the vote, and its count where the vote took one."""

    case: ReviewContext
    tally: Tally | None = None


async def vote(
    ctx: Context,
    voter: Voter,
    ballot: VoteInput,
    *,
    still: Callable[[Tx], None] = lambda tx: None,
    facts_timeout_s: float | None = None,
) -> VoteOutcome:
    """Cast a vote. ``still`` refuses in the unit that writes it: the person may not vote by then. ``facts_within_s``:
    how long facts may take where the channel waits for the answer no longer; None where each source's own limit is
    enough.

    Raises:
        LateFactsError: they took longer than that; nothing was cast.
        NotFoundError: no such review.
        ConflictError: stale_review, with what changed.
        ForbiddenError: not_eligible, step_up_required.
        InvalidRequestError: reason_required, view_incomplete; the reason is too long.
    """
    require_text_length(ballot.reason or "")
    proven = None
    if ballot.proof is not None:
        proven = await verify_step_up(ctx, ballot.proof, ballot.signed_by(voter))
        voter = replace(voter, step_up=PASSKEY)

    until = None if facts_timeout_s is None else asyncio.get_running_loop().time() + facts_timeout_s

    async def under(bundle: Bundle) -> VoteOutcome:
        effect = await ctx.db.read(lambda conn: repository.reviewed_effect(conn, ballot.review_id))
        facts = await _facts(ctx, bundle, effect, ballot, until)
        return await ctx.db.write(
            lambda tx: _vote(tx, ctx, bundle, voter, ballot, effect.txn, facts, still, proven)
        )

    return await with_stable_bundle(ctx, under)


async def _facts(
    ctx: Context, bundle: Bundle, effect: EffectRow, ballot: VoteInput, until: float | None
) -> Facts:
    """What the policy is asked with; nothing for a deny, which asks no policy and waits for nobody."""
    if ballot.verdict == "deny":
        return Facts(bundle.digest)
    try:
        async with asyncio.timeout_at(until):
            return (await gather_facts(bundle, [effect], ctx.clock()))[effect.effect_id]
    except TimeoutError:
        raise FactsTimeoutError from None


def _vote(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    voter: Voter,
    ballot: VoteInput,
    txn: str,
    facts: Facts,
    still: Callable[[Tx], None],
    proven: VerifiedStepUp | None,
) -> VoteOutcome:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    case = read_review_context(tx.conn, ballot.review_id)
    _require_same_bytes(tx, case, ballot)
    _require_eligible(tx, ctx, bundle, case, voter, ballot)
    still(tx)
    ballot = _require_same_view(tx, bundle, case, ballot)
    cause = TransitionReason(
        person_actor(voter.iss, voter.sub), BREAK_GLASS if is_break_glass(ballot) else "vote"
    )
    if proven is not None:
        record_passkey_use(tx, proven)
    if case.review.state == "open" and tx.now >= case.review.answer_by:
        expire_effect(tx, case.snapshot, case.effect)
    cast = _already_cast(case, voter, ballot)
    if case.review.state != "open":
        answer = counted_verdict(case.snapshot.votes_on(case.effect), voter.iss, voter.sub)
        said = cast is not None if is_break_glass(ballot) else answer == ballot.verdict
        _record(tx, case, voter, ballot, cause, proven, late=True)
        return VoteOutcome(
            ballot.review_id,
            case.review.state,
            ballot.verdict,
            counted=False,
            already_recorded=said,
            case=case,
        )
    _require_reason(case, ballot)
    if cast is None:
        _record(tx, case, voter, ballot, cause, proven, late=False)
    elif is_stronger_step_up(voter.step_up, cast.step_up):
        _strengthen(tx, case, cast, voter, cause, proven)
    # also after the same vote again: it may meet by now what it did not meet then
    counted = _settle(tx, ctx, bundle, case, ballot, facts, cause)
    return VoteOutcome(
        ballot.review_id,
        case.review.state,
        ballot.verdict,
        counted=True,
        already_recorded=cast is not None,
        case=case,
        tally=counted,
    )


def is_break_glass(ballot: VoteInput) -> bool:
    """Whether it is a signature for an opening by break-glass, and no vote on a gate."""
    return ballot.verdict == BREAK_GLASS


def _require_same_bytes(tx: Tx, case: ReviewContext, ballot: VoteInput) -> None:
    seen = (ballot.rev, ballot.effect_digest, ballot.txn_digest)
    stands = (case.review.rev, case.effect.effect_digest, case.snapshot.transaction.txn_digest)
    if seen != stands or case.snapshot.superseded_by is not None:
        raise stale_review(tx.conn, case.snapshot, case.effect, ballot.rev)


def _require_same_view(tx: Tx, bundle: Bundle, case: ReviewContext, ballot: VoteInput) -> VoteInput:
    """The ballot with the view it was cast on, which is stored.

    A deny is never refused for what was shown: it releases nothing. One on another view names none.
    """
    if ballot.view_digest is None:
        if ballot.verdict != "deny" and ballot.channel in CHANNELS_REQUIRING_VIEW:
            raise InvalidRequestError("this vote does not say what was read", code=ErrorCode.VIEW_INCOMPLETE)
        return ballot
    views = views_for_channel(review_content(bundle, case), ballot.channel)
    shown = next((view for view in views if view.digest == ballot.view_digest), None)
    if shown is None and ballot.verdict == "deny":
        return replace(ballot, view_digest=None)
    if shown is None:
        stale = stale_review(tx.conn, case.snapshot, case.effect, ballot.rev)
        stale.extras["moved"] = views[0].moved(ballot.view_parts) if ballot.view_parts else []
        raise stale
    if ballot.verdict != "deny" and (folded := folded_args(shown)):
        raise InvalidRequestError(
            f"{', '.join(folded)} stood folded on the page this vote came from: open it in full and read it first",
            code=ErrorCode.VIEW_INCOMPLETE,
        )
    insert_row_or_ignore(tx.conn, ViewRow(view_digest=shown.digest, material=shown.canonical))
    return ballot


def _require_eligible(
    tx: Tx, ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter, ballot: VoteInput
) -> None:
    if is_break_glass(ballot):
        _require_openable(tx, ctx, bundle, case, voter)
        return
    reason = vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, tx.now)
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    mine = hypothetical_approval(bundle, voter)
    if ballot.verdict == "approve" and not any(counts_toward(gate, mine) for gate in case.asked):
        if active_passkeys(tx.conn, voter.iss, voter.sub, tx.now):
            raise ForbiddenError(
                "every gate you serve asks for a passkey: open the review and confirm with yours",
                code=ErrorCode.STEP_UP_REQUIRED,
            )
        raise passkey_required_error(ctx.settings)


def _require_openable(tx: Tx, ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter) -> None:
    """Refuse a signature that could not count. A stop comes before any emergency: what is frozen, nobody opens.

    Raises:
        ForbiddenError: not_eligible, step_up_required, frozen.
    """
    reason = break_glass_permission(ctx, bundle, case, voter, tx.now).why_not
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    if not all(satisfies_step_up(voter.step_up, gate.step_up) for gate in merge(case.gates)):
        raise ForbiddenError(
            "a gate here asks for a passkey, and an emergency does not do without it: confirm with yours",
            code=ErrorCode.STEP_UP_REQUIRED,
        )
    require_effect_agent(tx, case.effect.agent, case.effect.kind)
    require_not_stopped(tx, [case.effect.tool])


def _require_reason(case: ReviewContext, ballot: VoteInput) -> None:
    wanted = ballot.verdict != "approve" or any(gate.reason for gate in case.gates)
    if wanted and not (ballot.reason or "").strip():
        doing = "open" if is_break_glass(ballot) else ballot.verdict
        raise InvalidRequestError(
            f"say why: a reason is required to {doing} this effect", code=ErrorCode.REASON_REQUIRED
        )


def _already_cast(case: ReviewContext, voter: Voter, ballot: VoteInput) -> VoteRow | None:
    """This person's vote where it is in already; an approve after a deny never arrives here, a deny settles."""
    mine = valid_votes_of(case.snapshot.votes_on(case.effect), voter.iss, voter.sub)
    return next((vote for vote in mine if vote.verdict == ballot.verdict), None)


def _strengthen(
    tx: Tx,
    case: ReviewContext,
    cast: VoteRow,
    voter: Voter,
    cause: TransitionReason,
    proven: VerifiedStepUp | None,
) -> None:
    """The vote stands as it was cast, in its place; what its person has proved since is a line of its own."""
    was, cast.step_up = cast.step_up, voter.step_up
    update_rows(tx.conn, VoteRow, {"vote_id": cast.vote_id}, {"step_up": cast.step_up})
    if proven is not None:
        store_assertion(tx, cast.vote_id, proven)
    detail = {"vote_id": cast.vote_id, "step_up": cast.step_up, "was": was, **_by(proven)}
    publish_review_event(
        tx, case.review, "vote_strengthened", cause, effect_digest=cast.effect_digest, **detail
    )


def _record(
    tx: Tx,
    case: ReviewContext,
    voter: Voter,
    ballot: VoteInput,
    cause: TransitionReason,
    proven: VerifiedStepUp | None,
    *,
    late: bool,
) -> None:
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
        view_digest=ballot.view_digest,
        groups=sorted(voter.groups),
        channel=ballot.channel,
        late=late,
        cast_at=tx.now,
    )
    if late and any(
        (v.iss, v.sub, v.verdict) == (row.iss, row.sub, row.verdict)
        for v in case.snapshot.votes_on(case.effect)
    ):
        return  # the same late vote again: it stands on record once
    insert(tx, row)
    if proven is not None:
        store_assertion(tx, row.vote_id, proven)
    case.snapshot.votes.setdefault(row.review_id, []).append(row)
    detail = {"vote_id": row.vote_id, "verdict": row.verdict, "late": late, "channel": row.channel}
    detail |= {"view_digest": row.view_digest, "step_up": row.step_up, **_by(proven)}
    kind = "break_glass_signed" if is_break_glass(ballot) else "vote_recorded"
    publish_review_event(tx, case.review, kind, cause, effect_digest=row.effect_digest, **detail)


def _by(proven: VerifiedStepUp | None) -> dict[str, Any]:
    return {} if proven is None else {"passkey": proven.passkey.passkey_id}


def _settle(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    case: ReviewContext,
    ballot: VoteInput,
    facts: Facts,
    cause: TransitionReason,
) -> Tally | None:
    """Deny, or release what is met by now. What the votes come to then; None after a deny, which counts none."""
    if ballot.verdict == "deny":
        deny_effect(tx, case.snapshot, case.effect, cause)
        return None
    counted = count_votes(ctx, bundle, case.snapshot, case.effect, case.agent, case.gates, tx.now)
    if counted.permits_release:
        answer = reevaluate(
            tx, ctx, bundle, case.agent, case.snapshot, case.effect, facts, cause, counted=counted
        )
        apply_evaluation(tx, bundle, case.snapshot, case.effect, answer, cause)
        counted = answer.tally
    return counted
