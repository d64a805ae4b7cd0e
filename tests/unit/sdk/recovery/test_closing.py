"""Partly kept live work is closed by a person who has resolved it, and never by the SDK."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from countersign import FilesAdapter, SQLiteAdapter, errors, resume, run_transaction
from countersign.cli import journal as cli_journal
from countersign.cli.app import app
from countersign.commit.compensation import Compensator
from countersign.concurrency import run_sync
from countersign.journal.verification import verify
from countersign.recovery.prior_run import close
from countersign.recovery.recovery import resume_one
from tests.fakes.desk import Desk, answering_tool, failing_tool, listed, live_states, notes_in, service_states
from tests.unit.sdk.full_disk import full_after
from tests.unit.sdk.journals import BOTH, journal_command
from tests.unit.sdk.recovery.test_lost_live_work import dies_before_files_commit

SAID = {"by": "Ada", "why": "deleted the note by hand"}
AS_NOTED = "closed by Ada at 2027-01-15T08:00:00Z: deleted the note by hand (before: "


def left_in_part(desk: Desk, both: Any, *staged: tuple[Any, ...]) -> str:
    txn = desk.run(*((live, "o-1", "hello") for live in both), *staged, raises=errors.LiveCommitFailed)
    assert txn.state == "unsettled"
    return str(txn.txn)


def closed(desk: Desk, txn: str, **changes: str) -> tuple[str, str | None]:
    engine = desk.runtime.engine(desk.runtime.sync_executor())
    record = close(engine, txn, **(SAID | changes))
    return record.state, record.note


def said(desk: Desk, *args: str) -> Result:
    return journal_command(desk.runtime.settings.journal_path, *args)


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("staged", ["nothing", "fired effects in effect", "what was taken back"])
def test_it_is_closed_with_who_and_why(desk: Desk, both: Any, refund: Any, charge: Any, staged: str) -> None:
    ran: list[Any] = []
    calls = {"nothing": [], "fired effects in effect": [refund], "what was taken back": [charge]}[staged]
    txn, done = left_in_part(desk, both, *((call, "o-1", 100) for call in calls)), len(desk.done)
    if staged == "nothing":
        resume(desk.runtime)  # reports what was in effect before
    state, note = closed(desk, txn[:8])
    assert (state, (note or "").startswith(AS_NOTED)) == ("closed", True), note
    assert "in notes were kept, and those in other were lost)" in str(note) or staged != "nothing"
    row = desk.runtime.journal.database.row("SELECT kind FROM chain WHERE txn = ? ORDER BY id DESC", (txn,))
    assert row is not None and row["kind"] == "closed"
    assert verify(desk.runtime.settings.journal_path).sound
    assert resume(desk.runtime) == []
    looked = run_sync(resume_one(desk.runtime.engine(desk.runtime.sync_executor()), txn))
    assert (looked.after, looked.needs_attention) == ("closed", False)
    for _ in range(2):
        with pytest.raises(errors.AlreadyRedeemed, match=r"outcome closed\): closed by Ada") as reported:
            run_transaction(ran.append, key="t-1", wait=60, runtime=desk.runtime)
        assert reported.value.finished
    assert (ran, len(desk.done), notes_in(desk.folder / "notes.db")) == ([], done, [("o-1", "hello")])
    assert live_states(desk) == ["live", "live"]
    with pytest.raises(errors.MisuseError, match="is closed; only one that is unsettled"):
        closed(desk, txn, by="Bob")
    (shown,) = json.loads(said(desk, "list", "--json").stdout)
    assert (shown["state"], shown["note"]) == ("closed", note)
    assert "Ada" in said(desk, "show", "t-1").stdout
    assert json.loads(said(desk, "stats", "--json").stdout)["transactions"] == {"closed": 1}
    assert len(json.loads(said(desk, "filter", "--state", "closed", "--json").stdout)) == 1


WRONG = [
    ({"by": " "}, "by must have"),
    ({"why": ""}, "why must have"),
    ({"by": "a" * 201}, "must have 1 to 200 characters"),
    ({"why": "a" * 2001}, "1 to 2000 characters"),
    ({"why": "\ud800"}, "written as UTF-8"),
]


def test_who_and_why_must_be_said_and_it_is_named_by_its_id(desk: Desk, both: Any, refund: Any) -> None:
    txn = left_in_part(desk, both)
    desk.run((refund, "o-1", 100), key="abcdefgh")
    for said, says in WRONG:
        with pytest.raises(errors.MisuseError, match=says):
            closed(desk, txn, **said)
    for name in ("", "t-1", "unsettled-1", "0" * 64, txn[:7], "abcdefgh"):
        with pytest.raises(errors.MisuseError, match="names no transaction of this journal"):
            closed(desk, name)
    assert desk.runtime.journal.transactions.require(txn).state == "unsettled"


def test_what_is_not_unsettled_is_refused(desk: Desk, refund: Any) -> None:
    settled = desk.run((refund, "o-1", 100), key="settled")
    parked = desk.run((refund, "o-1", 90_000), key="parked", raises=errors.ReviewPending)
    with pytest.raises(ZeroDivisionError), desk.step("ended") as ended:
        raise ZeroDivisionError
    for one, state in ((settled, "settled"), (parked, "review"), (ended, "ended")):
        with pytest.raises(errors.MisuseError, match=f"is {state}; only one that is unsettled for its live"):
            closed(desk, one.txn)
    (found,) = resume(desk.runtime)
    assert (found.run_key, found.waiting) == ("parked", True)


def test_what_is_unsettled_for_another_reason_is_the_services(desk: Desk, refund: Any) -> None:
    """Also what fired and could not be taken back, without any live work."""
    unknown = failing_tool(desk, ZeroDivisionError())
    fails = failing_tool(desk, ZeroDivisionError(), "fails", failure_means="not_done", acts=False)
    doubt = desk.run((unknown, "o-1"), raises=errors.OutcomeUnknown)
    kept = desk.run((refund, "o-1", 100), (fails, "o-1"), key="t-2", raises=errors.CountersignError)
    assert (doubt.state, kept.state) == ("unsettled", "unsettled")
    with pytest.raises(errors.MisuseError, match="there is still notify#1 unknown: people settle that"):
        closed(desk, doubt.txn)
    with pytest.raises(errors.MisuseError, match="is not unsettled for its live effects; people settle it"):
        closed(desk, kept.txn)


def test_unwinding_comes_first(desk: Desk, both: Any, charge: Any, monkeypatch: Any) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Compensator, "_permit", away)
        txn = left_in_part(desk, both, (charge, "o-1", 100))
        with pytest.raises(errors.MisuseError, match=r"still charge#1 compensating: .* `countersign resume"):
            closed(desk, txn)
    (found,) = resume(desk.runtime)
    assert (found.after, [what for what, *_ in desk.done]) == ("unsettled", ["charge", "void"])
    assert closed(desk, txn)[0] == "closed"


def test_nor_is_what_a_person_has_to_settle_in_the_service(desk: Desk, both: Any) -> None:
    answering_tool(desk, errors.NotDone("it is too late"), name="void_late")
    undone: Any = {"compensate": "void_late", "compensation_map": {"order_id": "args:/order_id"}}
    charge = answering_tool(desk, None, name="charge_late", **undone)
    txn = left_in_part(desk, both, (charge, "o-1"))
    with pytest.raises(errors.MisuseError, match="still charge_late#1 compensation_failed: people settle"):
        closed(desk, txn)


async def away(*_: object) -> None:
    raise errors.ServiceUnavailable("a redemption", "it is away")


def test_an_effect_that_is_never_compensated_stays(desk: Desk, both: Any, charge: Any) -> None:
    """Where live effects are in doubt, recovery takes nothing back that was not being taken back before."""
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 20
    txn = left_in_part(desk, both, (charge, "o-1", 100))
    desk.face.faults.clear()
    (found,) = resume(desk.runtime)
    assert (found.after, len(desk.done), closed(desk, txn)[0]) == ("unsettled", 1, "closed")


def test_what_was_not_begun_is_unused(desk: Desk, note: Any, refund: Any, monkeypatch: Any) -> None:
    with full_after(desk.runtime.journal, 0):
        txn = desk.run((note, "o-1", "hello"), (refund, "o-1", 100), raises=errors.JournalError)
    monkeypatch.setattr(SQLiteAdapter, "landed", lambda *_: None)
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done, closed(desk, txn.txn)[0]) == ("unsettled", [], "closed")
    ended = ("unused", "a person closed its transaction before it was begun")
    assert listed(desk, "state, error", "lane = 'staged'") == [ended]
    assert (resume(desk.runtime), service_states(desk, txn.txn), desk.done) == ([], ["unused"], [])


def test_a_living_owner_keeps_it_and_a_refusal_frees_it(desk: Desk, both: Any) -> None:
    txn = left_in_part(desk, both)
    with desk.another_process() as worker:
        lease: Any = worker.journal.leases.acquire(txn)
        with pytest.raises(errors.TransactionBusy, match="'t-1' is being run by"):
            closed(desk, txn)
        worker.journal.leases.release(lease)
    desk.registry._tools.pop("other_note")
    for _ in range(2):
        with pytest.raises(errors.RegistrationError, match="no tool 'other_note' is registered"):
            closed(desk, txn)
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.holder, record.state) == (None, "unsettled")


@pytest.mark.tampers
def test_a_record_that_is_not_as_it_was_written_is_left(desk: Desk, both: Any, refund: Any) -> None:
    txn = left_in_part(desk, both, (refund, "o-1", 100))
    with desk.runtime.journal.database.unit(durable=True) as unit:
        unit.execute("UPDATE effects SET state = 'failed' WHERE lane = 'staged'")
    with pytest.raises(errors.JournalError, match="is not as the SDK wrote it"):
        closed(desk, txn)


def test_only_what_no_adapter_knows_is_closed(desk: Desk, note: Any, monkeypatch: Any) -> None:
    for key in ("t-1", "t-2"):
        with full_after(desk.runtime.journal, 0):
            txn = desk.run((note, key, "hello"), key=key, raises=errors.JournalError)
        with monkeypatch.context() as silent:
            silent.setattr(SQLiteAdapter, "landed", lambda *_: None)
            (found,) = resume(desk.runtime)
            assert found.after == "unsettled"
            assert found.note.startswith("it is unknown whether its live effects were kept;")
            if key == "t-1":
                assert closed(desk, txn.txn)[0] == "closed"
    with pytest.raises(errors.MisuseError, match="are not partly kept; `countersign resume"):
        closed(desk, txn.txn)
    assert [(one.run_key, one.after) for one in resume(desk.runtime)] == [("t-2", "settled")]


def test_what_was_prepared_is_undone(desk: Desk, files: FilesAdapter, monkeypatch: Any) -> None:
    dies_before_files_commit(desk, files)
    monkeypatch.setattr(SQLiteAdapter, "landed", lambda *_: None)
    (found,) = resume(desk.runtime)
    sessions = desk.folder / "root/.countersign/sessions"
    assert (found.after, len([*sessions.iterdir()])) == ("unsettled", 1)
    assert closed(desk, found.txn)[0] == "closed"
    assert ([*sessions.iterdir()], (desk.folder / "root/a").exists()) == ([], False)
    assert notes_in(desk.folder / "notes.db") == [("o-1", "hello")]


def test_the_command_says_it(desk: Desk, both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    txn = left_in_part(desk, both)
    monkeypatch.setattr(cli_journal, "load_tools", lambda _: None)
    monkeypatch.setattr(cli_journal.Runtime, "from_env", desk.another_process)
    command = ["journal", "close", txn[:12], "--tools", "my_agent", "--by", "Ada", "--why", "deleted it"]
    without = CliRunner().invoke(app, command[:-2])
    assert (without.exit_code, "--why" in without.output) == (2, True)
    reported = CliRunner().invoke(app, command)
    assert (reported.exit_code, "state: closed" in reported.output) == (0, True)
    assert "note: closed by Ada" in reported.output
    again = CliRunner().invoke(app, [*command, "--json"])
    assert (again.exit_code, again.output.startswith("misuse: transaction")) == (1, True)
