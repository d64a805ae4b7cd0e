"""Restore: the database came back from a backup and lost everything that happened since.

Every effect that waited or was released may have been redeemed and have fired since. It becomes `unknown` and a task,
and counts as redeemed until a receipt from before or a person settles it. Then a new epoch begins, in which no release
of the old one is valid. Sessions, sign-in links and Slack links end, because the lost part of the log may have ended
them. Everything is frozen until the agents have reported what they know.

Each transaction is a unit of its own, and the last unit begins the epoch. An interrupted run is repeated: effects that
are unknown stay so, and the service does not start on an epoch that its mark has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import EffectState, TaskKind
from countersign.contract.wire import EpochView, RestoreView
from policy_service.audit.log import append_above, highest_index, newest_entry
from policy_service.identity.agents import OPERATOR
from policy_service.identity.dev_signin import revoke_all_links
from policy_service.identity.people import delete_all_slack_links
from policy_service.identity.sessions import end_every_session
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Database, Tx
from policy_service.storage.system_tables import begin_epoch, ensure_epoch, list_restores, read_epoch
from policy_service.storage.tables import EffectRow
from policy_service.storage.unit_of_work import write_lines
from policy_service.tokens.epoch import Mark, read_mark, require_no_log, require_not_behind, write_mark
from policy_service.workflow.authorization import freeze_tool
from policy_service.workflow.effects.outcomes import sync_transaction_state
from policy_service.workflow.transitions import TransitionReason, close_review, open_task, transition_effect

RESTORED_TASK = TaskKind.RESTORED
"""The task about an effect that may have been redeemed in the lost part of the log."""

OPEN_STATES = (EffectState.REVIEW.value, EffectState.RELEASED.value)

_NEVER = datetime.fromtimestamp(0, UTC)

# The mark lags the log by a fraction of a second, in which no service writes so many rows. So no reader of the log has
# seen an index beyond this distance.
_MAX_ROWS_AHEAD = 100_000


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """What a restored database knows of its history, and which of its effects are open."""

    epoch: int
    highest_index: int
    lost_after: datetime  # the time of its newest audit row; anything later may be lost
    # (txn, rev) of each transaction with an effect that waits or is released
    open_ones: tuple[tuple[str, int], ...]
    redeemed: int  # effects without an outcome: agents report it, or they become tasks


def reconcile_epoch(db: Database, key_dir: Path) -> Mark:
    """Compare the database with the mark, or create both at the first start.

    Raises:
        StartError: the database lacks something the mark has seen.
    """
    mark = read_mark(key_dir)
    epoch = db.write_sync(ensure_epoch)
    highest = db.read_sync(highest_index)
    if mark is None:
        require_no_log(key_dir, highest)
        mark = Mark(epoch, highest)
        write_mark(key_dir, mark)
    require_not_behind(mark, highest, epoch)
    if highest > mark.highest_index:  # a crash between the commit and the write of the mark
        mark = Mark(epoch, highest)
        write_mark(key_dir, mark)
    return mark


async def epoch_view(ctx: Context) -> EpochView:
    """The epoch, and for each restore the time after which records may be lost."""
    restores = await ctx.db.read(list_restores)
    known = tuple(RestoreView(epoch=one.epoch, lost_after=one.lost_after) for one in restores)
    return EpochView(epoch=ctx.epoch(), restores=known)


def restore_status(conn: Connection) -> RestoreStatus:
    """Read the status, without changing anything."""
    last = newest_entry(conn)
    which = (col(EffectRow.txn), col(EffectRow.rev))
    waits = select(*which).where(col(EffectRow.state).in_(OPEN_STATES)).distinct().order_by(*which)
    redeemed = select(col(EffectRow.effect_id)).where(col(EffectRow.state) == EffectState.REDEEMED.value)
    return RestoreStatus(
        epoch=read_epoch(conn) or 0,
        highest_index=0 if last is None else last.index,
        lost_after=_NEVER if last is None else last.at,
        open_ones=tuple((txn, rev) for txn, rev in conn.execute(waits)),
        redeemed=len(conn.execute(redeemed).all()),
    )


def mark_transaction_unknown(tx: Tx, txn: str, rev: int, reason: str) -> int:
    """Mark the open effects of a transaction unknown; returns how many."""
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn, rev)
    cause = TransitionReason(OPERATOR, RESTORED_TASK.value, {"reason": reason})
    open_ones = [e for e in [*snapshot.effects, *snapshot.compensations] if e.state in OPEN_STATES]
    for effect in open_ones:
        mark_unknown(tx, snapshot, effect, cause)
    sync_transaction_state(tx, snapshot, cause)
    write_lines(tx, number=False)  # the next index may be one that the lost part of the log used
    return len(open_ones)


def mark_unknown(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """Mark an open effect unknown, because it may have been redeemed. Its review closes, and a task opens."""
    before = effect.state
    transition_effect(tx, effect, EffectState.UNKNOWN, cause)
    close_review(tx, snapshot, effect, "withdrawn", cause)
    text = (
        f"{effect.tool} for {effect.resource_type} {effect.resource_id} was in {before} when the database was "
        "restored; it may have fired since"
    )
    open_task(tx, effect, RESTORED_TASK, text, cause)


def begin_restored_epoch(tx: Tx, was: RestoreStatus, epoch: int, mark: int, reason: str) -> int:
    """Begin a new epoch, freeze everything, and continue the log above every used index; returns its first index."""
    index = max(mark, was.highest_index) + _MAX_ROWS_AHEAD + 1
    body = {
        "reason": reason,
        "epoch": epoch,
        "was_epoch": was.epoch,
        "known_to": was.highest_index,  # the indexes between this one and the new row are never used
        "marked": mark,
        "lost_after": was.lost_after.isoformat(),
    }
    append_above(tx, index, "database_restored", actor=OPERATOR, body=body)
    begin_epoch(tx, epoch, was.lost_after)
    end_every_session(tx)
    revoke_all_links(tx)
    delete_all_slack_links(tx)
    freeze_tool(tx, None, f"the database was restored: {reason}")
    return index
