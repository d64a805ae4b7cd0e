"""The policy commit in force for all replicas: refreshing it from the bundle's source, and following other replicas.

One row holds the active commit; a conditional UPDATE changes it together with its audit row. A replica activates a
commit for all replicas or not at all, and follows the commit that another replica activated first. Nothing is redeemed
by a replica whose bundle is not the active one. An operator's override lets one commit follow once. A refused head is
recorded once. A bundle from a local folder has no row: it belongs to one process.
"""

from __future__ import annotations

import re
from typing import Any

import structlog
from sqlalchemy import Connection, delete
from sqlmodel import col

from policy_service import metrics
from policy_service.audit.log import append
from policy_service.errors import InvalidRequestError, PoliciesBehindError
from policy_service.identity.agents import OPERATOR
from policy_service.pap.active_bundle import ReloadResult
from policy_service.pap.bundle import Bundle
from policy_service.pap.problems import BundleError
from policy_service.pap.source import AcceptedCommits
from policy_service.queries.context import Context
from policy_service.storage.core import find_one, insert_row_or_ignore, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import ACTIVE, PolicyHeadRow
from policy_service.workflow.transitions import SERVICE

log = structlog.get_logger(__name__)

_OVERRIDE, _REFUSED = "override", "refused"
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")


async def refresh_bundle(ctx: Context, *, starting: bool = False) -> ReloadResult:
    """Load the bundle's source once, and activate it if it is valid and may follow the active commit.

    If another replica activates one first, the next refresh follows that. ``starting``: only a start may switch to
    another source, so that a replica with older settings does not switch back.
    """
    source, status = ctx.active.source, ctx.active.status()
    before, known = status.active_commit, str(status.error)
    if source is None:
        reloaded = await ctx.active.reload()
    else:
        reloaded = await _refresh_from(ctx, source, starting=starting)
    if reloaded.error is not None:
        metrics.BUNDLE_REFUSED.inc()
        if str(reloaded.error) != known:  # log it once, not at every refresh
            log.error(
                "bundle_refused", problems=str(reloaded.error), active=ctx.active.status().active_digest
            )
    _report_activation(ctx, before)
    return reloaded


async def follow_active_commit(ctx: Context) -> None:
    """Load the commit that another replica activated.

    Raises:
        PoliciesBehindError: this replica does not have its files yet; a refresh was requested.
    """
    source = ctx.active.source
    if source is None:
        return
    before = ctx.active.status().active_commit
    accepted = await ctx.db.read(lambda conn: _accepted_commits(conn, source))
    if accepted.accepted is None or not await ctx.active.follow(accepted):
        ctx.looks.ask()
        raise PoliciesBehindError(
            "newer policies are in force than this replica has; it fetches them, repeat the request in a moment"
        )
    _report_activation(ctx, before)


def allow_commit(tx: Tx, commit: str, reason: str) -> None:
    """Override the checks of one commit, once: it may follow without being a descendant or passing the policy tests.

    Raises:
        InvalidRequestError: it is not a full commit id, or the reason is empty.
    """
    if not _COMMIT.match(commit):
        raise InvalidRequestError(
            f"{commit!r} is not a commit; write it in full, as `git rev-parse` and the refusal print it"
        )
    if not reason.strip():
        raise InvalidRequestError("give a reason; it is kept in the audit log")
    tx.conn.execute(delete(PolicyHeadRow).where(col(PolicyHeadRow.what) == _OVERRIDE))
    row = PolicyHeadRow(what=_OVERRIDE, source="", commit=commit, reason=reason, at=tx.now)
    insert_row_or_ignore(tx.conn, row)
    append(tx, "bundle_override", actor=OPERATOR, body={"commit": commit, "reason": reason})


async def _refresh_from(ctx: Context, source: str, *, starting: bool) -> ReloadResult:
    accepted = await ctx.db.read(lambda conn: _accepted_commits(conn, source))

    async def accept(bundle: Bundle) -> bool:
        return await ctx.db.write(lambda tx: _activate(tx, source, bundle, accepted, starting=starting))

    reloaded = await ctx.active.reload(accepted, accept)
    if (error := reloaded.error) is not None and error.why != "unreachable":
        head = ctx.active.status().head_commit or ""  # a deleted branch has none
        if not await ctx.db.read(lambda conn: _is_recorded(conn, source, head, error)):
            await ctx.db.write(lambda tx: _record_refusal(tx, source, head, error))
    row = await ctx.db.read(_active_row)
    if row is not None and row.source != source:
        ctx.active.mark_displaced()
    return reloaded


