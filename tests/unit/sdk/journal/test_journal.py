"""The journal: durable, owned, private, and explicit about damage."""

import contextvars
import multiprocessing
import os
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from countersign import errors, resume, transaction
from countersign.contract import EffectState, Outcome
from countersign.contract import digests as names
from countersign.contract.effect import Effect, Resource
from countersign.journal import EffectOutcome, Journal, Lease, LocalState, RemoteOutcome, StagedRow
from countersign.journal.leases import is_alive, new_holder
from countersign.journal.location import JournalUrl
from countersign.journal.states import SOURCES, TRANSITIONS
from countersign.journal.verification import verify
from tests.fakes.desk import AGENT, Desk, TickingClock, effect_rows, refund_tool
from tests.fakes.running import fails
from tests.unit.sdk.full_disk import full
from tests.unit.sdk.journals import both_engines

__all__ = ["both_engines"]

TXN = names.txn_id(agent=AGENT, run_key="t-1")
AS_WRITTEN = "not as the SDK wrote it"
IN_A_FILE = pytest.mark.parametrize("engine", ["sqlite"])


@pytest.fixture
def clock() -> TickingClock:
    return TickingClock()


@pytest.fixture
def journal(place, clock: TickingClock):
    opened = Journal(place, clock=clock, lease_seconds=60)
    yield opened
    opened.close()


def owned(journal: Journal) -> Lease:
    journal.transactions.open(txn=TXN, agent=AGENT, run_key="t-1", independent=False)
    return acquired(journal)


def acquired(journal: Journal) -> Lease:
    lease = journal.leases.acquire(TXN)
    assert isinstance(lease, Lease)
    return lease


def an_effect(seq: int = 1, amount: int = 5) -> Effect:
    args = {"amount": amount}
    key = names.call_key(agent=AGENT, run_key="t-1", tool="pay", args=args)
    rest = {"tool": "pay", "tool_digest": "a" * 64, "resource": Resource("Order", "o-1")}
    return Effect.stage(agent=AGENT, txn=TXN, call_key=key, seq=seq, args=args, **rest)


def on_another_machine(journal: Journal, lease: Lease) -> Lease:
    """The same lease, held by somebody we cannot see."""
    with journal.database.unit(durable=False) as unit:
        unit.execute("UPDATE transactions SET holder = 'elsewhere/boot/1/1/abc'")
    return replace(lease, holder="elsewhere/boot/1/1/abc")


def frozen(journal: Journal, lease: Lease, *effects: Effect) -> tuple[int, str]:
    staging = journal.transactions.begin_staging(lease)
    for effect in effects:
        its = (effect.effect_id, effect.call_key, effect.tool, effect.args_bytes)
        journal.transactions.stage(lease, staging, StagedRow(*its, "staged", effect.seq, ()))
    digest = names.txn_digest(effect_digests=[effect.digest for effect in effects])
    rest = {"secret": {"a" * 64: ()}, "txn_digest": digest, "live": 0}
    return staging, journal.transactions.freeze(lease, staging, effects, **rest)


def redeemed(journal: Journal, lease: Lease, *effects: Effect) -> tuple[int, str]:
    """Frozen, and allowed to fire."""
    staging, attempt = frozen(journal, lease, *effects)
    journal.effect_log.redeemed(lease, staging, [effect.effect_id for effect in effects])
    return staging, attempt


def begin(journal: Journal, lease: Lease, staging: int, effect: Effect, seconds: int = 1) -> None:
    journal.effect_log.begin(lease, staging, effect.effect_id, before=[], lease_seconds=seconds)


def _theirs(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()


NO_JOURNALS = {
    "a file that others can read": (Path.touch, 0o644, "chmod 600"),
    "zeros, for SQLite knows whether a crash left them": (
        lambda path: path.write_bytes(bytes(512)), 0o600, "not a database"),
    "a text": (lambda path: path.write_text("print('a shop')"), 0o644, r"journal\.db' is not a journal"),
    "what is no file": (os.mkfifo, 0o600, "is not a journal"),
    "another program's database": (_theirs, 0o600, "another program"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "mode", "says"), NO_JOURNALS.values(), ids=NO_JOURNALS)
def test_no_journal_is_refused(tmp_path, make, mode: int, says: str) -> None:
    path = tmp_path / "journal.db"
    make(path)
    path.chmod(mode)
    before = path.stat()
    with pytest.raises(errors.JournalError, match=says):
        owned(Journal(path))
    after = path.stat()
    assert (after.st_mode, after.st_size) == (before.st_mode, before.st_size)


@pytest.mark.parametrize("is_there", [False, True])
def test_its_file_may_be_empty_and_belongs_to_its_owner(tmp_path, is_there: bool) -> None:
    path = tmp_path / "journal.db"
    if is_there:
        path.touch(mode=0o600)
    owned(Journal(path))
    assert verify(path).sound
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("journal.db*")} == {0o600}


