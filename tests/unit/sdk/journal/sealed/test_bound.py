"""What is sealed and when, what a seal binds, and journals from before there were any."""

from contextlib import contextmanager

import pytest

from countersign import errors, resume, tool
from countersign.journal.export import describe_transaction
from countersign.journal.records import COMPENSATE_LANE
from countersign.journal.sealing import Seals, is_sealed, sealed_pointers
from countersign.journal.shown import HIDDEN
from countersign.journal.verification import verify
from countersign.manifests.drafts import manifest_json
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, charge_tools
from tests.fakes.running import fails, refusing_tool, run
from tests.unit.sdk.paying import CARD, LARGE, columns, found, parked, pay_tool, rows, tampered, without_key

FORGED = {
    "the seal of another transaction": lambda mine, others: others,
    "another argument": lambda mine, others: mine.replace(b"90000", b"90001"),
    "a seal of zeros": lambda mine, others: mine[:-40] + b"A" * 20 + mine[-20:],
}


@pytest.mark.tampers
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_changed_row_fires_nothing(desk: Desk, forge) -> None:
    pay = pay_tool(desk)
    txn = parked(desk, pay)
    other = fails(desk, errors.ReviewPending, (pay, "o-1", LARGE, "another card"), key="t-2").error.txn
    args = {row["txn"]: row["args"] for row in columns(desk)}
    forged = forge(args[txn], args[other])
    assert forged != args[txn]
    tampered(desk, "UPDATE effects SET args = ? WHERE txn = ?", forged, txn)
    with desk.another_process() as later:
        notes = {one.txn: one.note for one in resume(later)}
        with pytest.raises(errors.JournalError, match="is damaged"):  # by itself, for any reader
            later.journal.transactions.effects(later.journal.transactions.require(txn))
    assert "is not as the SDK wrote it" in notes[txn]  # by its chain, before anything is done with it
    assert (desk.done, verify(desk.runtime.settings.journal_path).sound) == ([], False)


@pytest.mark.tampers
def test_a_changed_report_is_not_sent(desk: Desk) -> None:
    charge_tools(desk)
    mapped = {"charge_id": "result:", "amount_cents": "args:/amount_cents"}
    pay, outbox = pay_tool(desk, compensate="void", compensation_map=mapped), desk.runtime.journal.outbox
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 99
    run(desk, (pay, "o-1", 5, CARD))
    tampered(desk, "UPDATE outbox SET result = ?", columns(desk)[0]["result"])  # sealed for another column
    (pending,) = outbox.pending()
    desk.face.faults.clear()
    for send in (lambda: outbox.opened(pending), lambda: resume(desk.runtime)):
        with pytest.raises(errors.JournalError, match="is not sent"):
            send()


def test_two_seals_of_one_list_are_one_list(desk: Desk) -> None:
    """A rerun seals anew; the attempt stays that of the list, so a lost redemption is found."""
    pay, records = pay_tool(desk), []
    for _ in range(2):
        fails(desk, errors.ReviewPending, (pay, "o-1", LARGE, CARD))
        records.append(found(desk, "t-1"))
    first, again = records
    assert (again.staging, again.attempt_id, again.txn_digest) == (2, first.attempt_id, first.txn_digest)
    one, two = columns(desk)
    assert one["args"] != two["args"] and (one["staged_args"], two["staged_args"]) == (None, None)


@contextmanager
def unsealed():
    """As it was before there were seals."""
    with pytest.MonkeyPatch.context() as before:
        before.setattr(Seals, "seal", lambda self, unit, about, raw, pointers: raw)
        yield


def test_a_journal_without_seals_is_read(desk: Desk, tmp_path) -> None:
    pay = pay_tool(desk)
    with unsealed():
        run(desk, (pay, "o-1", 5, CARD), key="old")
        parked(desk, pay)
    assert [is_sealed(row["args"]) for row in columns(desk)] == [False, False]
    (reported,) = describe_transaction(desk.runtime.journal, found(desk, "old"))["effects"]
    assert (reported["result"], CARD in reported["args"]) == (HIDDEN, False)
    with without_key(desk, tmp_path) as poor:  # what was never sealed needs no key
        assert [one.after for one in resume(poor)] == ["settled"]
    again = run(desk, (pay, "o-1", 5, CARD), key="old")
    assert (again.txn.replayed, again.placed[0].result) == (True, f"paid with {CARD}")
    new = run(desk, (pay, "o-2", 5, CARD), key="new").txn.txn
    assert [is_sealed(row["args"]) for row in columns(desk) if row["txn"] == new] == [True]