def _report_activation(ctx: Context, before: str | None) -> None:
    status = ctx.active.status()
    if status.active_commit is None or status.active_digest is None or status.active_commit == before:
        return
    metrics.set_active_bundle(status.active_digest, status.active_commit)
    tests = status.guarded
    passed = {} if tests is None else {"cases": tests.run, "cases_not_run": tests.not_run}
    log.info("bundle_activated", bundle=status.active_digest, commit=status.active_commit, **passed)


# -- the rows ----------------------------------------------------------------------------------------------------------


def _active_row(conn: Connection) -> PolicyHeadRow | None:
    return find_one(conn, PolicyHeadRow, what=ACTIVE)


def _accepted_commits(conn: Connection, source: str) -> AcceptedCommits:
    """The commit that a new head of this source must descend from, and the override. Another source starts anew."""
    active, override = _active_row(conn), find_one(conn, PolicyHeadRow, what=_OVERRIDE)
    return AcceptedCommits(
        active.commit if active is not None and active.source == source else None,
        None if override is None else override.commit,
    )


def _activate(tx: Tx, source: str, bundle: Bundle, accepted: AcceptedCommits, *, starting: bool) -> bool:
    """Make a commit the active one; False if another replica was first. ``accepted``: what its history was checked
    against."""
    row = _active_row(tx.conn)
    if row is not None and (row.source, row.commit) == (source, bundle.commit):
        return True
    override = find_one(tx.conn, PolicyHeadRow, what=_OVERRIDE)
    reason = override.reason if override is not None and override.commit == bundle.commit else None
    new = {
        "source": source,
        "commit": bundle.commit,
        "digest": bundle.digest,
        "reason": reason,
        "at": tx.now,
    }
    if row is not None and not (row.commit == accepted.accepted if row.source == source else starting):
        return False
    if not _replace(tx, ACTIVE, row, new):
        return False
    # An override was given for the commit that was active then; another activation ends it.
    tx.conn.execute(delete(PolicyHeadRow).where(col(PolicyHeadRow.what).in_([_REFUSED, _OVERRIDE])))
    before = {} if row is None or row.source != source else {"before": row.commit}
    why = {} if reason is None else {"override": reason}
    body = {"commit": bundle.commit, "bundle": bundle.digest, **before, **why}
    append(tx, "bundle_activated", actor=SERVICE, body=body)
    return True


def _is_recorded(conn: Connection, source: str, head: str, error: BundleError) -> bool:
    """Whether this refusal is recorded. Checked before writing, so that refreshing the same head writes nothing."""
    row = find_one(conn, PolicyHeadRow, what=_REFUSED)
    return row is not None and (row.source, row.commit, row.reason) == (source, head, error.why)


def _record_refusal(tx: Tx, source: str, head: str, error: BundleError) -> None:
    """Record once that a head was refused, and where. Its text can quote a policy, so the audit log does not get it."""
    if _is_recorded(tx.conn, source, head, error):
        return
    row = find_one(tx.conn, PolicyHeadRow, what=_REFUSED)
    if _replace(tx, _REFUSED, row, {"source": source, "commit": head, "reason": error.why, "at": tx.now}):
        first = error.problems[0]
        place = {} if error.why not in {"invalid", "cases"} else {"file": first.file, "line": first.line}
        append(tx, "bundle_refused", actor=SERVICE, body={"commit": head, "why": error.why, **place})


def _replace(tx: Tx, what: str, row: PolicyHeadRow | None, new: dict[str, Any]) -> bool:
    """Insert or update the row of this kind; False if another unit did so first."""
    if row is None:
        return insert_row_or_ignore(tx.conn, PolicyHeadRow(what=what, **new))
    where = {"what": what, "seq": row.seq}
    return update_rows(tx.conn, PolicyHeadRow, where, new | {"seq": row.seq + 1}) == 1
