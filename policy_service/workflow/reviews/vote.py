"""Vote: one person approves or denies exactly one effect at one revision, or signs for a break-glass release.

1. The review must exist, and the vote must name its revision, its digests and the view its person saw. Otherwise the
   person read something else (409). An approval on a page with folded arguments is refused.
2. The person must not be on the requester's side, must be in the groups of a gate, and Cedar must permit the vote.
3. A vote on a settled or expired review is stored for the record and changes nothing.
4. A denial and a break-glass signature need a reason; an approval needs one if a gate requires it.
5. Until the review settles, an approval may become a denial. The same vote again is the same vote; an approval repeated
   with a stronger step-up counts with it from then on. A passkey assertion is verified before this unit (`step_up`),
   against everything the vote says, and is stored with the vote.
6. A denial is final. If an approval meets every gate, or a signature completes a break-glass approval, the policy is
   evaluated once more before anything is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from countersign.contract import EffectState, ErrorCode
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
from policy_service.queries.review_context import ReviewContext, read_review_context, require_text_length
from policy_service.queries.review_models import VoteResult
from policy_service.queries.review_models import VoteVerdict as Verdict
from policy_service.queries.reviews import review_content
from policy_service.queries.view_digest import CHANNELS_REQUIRING_VIEW, folded_args, views_for_channel
from policy_service.queries.vote_eligibility import (
    Voter,
    break_glass_permission,
    count_votes,
    counted_verdict,
    hypothetical_approval,
    valid_votes_of,
    vote_refusal,
)
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import insert_row_or_ignore, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import ViewRow
from policy_service.storage.tables import EffectRow, VoteRow
from policy_service.storage.types import new_id
from policy_service.workflow.authorization import (
    require_active_person,
    require_effect_agent,
    require_none_stopped,
)
from policy_service.workflow.effects.apply_evaluation import apply_evaluation
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.effects.outcomes import end_effect, expire_effect
from policy_service.workflow.passkeys.step_up import (
    PASSKEY,
    StepUpProof,
    VerifiedStepUp,
    passkey_required_error,
    record_passkey_use,
    store_assertion,
    verify_step_up,
)
from policy_service.workflow.transitions import TransitionReason, insert, publish_review_event


@dataclass(frozen=True)
class VoteInput:
    """A vote, and what it is on."""

    review_id: str
    verdict: Verdict
    rev: int
    effect_digest: str
    txn_digest: str
    reason: str | None
    channel: str
    view_digest: str | None = None  # what the person saw; a program may send none
    view_parts: str = ""  # digests of its parts, to report what changed
    proof: StepUpProof | None = None

    @property
    def is_break_glass(self) -> bool:
        """Whether this is a break-glass signature, which counts toward no gate."""
        return self.verdict == BREAK_GLASS

    def signed_by(self, voter: Voter) -> dict[str, Any]:
        """Everything the vote says, as a passkey signs it: the members of the challenge except the nonce."""
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
    """Gathering facts took longer than the channel can wait; no vote was cast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteOutcome(VoteResult):
    """The result, with the review after the vote, and its tally if one was taken."""

    case: ReviewContext
    tally: Tally | None = None