def test_an_edit_seals_a_row_that_was_written_in_clear(desk: Desk) -> None:
    pay = pay_tool(desk)
    with unsealed():
        txn = fails(desk, errors.ReviewPending, (pay, "o-1", LARGE, CARD)).error.txn
    assert not is_sealed(columns(desk)[0]["args"])
    desk.runtime.journal.edits.keep(txn, every=True)
    for cents in (LARGE - 1, LARGE - 2):
        desk.service.edit(txn, 0, {"order_id": "o-1", "amount_cents": cents, "card": CARD})
        resume(desk.runtime)
        (row,), (read,) = columns(desk), rows(desk, "t-1")
        assert is_sealed(row["args"]) and is_sealed(row["staged_args"])
        assert f'"amount_cents":{cents}'.encode() in read.args
        assert b'"amount_cents":90000' in (read.staged_args or b"")


# --------------------------------------------------------------------------------- what is sealed, and when


def test_no_argument_is_written_before_its_secrets_are_known(desk: Desk) -> None:
    """The service alone has the reviewed manifest, and it is read when the list is frozen."""
    pay = pay_tool(desk, secret=[])
    desk.publish(pay, secret=("/card",))  # the code does not call it secret
    with desk.step():
        pay("o-1", 5, CARD)
        assert [row["args"] for row in columns(desk)] == [b""]
        (shown,) = describe_transaction(desk.runtime.journal, found(desk, "t-1"))["effects"]
        assert (shown["state"], shown["args"]) == ("staged", '"(secret)"')
    (after,) = columns(desk)
    assert sealed_pointers(after["args"]) == ("/card",) and b'"order_id":"o-1"' in after["args"]
    assert rows(desk, "t-1")[0].args == b'{"amount_cents":5,"card":"4111-9f1c7ab3","order_id":"o-1"}'


def test_a_call_with_a_manifest_is_sealed_as_it_is_staged(desk: Desk, tmp_path) -> None:
    pay = pay_tool(desk, manifest=tmp_path / "pay.json")
    (tmp_path / "pay.json").write_bytes(manifest_json(tool_of(pay).draft_manifest()))
    with desk.step():
        pay("o-1", 5, CARD)
        assert sealed_pointers(columns(desk)[0]["args"]) == ("/card",)
    assert sealed_pointers(columns(desk)[0]["args"]) == ("/card",)
    assert desk.done == [("pay", "o-1", 5, CARD)]


def test_a_compensation_inherits_the_secrets_of_its_call(desk: Desk) -> None:
    given: list[str] = []

    @tool("void", resource=("Card", "card"), registry=desk.registry)
    def void(card: str, cents: int) -> str:
        """Take it back."""
        given.append(card)
        raise errors.NotDone(f"{card} cannot be given back")

    mapped = {"card": "args:/card", "cents": "args:/amount_cents"}
    pay = pay_tool(desk, compensate="void", compensation_map=mapped)
    desk.publish(void)
    fails(desk, errors.EffectFailed, (pay, "o-1", 5, CARD), (refusing_tool(desk, "mailbox full"), "o-1"))
    (row,), (read,) = columns(desk, COMPENSATE_LANE), rows(desk, "t-1", COMPENSATE_LANE)
    assert sealed_pointers(row["args"]) == ("/card",) and is_sealed(row["args"])
    assert (CARD in row["resource_id"], row["error"]) == (False, "NotDone")
    assert read.frozen().resource.id == CARD == given[0]
    shown = describe_transaction(desk.runtime.journal, found(desk, "t-1"))["effects"]
    voided = [one["args"] for one in shown if one["tool"] == "void"]
    assert voided == [f'{{"card":"{HIDDEN}","cents":5}}']


@pytest.mark.parametrize("card", [None, CARD], ids=["none", "some"])
def test_one_row_shows_secrets(desk: Desk, monkeypatch, card: str | None) -> None:
    """It is asked for each transaction that fails, and there may be many of either."""
    pay, journal = pay_tool(desk), desk.runtime.journal
    read, answered = journal.database.rows, []
    for key in ("t-1", "t-2"):
        desk.service.approve(fails(desk, errors.ReviewPending, (pay, "o-1", LARGE, card), key=key).error.txn)
    with monkeypatch.context() as watched:
        watched.setattr(journal.database, "rows", lambda *asked: answered.extend(got := read(*asked)) or got)
        assert journal.transactions.unfinished_has_secrets() is (card is not None)
    assert len(answered) <= 1
    resume(desk.runtime)
    assert not journal.transactions.unfinished_has_secrets(), "what has ended concerns no one"
