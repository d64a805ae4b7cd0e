"""The comparison of a shadow bundle: its numbers and newest differences, and their wire model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import Connection, select

from countersign.contract.wire import ShadowAnswer, ShadowDifference, ShadowView
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.storage.core import find_one, table
from policy_service.storage.system_tables import ShadowDifferenceRow, ShadowRow

ShadowDirection = Literal["looser", "stricter", "other"]


_differences = table(ShadowDifferenceRow)


@dataclass(frozen=True, slots=True)
class ShadowComparison:
    """The numbers of a candidate, and its newest differences."""

    candidate: str
    commit: str
    since: datetime
    counts: dict[str, int]
    differences: tuple[ShadowDifferenceRow, ...]


async def read_shadow(ctx: Context, digest: str, limit: int) -> ShadowComparison | None:
    """The comparison of a candidate; None if it was never compared."""
    return await ctx.db.read(lambda conn: _read(conn, digest, limit))


def _read(conn: Connection, digest: str, limit: int) -> ShadowComparison | None:
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
    return ShadowComparison(
        row.candidate,
        row.commit,
        row.since,
        {name: getattr(row, name) for name in names},
        tuple(repository.rows(conn, ShadowDifferenceRow, newest)),
    )


async def shadow_view(ctx: Context, limit: int) -> ShadowView:
    """The candidate in shadow, its numbers and its newest differences."""
    if ctx.candidate is None:
        return ShadowView()
    status = ctx.candidate.status()
    problems = () if status.error is None else tuple(str(problem) for problem in status.error.problems)
    known = None if status.digest is None else await read_shadow(ctx, status.digest, limit)
    said: dict[str, Any] = {}
    if known is not None:
        said = {
            "since": known.since,
            "differences": tuple(map(_difference, known.differences)),
            **known.counts,
        }
    return ShadowView(
        origin=status.origin, digest=status.digest, commit=status.commit, problems=problems, **said
    )


def _difference(row: ShadowDifferenceRow) -> ShadowDifference:
    return ShadowDifference(
        effect_id=row.effect_id,
        rev=row.rev,
        tool=row.tool,
        agent=row.agent,
        at=row.at,
        way=cast(Literal["looser", "stricter", "other"], row.way),
        in_force=ShadowAnswer(**row.before),
        candidate=ShadowAnswer(**row.after),
    )
