"""Shadow: what a candidate bundle would have decided about live traffic. It is counted and listed, and decides nothing.

The shadow follows the audit log: each first decision is evaluated again under both bundles, as of the time it was made,
with facts as each bundle's sources give them now. So it delays no submission, survives restarts, and runs once on
any number of replicas. A candidate is compared from the log index at which it was first loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from sqlalchemy import Connection, delete, select

from policy_service.audit.log import Entry, entries_after, highest_index
from policy_service.domain.policy_request import Decision
from policy_service.pap.active_bundle import Candidate
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.findings import describe_review, find_relaxations
from policy_service.pdp.engine import decide
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.shadow import ShadowDirection, _differences
from policy_service.storage import advisory_locks
from policy_service.storage.core import find_one, insert_row, insert_row_or_ignore, table, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import ShadowDifferenceRow, ShadowRow
from policy_service.workflow.effects.evaluation import gather_facts, policy_request
from policy_service.workflow.metering import read_past_meters

log = structlog.get_logger(__name__)


_LEASE: Final = "shadow"
_LEASE_FOR: Final = timedelta(seconds=60)
_BATCH_ROWS: Final = 500  # audit rows read at once
_MAX_DIFFERENCES: Final = 1_000  # stored differences of one candidate; the counts are complete
_MAX_CANDIDATES: Final = 5  # kept, the newest
_shadows = table(ShadowRow)


@dataclass
class _BatchResult:
    """The result of one batch of audit rows."""

    counts: Counter[str] = field(default_factory=Counter)
    rows: list[ShadowDifferenceRow] = field(default_factory=list)


async def shadow_new_decisions(ctx: Context, candidate: Candidate, holder: str) -> int:
    """Compare the decisions made since the last call; returns how many. ``holder`` names this process for the lease."""
    bundle = await candidate.reload()
    if bundle is None or bundle.digest == ctx.active.current.digest:
        return 0
    bundle.facts.restrict_to(ctx.active.current.facts.config.source)
    progress = await ctx.db.write(lambda tx: _start(tx, bundle, holder))
    if progress is None:
        return 0
    compared = 0
    while entries := await ctx.db.read(lambda conn: entries_after(conn, progress.upto, _BATCH_ROWS)):
        batch = await _compare_batch(ctx, ctx.active.current, bundle, entries)
        upto = entries[-1].index
        if not await ctx.db.write(partial(_store, row=progress, batch=batch, upto=upto)):
            return compared  # another replica was first
        progress.upto = upto
        compared += batch.counts["compared"]
    return compared


def _start(tx: Tx, bundle: Bundle, holder: str) -> ShadowRow | None:
    """How far this candidate was compared, or None while another process has the lease."""
    if advisory_locks.acquire_lease(tx, _LEASE, holder, _LEASE_FOR) is None:
        return None
    known = find_one(tx.conn, ShadowRow, candidate=bundle.digest)
    if known is not None:
        return known
    row = ShadowRow(candidate=bundle.digest, commit=bundle.commit, since=tx.now, upto=highest_index(tx.conn))
    insert_row(tx.conn, row)
    _delete_older(tx)
    return row


def _delete_older(tx: Tx) -> None:
    newest = select(_shadows.c.candidate).order_by(_shadows.c.since.desc()).limit(_MAX_CANDIDATES)
    kept = [digest for (digest,) in tx.conn.execute(newest)]
    tx.conn.execute(delete(_differences).where(_differences.c.candidate.not_in(kept)))
    tx.conn.execute(delete(_shadows).where(_shadows.c.candidate.not_in(kept)))


async def _compare_batch(
    ctx: Context, active: Bundle, candidate: Bundle, entries: Sequence[Entry]
) -> _BatchResult:
    batch = _BatchResult()
    for entry in entries:
        if entry.kind != "decision_made" or entry.body["cause"] != "submit":
            continue
        try:
            row = await _compare(ctx, active, candidate, entry)
        except Exception:
            # One effect that cannot be evaluated must not prevent comparing the others.
            batch.counts["failed"] += 1
            log.exception("shadow_failed", effect_id=entry.effect_id, candidate=candidate.digest)
            continue
        batch.counts["compared"] += 1
        if row is not None:
            batch.counts[row.way] += 1
            batch.rows.append(row)
    return batch


async def _compare(
    ctx: Context, active: Bundle, candidate: Bundle, entry: Entry
) -> ShadowDifferenceRow | None:
    effect_id, txn, rev = str(entry.effect_id), str(entry.txn), int(entry.rev or 0)
    snapshot = await ctx.db.read(lambda conn: repository.require_transaction(conn, txn, rev))
    agent = await ctx.db.read(lambda conn: repository.agent_of(conn, snapshot.transaction.agent))
    effect = snapshot.find(effect_id)
    if agent is None or effect is None:
        raise LookupError(f"the effect {effect_id} or its agent no longer exists")

    async def decide_under(bundle: Bundle) -> Decision:
        facts = await gather_facts(bundle, [effect], ctx.clock())
        if (failed := facts[effect_id].failed) is not None:
            raise LookupError(f"facts could not be read: {failed}")  # which says nothing about the policies
        reading = await ctx.db.read(lambda conn: read_past_meters(conn, bundle, effect, entry.at))
        question = policy_request(
            ctx,
            agent,
            effect,
            facts[effect_id],
            now=entry.at,
            txn_size=len(snapshot.effects),
            claimed=snapshot.transaction.claimed,
            history=reading.values,
            method=snapshot.transaction.method,
        )
        return decide(bundle.rules, question)

    before, after = await decide_under(active), await decide_under(candidate)
    way = direction_of(before, after)
    if way is None:
        return None
    return ShadowDifferenceRow(
        candidate=candidate.digest,
        effect_id=effect_id,
        rev=rev,
        idx=entry.index,
        at=entry.at,
        way=way,
        tool=effect.tool,
        agent=effect.agent,
        active=active.digest,
        before=_decision_json(before),
        after=_decision_json(after),
    )


def direction_of(before: Decision, after: Decision) -> ShadowDirection | None:
    """How the second decision differs from the first, or None if they are equivalent."""
    looser, stricter = bool(find_relaxations(before, after)), bool(find_relaxations(after, before))
    if looser and stricter:
        return "other"
    return "looser" if looser else "stricter" if stricter else None


def _decision_json(decision: Decision) -> dict[str, Any]:
    reasons = [reason.text for reason in decision.reasons]
    asks = describe_review(decision) if decision.gates else None
    return {
        "outcome": decision.outcome.value,
        "policies": list(decision.policies),
        "asks": asks,
        "reasons": reasons,
    }


def _store(tx: Tx, row: ShadowRow, batch: _BatchResult, upto: int) -> bool:
    """Store the result of a batch once. A slower process that started at the same index stores nothing."""
    names = ("compared", "looser", "stricter", "other", "failed")
    known = find_one(tx.conn, ShadowRow, candidate=row.candidate)
    if known is None:
        return False
    counts = {name: getattr(known, name) + batch.counts[name] for name in names}
    where = {"candidate": row.candidate, "upto": row.upto}
    if not update_rows(tx.conn, ShadowRow, where, counts | {"upto": upto}):
        return False
    for found in batch.rows:
        insert_row_or_ignore(tx.conn, found)
    oldest = _oldest_kept(tx.conn, row.candidate)
    if oldest is not None:
        mine = _differences.c.candidate == row.candidate
        tx.conn.execute(delete(_differences).where(mine, _differences.c.idx < oldest))
    return True


def _oldest_kept(conn: Connection, candidate: str) -> int | None:
    """The index of the oldest difference to keep, if there are more than the maximum."""
    idx = _differences.c.idx
    mine = select(idx).where(_differences.c.candidate == candidate).order_by(idx.desc())
    found: int | None = conn.execute(mine.offset(_MAX_DIFFERENCES - 1).limit(1)).scalar_one_or_none()
    return found
