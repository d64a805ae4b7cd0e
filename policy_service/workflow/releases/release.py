"""Release: mint tokens for a transaction whose every effect may be released.

Minted when asked for, for the key that asks; an approval belongs to the agent, not to a key. No token before every
effect of the transaction may be released, and none that outlives the time the releases may be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from countersign.contract import EffectState, ErrorCode, TxnState
from policy_service.errors import ConflictError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.authorization import (
    require_active_caller,
    require_enrolled_agent,
    require_redeemer,
)
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.termination import expire_if_unused
from policy_service.workflow.releases.mint import UnsignedRelease, mint
from policy_service.workflow.transitions import TransitionReason, agent_actor


@dataclass(frozen=True)
class ReleaseResult:
    """A transaction with the signed releases of its effects, in order."""

    snapshot: Snapshot
    releases: tuple[str, ...]


async def release(ctx: Context, caller: Caller, txn: str, rev: int) -> ReleaseResult:
    """Mint and sign the releases of a ready transaction.

    Raises:
        NotFoundError, ForbiddenError: not this caller's to redeem, or it is frozen.
        ConflictError: superseded, or not_ready.
    """
    snapshot, minted = await ctx.db.write(lambda tx: _release(tx, ctx, caller, txn, rev))
    return ReleaseResult(snapshot, sign_releases(ctx, minted))


def sign_releases(ctx: Context, minted: list[UnsignedRelease]) -> tuple[str, ...]:
    """Sign what a committed unit has fixed."""
    return tuple(ctx.signer.sign_release(one.claims) for one in minted)


def _release(
    tx: Tx, ctx: Context, caller: Caller, txn: str, rev: int
) -> tuple[Snapshot, list[UnsignedRelease]]:
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    require_redeemer(caller, snapshot.transaction)
    require_active_caller(tx, caller)
    if snapshot.transaction.agent != caller.agent:
        require_enrolled_agent(tx, snapshot.transaction.agent)
    require_not_stopped(tx, [effect.tool for effect in snapshot.effects])
    require_revision(snapshot, rev)
    if expire_if_unused(tx, snapshot):
        return snapshot, []
    until = require_ready(snapshot)
    cause = TransitionReason(agent_actor(caller.agent), "release")
    return snapshot, mint(tx, ctx, snapshot, snapshot.effects, caller, until, cause)


def require_revision(snapshot: Snapshot, rev: int) -> None:
    """Refuse a revision that is not in force.

    Raises:
        ConflictError: superseded.
    """
    if snapshot.transaction.rev != rev:
        raise ConflictError(
            f"revision {rev} is not in force, revision {snapshot.transaction.rev} is; read the transaction again",
            code=ErrorCode.SUPERSEDED,
            rev=snapshot.transaction.rev,
        )


def require_ready(snapshot: Snapshot) -> datetime:
    """Until when the releases of a ready transaction may be used.

    Raises:
        ConflictError: not_ready, with the state of every effect.
    """
    until = snapshot.transaction.valid_until
    if snapshot.transaction.state != TxnState.READY.value or until is None:
        raise not_ready_error(snapshot, snapshot.effects)
    return until


def not_ready_error(snapshot: Snapshot, effects: list[EffectRow]) -> ConflictError:
    """409: no token before every effect of the transaction may be released."""
    waiting = [e.effect_id for e in effects if e.state != EffectState.RELEASED.value]
    return ConflictError(
        f"the transaction is {snapshot.transaction.state}; releases exist only once every effect may be released",
        code=ErrorCode.NOT_READY,
        state=snapshot.transaction.state,
        waiting=waiting,
    )
