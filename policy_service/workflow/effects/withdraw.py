"""Withdraw: the agent ends a transaction that was not redeemed."""

from __future__ import annotations

from countersign.contract import EffectState, ErrorCode, TxnState
from policy_service.errors import ConflictError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.archived import refuse_missing_to
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.workflow.authorization import require_owning_agent
from policy_service.workflow.effects.outcomes import end_effect
from policy_service.workflow.transitions import TransitionReason


async def withdraw(ctx: Context, caller: Caller, txn: str, reason: str | None) -> Snapshot:
    """End every open effect of the transaction. Withdrawing an ended transaction changes nothing.

    Raises:
        NotFoundError, ForbiddenError: the caller did not submit it.
        ConflictError: already_redeemed.
    """
    return await ctx.db.write(lambda tx: _withdraw(tx, caller, txn, reason))


def _withdraw(tx: Tx, caller: Caller, txn: str, reason: str | None) -> Snapshot:
    tx = lock_transaction(tx, txn)
    snapshot = repository.load(tx.conn, txn) or refuse_missing_to(tx.conn, caller.agent, txn)
    require_owning_agent(caller, snapshot.transaction)
    state = TxnState(snapshot.transaction.state)
    if state is TxnState.ENDED:
        return snapshot
    if state not in {TxnState.REVIEW, TxnState.READY}:
        raise ConflictError("it was redeemed already; report its outcomes", code=ErrorCode.ALREADY_REDEEMED)
    cause = TransitionReason.by_agent(caller.agent, "withdrawn")
    end_effect(tx, snapshot, snapshot.effects[0], EffectState.WITHDRAWN, cause, reason)
    return snapshot
