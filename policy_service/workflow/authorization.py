"""Which callers, people, tools and replicas may act: ownership, redeemers, freezes, revocations and emergency stops.

An agent sees and changes its own transactions. The `aud` of a transaction sees it too, and alone may redeem it. Any
other caller gets the same response as for a transaction that does not exist.

An emergency stop of a tool, or of everything, blocks staging, releases, redemptions and renewals until it ends. Unlike
the freeze of an agent it also blocks compensations: a tool that misbehaves cannot be trusted to undo anything. Votes
are still accepted. The locks here order a stop against running units: once it is committed, no unit that started
before it commits later.

Nothing is redeemed by a replica whose bundle is not the active one of all replicas (`active_commit.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import bindparam, delete, select, true
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.audit.log import append
from policy_service.errors import ForbiddenError, InvalidRequestError, UnauthenticatedError
from policy_service.identity.agents import OPERATOR, Caller, has_live_api_key
from policy_service.identity.people import is_revoked
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.stops import EVERYTHING, _of_tool, describe_stop
from policy_service.queries.transaction_views import require_visible
from policy_service.storage.advisory_locks import lock_exclusive, lock_shared
from policy_service.storage.core import fetch, find_one, insert_row_or_ignore, rows_of, table
from policy_service.storage.credential_tables import AgentKeyRow
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import ACTIVE, PolicyHeadRow
from policy_service.storage.tables import AgentRow, StopRow, TransactionRow

_STOPS = "*"  # the lock name of all stops; no agent can have it
_TOOL = re.compile(r"[^\s]{1,200}\Z")
_ALL = select(col(StopRow.what))
_agents, _keys = table(AgentRow), table(AgentKeyRow)
# A row per stop in force, at least one.
_CALLER = (
    select(*_agents.c, _keys.c.kid, _keys.c.expires_at, col(StopRow.what))
    .outerjoin(
        _keys,
        (_keys.c.kid == bindparam("kid")) & (_keys.c.agent == _agents.c.name) & _keys.c.revoked_at.is_(None),
    )
    .outerjoin(table(StopRow), true())
    .where(_agents.c.name == bindparam("name"))
)


class ActiveCaller(NamedTuple):
    """A caller that may act, and what is stopped while its unit runs."""

    agent: AgentRow
    stopped: frozenset[str]


# -- agents ------------------------------------------------------------------------------------------------------------


def require_owning_agent(caller: Caller, transaction: TransactionRow) -> None:
    """Require the agent that submitted the transaction.

    Raises:
        NotFoundError: the caller may not see it.
        ForbiddenError: the caller is its redeemer but not its agent.
    """
    require_visible(caller, transaction)
    if caller.agent != transaction.agent:
        raise ForbiddenError("only the agent that submitted it may withdraw a transaction")


def require_redeemer(caller: Caller, transaction: TransactionRow) -> None:
    """Require the party that may request, redeem and report the transaction's releases.

    Raises:
        NotFoundError: the caller may not see it.
        ForbiddenError: not_redeemer.
    """
    require_visible(caller, transaction)
    if caller.agent != transaction.aud:
        raise ForbiddenError(
            f"only {transaction.aud!r} may redeem this transaction", code=ErrorCode.NOT_REDEEMER
        )


def require_active_caller(tx: Tx, caller: Caller, kind: str = "effect") -> ActiveCaller:
    """Require that the caller may still act. Its credential was verified when the request arrived, but gathering facts
    since then can take long, and a revocation meanwhile promises that nothing more is redeemed.

    Raises:
        UnauthenticatedError: its key was revoked or has expired.
        ForbiddenError: it is no longer enrolled, or is frozen.
    """
    lock_shared(tx, caller.agent, and_then=_STOPS)
    found = fetch(tx.conn, _CALLER, {"name": caller.agent, "kid": caller.jkt})
    agents = rows_of(AgentRow, (row[:-3] for row in found[:1]))
    agent = _require_active(agents[0] if agents else None, caller.agent, kind)
    kid, expires_at = found[0][-3:-1]
    live = kid is not None and (expires_at is None or tx.now < expires_at)
    if not (live or (caller.jkt is None and has_live_api_key(tx.conn, caller.agent))):
        raise UnauthenticatedError("the key of this request was revoked or has expired; use another key")
    return ActiveCaller(agent, frozenset(row[-1] for row in found if row[-1] is not None))


def require_effect_agent(tx: Tx, name: str, kind: str = "effect") -> AgentRow:
    """Require that the agent of an effect is enrolled and not frozen. A freeze does not block compensations.

    Raises:
        ForbiddenError: it is no longer enrolled, or is frozen.
    """
    lock_shared(tx, name)
    return _require_active(repository.agent_of(tx.conn, name), name, kind)


def _require_active(agent: AgentRow | None, name: str, kind: str) -> AgentRow:
    if agent is None:
        raise ForbiddenError(f"the agent {name!r} is not enrolled; policy-service agent enroll {name}")
    if agent.frozen_at is not None and kind != "compensate":
        raise _frozen(f"the agent {name!r}", f"agent {name}")
    return agent


# -- people ------------------------------------------------------------------------------------------------------------


def require_active_person(tx: Tx, iss: str, sub: str) -> None:
    """Require that an operator has not revoked this person, also not while their request was processed.

    Raises:
        ForbiddenError: not_eligible.
    """
    lock_shared(tx, f"{iss}|{sub}")
    if is_revoked(tx.conn, iss, sub):
        raise ForbiddenError(
            "an operator of this deployment has taken you out of its decisions", code=ErrorCode.NOT_ELIGIBLE
        )


# -- emergency stops ---------------------------------------------------------------------------------------------------


def require_none_stopped(tx: Tx, tools: Iterable[str]) -> None:
    """:func:`require_not_stopped` for a unit that no agent asked for."""
    lock_shared(tx, _STOPS)
    require_not_stopped(frozenset(what for (what,) in fetch(tx.conn, _ALL, {})), tools)


def require_not_stopped(stopped: frozenset[str], tools: Iterable[str]) -> None:
    """Require that neither these tools nor everything is stopped.

    Raises:
        ForbiddenError: frozen; the text names what is stopped and how the stop is ended.
    """
    if not stopped:
        return
    for tool in (None, *tools):
        if (EVERYTHING if tool is None else _of_tool(tool)) in stopped:
            raise _frozen(describe_stop(tool), EVERYTHING if tool is None else f"tool {tool}")


def _frozen(what: str, command: str) -> ForbiddenError:
    return ForbiddenError(
        f"{what} is frozen; people who may end the stop do so on the page /stop, an operator with "
        f"`policy-service unfreeze {command}`",
        code=ErrorCode.FROZEN,
    )


def freeze_tool(tx: Tx, tool: str | None, reason: str, *, actor: str = OPERATOR) -> bool:
    """Stop a tool, or everything; whether it was not stopped before.

    Raises:
        InvalidRequestError: no tool can have that name.
    """
    what = _stop_key(tool)
    lock_exclusive(tx, _STOPS)
    began = insert_row_or_ignore(tx.conn, StopRow(what=what, reason=reason, by=actor, at=tx.now))
    if began:
        append(tx, "stop_began", actor=actor, body={"what": what, "reason": reason})
    return began


def unfreeze_tool(tx: Tx, tool: str | None, reason: str | None = None, *, actor: str = OPERATOR) -> bool:
    """End the stop of a tool, or of everything; whether there was one. What expired meanwhile stays expired.

    Raises:
        InvalidRequestError: no tool can have that name.
    """
    what = _stop_key(tool)
    ended = tx.conn.execute(delete(StopRow).where(col(StopRow.what) == what)).rowcount == 1
    if ended:
        why = {} if reason is None else {"reason": reason}
        append(tx, "stop_ended", actor=actor, body={"what": what, **why})
    return ended


def _stop_key(tool: str | None) -> str:
    if tool is None:
        return EVERYTHING
    if not _TOOL.match(tool):
        raise InvalidRequestError(f"{tool!r} cannot be a tool's name")
    return _of_tool(tool)


# -- the active bundle -------------------------------------------------------------------------------------------------


class OutdatedBundleError(Exception):
    """Another replica activated another commit: follow it and repeat."""


def require_active_commit(tx: Tx, ctx: Context, bundle: Bundle) -> None:
    """Refuse to redeem under a bundle that is not the active one of all replicas.

    Raises:
        OutdatedBundleError: another commit is active.
    """
    source = ctx.active.source
    if source is None:
        return
    row = find_one(tx.conn, PolicyHeadRow, what=ACTIVE)
    if row is None or (row.source, row.commit) != (source, bundle.commit):
        raise OutdatedBundleError