@IN_A_FILE
def test_a_newer_journal_is_refused(journal: Journal, tmp_path) -> None:
    owned(journal)
    journal.database.rows("PRAGMA user_version=99")
    journal.close()
    with pytest.raises(errors.JournalError, match="version 99"):
        owned(Journal(tmp_path / "journal.db"))


CHANGED: dict[str, tuple[str, str | None]] = {
    """UPDATE effects SET args = CAST('{"order_id":"o-9"}' AS BLOB)""": (AS_WRITTEN, "digest"),
    "UPDATE effects SET args = CAST('null' AS BLOB)": (AS_WRITTEN, "damaged"),
    "UPDATE effects SET tool = 'wipe'": (AS_WRITTEN, "digest"),
    "UPDATE effects SET resource_id = 'o-9'": (AS_WRITTEN, "digest"),
    "UPDATE effects SET state = 'approved'": (AS_WRITTEN, "damaged"),
    "UPDATE effects SET effect_id = substr(effect_id, 2) || '0'": (AS_WRITTEN, "damaged"),
    "UPDATE transactions SET state = 'none'": ("unknown state", "unknown state"),
    "UPDATE manifests SET body = CAST('{}' AS BLOB)": ("manifest", None),
    "DELETE FROM manifests": ("manifest", None),
}


def approved(desk: Desk) -> None:
    """A transaction that waits to be fired by the next `resume`."""
    refund = refund_tool(desk)
    pending = fails(desk, errors.ReviewPending, (refund, "o-1", 90_000))
    desk.service.approve(pending.error.txn)


@pytest.mark.tampers
@pytest.mark.parametrize("change", CHANGED)
def test_a_row_that_was_changed_is_found_and_nothing_fires(desk: Desk, change: str) -> None:
    """By its chain before anything is done with it, and by itself for any reader."""
    says, alone = CHANGED[change]
    approved(desk)
    if isinstance(desk.runtime.settings.journal_path, JournalUrl):
        change = change.replace("AS BLOB", "AS bytea")
    with desk.runtime.journal.database.unit(durable=True) as unit:
        unit.execute(change)
    with desk.restarted() as restarted:
        notes = [one.note for one in resume(restarted.runtime)]
        if alone is not None:
            with pytest.raises(errors.JournalError, match=alone):
                effect_rows(restarted)
    assert any(says in note for note in notes), notes
    assert desk.done == []


