"""Submit and, where everything may go at once and the caller named an attempt, spend it in the same unit of work.

One round trip for the common case: an agent that redeems for itself and effects nobody needs to be asked about. The
policy was asked a moment ago in the very same unit, so it is not asked twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from countersign.contract import TxnState
from countersign.contract.wire import SubmitRequest
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.proposals import Edits
from policy_service.storage.tables import AttemptRow
from policy_service.workflow.effects import idempotency
from policy_service.workflow.effects.evaluation import with_stable_bundle
from policy_service.workflow.effects.submit import (
    ArgumentsEditedError,
    Submission,
    SubmitResult,
    prepare_submission,
    submit_in_unit,
)
from policy_service.workflow.releases.mint import UnsignedRelease, build_releases, mint
from policy_service.workflow.releases.redeem import UnsignedReceipt, receipt_for_attempt, redeem_effects
from policy_service.workflow.releases.release import sign_releases
from policy_service.workflow.reviews.unsatisfiable import check_new_reviews
from policy_service.workflow.transitions import TransitionReason, agent_actor


@dataclass(frozen=True)
class SubmitAndRedeemResult:
    """A submission's answer: the transaction, and releases with their receipt when it was spent at once."""

    snapshot: Snapshot
    created: bool
    releases: tuple[str, ...] = ()
    receipt: str | None = None


@dataclass(frozen=True)
class _Done:
    snapshot: Snapshot
    created: bool
    minted: tuple[UnsignedRelease, ...] = ()
    spent: UnsignedReceipt | None = None


async def submit_and_redeem(
    ctx: Context, caller: Caller, request: SubmitRequest, key: idempotency.IdempotencyKey
) -> SubmitAndRedeemResult:
    """Submit the staged effects of one transaction.

    Raises:
        InvalidRequestError: names that do not match, mixed audience, a reused idempotency key.
        ConflictError: the transaction was spent with another list (already_redeemed).
        ForbiddenError: the agent is frozen or not enrolled.
    """

    async def under(bundle: Bundle) -> _Done:
        edits: Edits = {}
        while True:  # once more for every change of arguments that was accepted meanwhile
            submission = await prepare_submission(ctx, bundle, caller, request, key, edits)
            try:
                return await ctx.db.write(
                    partial(_submit_and_redeem, ctx=ctx, caller=caller, submission=submission)
                )
            except ArgumentsEditedError as edited:
                edits = edited.edits

    done = await with_stable_bundle(ctx, under)
    if done.spent is None or done.spent.receipt is None:
        snapshot = await check_new_reviews(ctx, done.snapshot) if done.created else done.snapshot
        return SubmitAndRedeemResult(snapshot, done.created)
    return SubmitAndRedeemResult(
        done.snapshot,
        done.created,
        sign_releases(ctx, list(done.minted)),
        ctx.signer.sign_receipt(done.spent.receipt),
    )


def _submit_and_redeem(tx: Tx, ctx: Context, caller: Caller, submission: Submission) -> _Done:
    tx = lock_transaction(tx, submission.named.txn)
    submitted = submit_in_unit(tx, ctx, submission)
    snapshot, attempt_id = submitted.snapshot, submission.request.attempt_id
    if attempt_id is None or caller.agent != snapshot.transaction.aud:
        return _Done(snapshot, submitted.created)
    known, until = repository.attempt_of(tx.conn, caller.agent, attempt_id), snapshot.transaction.valid_until
    if until is None:
        return _Done(snapshot, submitted.created)
    if known is not None:
        return _told_again(tx, ctx, caller, submitted, known)
    if not submitted.created or snapshot.transaction.state != TxnState.READY.value:
        return _Done(snapshot, submitted.created)
    # other bytes than were sent: the caller sees them before they are spent
    if snapshot.transaction.edited_by:
        return _Done(snapshot, submitted.created)
    minted = mint(
        tx,
        ctx,
        snapshot,
        snapshot.effects,
        caller,
        until,
        TransitionReason(agent_actor(caller.agent), "release"),
    )
    jtis = {one.effect_id: one.claims.jti for one in minted}
    spent = redeem_effects(tx, ctx, submission.bundle, snapshot, snapshot.effects, caller, attempt_id, jtis)
    return _Done(snapshot, submitted.created, tuple(minted), spent)


def _told_again(tx: Tx, ctx: Context, caller: Caller, submitted: SubmitResult, attempt: AttemptRow) -> _Done:
    """The answer of a submission that was lost on its way: the same releases and receipt, for the key that asks."""
    snapshot, until = submitted.snapshot, submitted.snapshot.transaction.valid_until
    if attempt.kind != "effect" or attempt.txn != snapshot.transaction.txn or until is None:
        return _Done(snapshot, submitted.created)
    jtis = {e: row.jti or "" for e, row in repository.redemptions_of(tx.conn, attempt).items()}
    minted = build_releases(tx, ctx, snapshot, snapshot.effects, caller, until, jtis)
    spent = UnsignedReceipt(snapshot, receipt_for_attempt(tx, ctx, snapshot, attempt, caller))
    return _Done(snapshot, created=False, minted=tuple(minted), spent=spent)
