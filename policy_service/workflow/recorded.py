"""Recorded calls for replaying: what was submitted and what the policy said of it first, one value for each effect.

Rules kept here: nothing is written; secret arguments leave only when they are asked for, and are otherwise replaced and
named, so that a replay knows what it does not know. The attributes the policy saw then are kept for people as texts and
are not given: a replay asks the bundle's own sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, func, select
from sqlmodel import col

from countersign.contract import pointer_to
from policy_service.storage.tables import AgentRow, DecisionRow, EffectRow, TransactionRow
from policy_service.storage.types import time_text
from policy_service.workflow.hiding import is_hidden, without_secrets

MAX_CALLS: Final = 50_000
"""The newest ones; a longer record is taken in several pieces."""


def recorded_calls(
    conn: Connection, since: datetime, env: str, *, with_secrets: bool
) -> list[dict[str, Any]]:
    """The calls submitted since then, oldest first."""
    found = [_call(row, env, with_secrets) for row in _rows(conn, since)]
    return found[::-1]


def recorded_call(conn: Connection, effect_id: str, env: str) -> dict[str, Any] | None:
    """The newest submitted revision of one effect with its secrets, for whoever may read them; None when unknown."""
    rows = _rows(conn, None, effect_id)
    return _call(rows[0], env, with_secrets=True) if rows else None


def _rows(conn: Connection, since: datetime | None, effect_id: str | None = None) -> list[Mapping[str, Any]]:
    sizes = (
        select(col(EffectRow.txn), col(EffectRow.rev), func.count().label("size"))
        .where(col(EffectRow.kind) == "effect")
        .group_by(col(EffectRow.txn), col(EffectRow.rev))
        .subquery()
    )
    of_decision = col(EffectRow.effect_id) == col(DecisionRow.effect_id)
    of_effect = col(TransactionRow.txn) == col(EffectRow.txn)
    query = (
        select(
            col(EffectRow.effect_id), col(EffectRow.tool), col(EffectRow.args), col(EffectRow.secret),
            col(DecisionRow.outcome), col(DecisionRow.decided_at), col(TransactionRow.claimed),
            col(TransactionRow.method), col(AgentRow.name), col(AgentRow.owner), col(AgentRow.roles),
            col(AgentRow.teams), sizes.c.size,
        )
        .join(EffectRow, of_decision & (col(EffectRow.rev) == col(DecisionRow.rev)))
        .join(TransactionRow, of_effect & (col(TransactionRow.rev) == col(EffectRow.rev)))
        .join(AgentRow, col(AgentRow.name) == col(EffectRow.agent))
        .join(sizes, (sizes.c.txn == col(EffectRow.txn)) & (sizes.c.rev == col(EffectRow.rev)))
        .where(col(DecisionRow.cause) == "submit", col(EffectRow.kind) == "effect")
        .order_by(col(DecisionRow.decided_at).desc(), col(EffectRow.effect_id))
        .limit(MAX_CALLS)
    )  # fmt: skip
    if since is not None:
        query = query.where(col(DecisionRow.decided_at) >= since)
    if effect_id is not None:
        query = query.where(col(EffectRow.effect_id) == effect_id)
    return [dict(row) for row in conn.execute(query.select_from(DecisionRow)).mappings()]


def _call(row: Mapping[str, Any], env: str, with_secrets: bool) -> dict[str, Any]:
    args, secret = json.loads(row["args"]), row["secret"]
    hidden = [pointer_to(name) for name in args if is_hidden(secret, pointer_to(name))]
    told: dict[str, Any] = {
        "id": row["effect_id"],
        "agent": {"name": row["name"], "owner": row["owner"], "roles": row["roles"], "teams": row["teams"]},
        "tool": row["tool"],
        "args": args if with_secrets else without_secrets(args, secret),
        "now": time_text(row["decided_at"]),
        "env": env,
        "txn_size": row["size"],
        "claimed": row["claimed"],
        "method": row["method"],
        "decided": row["outcome"],
    }
    return told if with_secrets or not hidden else told | {"hidden": hidden}
