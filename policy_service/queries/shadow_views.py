"""The shadow as the wire's read model."""

from __future__ import annotations

from typing import Any, Literal, cast

from countersign.contract.wire import ShadowAnswer, ShadowDifference, ShadowView
from policy_service.queries.context import Context
from policy_service.queries.shadow import shadow_of
from policy_service.storage.plumbing import ShadowDifferenceRow


async def view(ctx: Context, limit: int) -> ShadowView:
    """What is in shadow, its numbers, and its newest differences."""
    if ctx.candidate is None:
        return ShadowView()
    status = ctx.candidate.status()
    problems = () if status.error is None else tuple(str(problem) for problem in status.error.problems)
    known = None if status.digest is None else await shadow_of(ctx, status.digest, limit)
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
