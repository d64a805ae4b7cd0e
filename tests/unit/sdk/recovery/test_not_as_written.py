"""A damaged record is never continued, and blocks no other transaction."""

from typing import Any

import pytest

from countersign import JournalError, OutcomeUnknown, resume
from countersign.concurrency import run_sync
from countersign.journal.export import summary_of
from countersign.recovery.recovery import RecoveryResult, resume_one
from tests.fakes.desk import Desk, answering_tool, charge_tools
from tests.unit.sdk.full_disk import full_after
from tests.unit.sdk.journals import BOTH

OF_IT = "txn = (SELECT txn FROM transactions WHERE run_key = 't-1')"
CHANGES = {
    "what is firing is said to have failed": f"UPDATE effects SET state = 'failed' WHERE {OF_IT} AND seq = 2",
    "what is firing is said not to be begun": f"UPDATE effects SET state = 'redeemed' WHERE {OF_IT} AND seq = 2",
    "what fired is said to be taken back": f"UPDATE effects SET state = 'compensated' WHERE {OF_IT} AND seq = 1",
    "no list is in force": f"UPDATE transactions SET staging = NULL WHERE {OF_IT}",
    "nothing was redeemed": f"UPDATE transactions SET redeemed = 0 WHERE {OF_IT}",
    "the attempt is another": f"UPDATE transactions SET attempt_id = 'a-1' WHERE {OF_IT}",
    "an effect is gone": f"DELETE FROM effects WHERE {OF_IT} AND seq = 2",
    "a report says another outcome": f"UPDATE outbox SET outcome = 'failed' WHERE {OF_IT}",
    "the head has another hash": f"UPDATE transactions SET chain_hash = '' WHERE {OF_IT}",
}


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def step(desk: Desk) -> Any:
    """A charge with a compensation, and an idempotent call."""
    charge, label = charge_tools(desk), answering_tool(desk, None, name="label", idempotent=True)
    return lambda: desk.run((charge, "o-1", 100), (label, "o-1"))


@pytest.fixture
def died(desk: Desk, step: Any) -> None:
    """The step, dead as its label was fired; and after it a transaction that is approved."""
    with full_after(desk.runtime.journal, 2), pytest.raises(OutcomeUnknown):
        step()
    desk.approved("t-2")
    assert desk.done == [("charge", "o-1", 100), ("label", "o-1")]


def change(desk: Desk, sql: str) -> None:
    with desk.runtime.journal.database.unit(durable=True) as unit:
        assert unit.execute(sql).rowcount > 0


def reported(found: list[RecoveryResult]) -> list[tuple[str, str | None, str | None, bool]]:
    return [(one.run_key, one.before, one.after, one.needs_attention) for one in found]


@pytest.mark.usefixtures("died")
def test_as_it_was_written_it_is_gone_on_with(desk: Desk) -> None:
    assert [one.after for one in resume(desk.runtime)] == ["settled", "settled"]
    assert [what for what, *_ in desk.done] == ["charge", "label", "label", "refund"]


@pytest.mark.tampers
@pytest.mark.usefixtures("died")
@pytest.mark.parametrize("what", CHANGES)
def test_nothing_is_done_with_it_and_the_others_are_finished(desk: Desk, what: str, caplog: Any) -> None:
    change(desk, CHANGES[what])
    lines = f"SELECT body FROM chain WHERE {OF_IT} ORDER BY id"
    as_found = [bytes(row["body"]) for row in desk.runtime.journal.database.rows(lines)]
    damaged, other = resume(desk.runtime)
    assert (damaged.needs_attention, damaged.before, other.after) == (True, damaged.after, "settled")
    assert "is not as the SDK wrote it" in damaged.note
    assert [one[0] for one in desk.done] == ["charge", "label", "refund"]
    assert [bytes(row["body"]) for row in desk.runtime.journal.database.rows(lines)] == as_found
    assert reported(resume(desk.runtime)) == reported([damaged])  # until somebody has looked at it
    assert "could not be journaled" not in caplog.text, "nothing tried to write one on top of it"


@pytest.mark.tampers
@pytest.mark.usefixtures("died")
@pytest.mark.parametrize("what", ["what is firing is said to have failed", "nothing was redeemed"])
def test_a_run_under_its_key_does_not_go_on_with_it_either(desk: Desk, step: Any, what: str) -> None:
    change(desk, CHANGES[what])
    with pytest.raises(JournalError, match="is not as the SDK wrote it"):
        step()
    assert [one[0] for one in desk.done] == ["charge", "label"]
    assert desk.runtime.journal.database.row(f"SELECT holder FROM transactions WHERE {OF_IT}")[0] is None  # type: ignore[index]


@pytest.mark.tampers
def test_one_that_cannot_be_read_is_kept_up_alone_and_named(desk: Desk) -> None:
    """How lists and exports name it: cli/test_damaged.py."""
    desk.approved("t-1", "t-2")
    change(desk, f"UPDATE transactions SET state = 'strange' WHERE {OF_IT}")
    damaged, other = resume(desk.runtime)
    assert reported([damaged, other]) == [("t-1", None, None, True), ("t-2", "review", "settled", False)]
    assert "unknown state 'strange'" in damaged.note
    assert desk.done == [("refund", "o-t-2", 90_000)]


def test_a_journal_that_is_away_is_raised(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.approved("t-1")
    journal, engine = desk.runtime.journal, desk.runtime.engine(desk.runtime.sync_executor())
    (txn,) = journal.transactions.unfinished()

    def away(*_: Any) -> Any:
        raise JournalError("there is no answer")

    with monkeypatch.context() as broken:
        broken.setattr(journal.database, "rows", away)
        with pytest.raises(JournalError, match="there is no answer"):
            run_sync(resume_one(engine, txn))
        with pytest.raises(JournalError, match="there is no answer"):
            summary_of(journal, txn)
