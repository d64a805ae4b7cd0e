"""The emergency stop of a tool or of everything: nothing of it is staged, released, redeemed or renewed until it ends.

Unlike the freeze of an agent it stops compensations too: a tool that misbehaves takes nothing back properly, and
"everything" means everything. Votes are still taken; they stand when the stop ends. Once a stop is committed, nothing
that had begun before is committed after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy import delete, select
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.audit.log import append
from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.identity.agents import OPERATOR
from policy_service.queries.stops import EVERYTHING, _of_tool, describe_stop
from policy_service.storage.advisory_locks import lock_exclusive, lock_shared
from policy_service.storage.core import insert_or_ignore, table
from policy_service.storage.database import Tx
from policy_service.storage.tables import StopRow

_STOPS = "*"  # the name units meet under; no agent can have it
_TOOL = re.compile(r"[^\s]{1,200}\Z")
_ALL = select(col(StopRow.what))


def require_not_stopped(tx: Tx, tools: Iterable[str]) -> None:
    """Refuse to go on with these tools while they are stopped.

    Raises:
        ForbiddenError: frozen; the sentence names what is stopped and the command that ends it.
    """
    lock_shared(tx, _STOPS)
    stopped = set(tx.conn.execute(_ALL).scalars())
    if not stopped:
        return
    for tool in (None, *tools):
        if (EVERYTHING if tool is None else _of_tool(tool)) in stopped:
            named = EVERYTHING if tool is None else f"tool {tool}"
            raise ForbiddenError(
                f"{describe_stop(tool)} is frozen; whoever may start it again does so on the page /stop, an operator "
                f"with `policy-service unfreeze {named}`",
                code=ErrorCode.FROZEN,
            )


def freeze_tool(tx: Tx, tool: str | None, reason: str, *, actor: str = OPERATOR) -> bool:
    """Stop a tool, or everything; whether it was going until now.

    Raises:
        InvalidRequestError: no tool can have that name.
    """
    what = _what(tool)
    lock_exclusive(tx, _STOPS)
    row = {"what": what, "reason": reason, "by": actor, "at": tx.now}
    began = tx.conn.execute(insert_or_ignore(tx.conn, table(StopRow)).values(row)).rowcount == 1
    if began:
        append(tx, "stop_began", actor=actor, body={"what": what, "reason": reason})
    return began


def unfreeze_tool(tx: Tx, tool: str | None, reason: str | None = None, *, actor: str = OPERATOR) -> bool:
    """End such a stop; whether there was one. What lapsed meanwhile stays lapsed.

    Raises:
        InvalidRequestError: no tool can have that name.
    """
    what = _what(tool)
    ended = tx.conn.execute(delete(StopRow).where(col(StopRow.what) == what)).rowcount == 1
    if ended:
        why = {} if reason is None else {"reason": reason}
        append(tx, "stop_ended", actor=actor, body={"what": what, **why})
    return ended


def _what(tool: str | None) -> str:
    if tool is None:
        return EVERYTHING
    if not _TOOL.match(tool):
        raise InvalidRequestError(f"{tool!r} cannot be a tool's name")
    return _of_tool(tool)
