"""What a seal binds, and journals from before there were any."""

from __future__ import annotations

from pathlib import Path

import pytest

from countersign import JournalError, ReviewPending, resume
from countersign.journal.sealing import HIDDEN, Seals, is_sealed
from countersign.journal.telling import describe
from countersign.journal.verifying import verify
from tests.fakes.desk import Desk, charge_tools
from tests.unit.sdk.paying import CARD, LARGE, columns, found, parked, pay_tool, rows, tampered, without_key


@pytest.mark.tampers
@pytest.mark.parametrize("what", ["the seal of another transaction", "another argument", "a seal of zeros"])
def test_a_changed_row_fires_nothing(desk: Desk, what: str) -> None:
    pay = pay_tool(desk)
    txn = parked(desk, pay)
    with pytest.raises(ReviewPending) as other, desk.step("t-2"):
        pay("o-1", LARGE, "another card")
    args = {row["txn"]: row["args"] for row in columns(desk)}
    mine = args[txn]
    if what == "the seal of another transaction":
        forged = args[other.value.txn]
    elif what == "another argument":
        forged = mine.replace(b"90000", b"90001")
    else:
        forged = mine[:-40] + b"A" * 20 + mine[-20:]
    assert forged != mine
    tampered(desk, "UPDATE effects SET args = ? WHERE txn = ?", forged, txn)
    with desk.another_process() as later:
        notes = {one.txn: one.note for one in resume(later)}
        with pytest.raises(JournalError, match="is damaged"):  # by itself, whoever reads it
            later.journal.transactions.effects(later.journal.transactions.require(txn))
    assert "is not as the SDK wrote it" in notes[txn]  # by its chain, before anything is done with it
    assert desk.done == []
    assert not verify(desk.runtime.settings.journal_path).sound


@pytest.mark.tampers
def test_a_result_of_another_effect_is_damage(desk: Desk) -> None:
    pay = pay_tool(desk)
    with desk.step():
        pay("o-1", 5, CARD)
        pay("o-2", 6, CARD)
    record = found(desk, "t-1")
    tampered(
        desk,
        "UPDATE effects SET result = (SELECT result FROM effects WHERE seq = 2 AND txn = ?) WHERE seq = 1 AND txn = ?",
        record.txn,
        record.txn,
    )
    with pytest.raises(JournalError, match="put where it was not sealed"):
        desk.runtime.journal.transactions.effects(record)
    with pytest.raises(JournalError, match="put where it was not sealed"):
        describe(desk.runtime.journal, record)  # who has the key checks what is shown as well


@pytest.mark.tampers
def test_a_changed_report_is_not_sent(desk: Desk) -> None:
    charge_tools(desk)
    pay = pay_tool(
        desk,
        compensate="void",
        compensation_map={"charge_id": "result:", "amount_cents": "args:/amount_cents"},
    )
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 99
    with desk.step():
        pay("o-1", 5, CARD)
    (row,) = columns(desk)
    tampered(desk, "UPDATE outbox SET result = ?", row["result"])  # sealed for another column
    (pending,) = desk.runtime.journal.outbox.pending()
    with pytest.raises(JournalError, match="is not sent"):
        desk.runtime.journal.outbox.opened(pending)
    desk.face.faults.clear()
    with pytest.raises(JournalError, match="is not sent"):
        resume(desk.runtime)


def test_two_seals_of_one_list_are_one_list(desk: Desk) -> None:
    """A rerun seals anew; the attempt stays that of the list, so a lost redemption is found."""
    pay = pay_tool(desk)
    with pytest.raises(ReviewPending), desk.step():
        pay("o-1", LARGE, CARD)
    first = found(desk, "t-1")
    with pytest.raises(ReviewPending), desk.step():
        pay("o-1", LARGE, CARD)
    again = found(desk, "t-1")
    assert (again.staging, again.attempt_id, again.txn_digest) == (2, first.attempt_id, first.txn_digest)
    one, two = columns(desk)
    assert one["args"] != two["args"]
    assert (one["staged_args"], two["staged_args"]) == (None, None)


def test_a_journal_from_before_seals_is_read_and_is_sealed_at_its_first_write(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pay = pay_tool(desk)
    with monkeypatch.context() as before:
        before.setattr(Seals, "seal", lambda self, unit, about, raw, pointers: raw)
        with desk.step("old"):
            pay("o-1", 5, CARD)
        parked(desk, pay)
    assert [is_sealed(row["args"]) for row in columns(desk)] == [False, False]
    (told,) = describe(desk.runtime.journal, found(desk, "old"))["effects"]
    assert (told["result"], CARD in told["args"]) == (HIDDEN, False)
    with without_key(desk, tmp_path) as poor:  # what was never sealed needs no key
        (seen,) = resume(poor)
        assert seen.after == "settled"
    with desk.step("old") as again:
        paid = pay("o-1", 5, CARD)
    assert (again.replayed, paid.result) == (True, f"paid with {CARD}")
    with desk.step("new"):
        pay("o-2", 5, CARD)
    assert [is_sealed(row["args"]) for row in columns(desk) if row["txn"] == found(desk, "new").txn] == [True]


def test_an_edit_seals_a_row_that_was_written_in_clear(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pay = pay_tool(desk)
    with monkeypatch.context() as before:
        before.setattr(Seals, "seal", lambda self, unit, about, raw, pointers: raw)
        with pytest.raises(ReviewPending) as pending, desk.step():
            pay("o-1", LARGE, CARD)
    (row,) = columns(desk)
    assert not is_sealed(row["args"])
    desk.runtime.journal.edits.keep(pending.value.txn, every=True)
    for cents in (LARGE - 1, LARGE - 2):
        desk.service.edit(pending.value.txn, 0, {"order_id": "o-1", "amount_cents": cents, "card": CARD})
        resume(desk.runtime)
        (row,) = columns(desk)
        assert is_sealed(row["args"])
        assert is_sealed(row["staged_args"])
        (read,) = rows(desk, "t-1")
        assert f'"amount_cents":{cents}'.encode() in read.args
        assert b'"amount_cents":90000' in (read.staged_args or b"")
