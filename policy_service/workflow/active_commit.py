"""Which commit of the policies is in force for all replicas: one row, moved by a conditional UPDATE with its line.

Rules kept here: a replica puts a commit in force for all or not at all; where another was first it follows instead; an
operator's word lets one commit follow once; a head that is refused is told of once and not at every look; nothing is
redeemed by a replica whose bundle is not the one in force. A folder of its own is nobody else's: no row is kept for it.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, delete
from sqlmodel import col

from policy_service.audit.log import append
from policy_service.errors import InvalidRequestError
from policy_service.identity.agents import OPERATOR
from policy_service.pap.bundle import Bundle
from policy_service.pap.problems import BundleError
from policy_service.pap.source import AcceptedCommits
from policy_service.queries.context import Context
from policy_service.storage.core import find_one, insert_row_or_ignore, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import PolicyHeadRow
from policy_service.workflow.transitions import SERVICE

_ACTIVE, _OVERRIDE, _REFUSED = "active", "override", "refused"
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")


class OutdatedBundleError(Exception):
    """Another replica has put another commit in force: follow it and ask again."""


def active_commit_row(conn: Connection) -> PolicyHeadRow | None:
    """The commit in force, as all replicas have it."""
    return find_one(conn, PolicyHeadRow, what=_ACTIVE)


def commit_constraints(conn: Connection, source: str) -> AcceptedCommits:
    """What a source has to keep to; another one than was followed before begins anew."""
    active, override = active_commit_row(conn), find_one(conn, PolicyHeadRow, what=_OVERRIDE)
    return AcceptedCommits(
        active.commit if active is not None and active.source == source else None,
        None if override is None else override.commit,
    )


def require_active_commit(tx: Tx, ctx: Context, bundle: Bundle) -> None:
    """Refuse to spend anything under a bundle that is not the one in force for all replicas.

    Raises:
        BundleBehindError: another one is.
    """
    source = ctx.active.source
    if source is None:
        return
    row = active_commit_row(tx.conn)
    if row is None or (row.source, row.commit) != (source, bundle.commit):
        raise OutdatedBundleError


def activate_commit(
    tx: Tx, source: str, bundle: Bundle, standing: AcceptedCommits, *, starting: bool
) -> bool:
    """Record that a commit is in force from now on; whether it is, or another replica was first.

    ``standing``: what its history was compared with. ``starting``: only a start takes over from another source, so that
    a replica with older settings does not take it back.
    """
    row = active_commit_row(tx.conn)
    if row is not None and (row.source, row.commit) == (source, bundle.commit):
        return True
    override = find_one(tx.conn, PolicyHeadRow, what=_OVERRIDE)
    used = override if override is not None and override.commit == bundle.commit else None
    reason = None if used is None else used.reason
    if not _moved(tx, row, source, bundle, standing, reason, starting=starting):
        return False
    # A word for one commit was about the commit in force then: whatever came since, it is over.
    tx.conn.execute(delete(PolicyHeadRow).where(col(PolicyHeadRow.what).in_([_REFUSED, _OVERRIDE])))
    before = {} if row is None or row.source != source else {"before": row.commit}
    why = {} if reason is None else {"override": reason}
    body = {"commit": bundle.commit, "bundle": bundle.digest, **before, **why}
    append(tx, "bundle_activated", actor=SERVICE, body=body)
    return True


def _moved(
    tx: Tx,
    row: PolicyHeadRow | None,
    source: str,
    bundle: Bundle,
    standing: AcceptedCommits,
    reason: str | None,
    *,
    starting: bool,
) -> bool:
    new: dict[str, Any] = {
        "source": source,
        "commit": bundle.commit,
        "digest": bundle.digest,
        "reason": reason,
        "at": tx.now,
    }
    if row is None:
        return insert_row_or_ignore(tx.conn, PolicyHeadRow(what=_ACTIVE, seq=1, **new))
    if row.source == source:
        if row.commit != standing.accepted:
            return False
    elif not starting:
        return False
    return (
        update_rows(tx.conn, PolicyHeadRow, {"what": _ACTIVE, "seq": row.seq}, new | {"seq": row.seq + 1})
        == 1
    )


def is_refusal_recorded(conn: Connection, source: str, head: str, error: BundleError) -> bool:
    """Whether this refusal was written already: asked first, so that a look at the same head writes nothing."""
    row = find_one(conn, PolicyHeadRow, what=_REFUSED)
    return row is not None and (row.source, row.commit, row.reason) == (source, head, error.why)


def record_refusal(tx: Tx, source: str, head: str, error: BundleError) -> bool:
    """Write once that a head was refused and where; whether it was not written before. Its text may quote a policy, so
    it stays out of the log.
    """
    if is_refusal_recorded(tx.conn, source, head, error):
        return False
    row = find_one(tx.conn, PolicyHeadRow, what=_REFUSED)
    new: dict[str, Any] = {"source": source, "commit": head, "reason": error.why, "at": tx.now}
    if row is None:
        written = insert_row_or_ignore(tx.conn, PolicyHeadRow(what=_REFUSED, **new))
    else:
        changes = new | {"seq": row.seq + 1}
        written = update_rows(tx.conn, PolicyHeadRow, {"what": _REFUSED, "seq": row.seq}, changes) == 1
    if written:
        first = error.problems[0]
        place = {} if error.why not in {"invalid", "cases"} else {"file": first.file, "line": first.line}
        append(tx, "bundle_refused", actor=SERVICE, body={"commit": head, "why": error.why, **place})
    return written


def allow_commit(tx: Tx, commit: str, reason: str) -> None:
    """Let a commit follow the one in force once, though it does not descend from it or does not pass the cases.

    Raises:
        InvalidRequestError: it is no commit, or there is no reason.
    """
    if not _COMMIT.match(commit):
        raise InvalidRequestError(
            f"{commit!r} is no commit; write it in full, as `git rev-parse` and the refusal have it"
        )
    if not reason.strip():
        raise InvalidRequestError("say why: the reason stays in the log")
    tx.conn.execute(delete(PolicyHeadRow).where(col(PolicyHeadRow.what) == _OVERRIDE))
    row = PolicyHeadRow(what=_OVERRIDE, source="", commit=commit, reason=reason, at=tx.now)
    insert_row_or_ignore(tx.conn, row)
    append(tx, "bundle_override", actor=OPERATOR, body={"commit": commit, "reason": reason})
