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
from policy_service.queries import records
from policy_service.queries.context import Context
from policy_service.queries.records import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.proposals import Edits
from policy_service.storage.tables import AttemptRow
from policy_service.workflow.effects import idempotency
from policy_service.workflow.effects.asking import with_one_bundle
from policy_service.workflow.effects.submit import EditedError, Submission, Submitted, prepare, submit_in
from policy_service.workflow.moves import Cause, agent_actor
from policy_service.workflow.releases.mint import Minted, describe, mint
from policy_service.workflow.releases.redeem import Spent, receipt_of, spend
from policy_service.workflow.releases.release import sign_all
from policy_service.workflow.reviews.impossible import weigh_at_once


@dataclass(frozen=True)
class SubmittedAndRedeemed:
    """A submission's answer: the transaction, and releases with their receipt when it was spent at once."""

    snapshot: Snapshot
    created: bool
    releases: tuple[str, ...] = ()
    receipt: str | None = None


@dataclass(frozen=True)
class _Done:
    snapshot: Snapshot
    created: bool
    minted: tuple[Minted, ...] = ()
    spent: Spent | None = None


async def submit_and_redeem(
    ctx: Context, caller: Caller, request: SubmitRequest, key: idempotency.Key
) -> SubmittedAndRedeemed:
    """Submit the staged effects of one transaction.

    Raises:
        InvalidRequestError: names that do not match, mixed audience, a reused idempotency key.
        ConflictError: the transaction was spent with another list (already_redeemed).
        ForbiddenError: the agent is frozen or not enrolled.
    """

    async def under(bundle: Bundle) -> _Done:
        edits: Edits = {}
        while True:  # once more for every change of arguments that was accepted meanwhile
            submission = await prepare(ctx, bundle, caller, request, key, edits)
            try:
                return await ctx.db.write(
                    partial(_submit_and_redeem, ctx=ctx, caller=caller, submission=submission)
                )
            except EditedError as edited:
                edits = edited.edits

    done = await with_one_bundle(ctx, under)
    if done.spent is None or done.spent.receipt is None:
        snapshot = await weigh_at_once(ctx, done.snapshot) if done.created else done.snapshot
        return SubmittedAndRedeemed(snapshot, done.created)
    return SubmittedAndRedeemed(
        done.snapshot,
        done.created,
        sign_all(ctx, list(done.minted)),
        ctx.signer.sign_receipt(done.spent.receipt),
    )


def _submit_and_redeem(tx: Tx, ctx: Context, caller: Caller, submission: Submission) -> _Done:
    tx = lock_transaction(tx, submission.named.txn)
    submitted = submit_in(tx, ctx, submission)
    snapshot, attempt_id = submitted.snapshot, submission.request.attempt_id
    if attempt_id is None or caller.agent != snapshot.transaction.aud:
        return _Done(snapshot, submitted.created)
    known, until = records.attempt_of(tx.conn, caller.agent, attempt_id), snapshot.transaction.valid_until
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
        tx, ctx, snapshot, snapshot.effects, caller, until, Cause(agent_actor(caller.agent), "release")
    )
    jtis = {one.effect_id: one.claims.jti for one in minted}
    spent = spend(tx, ctx, submission.bundle, snapshot, snapshot.effects, caller, attempt_id, jtis)
    return _Done(snapshot, submitted.created, tuple(minted), spent)


def _told_again(tx: Tx, ctx: Context, caller: Caller, submitted: Submitted, attempt: AttemptRow) -> _Done:
    """The answer of a submission that was lost on its way: the same releases and receipt, for the key that asks."""
    snapshot, until = submitted.snapshot, submitted.snapshot.transaction.valid_until
    if attempt.kind != "effect" or attempt.txn != snapshot.transaction.txn or until is None:
        return _Done(snapshot, submitted.created)
    jtis = {e: row.jti or "" for e, row in records.redemptions_of(tx.conn, attempt).items()}
    minted = describe(tx, ctx, snapshot, snapshot.effects, caller, until, jtis)
    spent = Spent(snapshot, receipt_of(tx, ctx, snapshot, attempt, caller))
    return _Done(snapshot, created=False, minted=tuple(minted), spent=spent)