@IN_A_FILE
@pytest.mark.tampers
@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_file_is_an_error_and_nothing_fires(desk: Desk, damage: str) -> None:
    approved(desk)
    desk.runtime.close()
    path = desk.runtime.settings.journal_path
    raw = path.read_bytes()
    half, first_page = raw[: len(raw) // 2], raw[:4096]
    path.write_bytes(half if damage == "truncated" else first_page + os.urandom(len(raw) - 4096))
    for leftover in path.parent.glob("journal.db-*"):
        leftover.unlink()
    with pytest.raises(errors.JournalError):
        resume(desk.runtime)
    assert desk.done == []


def test_a_journal_that_fails_before_firing_fires_none(desk: Desk, refund, monkeypatch) -> None:
    monkeypatch.setattr(desk.runtime.journal.effect_log, "begin", full)
    fails(desk, errors.JournalError, (refund, "o-1", 100), match="the disk is full")
    assert desk.done == []


@pytest.mark.parametrize("stays_full", [False, True])
def test_a_fire_not_written_is_unknown(desk: Desk, refund, monkeypatch, stays_full: bool) -> None:
    journal = desk.runtime.journal
    unit = journal.database.unit

    def full_once_it_fired(*, durable: bool):
        return full() if desk.done else unit(durable=durable)

    with monkeypatch.context() as broken:
        if stays_full:
            broken.setattr(journal.database, "unit", full_once_it_fired)
        else:
            broken.setattr(journal.effect_log, "write", full)
        left = fails(desk, errors.OutcomeUnknown, (refund, "o-1", 100), match="the disk is full")
    assert (len(desk.done), left.txn.state) == (1, "redeemed")
    fails(desk, errors.OutcomeUnknown, (refund, "o-1", 100))
    assert len(desk.done) == 1


def test_a_living_owner_keeps_its_lease_however_long_it_thinks(journal: Journal, clock: TickingClock) -> None:
    lease = owned(journal)
    clock.advance(86_400)
    assert journal.leases.acquire(TXN) == lease.holder


def test_a_lease_is_held_as_soon_as_it_can_be_read(journal: Journal, place, clock: TickingClock) -> None:
    other, seen, commit = Journal(place, clock=clock), [], journal.database._commit
    journal.transactions.open(txn=TXN, agent=AGENT, run_key="t-1", independent=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.database, "_commit", lambda: (commit(), seen.append(other.leases.acquire(TXN))))
        lease = acquired(journal)
    other.close()
    assert seen == [lease.holder]


def test_a_lease_we_cannot_see_the_owner_of_runs_its_time(journal: Journal, clock: TickingClock) -> None:
    lease, effect = on_another_machine(journal, owned(journal)), an_effect()
    clock.advance(50)
    staging, _ = redeemed(journal, lease, effect)  # writing renews it
    clock.advance(50)
    assert journal.leases.acquire(TXN) == lease.holder
    begin(journal, lease, staging, effect, 500)  # a fire holds it past fire_by and timeout
    clock.advance(499)
    assert journal.leases.acquire(TXN) == lease.holder
    clock.advance(2)
    assert acquired(journal).generation == lease.generation + 1


def test_a_former_owner_writes_nothing_after_losing_the_lease(journal: Journal, clock: TickingClock) -> None:
    first, effect = on_another_machine(journal, owned(journal)), an_effect()
    staging, _ = redeemed(journal, first, effect)
    clock.advance(61)
    second = acquired(journal)
    for write in (lambda: begin(journal, first, staging, effect), lambda: journal.leases.renew(first)):
        with pytest.raises(errors.LeaseLost):
            write()
    journal.leases.release(first)  # a late release does not free another's lease
    assert journal.leases.acquire(TXN) == second.holder
    begin(journal, second, staging, effect)


def test_an_effect_is_firing_once(journal: Journal) -> None:
    lease, effect = owned(journal), an_effect()
    staging, attempt = frozen(journal, lease, effect)
    with pytest.raises(errors.JournalError, match="cannot become firing"):
        begin(journal, lease, staging, effect)  # not redeemed
    journal.effect_log.redeemed(lease, staging, [effect.effect_id])
    begin(journal, lease, staging, effect)
    fired, failed = (EffectOutcome(effect.effect_id, one, attempt) for one in (Outcome.FIRED, Outcome.FAILED))
    journal.effect_log.write(lease, staging, [fired])
    with pytest.raises(errors.JournalError):
        begin(journal, lease, staging, effect)
    with pytest.raises(errors.JournalError):
        journal.effect_log.write(lease, staging, [failed])
    assert [one.outcome for one in journal.outbox.pending()] == ["fired"]


@IN_A_FILE
def test_a_live_call_and_a_fired_effect_take_so_many_statements(journal: Journal) -> None:
    lease, effect, found = owned(journal), an_effect(), []
    staging, attempt = redeemed(journal, lease, effect)
    with journal.database.unit(durable=True) as unit:
        unit.set_trace_callback(found.append)

    def taken() -> int:
        own = [statement for statement, _ in groupby(found)]  # one that fires a trigger is reported again
        found.clear()
        return len(own)

    taken()
    begin(journal, lease, staging, effect)
    assert taken() == 7
    outcome = EffectOutcome(effect.effect_id, Outcome.FIRED, attempt, b'"ok"')
    journal.effect_log.write(lease, staging, [outcome])
    assert taken() == 9
    live = StagedRow("e" * 64, "c" * 64, "note", b"{}", "live", 1, ())
    journal.transactions.stage(lease, staging, live)
    assert taken() == 7, "one of them sets the durability"


def test_an_outcome_and_the_next_firing_share_one_commit(journal: Journal) -> None:
    lease, first, second = owned(journal), an_effect(1, 5), an_effect(2, 6)
    staging, attempt = redeemed(journal, lease, first, second)
    begin(journal, lease, staging, first)
    fired = EffectOutcome(first.effect_id, Outcome.FIRED, attempt)
    with pytest.raises(errors.JournalError):  # the second half fails, so the first is not written either
        journal.effect_log.begin(lease, staging, "f" * 64, before=[fired], lease_seconds=1)
    assert journal.transactions.state_of(TXN, staging, first.effect_id) is LocalState.FIRING
    assert journal.outbox.pending() == []


def test_each_list_has_its_own_attempt_until_one_is_redeemed(journal: Journal) -> None:
    lease = owned(journal)
    _, first = frozen(journal, lease, an_effect(1, 5))
    _, again = frozen(journal, lease, an_effect(1, 5))
    _, other = redeemed(journal, lease, an_effect(1, 6))
    assert first == again != other
    with pytest.raises(errors.JournalError, match="cannot be replaced"):
        frozen(journal, lease, an_effect(1, 7))


def test_a_second_run_waits_for_the_first_and_learns_its_owner(desk: Desk, refund) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with desk.step():
        refund("o-1", 100)
        with desk.another_process() as other:
            waits = other.sync_executor()
            waits.sleep = sleep  # type: ignore[method-assign]
            other.sync_executor = lambda: waits  # type: ignore[method-assign]
            assert [one.waiting for one in resume(other)] == [True]
            with pytest.raises(errors.TransactionBusy, match="is being run by"):
                contextvars.Context().run(transaction("t-1", runtime=other).__enter__)
    assert sum(slept) == pytest.approx(desk.runtime.settings.lease_wait_seconds, abs=0.1)
    assert len(desk.done) == 1


def test_a_dead_owner_is_succeeded_at_once(journal: Journal) -> None:
    owned(journal)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        holder = child.submit(new_holder).result()
    with journal.database.unit(durable=False) as unit:
        unit.execute("UPDATE transactions SET holder = ?", (holder,))
    assert is_alive(holder) == "dead"
    acquired(journal)


UNKNOWN_HOLDERS = [
    "elsewhere/boot/1/1/abc", "", "nonsense", new_holder().replace("/", "|"),
    f"{os.uname().nodename}/another-boot/999999/1/abc",
]  # fmt: skip


def test_doubt_about_an_owner_is_reported() -> None:
    assert [is_alive(holder) for holder in UNKNOWN_HOLDERS] == ["unknown"] * 5
    assert is_alive(new_holder()) == "alive"


def test_every_state_has_moves_and_the_service_names_them_the_same() -> None:
    assert set(TRANSITIONS) == set(LocalState)
    assert {state.value for state in EffectState} <= {state.value for state in LocalState}
    assert not any(to is LocalState.STAGED for moves in TRANSITIONS.values() for to in moves)
    assert all(frm in TRANSITIONS and to in TRANSITIONS[frm] for to in LocalState for frm in SOURCES[to])
    assert LocalState.FIRED not in SOURCES[LocalState.FAILED]


def test_a_list_that_could_not_be_frozen_is_forgotten(desk: Desk, refund) -> None:
    desk.publish(refund, aud="gateway")
    with pytest.raises(errors.NotStageable), desk.step() as txn:
        refund("o-1", 100)
    assert txn.state == "ended"


def test_what_people_said_is_written_once_however_often_it_is_looked_at(journal: Journal) -> None:
    lease, effect = owned(journal), an_effect()
    frozen(journal, lease, effect)
    for said in (b'[{"answer":"fired"}]', b'[{"answer":"fired"},{"answer":"left_standing"}]'):
        for _ in range(3):
            journal.settlements.learn(lease, 1, [RemoteOutcome(effect.effect_id, (), settlements=said)])
    (row,) = journal.transactions.effects(journal.transactions.require(TXN))
    assert row.kept_by_person
    lines = journal.database.rows("SELECT body FROM chain WHERE kind = 'learned'")
    assert len(lines) == 2, "the chain would grow at every look"
