"""What is known of a bundle in shadow: its numbers, and its newest differences."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, select

from policy_service.queries import records
from policy_service.queries.context import Context
from policy_service.storage.core import find_one, table
from policy_service.storage.plumbing import ShadowDifferenceRow, ShadowRow

Way = Literal["looser", "stricter", "other"]


_differences = table(ShadowDifferenceRow)


@dataclass(frozen=True, slots=True)
class Shadow:
    """What is known of a candidate: its numbers, and the newest differences."""

    candidate: str
    commit: str
    since: datetime
    counts: dict[str, int]
    differences: tuple[ShadowDifferenceRow, ...]


async def shadow_of(ctx: Context, digest: str, limit: int) -> Shadow | None:
    """What a candidate would have decided otherwise; None where it was never compared."""
    return await ctx.db.read(lambda conn: _read(conn, digest, limit))


def _read(conn: Connection, digest: str, limit: int) -> Shadow | None:
    row = find_one(conn, ShadowRow, candidate=digest)
    if row is None:
        return None
    names = ("compared", "looser", "stricter", "other", "failed")
    newest = (
        select(*_differences.columns)
        .where(_differences.c.candidate == digest)
        .order_by(_differences.c.idx.desc())
        .limit(limit)
    )
    return Shadow(
        row.candidate,
        row.commit,
        row.since,
        {name: getattr(row, name) for name in names},
        tuple(records.rows(conn, ShadowDifferenceRow, newest)),
    )
