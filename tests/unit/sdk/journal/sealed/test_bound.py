"""What is sealed and when, what a seal binds, and journals from before there were any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from countersign import JournalError, MemoryAdapter, ReviewPending, errors, resume, tool, transaction
from countersign.journal.export import describe_transaction
from countersign.journal.queries import COMPENSATE_LANE, LIVE_LANE
from countersign.journal.sealing import HIDDEN, Seals, is_sealed, sealed_pointers
from countersign.journal.verification import verify
from countersign.manifests.drafts import manifest_json
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, charge_tools, failing_tool
from tests.fakes.running import fails, run
from tests.unit.sdk.paying import CARD, LARGE, columns, found, parked, pay_tool, rows, tampered, without_key

FORGED: dict[str, Callable[[bytes, bytes], bytes]] = {
    "the seal of another transaction": lambda mine, others: others,
    "another argument": lambda mine, others: mine.replace(b"90000", b"90001"),
    "a seal of zeros": lambda mine, others: mine[:-40] + b"A" * 20 + mine[-20:],
}


@pytest.mark.tampers
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_changed_row_fires_nothing(desk: Desk, forge: Callable[[bytes, bytes], bytes]) -> None:
    pay = pay_tool(desk)
    txn = parked(desk, pay)
    other = fails(desk, ReviewPending, (pay, "o-1", LARGE, "another card"), key="t-2")
    args = {row["txn"]: row["args"] for row in columns(desk)}
    forged = forge(args[txn], args[other.error.txn])
    assert forged != args[txn]
    tampered(desk, "UPDATE effects SET args = ? WHERE txn = ?", forged, txn)
    with desk.another_process() as later:
        notes = {one.txn: one.note for one in resume(later)}
        with pytest.raises(JournalError, match="is damaged"):  # by itself, for any reader
            later.journal.transactions.effects(later.journal.transactions.require(txn))
    assert "is not as the SDK wrote it" in notes[txn]  # by its chain, before anything is done with it
    assert desk.done == []
    assert not verify(desk.runtime.settings.journal_path).sound


@pytest.mark.tampers
def test_a_result_of_another_effect_is_damage(desk: Desk) -> None:
    pay = pay_tool(desk)
    run(desk, (pay, "o-1", 5, CARD), (pay, "o-2", 6, CARD))
    record = found(desk, "t-1")
    others = "(SELECT result FROM effects WHERE seq = 2)"
    tampered(desk, f"UPDATE effects SET result = {others} WHERE seq = 1")
    with pytest.raises(JournalError, match="changed or moved"):
        desk.runtime.journal.transactions.effects(record)
    with pytest.raises(JournalError, match="changed or moved"):
        describe_transaction(desk.runtime.journal, record)  # who has the key checks what is shown as well


@pytest.mark.tampers
def test_a_changed_report_is_not_sent(desk: Desk) -> None:
    charge_tools(desk)
    mapped = {"charge_id": "result:", "amount_cents": "args:/amount_cents"}
    pay = pay_tool(desk, compensate="void", compensation_map=mapped)
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 99
    run(desk, (pay, "o-1", 5, CARD))
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
    fails(desk, ReviewPending, (pay, "o-1", LARGE, CARD))
    first = found(desk, "t-1")
    fails(desk, ReviewPending, (pay, "o-1", LARGE, CARD))
    again = found(desk, "t-1")
    assert (again.staging, again.attempt_id, again.txn_digest) == (2, first.attempt_id, first.txn_digest)
    one, two = columns(desk)
    assert one["args"] != two["args"]
    assert (one["staged_args"], two["staged_args"]) == (None, None)


def test_a_journal_without_seals_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pay = pay_tool(desk)
    with monkeypatch.context() as before:
        before.setattr(Seals, "seal", lambda self, unit, about, raw, pointers: raw)
        run(desk, (pay, "o-1", 5, CARD), key="old")
        parked(desk, pay)
    assert [is_sealed(row["args"]) for row in columns(desk)] == [False, False]
    (reported,) = describe_transaction(desk.runtime.journal, found(desk, "old"))["effects"]
    assert (reported["result"], CARD in reported["args"]) == (HIDDEN, False)
    with without_key(desk, tmp_path) as poor:  # what was never sealed needs no key
        (seen,) = resume(poor)
        assert seen.after == "settled"
    with desk.step("old") as again:
        paid = pay("o-1", 5, CARD)
    assert (again.replayed, paid.result) == (True, f"paid with {CARD}")
    run(desk, (pay, "o-2", 5, CARD), key="new")
    assert [is_sealed(row["args"]) for row in columns(desk) if row["txn"] == found(desk, "new").txn] == [True]


def test_an_edit_seals_a_row_that_was_written_in_clear(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pay = pay_tool(desk)
    with monkeypatch.context() as before:
        before.setattr(Seals, "seal", lambda self, unit, about, raw, pointers: raw)
        pending = fails(desk, ReviewPending, (pay, "o-1", LARGE, CARD))
    (row,) = columns(desk)
    assert not is_sealed(row["args"])
    desk.runtime.journal.edits.keep(pending.error.txn, every=True)
    for cents in (LARGE - 1, LARGE - 2):
        desk.service.edit(pending.error.txn, 0, {"order_id": "o-1", "amount_cents": cents, "card": CARD})
        resume(desk.runtime)
        (row,) = columns(desk)
        assert is_sealed(row["args"]) and is_sealed(row["staged_args"])
        (read,) = rows(desk, "t-1")
        assert f'"amount_cents":{cents}'.encode() in read.args
        assert b'"amount_cents":90000' in (read.staged_args or b"")


# --------------------------------------------------------------------------------- what is sealed, and when


def test_before_anybody_has_said_what_is_secret_no_argument_is_written(desk: Desk) -> None:
    """The reviewed manifest lies with the service alone, and is asked for when the list is frozen."""
    pay = pay_tool(desk, secret=[])
    desk.publish(pay, secret=("/card",))  # the code does not call it secret
    with desk.step():
        pay("o-1", 5, CARD)
        (before,) = columns(desk)
        assert before["args"] == b""
        (shown,) = describe_transaction(desk.runtime.journal, found(desk, "t-1"))["effects"]
        assert (shown["state"], shown["args"]) == ("staged", '"(secret)"')
    (after,) = columns(desk)
    assert sealed_pointers(after["args"]) == ("/card",)
    assert b'"order_id":"o-1"' in after["args"]
    assert rows(desk, "t-1")[0].args == b'{"amount_cents":5,"card":"4111-9f1c7ab3","order_id":"o-1"}'


def test_where_the_manifest_is_at_hand_a_call_is_sealed_as_it_is_staged(desk: Desk, tmp_path: Path) -> None:
    pay = pay_tool(desk, manifest=tmp_path / "pay.json")
    (tmp_path / "pay.json").write_bytes(manifest_json(tool_of(pay).draft_manifest()))
    with desk.step():
        pay("o-1", 5, CARD)
        (staged,) = columns(desk)
        assert sealed_pointers(staged["args"]) == ("/card",)
    assert sealed_pointers(columns(desk)[0]["args"]) == ("/card",)
    assert desk.done == [("pay", "o-1", 5, CARD)]


def test_a_call_without_its_secret_is_in_clear_and_needs_no_key(desk: Desk, tmp_path: Path) -> None:
    pay = pay_tool(desk)
    with without_key(desk, tmp_path) as poor, transaction("t-1", runtime=poor):
        paid = pay("o-1", 5)
    (row,) = columns(desk)
    assert (row["args"], row["result"]) == (b'{"amount_cents":5,"order_id":"o-1"}', b'"paid with None"')
    assert paid.result == "paid with None"


def test_a_manifest_next_to_a_live_tool_that_is_another_lane_s_is_refused(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "remember.json"

    @tool("remember", lane="live", adapter=MemoryAdapter(), resource=("Note", "card"), manifest=path,
          registry=desk.registry)  # fmt: skip
    def remember(card: str) -> None:
        """Remember something."""

    path.write_bytes(manifest_json(tool_of(remember).draft_manifest().model_copy(update={"lane": "staged"})))
    fails(desk, errors.RegistrationError, (remember, CARD), match="live in code")
    assert columns(desk, LIVE_LANE) == []


def test_a_compensation_takes_its_secrets_over_though_its_own_manifest_has_none(desk: Desk) -> None:
    said: list[str] = []

    @tool("void", resource=("Card", "card"), registry=desk.registry)
    def void(card: str, cents: int) -> str:
        """Take it back."""
        said.append(card)
        raise errors.NotDone(f"{card} cannot be given back")

    pay = pay_tool(
        desk, compensate="void", compensation_map={"card": "args:/card", "cents": "args:/amount_cents"}
    )
    desk.publish(void)
    fails = failing_tool(desk, errors.NotDone("mailbox full"), acts=False)
    with pytest.raises(errors.EffectFailed), desk.step():
        pay("o-1", 5, CARD)
        fails("o-1")
    (row,) = columns(desk, COMPENSATE_LANE)
    assert sealed_pointers(row["args"]) == ("/card",)
    assert is_sealed(row["args"])
    assert CARD not in row["resource_id"]
    assert row["error"] == "NotDone"
    (read,) = rows(desk, "t-1", COMPENSATE_LANE)
    assert read.frozen().resource.id == CARD == said[0]
    (reported,) = [
        one
        for one in describe_transaction(desk.runtime.journal, found(desk, "t-1"))["effects"]
        if one["tool"] == "void"
    ]
    assert reported["args"] == f'{{"card":"{HIDDEN}","cents":5}}'


@pytest.mark.parametrize("card", [None, CARD], ids=["none", "some"])
def test_one_row_shows_secrets(desk: Desk, monkeypatch: pytest.MonkeyPatch, card: str | None) -> None:
    """It is asked for each transaction that fails, and there may be many of either."""
    pay, journal = pay_tool(desk), desk.runtime.journal
    read, answered = journal.database.rows, list[Any]()

    def counted(*asked: Any) -> list[Any]:
        answered.extend(found := read(*asked))
        return found

    for key in ("t-1", "t-2"):
        pending = fails(desk, errors.ReviewPending, (pay, "o-1", LARGE, card), key=key)
        desk.service.approve(pending.error.txn)
    with monkeypatch.context() as watched:
        watched.setattr(journal.database, "rows", counted)
        assert journal.transactions.unfinished_has_secrets() is (card is not None)
    assert len(answered) <= 1
    resume(desk.runtime)
    assert not journal.transactions.unfinished_has_secrets(), "what has ended concerns no one"
