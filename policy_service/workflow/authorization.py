"""What an authenticated party may touch, and which parties may act at all.

An agent sees and moves its own transactions; a party that is their ``aud`` sees them too and alone may spend them.
Everybody else gets the same answer as for a transaction that does not exist.
"""

from __future__ import annotations

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError, UnauthenticatedError
from policy_service.identity.agents import Caller, find_key, has_live_api_key
from policy_service.identity.people import is_revoked
from policy_service.queries import repository
from policy_service.queries.transactions import require_visible
from policy_service.storage.advisory_locks import lock_shared
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, TransactionRow


def require_owning_agent(caller: Caller, transaction: TransactionRow) -> None:
    """Only the agent itself may take its transaction back.

    Raises:
        NotFoundError: a stranger asks.
        ForbiddenError: the redeemer asks, but it is not the agent.
    """
    require_visible(caller, transaction)
    if caller.agent != transaction.agent:
        raise ForbiddenError("only the agent that submitted it may withdraw a transaction")


def require_redeemer(caller: Caller, transaction: TransactionRow) -> None:
    """Only the redeeming party asks for releases, spends them and reports.

    Raises:
        NotFoundError: a stranger asks.
        ForbiddenError: not_redeemer.
    """
    require_visible(caller, transaction)
    if caller.agent != transaction.aud:
        raise ForbiddenError(
            f"releases of this transaction are for {transaction.aud!r} alone", code=ErrorCode.NOT_REDEEMER
        )


def require_active_caller(tx: Tx, caller: Caller, kind: str = "effect") -> AgentRow:
    """The party that asks, if it still may. It proved itself at the door; facts were looked up since, which takes as
    long as somebody's database takes, and whoever revoked its key meanwhile was told that nothing more is redeemed.

    Raises:
        UnauthenticatedError: its key was revoked, or its time is over.
        ForbiddenError: it is not enrolled any more, or frozen while it wants to act.
    """
    agent = require_effect_agent(tx, caller.agent, kind)
    if not _proves_itself(tx, caller):
        raise UnauthenticatedError(
            "the key of this request was revoked, or its time is over; use another key"
        )
    return agent


def _proves_itself(tx: Tx, caller: Caller) -> bool:
    if caller.jkt is None:
        return has_live_api_key(tx.conn, caller.agent)
    key = find_key(tx.conn, caller.jkt, tx.now)
    return key is not None and key.agent == caller.agent


def require_active_person(tx: Tx, iss: str, sub: str) -> None:
    """Refuse a word of somebody who was taken out of the decisions while it was on its way.

    Raises:
        ForbiddenError: not_eligible.
    """
    lock_shared(tx, f"{iss}|{sub}")
    if is_revoked(tx.conn, iss, sub):
        raise ForbiddenError(
            "an operator of this deployment has taken you out of its decisions", code=ErrorCode.NOT_ELIGIBLE
        )


def require_enrolled_agent(tx: Tx, name: str) -> AgentRow:
    """The enrolled, unfrozen agent of that name.

    Raises:
        ForbiddenError: it is frozen or not enrolled any more.
    """
    return require_effect_agent(tx, name, "effect")


def require_effect_agent(tx: Tx, name: str, kind: str) -> AgentRow:
    """The agent an effect is for. A freeze stops its effects and does not stop what takes them back.

    Raises:
        ForbiddenError: it is not enrolled any more, or frozen while it wants to act.
    """
    lock_shared(tx, name)
    agent = repository.agent_of(tx.conn, name)
    if agent is None:
        raise ForbiddenError(f"the agent {name!r} is not enrolled; policy-service agent enroll {name}")
    if agent.frozen_at is not None and kind != "compensate":
        raise ForbiddenError(
            f"the agent {name!r} is frozen; whoever may start it again does so on the page /stop, an operator with "
            f"`policy-service unfreeze agent {name}`",
            code=ErrorCode.FROZEN,
        )
    return agent
