"""Journals with seals in use: who refuses without the key, what stays bound, what older journals hold."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from countersign import (
    EffectFailed,
    JournalError,
    JournalSealed,
    LiveCall,
    LiveCommitFailed,
    LiveSession,
    MemoryAdapter,
    NotDone,
    Placeholder,
    Proposal,
    RegistrationError,
    ReviewPending,
    Runtime,
    SQLiteAdapter,
    Usage,
    llm_call,
    replay,
    resume,
    tool,
    transaction,
)
from countersign.cli.app import app
from countersign.commit.firing import FireResult
from countersign.commit.plan import StagedCall
from countersign.contract.states import Outcome
from countersign.contract.wire import EffectView, SubmittedEffect
from countersign.journal import Done, EffectRecord, Journal, News, Report, Staged, TransactionRecord
from countersign.journal.place import JournalPlace, JournalUrl
from countersign.journal.reading import COMPENSATE_LANE, LIVE_LANE
from countersign.journal.sealing import HIDDEN, Seals, is_sealed, sealed_pointers
from countersign.journal.sealing_keys import add_key, read_keys
from countersign.journal.telling import describe, summary
from countersign.journal.verifying import verify
from countersign.live.remains import Recovered, recover
from countersign.live.work import CommitFailed, LiveWork
from countersign.manifests.drafting import manifest_json
from countersign.rehearsal.divergences import CallNow
from countersign.rehearsal.recorded import RecordedCall
from countersign.rehearsal.replayed import ReplayedCall
from countersign.tools.tool import tool_of
from tests.fakes.desk import (
    Desk,
    changed,
    charge_tools,
    failing_tool,
    make_desk,
    make_runtime,
    notes_database,
    notes_in,
    refund_tool,
)
from tests.fakes.llm_answers import ANTHROPIC
from tests.unit.sdk.journals import BOTH

CARD, LARGE = "4111-9f1c7ab3", 90_000
Pay = Callable[..., Placeholder[str]]


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    add_key(path)
    return path


@pytest.fixture
def desk(tmp_path: Path, place: JournalPlace, keys: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = make_desk(tmp_path, journal_path=place, journal_key_path=keys)
    yield made
    there = made.runtime.journal.database.is_there()
    made.runtime.close()
    if there:
        _verified(place, request)


def _verified(place: JournalPlace, request: pytest.FixtureRequest) -> None:
    """Without any key."""
    assert verify(place).sound is (request.node.get_closest_marker("tampers") is None)


def pay_tool(desk: Desk, **options: Any) -> Pay:
    said = {"secret": ["card"]} | options

    @tool("pay", resource=("Order", "order_id"), registry=desk.registry, **said)
    def pay(order_id: str, amount_cents: int, card: str | None = None) -> str:
        """Pay an order."""
        desk.act("pay", order_id, amount_cents, card)
        return f"paid with {card}"

    desk.publish(pay)
    return pay


def without_key(desk: Desk, tmp_path: Path) -> Runtime:
    """Another host, to which nobody gave the key."""
    settings = replace(desk.runtime.settings, journal_key_path=tmp_path / "nobody put it here")
    return make_runtime(settings, desk.face, desk.registry, desk.clock)


def columns(desk: Desk, lane: str = "staged") -> list[dict[str, Any]]:
    rows = desk.runtime.journal.database.rows(
        "SELECT * FROM effects WHERE lane = ? ORDER BY txn, staging, seq", (lane,)
    )
    return [{name: row[name] for name in row.keys()} for row in rows]  # noqa: SIM118 - a row is no dict


def found(desk: Desk, key: str) -> TransactionRecord:
    (record,) = desk.runtime.journal.transactions.find(key)
    return record


def rows(desk: Desk, key: str, lane: str = "staged") -> tuple[EffectRecord, ...]:
    return desk.runtime.journal.transactions.effects(found(desk, key), lane)


# ----------------------------------------------------------------------------------------------- when it is sealed


def test_before_anybody_has_said_what_is_secret_no_argument_is_written(desk: Desk) -> None:
    """The reviewed manifest lies with the service alone, and is asked for when the list is frozen."""
    pay = pay_tool(desk, secret=[])
    desk.publish(pay, secret=("/card",))  # the code does not call it secret
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
        (before,) = columns(desk)
        assert before["args"] == b""
        assert describe(desk.runtime.journal, found(desk, "t-1"))["effects"] == []
    (after,) = columns(desk)
    assert sealed_pointers(after["args"]) == ("/card",)
    assert b'"order_id":"o-1"' in after["args"]
    assert rows(desk, "t-1")[0].args == b'{"amount_cents":5,"card":"4111-9f1c7ab3","order_id":"o-1"}'


def test_where_the_manifest_is_at_hand_a_call_is_sealed_as_it_is_staged(desk: Desk, tmp_path: Path) -> None:
    pay = pay_tool(desk, manifest=tmp_path / "pay.json")
    (tmp_path / "pay.json").write_bytes(manifest_json(tool_of(pay).draft_manifest()))
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
        (staged,) = columns(desk)
        assert sealed_pointers(staged["args"]) == ("/card",)
    assert sealed_pointers(columns(desk)[0]["args"]) == ("/card",)
    assert desk.done == [("pay", "o-1", 5, CARD)]


def test_what_only_the_code_calls_secret_is_sealed_where_it_is_staged_and_stays_so(
    desk: Desk, tmp_path: Path
) -> None:
    pay = pay_tool(desk, manifest=tmp_path / "pay.json", secret=["card", "order_id"])
    reviewed = tool_of(pay).draft_manifest().model_copy(update={"secret": ()})
    (tmp_path / "pay.json").write_bytes(manifest_json(reviewed))
    desk.service.review([reviewed])
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    (row,) = columns(desk)
    assert set(sealed_pointers(row["args"])) == {"/card", "/order_id"}
    assert "o-1" not in row["resource_id"]
    assert rows(desk, "t-1")[0].frozen().resource.id == "o-1"


def test_a_call_without_its_secret_is_in_clear_with_its_result_and_needs_no_key(
    desk: Desk, tmp_path: Path
) -> None:
    pay = pay_tool(desk)
    with without_key(desk, tmp_path) as poor, transaction("t-1", runtime=poor):
        paid = pay("o-1", 5)
    (row,) = columns(desk)
    assert (row["args"], row["result"]) == (b'{"amount_cents":5,"order_id":"o-1"}', b'"paid with None"')
    assert paid.result == "paid with None"


def test_a_tool_without_secrets_needs_no_key_and_leaves_no_key_file(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    pay = pay_tool(desk, secret=[])
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    desk.runtime.close()
    assert list(tmp_path.glob("*.key")) == []


def test_the_key_beside_a_journal_file_is_made_with_the_first_secret(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    pay = pay_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    assert len(read_keys(tmp_path / "journal.db.key")) == 1
    with desk.restarted() as later, transaction("t-1", runtime=later.runtime) as again:
        paid = pay("o-1", 5, CARD)
    assert (again.replayed, paid.result) == (True, f"paid with {CARD}")
    desk.runtime.close()


@pytest.mark.parametrize("by", ["the code", "a manifest beside it"])
def test_a_live_call_is_sealed_by_what_its_code_or_a_manifest_beside_it_says(
    desk: Desk, tmp_path: Path, by: str
) -> None:
    """It runs before anybody reviews it."""
    path = tmp_path / "remember.json"

    @tool(
        "remember",
        lane="live",
        adapter=MemoryAdapter(),
        resource=("Note", "where"),
        registry=desk.registry,
        secret=["card"] if by == "the code" else [],
        manifest=None if by == "the code" else path,
    )
    def remember(where: str, card: str) -> None:
        """Remember something."""

    if by != "the code":
        draft = tool_of(remember).draft_manifest()
        path.write_bytes(manifest_json(draft.model_copy(update={"secret": ("/card",)})))
    with transaction("t-1", runtime=desk.runtime):
        remember("here", CARD)
    (row,) = columns(desk, LIVE_LANE)
    assert sealed_pointers(row["args"]) == ("/card",)
    (told,) = describe(desk.runtime.journal, found(desk, "t-1"))["effects"]
    assert told["args"] == f'{{"card":"{HIDDEN}","where":"here"}}'
    assert rows(desk, "t-1", LIVE_LANE)[0].args == b'{"card":"4111-9f1c7ab3","where":"here"}'


def test_a_manifest_beside_a_live_tool_that_is_another_lane_s_is_refused(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "remember.json"

    @tool("remember", lane="live", adapter=MemoryAdapter(), resource=("Note", "card"), manifest=path,
          registry=desk.registry)  # fmt: skip
    def remember(card: str) -> None:
        """Remember something."""

    path.write_bytes(manifest_json(tool_of(remember).draft_manifest().model_copy(update={"lane": "staged"})))
    with pytest.raises(RegistrationError, match="live in code"), transaction("t-1", runtime=desk.runtime):
        remember(CARD)
    assert columns(desk, LIVE_LANE) == []


def test_a_compensation_takes_its_secrets_over_though_its_own_manifest_has_none(desk: Desk) -> None:
    said: list[str] = []

    @tool("void", resource=("Card", "card"), registry=desk.registry)
    def void(card: str, cents: int) -> str:
        """Take it back."""
        said.append(card)
        raise NotDone(f"{card} cannot be given back")

    pay = pay_tool(
        desk, compensate="void", compensation_map={"card": "args:/card", "cents": "args:/amount_cents"}
    )
    desk.publish(void)
    fails = failing_tool(desk, NotDone("mailbox full"), acts=False)
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
        fails("o-1")
    (row,) = columns(desk, COMPENSATE_LANE)
    assert sealed_pointers(row["args"]) == ("/card",)
    assert is_sealed(row["args"])
    assert CARD not in row["resource_id"]
    assert row["error"] == "NotDone"
    (read,) = rows(desk, "t-1", COMPENSATE_LANE)
    assert read.frozen().resource.id == CARD == said[0]
    (told,) = [
        one for one in describe(desk.runtime.journal, found(desk, "t-1"))["effects"] if one["tool"] == "void"
    ]
    assert told["args"] == f'{{"card":"{HIDDEN}","cents":5}}'


def test_a_compensation_has_secrets_of_its_own(desk: Desk) -> None:
    charge, fails = charge_tools(desk), failing_tool(desk, NotDone("mailbox full"), acts=False)
    desk.service.review([changed(desk.service.manifests["void"], secret=("/charge_id",))])
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        charge("o-1", 5)
        fails("o-1")
    (row,) = columns(desk, COMPENSATE_LANE)
    assert sealed_pointers(row["args"]) == ("/charge_id",)
    assert ("void", "c-o-1", 5) in desk.done


def test_a_compensation_of_a_call_without_secrets_is_in_clear(desk: Desk) -> None:
    charge, fails = charge_tools(desk), failing_tool(desk, NotDone("mailbox full"), acts=False)
    with (
        pytest.raises(EffectFailed, match="mailbox full") as failed,
        transaction("t-1", runtime=desk.runtime),
    ):
        charge("o-1", 5)
        fails("o-1")
    assert isinstance(failed.value.__cause__, NotDone)
    (row,) = columns(desk, COMPENSATE_LANE)
    assert row["args"] == b'{"amount_cents":5,"charge_id":"c-o-1"}'


# -------------------------------------------------------------------------------------------- without the key


def parked(desk: Desk, pay: Pay) -> str:
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
        pay("o-1", LARGE, CARD)
    desk.service.approve(pending.value.txn)
    return pending.value.txn


def test_recovery_without_the_key_fires_nothing_names_the_setting_and_goes_on_with_it(
    desk: Desk, tmp_path: Path
) -> None:
    parked(desk, pay_tool(desk))
    with without_key(desk, tmp_path) as poor:
        (seen,) = resume(poor)
        assert "COUNTERSIGN_JOURNAL_KEY" in seen.note
        assert (seen.before, seen.after, desk.done) == ("review", "review", [])
    with desk.another_process() as rich:
        (seen,) = resume(rich)
    assert (seen.after, desk.done) == ("settled", [("pay", "o-1", LARGE, CARD)])


def test_the_trouble_of_one_transaction_keeps_no_other_waiting(desk: Desk, tmp_path: Path) -> None:
    parked(desk, pay_tool(desk))
    plain = failing_tool(desk, NotDone("no"), acts=False)
    desk.publish(plain)
    with pytest.raises(ReviewPending) as pending, transaction("t-2", runtime=desk.runtime):
        charge_tools(desk)("o-2", LARGE)
    desk.service.approve(pending.value.txn)
    with without_key(desk, tmp_path) as poor:
        assert [one.after for one in resume(poor)] == ["review", "settled"]
    assert desk.done == [("charge", "o-2", LARGE)]


def test_a_rerun_without_the_key_asks_nobody_and_fires_nothing(desk: Desk, tmp_path: Path) -> None:
    pay = pay_tool(desk)
    asked = len(desk.face.log)
    with without_key(desk, tmp_path) as poor:
        with pytest.raises(JournalSealed, match="COUNTERSIGN_JOURNAL_KEY"), transaction("t-1", runtime=poor):
            pay("o-1", 5, CARD)
        assert poor.journal.transactions.require(found(desk, "t-1").txn).staging is None
    assert desk.done == []
    assert not any("transactions" in str(one) for one in desk.face.log[asked:])
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    assert desk.done == [("pay", "o-1", 5, CARD)]


def test_a_second_run_without_the_key_reads_no_results(desk: Desk, tmp_path: Path) -> None:
    pay = pay_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    with (
        without_key(desk, tmp_path) as poor,
        pytest.raises(JournalSealed),
        transaction("t-1", runtime=poor),
    ):
        pay("o-1", 5, CARD)
    assert len(desk.done) == 1


def test_a_replay_without_the_key_is_refused_and_with_a_wrong_one_too(
    desk: Desk, tmp_path: Path, keys: Path
) -> None:
    pay = pay_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    other = tmp_path / "other keys"
    add_key(other)
    for path in (tmp_path / "missing", other):
        settings = replace(desk.runtime.settings, journal_key_path=path)
        with (
            make_runtime(settings, desk.face, desk.registry, desk.clock) as poor,
            pytest.raises(JournalSealed, match=read_keys(keys)[0].id),
        ):
            replay("t-1", lambda _: pay("o-1", 5, CARD), runtime=poor)
    assert replay("t-1", lambda _: pay("o-1", 5, CARD), runtime=desk.runtime).status == "same"


def test_a_replay_of_another_journal_takes_the_key_from_the_environment(
    desk: Desk, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = pay_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    place = desk.runtime.settings.journal_path
    step = lambda _: pay("o-1", 5, CARD)  # noqa: E731
    monkeypatch.delenv("COUNTERSIGN_JOURNAL_KEY", raising=False)
    with pytest.raises(JournalSealed):
        replay("t-1", step, journal=place)
    monkeypatch.setenv("COUNTERSIGN_JOURNAL_KEY", str(keys))
    assert replay("t-1", step, journal=place).outcomes[0].result == f"paid with {CARD}"


def test_whoever_reads_needs_no_key(desk: Desk) -> None:
    pay = pay_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    reader = Journal(desk.runtime.settings.journal_path, key_path=desk.folder / "missing")
    (record,) = reader.transactions.find("t-1")
    assert summary(reader, record)["effects"] == "pay fired"
    (told,) = describe(reader, record)["effects"]
    assert told["args"] == f'{{"amount_cents":5,"card":"{HIDDEN}","order_id":"o-1"}}'
    assert told["result"] == HIDDEN
    with pytest.raises(JournalSealed):
        reader.transactions.effects(record)
    reader.close()


def test_what_is_still_to_be_reported_is_counted_without_the_key_and_sent_only_with_it(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @tool("void", resource=("Payment", "payment"), registry=desk.registry)
    def void(payment: str) -> None:
        """Take it back."""

    pay = pay_tool(desk, compensate="void", compensation_map={"payment": "result:"})
    desk.publish(void)
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 99
    with transaction("t-1", runtime=desk.runtime):
        pay("o-1", 5, CARD)
    reader = Journal(desk.runtime.settings.journal_path, key_path=tmp_path / "missing")
    record = found(desk, "t-1")
    assert describe(reader, record)["unreported"] == 1
    (pending,) = reader.outbox.pending()
    with pytest.raises(JournalSealed):
        reader.outbox.opened(pending)
    reader.close()
    report = desk.runtime.journal.outbox.opened(pending)
    assert report.result == f'"paid with {CARD}"'.encode()
    assert CARD not in repr(report)
    desk.face.faults.clear()
    refund = refund_tool(desk)
    with without_key(desk, tmp_path) as poor:
        with transaction("t-2", runtime=poor):  # a report that it cannot read keeps it from nothing else
            refund("o-2", 5)
        assert "COUNTERSIGN_JOURNAL_KEY" in caplog.text
        resume(poor)
    assert [one.txn for one in desk.runtime.journal.outbox.pending()] == [record.txn]
    assert desk.done[-1] == ("refund", "o-2", 5)
    resume(desk.runtime)
    assert desk.runtime.journal.outbox.pending() == []


# ---------------------------------------------------------------------------------------------- what is bound


def tampered(desk: Desk, sql: str, *parameters: Any) -> None:
    with desk.runtime.journal.database.unit(durable=True) as unit:
        assert unit.execute(sql, parameters).rowcount == 1


@pytest.mark.tampers
@pytest.mark.parametrize("what", ["the seal of another transaction", "another argument", "a seal of zeros"])
def test_a_changed_row_fires_nothing(desk: Desk, what: str) -> None:
    pay = pay_tool(desk)
    txn = parked(desk, pay)
    with pytest.raises(ReviewPending) as other, transaction("t-2", runtime=desk.runtime):
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
    assert "is damaged" in notes[txn]
    assert desk.done == []
    assert not verify(desk.runtime.settings.journal_path).sound


@pytest.mark.tampers
def test_a_result_of_another_effect_is_damage(desk: Desk) -> None:
    pay = pay_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
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
    with transaction("t-1", runtime=desk.runtime):
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
    with pytest.raises(ReviewPending), transaction("t-1", runtime=desk.runtime):
        pay("o-1", LARGE, CARD)
    first = found(desk, "t-1")
    with pytest.raises(ReviewPending), transaction("t-1", runtime=desk.runtime):
        pay("o-1", LARGE, CARD)
    again = found(desk, "t-1")
    assert (again.staging, again.attempt_id, again.txn_digest) == (2, first.attempt_id, first.txn_digest)
    one, two = columns(desk)
    assert one["args"] != two["args"]
    assert (one["staged_args"], two["staged_args"]) == (None, None)


def test_an_edit_keeps_what_was_staged_beside_it_both_sealed(desk: Desk) -> None:
    pay = pay_tool(desk)
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
        pay("o-1", LARGE, CARD)
    for cents in (LARGE - 1, LARGE - 2):
        edited = {"order_id": "o-1", "amount_cents": cents, "card": CARD}
        desk.service.edit(pending.value.txn, 0, edited)
        with pytest.raises(ReviewPending), transaction("t-1", runtime=desk.runtime, accept_edits=True):
            pay("o-1", LARGE, CARD)
    row = columns(desk)[-1]
    assert [sealed_pointers(row[name]) for name in ("args", "staged_args")] == [("/card",), ("/card",)]
    (read,) = rows(desk, "t-1")
    assert read.args == b'{"amount_cents":89998,"card":"4111-9f1c7ab3","order_id":"o-1"}'
    assert read.staged_args == b'{"amount_cents":90000,"card":"4111-9f1c7ab3","order_id":"o-1"}'


# ------------------------------------------------------------------------------------------------ older journals


def test_a_journal_from_before_seals_is_read_and_is_sealed_at_its_first_write(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pay = pay_tool(desk)
    with monkeypatch.context() as before:
        before.setattr(Seals, "seal", lambda self, unit, about, raw, pointers: raw)
        with transaction("old", runtime=desk.runtime):
            pay("o-1", 5, CARD)
        parked(desk, pay)
    assert [is_sealed(row["args"]) for row in columns(desk)] == [False, False]
    (told,) = describe(desk.runtime.journal, found(desk, "old"))["effects"]
    assert (told["result"], CARD in told["args"]) == (HIDDEN, False)
    with without_key(desk, tmp_path) as poor:  # what was never sealed needs no key
        (seen,) = resume(poor)
        assert seen.after == "settled"
    with transaction("old", runtime=desk.runtime) as again:
        paid = pay("o-1", 5, CARD)
    assert (again.replayed, paid.result) == (True, f"paid with {CARD}")
    with transaction("new", runtime=desk.runtime):
        pay("o-2", 5, CARD)
    assert [is_sealed(row["args"]) for row in columns(desk) if row["txn"] == found(desk, "new").txn] == [True]


def test_an_edit_seals_a_row_that_was_written_in_clear(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pay = pay_tool(desk)
    with monkeypatch.context() as before:
        before.setattr(Seals, "seal", lambda self, unit, about, raw, pointers: raw)
        with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
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


# ------------------------------------------------------------------------------------------------- what is shown


def test_a_dry_run_does_not_tell_what_would_be_written_with_a_secret(desk: Desk) -> None:
    notes, other = MemoryAdapter(name="notes"), MemoryAdapter(name="other")

    @tool("keep", lane="live", adapter=notes, secret=["token"], registry=desk.registry)
    def keep(name: str, token: str) -> None:
        """Keep a token."""
        notes[name] = token

    @tool("remark", lane="live", adapter=other, registry=desk.registry)
    def remark(name: str, text: str) -> None:
        """Keep a remark."""
        other[name] = text

    with transaction("t-0", runtime=desk.runtime):
        keep("old", CARD)
    with transaction("t-1", dry_run=True, runtime=desk.runtime) as txn:
        keep("old", f"{CARD}-2")
        keep("new", CARD)
        remark("why", "because")
    told = {one.adapter: one.changes for one in txn.result.changes}
    assert {one.key: (one.before, one.after) for one in told["notes"] or ()} == {
        "old": (HIDDEN, HIDDEN),
        "new": (None, HIDDEN),
    }
    assert [one.after for one in told["other"] or ()] == ["because"]
    assert CARD not in f"{txn.result}{txn.result!r}{txn.result.to_json()}"


def test_show_checks_a_sealed_row_where_the_key_is_named(
    desk: Desk, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction("t-1", runtime=desk.runtime):
        pay_tool(desk)("o-1", 5, CARD)
    place = desk.runtime.settings.journal_path
    named = place.secret if isinstance(place, JournalUrl) else str(place)
    (row,) = columns(desk)
    forged = row["args"].replace(b'"o-1"', b'"o-9"')
    tampered(desk, "UPDATE effects SET args = ?", forged)
    show = ["journal", "show", "t-1", "--journal", named]
    monkeypatch.delenv("COUNTERSIGN_JOURNAL_KEY", raising=False)
    assert (
        "o-9" in CliRunner().invoke(app, show, env={"COLUMNS": "250"}).output
    )  # `verify` tells, without any key
    assert CliRunner().invoke(app, ["journal", "verify", "--journal", named]).exit_code == 1
    monkeypatch.setenv("COUNTERSIGN_JOURNAL_KEY", str(keys))
    told = CliRunner().invoke(app, show)
    assert (told.exit_code, "is damaged" in told.output) == (1, True)
    tampered(desk, "UPDATE effects SET args = ?", row["args"])


ARGS = {"card": CARD}
RAW = json.dumps(ARGS).encode()
SHOWN: dict[str, object] = {
    "staged for the journal": Staged("e", "k", "pay", RAW, "staged", 1, ()),
    "an outcome": Done("e", Outcome.FIRED, "a", result=RAW),
    "news": News("e", (), settlements=RAW, result=RAW),
    "a report": Report(1, "t", "a", "e", "fired", RAW, None),
    "a call of a replay": CallNow("pay", "k", RAW, ()),
    "a live call": LiveCall("pay", ARGS, "e"),
    "a proposal": Proposal("p", "pay", "e", dict(ARGS), dict(ARGS), "why", "p", "Maya"),
    "an effect on the wire": EffectView.model_construct(tool="pay", args=ARGS),
    "a submission": SubmittedEffect.model_construct(tool="pay", args=ARGS),
    "a run": FireResult(results={"e": CARD}),
    "what a model said": Usage(provider=None, model="m", reasoning=CARD),
    "a call of a record": RecordedCall.model_construct(tool="pay", opened=CARD),
    "a replayed call": ReplayedCall("staged", 1, "pay", "e", "{}", "fired", CARD, HIDDEN, None),
}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
def test_no_value_of_ours_shows_arguments_by_its_repr(shown: object) -> None:
    """A failed assertion, a log line or a debugger prints it."""
    assert CARD not in f"{shown!r}{shown}"


def test_a_staged_call_shows_none_either(desk: Desk) -> None:
    call = StagedCall.of("t" * 64, tool_of(pay_tool(desk)), RAW, 0, "c" * 64, 0, None)
    assert CARD not in repr(call)


class Stubborn(SQLiteAdapter):
    """A database that says at the commit what it does not like, with the values, as some do."""

    def begin(self, txn: str) -> LiveSession:
        session = super().begin(txn)

        def refuse(attempt_id: str) -> None:
            session.undo()
            raise ValueError(f"key (card)=({CARD}) is there already")

        session.commit = refuse  # type: ignore[method-assign]
        return session


def remember_tool(desk: Desk, adapter: SQLiteAdapter, **options: Any) -> Callable[[str, str], None]:
    @tool("remember", lane="live", adapter=adapter, registry=desk.registry, **options)
    def remember(order_id: str, card: str) -> None:
        """Remember something."""
        adapter.connection.execute("INSERT INTO notes VALUES (?, 'ok')", (order_id,))

    return remember


@pytest.mark.parametrize("beside", ["nothing", "a charge"])
def test_what_a_database_says_against_a_commit_is_not_told_where_it_was_given_a_secret(
    desk: Desk, beside: str
) -> None:
    notes = notes_database(desk.folder)
    remember, charge = remember_tool(desk, Stubborn(notes), secret=["card"]), charge_tools(desk)
    with (
        pytest.raises(LiveCommitFailed, match="ValueError") as failed,
        transaction("t-1", runtime=desk.runtime),
    ):
        remember("o-1", CARD)
        if beside == "a charge":
            charge("o-1", 5)
    assert CARD not in "".join(traceback.format_exception(failed.value))
    assert CARD not in str(found(desk, "t-1").note)
    assert notes_in(notes) == []


def test_what_it_says_is_told_where_it_was_given_none(desk: Desk) -> None:
    remember = remember_tool(desk, Stubborn(notes_database(desk.folder)))
    with pytest.raises(LiveCommitFailed, match=CARD) as failed, transaction("t-1", runtime=desk.runtime):
        remember("o-1", CARD)
    assert isinstance(failed.value.__cause__, ValueError)


def test_recovery_knows_which_adapters_were_given_secrets_and_needs_no_key_for_that(
    desk: Desk, tmp_path: Path
) -> None:
    adapter = Stubborn(notes_database(desk.folder))
    remember = remember_tool(desk, adapter, secret=["card"])
    with pytest.raises(LiveCommitFailed), transaction("t-1", runtime=desk.runtime):
        remember("o-1", CARD)
    with without_key(desk, tmp_path) as poor:
        assert recover(poor.engine(poor.sync_waits()), found(desk, "t-1")).given_secrets == {adapter.name}
    live = LiveWork("t")
    live.adopt(Recovered({adapter.name: (adapter, adapter.begin("t"))}, {}, frozenset({adapter.name})))
    with pytest.raises(CommitFailed) as failed:
        live.commit("attempt")
    assert str(failed.value) == "ValueError"


def test_a_model_is_not_asked_where_its_reasoning_could_not_be_sealed(desk: Desk, tmp_path: Path) -> None:
    asked: list[str] = []
    with without_key(desk, tmp_path) as poor:
        with pytest.raises(JournalSealed, match="COUNTERSIGN_JOURNAL_KEY"):  # noqa: SIM117 - the call is the block
            with llm_call("m", reasoning=True, runtime=poor):
                asked.append("m")
        assert (asked, poor.journal.spending.calls(9)) == ([], [])
        with llm_call("m", runtime=poor) as call:
            call.record(ANTHROPIC)
    assert [row["state"] for row in desk.runtime.journal.spending.calls(9)] == ["done"]


def test_only_what_the_service_may_still_take_is_counted_as_unreported(desk: Desk) -> None:
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 99
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime) as txn:
        refund("o-1", 5)
        refund("o-2", 5)
    outbox = desk.runtime.journal.outbox
    assert outbox.count(txn.txn) == 2
    assert outbox.count("another") == 0
    outbox.refused(outbox.pending()[:1], "it knows better")
    assert outbox.count(txn.txn) == 1
    outbox.reported(outbox.pending())
    assert outbox.count(txn.txn) == 0
