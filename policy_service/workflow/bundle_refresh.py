"""Looking at the bundle's source: what is found comes into force for all replicas, or is refused for all to see.

Whoever asks for a look never waits for the source: looks that are asked for while one goes on are one look more.
"""

from __future__ import annotations

import structlog

from policy_service import metrics
from policy_service.errors import PoliciesBehindError
from policy_service.pap.active_bundle import ReloadResult
from policy_service.pap.bundle import Bundle
from policy_service.pap.problems import BundleError
from policy_service.queries.context import Context
from policy_service.workflow.active_commit import (
    activate_commit,
    active_commit_row,
    commit_constraints,
    is_refusal_recorded,
    record_refusal,
)

log = structlog.get_logger(__name__)


async def refresh_bundle(ctx: Context, *, starting: bool = False) -> ReloadResult:
    """Look once. What is valid and may follow is in force afterwards, unless another replica was first: then the next
    look follows it.
    """
    source, status = ctx.active.source, ctx.active.status()
    before, known = status.active_commit, str(status.error)
    if source is None:
        reloaded = await ctx.active.reload()
    else:
        reloaded = await _look_at(ctx, source, starting=starting)
    if reloaded.error is not None:
        metrics.BUNDLE_REFUSED.inc()
        if str(reloaded.error) != known:  # once, not at every look
            log.error(
                "bundle_refused", problems=str(reloaded.error), active=ctx.active.status().active_digest
            )
    _tell(ctx, before)
    return reloaded


async def follow_active_commit(ctx: Context) -> None:
    """Put in force here what another replica has in force.

    Raises:
        PoliciesBehindError: its bytes are not here yet; they are being fetched.
    """
    source = ctx.active.source
    if source is None:
        return
    before = ctx.active.status().active_commit
    standing = await ctx.db.read(lambda conn: commit_constraints(conn, source))
    if standing.accepted is None or not await ctx.active.follow(standing):
        ctx.looks.ask()
        raise PoliciesBehindError(
            "newer policies are in force than this replica has; it fetches them, ask again in a moment"
        )
    _tell(ctx, before)


async def _look_at(ctx: Context, source: str, *, starting: bool) -> ReloadResult:
    standing = await ctx.db.read(lambda conn: commit_constraints(conn, source))

    async def accept(bundle: Bundle) -> bool:
        return await ctx.db.write(lambda tx: activate_commit(tx, source, bundle, standing, starting=starting))

    reloaded = await ctx.active.reload(standing, accept)
    if reloaded.error is not None and reloaded.error.why != "unreachable":
        await _note(ctx, source, reloaded.error)
    row = await ctx.db.read(active_commit_row)
    if row is not None and row.source != source:
        ctx.active.mark_displaced()
    return reloaded


async def _note(ctx: Context, source: str, error: BundleError) -> None:
    head = ctx.active.status().head_commit or ""  # a branch that is gone has none
    known = await ctx.db.read(lambda conn: is_refusal_recorded(conn, source, head, error))
    if not known:
        await ctx.db.write(lambda tx: record_refusal(tx, source, head, error))


def _tell(ctx: Context, before: str | None) -> None:
    status = ctx.active.status()
    if status.active_commit is None or status.active_digest is None or status.active_commit == before:
        return
    metrics.set_active_bundle(status.active_digest, status.active_commit)
    passed = (
        {}
        if status.guarded is None
        else {"cases": status.guarded.run, "cases_not_run": status.guarded.not_run}
    )
    log.info("bundle_activated", bundle=status.active_digest, commit=status.active_commit, **passed)