async def vote(
    ctx: Context,
    voter: Voter,
    ballot: VoteInput,
    *,
    recheck: Callable[[Tx], None] = lambda tx: None,
    facts_timeout_s: float | None = None,
) -> VoteOutcome:
    """Cast a vote.

    ``recheck`` runs in the unit that stores the vote, and raises if the person may no longer vote. ``facts_timeout_s``
    limits how long gathering facts may take, for a channel that cannot wait longer.

    Raises:
        FactsTimeoutError: gathering facts took longer; no vote was cast.
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

    async def work(bundle: Bundle) -> VoteOutcome:
        effect = await ctx.db.read(lambda conn: repository.reviewed_effect(conn, ballot.review_id))
        facts = await _facts(ctx, bundle, effect, ballot, until)
        return await ctx.db.write(
            lambda tx: _vote(tx, ctx, bundle, voter, ballot, effect.txn, facts, recheck, proven)
        )

    return await with_stable_bundle(ctx, work)


async def _facts(
    ctx: Context, bundle: Bundle, effect: EffectRow, ballot: VoteInput, until: float | None
) -> Facts:
    """The facts for the evaluation; none for a denial, which evaluates no policy and must not wait."""
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
    recheck: Callable[[Tx], None],
    proven: VerifiedStepUp | None,
) -> VoteOutcome:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    case = read_review_context(tx.conn, ballot.review_id)
    require_same_bytes(tx, case, ballot.rev, ballot.effect_digest, ballot.txn_digest)
    cast = _Cast(tx, ctx, bundle, case, voter, ballot, proven)
    cast.require_eligible()
    recheck(tx)
    cast = replace(cast, ballot=cast.ballot_on_current_view())
    if proven is not None:
        record_passkey_use(tx, proven)
    if case.review.state == "open" and tx.now >= case.review.answer_by:
        expire_effect(tx, case.snapshot, case.effect)
    return cast.count(facts) if case.review.state == "open" else cast.record_late()


def require_same_bytes(
    tx: Tx, case: ReviewContext, rev: int, effect_digest: str, txn_digest: str, **undone: str
) -> None:
    """Require that a person read the revision and bytes that are current.

    Raises:
        ConflictError: stale_review, with what changed.
    """
    current = (case.review.rev, case.effect.effect_digest, case.snapshot.transaction.txn_digest)
    if (rev, effect_digest, txn_digest) != current or case.snapshot.superseded_by is not None:
        raise stale_review(tx.conn, case.snapshot, case.effect, rev, **undone)


@dataclass(frozen=True)
class _Cast:
    """One vote in its unit of work."""

    tx: Tx
    ctx: Context
    bundle: Bundle
    case: ReviewContext
    voter: Voter
    ballot: VoteInput
    proven: VerifiedStepUp | None

    @property
    def cause(self) -> TransitionReason:
        why = BREAK_GLASS if self.ballot.is_break_glass else "vote"
        return TransitionReason.by_person(self.voter.iss, self.voter.sub, why)

    def require_eligible(self) -> None:
        """Raise ForbiddenError (not_eligible, step_up_required, frozen) if this person may not cast this vote."""
        case, voter, now = self.case, self.voter, self.tx.now
        if self.ballot.is_break_glass:
            self._require_may_sign()
            return
        reason = vote_refusal(self.ctx, self.bundle, case.agent, case.review, case.gates, voter, now)
        if reason is not None:
            raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
        mine = hypothetical_approval(self.bundle, voter)
        if self.ballot.verdict == "approve" and not any(counts_toward(gate, mine) for gate in case.asked):
            if active_passkeys(self.tx.conn, voter.iss, voter.sub, now):
                raise ForbiddenError(
                    "every gate you may vote on requires a passkey: open the review and confirm with yours",
                    code=ErrorCode.STEP_UP_REQUIRED,
                )
            raise passkey_required_error(self.ctx.settings)

    def _require_may_sign(self) -> None:
        """Refuse a break-glass signature that could not count. Break-glass does not override an emergency stop."""
        case, effect = self.case, self.case.effect
        reason = break_glass_permission(self.ctx, self.bundle, case, self.voter, self.tx.now).why_not
        if reason is not None:
            raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
        if not all(satisfies_step_up(self.voter.step_up, gate.step_up) for gate in merge(case.gates)):
            raise ForbiddenError(
                "a gate here requires a passkey, also for break-glass: confirm with yours",
                code=ErrorCode.STEP_UP_REQUIRED,
            )
        require_effect_agent(self.tx, effect.agent, effect.kind)
        require_none_stopped(self.tx, [effect.tool])

    def ballot_on_current_view(self) -> VoteInput:
        """Require that the voter saw the review as it is now, and store that view.

        A denial is never refused for its view, because it releases nothing. One on another view is stored without any.
        """
        case, ballot, denies = self.case, self.ballot, self.ballot.verdict == "deny"
        if ballot.view_digest is None:
            if not denies and ballot.channel in CHANNELS_REQUIRING_VIEW:
                raise InvalidRequestError(
                    "this vote does not name the view that its person read", code=ErrorCode.VIEW_INCOMPLETE
                )
            return ballot
        views = views_for_channel(review_content(self.bundle, case), ballot.channel)
        shown = next((view for view in views if view.digest == ballot.view_digest), None)
        if shown is None and denies:
            return replace(ballot, view_digest=None)
        if shown is None:
            stale = stale_review(self.tx.conn, case.snapshot, case.effect, ballot.rev)
            stale.extras["moved"] = views[0].moved(ballot.view_parts) if ballot.view_parts else []
            raise stale
        if not denies and (folded := folded_args(shown)):
            raise InvalidRequestError(
                f"{', '.join(folded)} was folded on the page of this vote; open the page in full and read it first",
                code=ErrorCode.VIEW_INCOMPLETE,
            )
        insert_row_or_ignore(self.tx.conn, ViewRow(view_digest=shown.digest, material=shown.canonical))
        return ballot

    def count(self, facts: Facts) -> VoteOutcome:
        """Store the vote on an open review, unless it repeats one, and apply it; a missing reason is refused."""
        self._require_reason()
        known = self._same_vote()
        if known is None:
            self._record(late=False)
        elif is_stronger_step_up(self.voter.step_up, known.step_up):
            self._strengthen(known)
        # also for a repeated vote: it may meet the gates now that it did not meet then
        tally = self._settle(facts)
        return self._outcome(counted=True, already_recorded=known is not None, tally=tally)

    def record_late(self) -> VoteOutcome:
        """Store the vote on a review that is no longer open, where it changes nothing."""
        if self.ballot.is_break_glass:
            repeats = self._same_vote() is not None
        else:
            verdict = counted_verdict(self._votes, self.voter.iss, self.voter.sub)
            repeats = verdict == self.ballot.verdict
        self._record(late=True)
        return self._outcome(counted=False, already_recorded=repeats)

    def _outcome(self, *, counted: bool, already_recorded: bool, tally: Tally | None = None) -> VoteOutcome:
        return VoteOutcome(
            self.ballot.review_id,
            self.case.review.state,
            self.ballot.verdict,
            counted=counted,
            already_recorded=already_recorded,
            case=self.case,
            tally=tally,
        )

    @property
    def _votes(self) -> list[VoteRow]:
        return self.case.snapshot.votes_on(self.case.effect)

    def _same_vote(self) -> VoteRow | None:
        """This person's counted vote with the same verdict, if any."""
        mine = valid_votes_of(self._votes, self.voter.iss, self.voter.sub)
        return next((vote for vote in mine if vote.verdict == self.ballot.verdict), None)

    def _require_reason(self) -> None:
        ballot = self.ballot
        required = ballot.verdict != "approve" or any(gate.reason for gate in self.case.gates)
        if required and not (ballot.reason or "").strip():
            doing = "release" if ballot.is_break_glass else ballot.verdict
            raise InvalidRequestError(
                f"give a reason: it is required to {doing} this effect", code=ErrorCode.REASON_REQUIRED
            )

    def _strengthen(self, vote: VoteRow) -> None:
        """Raise the step-up of a cast vote, which keeps its place; the new proof is audited separately."""
        was, vote.step_up = vote.step_up, self.voter.step_up
        update_rows(self.tx.conn, VoteRow, {"vote_id": vote.vote_id}, {"step_up": vote.step_up})
        self._publish("vote_strengthened", vote, step_up=vote.step_up, was=was)

    def _record(self, *, late: bool) -> None:
        case, voter, ballot = self.case, self.voter, self.ballot
        row = VoteRow(
            vote_id=new_id("vote", self.tx.now),
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
            cast_at=self.tx.now,
        )
        known = ((vote.iss, vote.sub, vote.verdict) for vote in self._votes)
        if late and (row.iss, row.sub, row.verdict) in known:
            return  # a repeated late vote is stored once
        insert(self.tx, row)
        case.snapshot.votes.setdefault(row.review_id, []).append(row)
        detail = {"verdict": row.verdict, "late": late, "channel": row.channel}
        detail |= {"view_digest": row.view_digest, "step_up": row.step_up}
        self._publish("break_glass_signed" if ballot.is_break_glass else "vote_recorded", row, **detail)

    def _publish(self, kind: str, vote: VoteRow, **detail: Any) -> None:
        """Store the assertion of a vote, if it has one, and audit the vote."""
        if self.proven is not None:
            store_assertion(self.tx, vote.vote_id, self.proven)
            detail["passkey"] = self.proven.passkey.passkey_id
        detail |= {"vote_id": vote.vote_id, "effect_digest": vote.effect_digest}
        publish_review_event(self.tx, self.case.review, kind, self.cause, **detail)

    def _settle(self, facts: Facts) -> Tally | None:
        """Apply the vote: deny, or release if the gates are met now. Returns the tally; None after a denial."""
        tx, ctx, bundle, case = self.tx, self.ctx, self.bundle, self.case
        snapshot, effect, agent = case.snapshot, case.effect, case.agent
        if self.ballot.verdict == "deny":
            denied = self.cause.because("denied_by_person")
            end_effect(tx, snapshot, effect, EffectState.DENIED, denied)
            return None
        tally = count_votes(ctx, bundle, snapshot, effect, agent, case.gates, tx.now)
        if not tally.permits_release:
            return tally
        answer = reevaluate(tx, ctx, bundle, agent, snapshot, effect, facts, self.cause, counted=tally)
        apply_evaluation(tx, bundle, snapshot, effect, answer, self.cause)
        return answer.tally
