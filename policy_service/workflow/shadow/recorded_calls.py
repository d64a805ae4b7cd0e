"""Recorded calls for a replay: what was submitted, and the first decision about it, one value for each effect.

Nothing is written. Secret arguments are included only on request; otherwise they are replaced and named, so that a
replay knows what is missing. Meters have their readings of that time. The facts of that time are stored as text for
people and are not included: a replay uses the bundle's own sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Select, func, select
from sqlmodel import col

from countersign.contract import pointer_to
from policy_service.queries.effects import is_hidden, without_secrets
from policy_service.storage.core import table
from policy_service.storage.tables import AgentRow, DecisionRow, EffectRow, TransactionRow
from policy_service.storage.types import min_id_at, time_text

MAX_CALLS: Final = 50_000
"""Only the newest calls are returned; a longer record needs several requests."""

_PAGE: Final = 1_000


def recorded_calls(
    conn: Connection, since: datetime, env: str, *, with_secrets: bool
) -> list[dict[str, Any]]:
    """The calls submitted since a time, oldest first."""
    rows = sorted(_newest(conn, since), key=lambda row: (row["decided_at"], row["effect_id"]))
    return [_call(row, env, with_secrets) for row in rows]


def recorded_call(conn: Connection, effect_id: str, env: str) -> dict[str, Any] | None:
    """The newest submitted revision of one effect, or None: with its secrets, their names, and all its decisions.

    Only for readers who may see the secrets.
    """
    query = _submitted().where(col(DecisionRow.effect_id) == effect_id).order_by(col(DecisionRow.rev).desc())
    row = next(_rows(conn, query.limit(1)), None)
    if row is None:
        return None
    call = _call(row, env, with_secrets=True)
    return call | {"secret": row["secret"], "decisions": _decisions(conn, effect_id, row["rev"])}


def _newest(conn: Connection, since: datetime) -> Iterator[Mapping[str, Any]]:
    """Page by page along decision ids, which sort by time, because no index has the times."""
    decision_id = col(DecisionRow.decision_id)
    query = (
        _submitted().where(decision_id >= min_id_at("dec", since)).order_by(decision_id.desc()).limit(_PAGE)
    )
    page = query
    for _ in range(MAX_CALLS // _PAGE):
        rows = list(_rows(conn, page))
        yield from rows
        if len(rows) < _PAGE:
            return
        page = query.where(decision_id < rows[-1]["decision_id"])


def _rows(conn: Connection, query: Select[*tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    return (dict(row) for row in conn.execute(query).mappings())


def _submitted() -> Select[*tuple[Any, ...]]:
    sibling = table(EffectRow).alias("sibling")
    # Counted for each row by its key; a GROUP BY would read the whole table.
    size = (
        select(func.count())
        .select_from(sibling)
        .where(
            sibling.c.txn == col(EffectRow.txn),
            sibling.c.rev == col(EffectRow.rev),
            sibling.c.kind == "effect",
        )
        .correlate(table(EffectRow))
        .scalar_subquery()
    )
    of_decision = col(EffectRow.effect_id) == col(DecisionRow.effect_id)
    of_effect = col(TransactionRow.txn) == col(EffectRow.txn)
    return (
        select(
            col(EffectRow.effect_id), col(EffectRow.rev), col(EffectRow.tool), col(EffectRow.tool_digest),
            col(EffectRow.args), col(EffectRow.secret), col(DecisionRow.decision_id), col(DecisionRow.outcome),
            col(DecisionRow.decided_at), col(DecisionRow.history), col(TransactionRow.claimed),
            col(TransactionRow.method), col(AgentRow.name), col(AgentRow.owner), col(AgentRow.roles),
            col(AgentRow.teams), size.label("size"),
        )
        .select_from(DecisionRow)
        .join(EffectRow, of_decision & (col(EffectRow.rev) == col(DecisionRow.rev)))
        .join(TransactionRow, of_effect & (col(TransactionRow.rev) == col(EffectRow.rev)))
        .join(AgentRow, col(AgentRow.name) == col(EffectRow.agent))
        .where(col(DecisionRow.cause) == "submit", col(EffectRow.kind) == "effect")
    )  # fmt: skip


def _decisions(conn: Connection, effect_id: str, rev: int) -> list[dict[str, Any]]:
    """All decisions about one revision, oldest first."""
    query = (
        select(
            col(DecisionRow.outcome), col(DecisionRow.policies), col(DecisionRow.commit),
            col(DecisionRow.bundle), col(DecisionRow.decided_at), col(DecisionRow.cause),
        )
        .where(col(DecisionRow.effect_id) == effect_id, col(DecisionRow.rev) == rev)
        .order_by(col(DecisionRow.decision_id))
    )  # fmt: skip
    return [
        dict(row) | {"decided_at": time_text(row["decided_at"])} for row in conn.execute(query).mappings()
    ]


def _call(row: Mapping[str, Any], env: str, with_secrets: bool) -> dict[str, Any]:
    args, secret = json.loads(row["args"]), row["secret"]
    hidden = [pointer_to(name) for name in args if is_hidden(secret, pointer_to(name))]
    call: dict[str, Any] = {
        "id": row["effect_id"],
        "agent": {"name": row["name"], "owner": row["owner"], "roles": row["roles"], "teams": row["teams"]},
        "tool": row["tool"],
        "tool_digest": row["tool_digest"],
        "args": args if with_secrets else without_secrets(args, secret),
        "history": row["history"],
        "now": time_text(row["decided_at"]),
        "env": env,
        "txn_size": row["size"],
        "claimed": row["claimed"],
        "method": row["method"],
        "decided": row["outcome"],
    }
    return call if with_secrets or not hidden else call | {"hidden": hidden}
