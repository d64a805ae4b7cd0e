"""Withdraw: the agent takes back a transaction that was not spent."""

from __future__ import annotations

from countersign.contract import ErrorCode, TxnState
from policy_service.errors import ConflictError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.workflow.authorization import require_owning_agent
from policy_service.workflow.effects.termination import withdraw_effect
from policy_service.workflow.transitions import TransitionReason, agent_actor


async def withdraw(ctx: Context, caller: Caller, txn: str, reason: str | None) -> Snapshot:
    """End every open effect of the transaction in force; withdrawing what has ended changes nothing.

    Raises:
        NotFoundError, ForbiddenError: not this caller's.
        ConflictError: it was redeemed (already_redeemed).
    """
    return await ctx.db.write(lambda tx: _withdraw(tx, caller, txn, reason))


def _withdraw(tx: Tx, caller: Caller, txn: str, reason: str | None) -> Snapshot:
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    require_owning_agent(caller, snapshot.transaction)
    state = TxnState(snapshot.transaction.state)
    if state is TxnState.ENDED:
        return snapshot
    if state not in {TxnState.REVIEW, TxnState.READY}:
        raise ConflictError(
            "it was redeemed already; report what became of it", code=ErrorCode.ALREADY_REDEEMED
        )
    withdraw_effect(
        tx, snapshot, snapshot.effects[0], TransitionReason(agent_actor(caller.agent), "withdrawn"), reason
    )
    return snapshot
