"""State transitions: only legal ones happen, each with its audit row."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, select, text

from countersign.contract import EFFECT_TRANSITIONS, EffectState, IllegalTransitionError, TaskKind, TxnState
from policy_service.errors import ConflictError
from policy_service.queries import repository
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.system_tables import AuditRow, OutboxRow
from policy_service.storage.tables import EffectRow, ReviewRow, TaskRow, TransactionRow
from policy_service.workflow import transitions
from policy_service.workflow.effects.outcomes import sync_transaction_state
from policy_service.workflow.transitions import (
    TransitionReason,
    transition_effect,
    transition_review,
    transition_transaction,
)
from tests.unit.workflow.conftest import TXN

CAUSE = TransitionReason("agent:robot", "test")
Mover = Callable[[Tx, Snapshot], object]


def states(conn: Connection) -> list[str]:
    rows = table(EffectRow).c
    return [state for (state,) in conn.execute(select(rows.state).order_by(rows.seq))]


def log(conn: Connection) -> list[tuple[str, dict[str, Any]]]:
    """The audit rows of the transaction, in order."""
    rows = table(AuditRow).c
    found = conn.execute(select(rows.kind, rows.body).where(rows.txn == TXN).order_by(rows.audit_id))
    return [(kind, json.loads(body)) for kind, body in found]


def snapshot_of(conn: Connection) -> Snapshot:
    return repository.require_transaction(conn, TXN)


def release(tx: Tx, snapshot: Snapshot, cause: TransitionReason = CAUSE) -> None:
    transition_effect(tx, snapshot.effects[0], EffectState.RELEASED, cause)


def on(written: Database, work: Mover) -> None:
    """Run a change of the transaction in one unit of work."""
    written.write_sync(lambda tx: work(lock_transaction(tx, TXN), snapshot_of(tx.conn)))


def next_revision(row: TransactionRow) -> TransactionRow:
    values = {name: getattr(row, name) for name in table(TransactionRow).columns.keys()}  # noqa: SIM118
    return TransactionRow(**values | {"rev": row.rev + 1})


MOVERS: dict[str, Mover] = {
    "an effect": release,
    "a review": lambda tx, s: transition_review(tx, s.reviews["1" * 64], "met", CAUSE),
    "a transaction": lambda tx, s: transition_transaction(tx, s.transaction, TxnState.ENDED, CAUSE),
    "columns": lambda tx, s: transitions.set_columns(tx, s.effects[0], valid_for_s=1),
    "a task": lambda tx, s: transitions.open_task(tx, s.effects[0], TaskKind.UNKNOWN, "unknown", CAUSE),
    "a revision": lambda tx, s: transitions.insert(tx, next_revision(s.transaction)),
}


@pytest.mark.parametrize("move", MOVERS.values(), ids=MOVERS)
def test_a_unit_without_the_transactions_lock_is_refused(written: Database, move: Mover) -> None:
    with pytest.raises(RuntimeError, match="has not locked"):
        written.write_sync(lambda tx: move(tx, snapshot_of(tx.conn)))
    assert written.read_sync(states) == ["review", "review"]
    on(written, move)


def test_a_transition_changes_the_row_the_memory_and_the_audit_log_together(written: Database) -> None:
    def work(tx: Tx, snapshot: Snapshot) -> None:
        transition_effect(tx, snapshot.effects[0], EffectState.RELEASED, CAUSE, decision_id="dec_9")
        assert (snapshot.effects[0].state, snapshot.effects[0].decision_id) == ("released", "dec_9")

    on(written, work)
    assert written.read_sync(states) == ["released", "review"]
    kind, body = written.read_sync(log)[-1]
    assert kind == "effect_released"
    assert body == {"from": "review", "to": "released", "why": "test", "kind": "effect"}


def test_an_illegal_transition_is_refused(written: Database) -> None:
    for to in set(EffectState) - EFFECT_TRANSITIONS[EffectState.REVIEW]:
        with pytest.raises(IllegalTransitionError):
            on(written, lambda tx, snapshot, to=to: transition_effect(tx, snapshot.effects[0], to, CAUSE))
    with pytest.raises(IllegalTransitionError):
        on(written, lambda tx, s: transition_transaction(tx, s.transaction, TxnState.SETTLED, CAUSE))
    assert (written.read_sync(states), written.read_sync(log)) == (["review", "review"], [])


def test_a_transition_from_a_stale_read_is_refused(written: Database) -> None:
    stale = written.read_sync(snapshot_of).effects[0]
    on(written, lambda tx, snapshot: transition_effect(tx, snapshot.effects[0], EffectState.DENIED, CAUSE))
    with pytest.raises(ConflictError, match="changed while"):
        on(written, lambda tx, _: transition_effect(tx, stale, EffectState.RELEASED, CAUSE))
    with pytest.raises(ConflictError):
        on(written, lambda tx, _: transitions.set_columns(tx, stale, valid_for_s=1))
    assert written.read_sync(states) == ["denied", "review"]
    assert [kind for kind, _ in written.read_sync(log)] == ["effect_denied"]
    on(written, lambda tx, snapshot: transitions.set_columns(tx, snapshot.effects[0], valid_for_s=1))
    assert written.read_sync(snapshot_of).effects[0].valid_for_s == 1


FULL = "CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'full'); END"


def test_a_transition_without_its_audit_row_is_rolled_back(written: Database) -> None:
    odd = TransitionReason("agent:robot", "test", {"detail": {"not", "plain", "json"}})
    with pytest.raises(ValueError, match="set"):
        on(written, lambda tx, snapshot: release(tx, snapshot, odd))
    written.write_sync(lambda tx: tx.conn.execute(text(FULL)).rowcount)
    with pytest.raises(Exception, match=r"."):
        on(written, release)
    assert written.read_sync(states) == ["review", "review"]


def test_settling_and_reopening_a_review_are_audited_and_published(written: Database) -> None:
    def work(tx: Tx, snapshot: Snapshot) -> None:
        review = snapshot.reviews["1" * 64]
        transition_review(tx, review, "met", CAUSE)
        assert review.settled_at is not None
        transition_review(tx, review, "open", CAUSE)

    on(written, work)
    review = written.read_sync(snapshot_of).reviews["1" * 64]
    assert (review.state, review.settled_at) == ("open", None)
    assert [kind for kind, _ in written.read_sync(log)] == ["review_settled", "review_reopened"]
    messages = written.read_sync(lambda conn: list(conn.scalars(select(table(OutboxRow).c.kind))))
    assert messages == ["review_settled", "review_reopened"]


def test_only_open_siblings_are_withdrawn(written: Database) -> None:
    on(written, lambda tx, snapshot: sync_transaction_state(tx, snapshot, CAUSE))
    assert written.read_sync(log) == [], "the transaction has the state of its effects already"

    def work(tx: Tx, snapshot: Snapshot) -> None:
        transition_effect(tx, snapshot.effects[0], EffectState.DENIED, CAUSE)
        transitions.withdraw_siblings(tx, snapshot, CAUSE.because("sibling"), but=snapshot.effects[0])
        sync_transaction_state(tx, snapshot, CAUSE)
        assert snapshot.transaction.state == TxnState.ENDED.value

    on(written, work)
    assert written.read_sync(states) == ["denied", "withdrawn"]
    reviews = written.read_sync(lambda conn: conn.execute(select(table(ReviewRow).c.state)).scalars().all())
    assert sorted(reviews) == ["open", "withdrawn"]  # the review of the denied effect is settled by the vote


def test_a_task_is_opened_once_and_settled_once(written: Database) -> None:
    def work(tx: Tx, snapshot: Snapshot) -> None:
        for _ in range(2):
            transitions.open_task(tx, snapshot.effects[0], TaskKind.UNKNOWN, "we do not know", CAUSE)
        transitions.open_task(tx, snapshot.effects[0], TaskKind.CONTRADICTION, "two stories", CAUSE)
        for _ in range(2):
            transitions.close_tasks(tx, snapshot.effects[0], CAUSE, TaskKind.UNKNOWN)
        transitions.close_tasks(tx, snapshot.effects[1], CAUSE, TaskKind.UNKNOWN)

    on(written, work)
    rows = table(TaskRow).c
    asked = select(rows.kind, rows.state).order_by(rows.kind)
    found = written.read_sync(lambda conn: conn.execute(asked).all())
    assert [tuple(row) for row in found] == [("contradiction", "open"), ("unknown", "settled")]
    assert [kind for kind, _ in written.read_sync(log)] == ["task_opened", "task_opened", "task_settled"]
