"""Restored: this database came back from a backup, and has forgotten what happened since.

What waited or was released may have been redeemed and fired meanwhile, so every such effect becomes `unknown`, a task
for people, and counts as redeemed until it is settled (by a receipt from before, or by a person). Then another epoch
begins: no release of the old one is good for anything. Sessions, sign-in links and Slack's links end, because one that
ended in the lost part of the log would be alive again, and everything is frozen until the agents have told what they
know.

Each transaction is a unit of its own; the epoch changes with the last of them. Whoever is stopped in between repeats
it: what is in doubt already stays so, and the service does not start on an epoch that its mark has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import EffectState, TaskKind
from policy_service.audit.log import append_above, newest_entry
from policy_service.identity.agents import OPERATOR
from policy_service.identity.dev_signin import revoke_all_links
from policy_service.identity.people import delete_all_slack_links
from policy_service.identity.sessions import end_every_session
from policy_service.queries import repository
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import begin_epoch, read_epoch
from policy_service.storage.tables import EffectRow
from policy_service.workflow.effects.emergency_stop import freeze_tool
from policy_service.workflow.transitions import (
    TransitionReason,
    close_review,
    open_task,
    sync_transaction_state,
    transition_effect,
)

RESTORED_TASK = TaskKind.RESTORED
"""The kind of task for what may have been redeemed in the part of the log that is lost."""

OPEN_STATES = (EffectState.REVIEW.value, EffectState.RELEASED.value)

_NEVER = datetime.fromtimestamp(0, UTC)

# The mark follows the log by a fraction of a second, in which no service numbers so many lines: whoever follows the log
# has seen no index beyond.
_AHEAD_OF_MARK = 100_000


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """How far a database knows its own history, and what of it is open."""

    epoch: int
    highest_index: int
    lost_after: datetime  # the time of its newest line: what happened later may be forgotten
    # transactions with an effect that waits or is released, by (txn, rev)
    open_ones: tuple[tuple[str, int], ...]
    redeemed: int  # effects whose outcome is not known here: the agents will tell, or time makes them tasks


def restore_status(conn: Connection) -> RestoreStatus:
    """Look, and change nothing."""
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
    """Nobody knows whether the open effects of a transaction were redeemed; how many those are."""
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn, rev)
    cause = TransitionReason(OPERATOR, RESTORED_TASK.value, {"reason": reason})
    open_ones = [e for e in [*snapshot.effects, *snapshot.compensations] if e.state in OPEN_STATES]
    for effect in open_ones:
        mark_unknown(tx, snapshot, effect, cause)
    sync_transaction_state(tx, snapshot, cause)
    return len(open_ones)


def mark_unknown(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """An effect that waits or is released may have been redeemed: nobody is asked about it any more but this."""
    before = effect.state
    transition_effect(tx, effect, EffectState.UNKNOWN, cause)
    close_review(tx, snapshot, effect, "withdrawn", cause)
    text = (
        f"{effect.tool} for {effect.resource_type} {effect.resource_id} was in {before} when the database was "
        "restored: it may have fired since"
    )
    open_task(tx, effect, RESTORED_TASK, text, cause)


def begin_restored_epoch(tx: Tx, was: RestoreStatus, epoch: int, mark: int, reason: str) -> int:
    """Begin the epoch: everything frozen, the log above every index that was ever given. The first index of it."""
    index = max(mark, was.highest_index) + _AHEAD_OF_MARK + 1
    body = {
        "reason": reason,
        "epoch": epoch,
        "was_epoch": was.epoch,
        "known_to": was.highest_index,  # the indexes between this and this line's own are given to nothing
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
