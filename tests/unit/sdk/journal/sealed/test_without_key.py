"""What is secret in a journal, for those who have not its key or only look."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from countersign import SQLiteAdapter, errors, llm_call, replay, resume, tool, transaction
from countersign.adapters import LiveCall
from countersign.adapters.sqlite import SQLiteSession
from countersign.commit.executor import ExecutionResult
from countersign.commit.plan import StagedCall
from countersign.contract.states import Outcome
from countersign.contract.wire import EffectView, SubmittedEffect
from countersign.errors import JournalSealed
from countersign.errors.pending import Proposal
from countersign.journal import EffectOutcome, Journal, RemoteOutcome, Report, StagedRow
from countersign.journal.export import describe_transaction
from countersign.journal.sealing_keys import add_key, read_keys
from countersign.journal.shown import HIDDEN
from countersign.live.sessions import AdapterCommitError, AdapterRecovery
from countersign.live.work import LiveWork, recover_sessions
from countersign.llm.usage import Usage
from countersign.simulation.recording import RecordedCall
from countersign.simulation.replay_report import ReplayCall, ReplayedCall
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, make_runtime, notes_database
from tests.fakes.llm_answers import ANTHROPIC
from tests.fakes.running import fails, run
from tests.unit.sdk.journals import journal_command
from tests.unit.sdk.paying import CARD, LARGE, columns, found, paid, parked, pay_tool, tampered, without_key


def test_recovery_without_the_key_fires_nothing_and_names_the_setting(desk: Desk, tmp_path) -> None:
    parked(desk, pay_tool(desk))
    with without_key(desk, tmp_path) as poor:
        (seen,) = resume(poor)
    assert "COUNTERSIGN_JOURNAL_KEY" in seen.note
    assert (seen.before, seen.after, desk.done) == ("review", "review", [])
    with desk.another_process() as rich:
        (seen,) = resume(rich)
    assert (seen.after, desk.done) == ("settled", [("pay", "o-1", LARGE, CARD)])


def test_a_rerun_without_the_key_submits_and_fires_nothing(desk: Desk, tmp_path) -> None:
    pay, asked = pay_tool(desk), len(desk.face.log)
    refused = pytest.raises(JournalSealed, match="COUNTERSIGN_JOURNAL_KEY")
    with without_key(desk, tmp_path) as poor:
        with refused, transaction("t-1", runtime=poor):
            pay("o-1", 5, CARD)
        assert poor.journal.transactions.require(found(desk, "t-1").txn).staging is None
    assert desk.done == [] and not any("transactions" in str(one) for one in desk.face.log[asked:])
    run(desk, (pay, "o-1", 5, CARD))
    assert desk.done == [("pay", "o-1", 5, CARD)]


def test_a_replay_without_the_key_or_with_another_is_refused(desk: Desk, tmp_path, keys: Path) -> None:
    pay, other = paid(desk), tmp_path / "other keys"
    add_key(other)
    sealed = pytest.raises(JournalSealed, match=read_keys(keys)[0].id)
    for path in (tmp_path / "missing", other):
        settings = replace(desk.runtime.settings, journal_key_path=path)
        with make_runtime(settings, desk.face, desk.registry, desk.clock) as poor:
            with sealed:
                replay("t-1", lambda _: pay("o-1", 5, CARD), runtime=poor)
            with sealed, transaction("t-1", runtime=poor):  # a second run reads no results either
                pay("o-1", 5, CARD)
    assert len(desk.done) == 1
    assert replay("t-1", lambda _: pay("o-1", 5, CARD), runtime=desk.runtime).status == "same"


def test_a_replay_reads_the_key_setting(desk: Desk, keys: Path, monkeypatch) -> None:
    pay, place = paid(desk), desk.runtime.settings.journal_path
    step = lambda _: pay("o-1", 5, CARD)  # noqa: E731
    monkeypatch.delenv("COUNTERSIGN_JOURNAL_KEY", raising=False)
    with pytest.raises(JournalSealed):
        replay("t-1", step, journal=place)
    monkeypatch.setenv("COUNTERSIGN_JOURNAL_KEY", str(keys))
    assert replay("t-1", step, journal=place).outcomes[0].result == f"paid with {CARD}"


def test_reports_are_sent_only_with_key(desk: Desk, refund, tmp_path, caplog) -> None:
    @tool("void", resource=("Payment", "payment"), registry=desk.registry)
    def void(payment: str) -> None:
        """Take it back."""

    pay = pay_tool(desk, compensate="void", compensation_map={"payment": "result:"})
    outbox = desk.runtime.journal.outbox
    desk.publish(void)
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 99
    run(desk, (pay, "o-1", 5, CARD))
    reader = Journal(desk.runtime.settings.journal_path, key_path=tmp_path / "missing")
    record = found(desk, "t-1")
    assert describe_transaction(reader, record)["unreported"] == 1
    (pending,) = reader.outbox.pending()
    with pytest.raises(JournalSealed):
        reader.outbox.opened(pending)
    reader.close()
    report = outbox.opened(pending)
    assert report.result == f'"paid with {CARD}"'.encode() and CARD not in repr(report)
    desk.face.faults.clear()
    with without_key(desk, tmp_path) as poor:
        with transaction("t-2", runtime=poor):  # a report that it cannot read keeps it from nothing else
            refund("o-2", 5)
        assert "COUNTERSIGN_JOURNAL_KEY" in caplog.text
        resume(poor)
    assert ([one.txn for one in outbox.pending()], desk.done[-1]) == ([record.txn], ("refund", "o-2", 5))
    resume(desk.runtime)
    assert outbox.pending() == []


def test_show_checks_seals_with_the_key(desk: Desk, keys: Path, monkeypatch) -> None:
    paid(desk)
    place, stored = desk.runtime.settings.journal_path, columns(desk)[0]["args"]
    tampered(desk, "UPDATE effects SET args = ?", stored.replace(b'"o-1"', b'"o-9"'))
    monkeypatch.delenv("COUNTERSIGN_JOURNAL_KEY", raising=False)
    # `verify` reports it, without any key
    assert "o-9" in journal_command(place, "show", "t-1").output
    assert journal_command(place, "verify").exit_code == 1
    monkeypatch.setenv("COUNTERSIGN_JOURNAL_KEY", str(keys))
    message = journal_command(place, "show", "t-1")
    assert (message.exit_code, "is damaged" in message.output) == (1, True)
    tampered(desk, "UPDATE effects SET args = ?", stored)


ARGS = {"card": CARD}


RAW = json.dumps(ARGS).encode()


SHOWN: dict[str, object] = {
    "staged for the journal": StagedRow("e", "k", "pay", RAW, "staged", 1, ()),
    "an outcome": EffectOutcome("e", Outcome.FIRED, "a", result=RAW),
    "news": RemoteOutcome("e", (), settlements=RAW, result=RAW),
    "a report": Report(1, "t", "a", "e", "fired", RAW, None),
    "a call of a replay": ReplayCall("pay", "k", RAW, ()),
    "a live call": LiveCall("pay", ARGS, "e"),
    "a proposal": Proposal("p", "pay", "e", dict(ARGS), dict(ARGS), "why", "p", "Maya"),
    "an effect on the wire": EffectView.model_construct(tool="pay", args=ARGS),
    "a submission": SubmittedEffect.model_construct(tool="pay", args=ARGS),
    "a run": ExecutionResult(results={"e": CARD}),
    "what a model said": Usage(provider=None, model="m", reasoning=CARD),
    "a call of a record": RecordedCall.model_construct(tool="pay", opened=CARD),
    "a replayed call": ReplayedCall("staged", 1, "pay", "e", "{}", "fired", CARD, HIDDEN, None),
}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
def test_no_value_of_ours_shows_arguments_by_its_repr(shown: object) -> None:
    """A failed assertion, a log line or a debugger prints it."""
    assert CARD not in f"{shown!r}{shown}"


def test_a_staged_call_shows_none_either(desk: Desk) -> None:
    call = StagedCall(tool_of(pay_tool(desk)), RAW, 0, "c" * 64, "e" * 64, 0, None)
    assert CARD not in repr(call)


def refuse(session: SQLiteSession, attempt_id: str) -> None:
    """Say what it does not like, with the values, as some databases do."""
    session.undo()
    raise ValueError(f"key (card)=({CARD}) is there already")


def test_recovery_without_a_key_knows_who_got_secrets(desk: Desk, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(SQLiteSession, "commit", refuse)
    adapter = SQLiteAdapter(notes_database(desk.folder))

    @tool("remember", lane="live", adapter=adapter, secret=["card"], registry=desk.registry)
    def remember(order_id: str, card: str) -> None:
        """Remember something."""
        adapter.connection.execute("INSERT INTO notes VALUES (?, 'ok')", (order_id,))

    fails(desk, errors.LiveCommitFailed, (remember, "o-1", CARD))
    with without_key(desk, tmp_path) as poor:
        recovered = recover_sessions(poor.engine(poor.sync_executor()), found(desk, "t-1"))
        assert recovered.given_secrets == {adapter.name}
    live = LiveWork("t")
    live.adopt(AdapterRecovery({adapter.name: (adapter, adapter.begin("t"))}, {}, frozenset({adapter.name})))
    with pytest.raises(AdapterCommitError, match=r"^ValueError$"):
        live.commit("attempt", lambda: None)


def test_a_model_is_not_asked_where_its_reasoning_could_not_be_sealed(desk: Desk, tmp_path) -> None:
    asked: list[str] = []
    with without_key(desk, tmp_path) as poor:
        with pytest.raises(JournalSealed, match="COUNTERSIGN_JOURNAL_KEY"):  # noqa: SIM117 - the call is the block
            with llm_call("m", reasoning=True, runtime=poor):
                asked.append("m")
        assert (asked, poor.journal.spending.calls(9)) == ([], [])
        with llm_call("m", runtime=poor) as call:
            call.record(ANTHROPIC)
    assert [row["state"] for row in desk.runtime.journal.spending.calls(9)] == ["done"]


def test_only_what_the_service_may_still_take_is_counted_as_unreported(desk: Desk, refund) -> None:
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 99
    txn, outbox = run(desk, (refund, "o-1", 5), (refund, "o-2", 5)).txn.txn, desk.runtime.journal.outbox
    assert (outbox.count(txn), outbox.count("another")) == (2, 0)
    outbox.refused(outbox.pending()[:1], "it knows better")
    assert outbox.count(txn) == 1
    outbox.reported(outbox.pending())
    assert outbox.count(txn) == 0
