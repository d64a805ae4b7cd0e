"""The journal on PostgreSQL: what is its own there. The rules of every journal are in test_journal.py, on both."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg
import pytest

from countersign import JournalError, MisuseError, Settings, SettingsError, resume, transaction
from countersign.journal import Journal, Lease, LocalState
from countersign.journal import postgres as engine_module
from countersign.journal.damage import Damage
from countersign.journal.opening import database_at
from countersign.journal.place import JournalUrl, journal_place
from countersign.journal.postgres import PostgresDatabase
from countersign.journal.translating import translated
from countersign.journal.verifying import verify
from tests.counterparts import postgres
from tests.fakes.chained import eventful_journal
from tests.fakes.desk import AGENT, Desk, refund_tool
from tests.unit.sdk.journals import terminate

pytestmark = pytest.mark.xdist_group("journals")
SPAWN = multiprocessing.get_context("spawn")
SECRET = "s3cr3t-w0rd"
TXN = "a" * 64


@pytest.fixture
def engine() -> str:
    return "postgresql"


@pytest.fixture
def journal(place: JournalUrl) -> Iterator[Journal]:
    opened = Journal(place)
    yield opened
    opened.close()


def store(journal: Journal) -> PostgresDatabase:
    assert isinstance(journal.database, PostgresDatabase)
    return journal.database


def write(journal: Journal, name: str, *, durable: bool = False) -> None:
    with journal.database.unit(durable=durable) as unit:
        unit.execute("INSERT INTO meta (name, value) VALUES (?, 'x')", (name,))


def names(journal: Journal) -> list[str]:
    return [row["name"] for row in journal.database.rows("SELECT name FROM meta ORDER BY name")]


def outside(place: JournalUrl, *statements: str) -> None:
    """What anybody who may write the tables can do."""
    with psycopg.connect(place.secret, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# ------------------------------------------------------------------------------------------------- the address

ADDRESSES = {
    f"postgresql://ann:{SECRET}@db.example:5433/app": "postgresql://ann@db.example:5433/app",
    f"postgres://ann:{SECRET}@db.example/app?sslmode=require": "postgresql://ann@db.example/app",
    "postgresql://db.example/app": "postgresql://db.example/app",
    "postgresql:///app?host=/run/db": "postgresql:///app",
    f"postgresql://db.example/app?password={SECRET}&user=ann": "postgresql://db.example/app",
}


@pytest.mark.parametrize("address", ADDRESSES, ids=range(len(ADDRESSES)))
def test_the_password_of_an_address_is_never_shown(address: str) -> None:
    place = JournalUrl(address)
    assert str(place) == ADDRESSES[address]
    settings = Settings("https://service.example", "ann", Path("key.pem"), place)
    journal = Journal(place)
    assert SECRET not in f"{place!r} {place} {settings!r} {journal.database.name}"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:a{sign}@db.example/app"
        for sign in (f"@{SECRET}", f"/{SECRET}", f"?{SECRET}", f"/{SECRET}/b:c")
    ]
    + [f"postgresql://db.example/app?password=a@{SECRET}", f"mysql://ann:{SECRET}@db.example/app"],
    ids=range(6),
)
def test_an_address_whose_password_would_be_read_as_something_else_is_refused_unseen(address: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read") as raised:
        JournalUrl(address)
    assert SECRET not in f"{raised.value!r}"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/app",
        f"postgresql://ann:a/{SECRET}@127.0.0.1:1/app",
        f"postgresql://ann:%zz{SECRET}@127.0.0.1:1/app",
        f"postgresql://ann@127.0.0.1:1/app?{SECRET}",
    ],
    ids=["nobody answers", "a slash", "a percent sign", "an unknown option"],
)
def test_an_error_about_an_address_does_not_tell_its_password(address: str) -> None:
    with pytest.raises((JournalError, SettingsError)) as raised:
        Journal(journal_place(address)).transactions.newest_ids(1)
    chain: BaseException | None = raised.value
    while chain is not None:
        assert SECRET not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


@pytest.mark.parametrize(
    "named", ["sqlite:///journal.db", "mysql://u@h/db", "postgresql+psycopg://u@h/db", "http://x"]
)
def test_an_address_of_something_else_is_refused(named: str) -> None:
    with pytest.raises(SettingsError, match="a file or a PostgreSQL database"):
        journal_place(named)
    assert journal_place("state/journal.db") == Path("state/journal.db")


def test_without_its_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("psycopg"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(SettingsError, match=r"pip install 'countersign-sdk\[postgres\]'"):
        Journal("postgresql://u@h/db")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("SELECT ? + ?", "SELECT %s + %s"),
        ("a = :name AND b = :name", "a = %(name)s AND b = %(name)s"),
        ("x LIKE '50%?:a' AND y = ?", "x LIKE '50%%?:a' AND y = %s"),
        ("x = 'it''s ?' OR x % 2 = ?", "x = 'it''s ?' OR x %% 2 = %s"),
        ("SELECT ''", "SELECT ''"),
    ],
)
def test_values_are_marked_as_the_driver_reads_them(ours: str, theirs: str) -> None:
    assert translated(ours).decode() == theirs


# --------------------------------------------------------------------------------------------------- its tables


def test_it_has_a_schema_of_its_own(server: str) -> None:
    with postgres.database(server) as url:
        journal = Journal(url.replace("+psycopg", ""))
        assert not journal.database.is_there()
        write(journal, "a")
        assert journal.database.is_there()
        found = journal.database.rows("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename = 'chain'")
        assert [row[0] for row in found] == ["countersign_journal"]
        journal.close()


def test_many_may_start_at_once(place: JournalUrl) -> None:
    together = threading.Barrier(6)

    def start(n: int) -> int:
        journal = Journal(place)
        together.wait(30)
        write(journal, str(n))
        found = len(names(journal))
        journal.close()
        return found

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(start, range(6))) == 6
    assert verify(place).findings[0].damage is Damage.ROW_UNKNOWN  # what the test wrote past the chain


def test_another_programs_tables_are_refused(place: JournalUrl) -> None:
    name = place.secret.rpartition("%3D")[2]
    outside(place, f"CREATE SCHEMA {name}", f"CREATE TABLE {name}.theirs (x int)")
    for ask in (lambda journal: write(journal, "a"), lambda journal: journal.database.is_there()):
        journal = Journal(place)
        with pytest.raises(JournalError, match="another program"):
            ask(journal)
        journal.close()


def test_a_schema_that_was_made_for_it_is_taken(place: JournalUrl, journal: Journal) -> None:
    """A role may be allowed one schema and none else."""
    outside(place, f"CREATE SCHEMA {place.secret.rpartition('%3D')[2]}")
    write(journal, "a")
    assert names(journal) == ["a"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE journal SET version = 99", "version 99"),
        ("UPDATE journal SET application = 1", "another program"),
        ("DELETE FROM journal", "another program"),
        ("DROP TABLE journal", "another program"),
    ],
)
def test_a_journal_of_another_version_or_kind_is_refused(place: JournalUrl, change: str, says: str) -> None:
    first = Journal(place)
    write(first, "a")
    first.close()
    outside(place, change)
    with pytest.raises(JournalError, match=says):
        write(first, "b")
    with pytest.raises(JournalError, match=says):
        verify(place)


@pytest.mark.parametrize("named", ['"$user"', "Agent-A", "a b"])
def test_a_schema_with_a_difficult_name_is_refused(journal_database: str, named: str) -> None:
    quoted = named if named.startswith('"') else f'"{named}"'
    address = (
        f"{journal_database}?options=-csearch_path%3D{quoted.replace(' ', '%5C%20').replace('$', '%24')}"
    )
    with pytest.raises(JournalError, match="one small word"):
        write(Journal(address), "a")


# ---------------------------------------------------------------------------------------------- what a unit keeps


@pytest.mark.parametrize(
    ("default", "durable"),
    [("on", "on"), ("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")],
)
def test_a_durable_unit_waits_for_the_disk_whatever_the_server_does(
    place: JournalUrl, default: str, durable: str
) -> None:
    journal = Journal(f"{place.secret}%20-csynchronous_commit%3D{default}")
    for asked, level in ((True, durable), (False, "off"), (True, durable)):
        with journal.database.unit(durable=asked) as unit:
            assert unit.execute("SHOW synchronous_commit").fetchone()[0] == level
    journal.close()


def test_a_commit_that_the_server_turned_into_a_rollback_is_an_error(journal: Journal) -> None:
    with (
        pytest.raises(JournalError, match="answered COMMIT with ROLLBACK"),
        journal.database.unit(durable=True) as unit,
    ):
        unit.execute("INSERT INTO meta (name, value) VALUES ('a', 'x')")
        with pytest.raises(psycopg.Error):
            unit.execute("SELECT nothing FROM nowhere")
    assert names(journal) == []


def test_units_follow_one_another_and_none_waits_for_ever(
    place: JournalUrl, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_WAIT_MS", 50)
    other = Journal(place)
    with journal.database.unit(durable=False) as unit:
        unit.execute("INSERT INTO meta (name, value) VALUES ('a', 'x')")
        with pytest.raises(JournalError, match="lock timeout"):
            write(other, "b")
        assert names(other) == []
    write(other, "c")
    assert names(journal) == ["a", "c"]
    other.close()


def _hang_in_a_unit(place: JournalUrl, pipe: Connection) -> None:
    journal = Journal(place)
    with journal.database.unit(durable=True) as unit:
        unit.execute("INSERT INTO meta (name, value) VALUES ('half', 'x')")
        pipe.send("half")
        time.sleep(60)


def test_a_process_killed_in_a_unit_leaves_nothing_and_holds_nobody_up(
    place: JournalUrl, journal: Journal
) -> None:
    write(journal, "before")
    ours, theirs = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=_hang_in_a_unit, args=(place, theirs))
    child.start()
    assert ours.recv() == "half"
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    write(journal, "after")
    assert names(journal) == ["after", "before"]


def _acquire(place: JournalUrl, together: Any, pipe: Connection) -> None:
    journal = Journal(place)
    journal.transactions.newest_ids(1)
    together.wait(30)
    journal.transactions.open(txn=TXN, agent=AGENT, run_key="t-1", independent=False)
    lease = journal.leases.acquire(TXN)
    pipe.send(isinstance(lease, Lease))
    together.wait(30)  # whoever has it lives until everybody has asked
    journal.close()


def test_of_several_processes_one_takes_a_lease(place: JournalUrl) -> None:
    together = SPAWN.Barrier(3)
    pipes = [SPAWN.Pipe(duplex=False) for _ in range(3)]
    children = [SPAWN.Process(target=_acquire, args=(place, together, theirs)) for _, theirs in pipes]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert sorted(ours.recv() for ours, _ in pipes) == [False, False, True]
    assert verify(place).sound


# ------------------------------------------------------------------------------------------- a connection is lost


def test_a_connection_lost_while_nobody_used_it_is_replaced(place: JournalUrl, journal: Journal) -> None:
    write(journal, "a")
    terminate(journal, place)
    write(journal, "b")
    terminate(journal, place)
    assert names(journal) == ["a", "b"]


def test_a_connection_lost_in_a_unit_takes_all_of_it(place: JournalUrl, journal: Journal) -> None:
    with (
        pytest.raises(JournalError, match="terminating connection"),
        journal.database.unit(durable=True) as unit,
    ):
        unit.execute("INSERT INTO meta (name, value) VALUES ('a', 'x')")
        terminate(journal, place)
        unit.execute("INSERT INTO meta (name, value) VALUES ('b', 'x')")
    assert names(journal) == []
    write(journal, "c")
    assert names(journal) == ["c"]


def test_nothing_goes_on_behind_a_unit_on_a_new_connection(place: JournalUrl, journal: Journal) -> None:
    """Also where somebody swallowed the error: the rest would be written without the beginning."""
    with pytest.raises(JournalError, match="in the middle of a unit"), journal.database.unit(durable=False):
        write(journal, "a")
        terminate(journal, place)
        with pytest.raises(JournalError):
            names(journal)
        with pytest.raises(JournalError, match="in the middle of a unit"):
            write(journal, "b")
        names(journal)
    assert names(journal) == []


@pytest.mark.parametrize("written", [False, True])
def test_a_lost_answer_to_commit_is_told_as_not_known(
    place: JournalUrl, journal: Journal, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    losing(monkeypatch, journal, place, written=written)
    with pytest.raises(JournalError, match="nobody knows whether it was written"):
        write(journal, "a", durable=True)
    monkeypatch.undo()
    assert names(journal) == (["a"] if written else [])
    write(journal, "b")


def losing(monkeypatch: pytest.MonkeyPatch, journal: Journal, place: JournalUrl, *, written: bool) -> None:
    """From here on the connection is lost at a COMMIT: before the server has it, or before its answer is here."""
    database = store(journal)
    commit = database._commit

    def lose() -> None:
        if written:
            commit()
        terminate(journal, place)
        commit()

    monkeypatch.setattr(database, "_commit", lose)


@pytest.mark.parametrize("written", [False, True])
def test_nothing_is_called_whose_firing_may_not_be_written(
    desk: Desk, place: JournalUrl, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    refund = refund_tool(desk)
    journal, begin = desk.runtime.journal, desk.runtime.journal.firing.begin

    def firing(*args: Any, **kwargs: Any) -> None:
        with monkeypatch.context() as lost:
            losing(lost, journal, place, written=written)
            begin(*args, **kwargs)

    monkeypatch.setattr(journal.firing, "begin", firing)
    with pytest.raises(JournalError, match="nobody knows"), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 5)
    assert desk.done == []
    monkeypatch.undo()
    resume(desk.runtime)
    record = journal.transactions.find("t-1")[0]
    (effect,) = journal.transactions.effects(record)
    if written:  # it may have been called, as far as anybody can tell
        assert (desk.done, effect.state) == ([], LocalState.UNKNOWN)
    else:
        assert (desk.done, effect.state) == ([], LocalState.UNUSED)


def test_a_child_that_ends_as_any_program_does_leaves_its_parents_connection_alone(journal: Journal) -> None:
    write(journal, "a")
    child = multiprocessing.get_context("fork").Process(target=write, args=(journal, "b"))
    child.start()
    child.join(60)
    session = store(journal)._session
    assert names(journal) == ["a", "b"]
    assert store(journal)._session is session


# ---------------------------------------------------------------------------------------------------- verifying


@pytest.fixture(scope="module")
def whole(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with a journal that has seen everything, to be copied."""
    with postgres.database(server) as url:
        eventful_journal(tmp_path_factory.mktemp("whole"), JournalUrl(url.replace("+psycopg", "")))
        yield url.rpartition("/")[2]


@pytest.fixture
def eventful(server: str, whole: str) -> Iterator[JournalUrl]:
    with postgres.database(server, whole) as url:
        yield JournalUrl(url.replace("+psycopg", ""))


IN_SCHEMA = "SET search_path = countersign_journal"
_FIRED = "(SELECT txn FROM transactions WHERE run_key = 'fired')"
DAMAGES: dict[str, tuple[set[Damage], tuple[str, ...]]] = {
    "a state was changed": (
        {Damage.ROW_CHANGED}, (f"UPDATE effects SET state = 'failed' WHERE txn = {_FIRED} AND lane = 'staged'",)),
    "an effect was deleted": ({Damage.ROW_MISSING}, (f"DELETE FROM effects WHERE txn = {_FIRED} AND seq = 2",)),
    "a receipt was put in": (
        {Damage.ROW_UNKNOWN}, (f"INSERT INTO receipts SELECT 'other', {_FIRED}, 'x', 1",)),
    "a line was rewritten": (
        {Damage.LINE_CHANGED}, (f"UPDATE chain SET body = body || '\\x20'::bytea WHERE txn = {_FIRED} AND n = 2",)),
    "a line was deleted": ({Damage.LINE_MISSING}, (f"DELETE FROM chain WHERE txn = {_FIRED} AND n = 3",)),
    "every line was deleted": ({Damage.TAIL_CUT, Damage.LINE_MISSING}, (f"DELETE FROM chain WHERE txn = {_FIRED}",)),
    "the head was changed": (
        {Damage.HEAD_CHANGED}, (f"UPDATE transactions SET chain_hash = '' WHERE txn = {_FIRED}",)),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES)
def test_each_damage_is_named(eventful: JournalUrl, what: str) -> None:
    damages, statements = DAMAGES[what]
    assert verify(eventful).findings == ()
    triggers = ("ALTER TABLE chain DISABLE TRIGGER USER", "ALTER TABLE chain ENABLE TRIGGER USER")
    outside(eventful, IN_SCHEMA, triggers[0], *statements, triggers[1])
    assert damages <= {one.damage for one in verify(eventful).findings}


SCHEMA_DAMAGES = {
    "trigger 'chain_is_not_cut' is missing": "DROP TRIGGER chain_is_not_cut ON chain",
    "trigger 'chain_follows' is not as made": "ALTER TABLE chain DISABLE TRIGGER chain_follows",
    "function 'chain_follows()' is not as made": (
        "CREATE OR REPLACE FUNCTION chain_follows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
    ),
    "trigger 'quiet' is not this SDK's": (
        "CREATE TRIGGER quiet BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION chain_is_not_cut()"
    ),
    "rule 'quiet' is not this SDK's": "CREATE RULE quiet AS ON INSERT TO outbox DO INSTEAD NOTHING",
    "column 'effects.state' is not as made": "ALTER TABLE effects ALTER state DROP NOT NULL",
    "index 'effects_by_id' is missing": "DROP INDEX effects_by_id",
    "constraint 'spent.spent_spent_check' is missing": "ALTER TABLE spent DROP CONSTRAINT spent_spent_check",
    "table 'effects' is not as made": "ALTER TABLE effects ENABLE ROW LEVEL SECURITY",
}


@pytest.mark.parametrize("told", SCHEMA_DAMAGES)
def test_what_is_not_as_made_is_named(eventful: JournalUrl, told: str) -> None:
    outside(eventful, IN_SCHEMA, SCHEMA_DAMAGES[told])
    found = verify(eventful).findings
    assert told in {one.what for one in found}
    assert {one.damage for one in found} == {Damage.SCHEMA}


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE chain SET kind = 'x'", "a line of the chain is never changed"),
        ("DELETE FROM chain", "a line of the chain is never deleted"),
        ("TRUNCATE chain", "a line of the chain is never deleted"),
        (
            "INSERT INTO chain (id, txn, n, kind, body, prev, hash) "
            "SELECT 10000, txn, 10000, 'x', '', '', '' FROM transactions LIMIT 1",
            "the chain of this transaction was changed, `countersign journal verify` tells where",
        ),
    ],
)
def test_lines_are_neither_changed_nor_deleted_nor_forged(
    eventful: JournalUrl, statement: str, says: str
) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match=re.escape(says)):
        outside(eventful, IN_SCHEMA, statement)
    journal = Journal(eventful)
    with pytest.raises(JournalError, match=re.escape(says)), journal.database.unit(durable=False) as unit:
        unit.execute(statement)
    journal.close()
    assert verify(eventful).sound


def test_a_database_without_a_journal_is_a_mistake_and_stays_as_it_is(place: JournalUrl) -> None:
    with pytest.raises(MisuseError, match="there is no journal at 'postgresql://"):
        verify(place)
    assert not database_at(place).is_there()


def test_an_unknown_name_is_a_mistake(eventful: JournalUrl) -> None:
    with pytest.raises(MisuseError, match="no transaction"):
        verify(eventful, "nobody")
    assert [one.key for one in verify(eventful, "fired").chains] == ["fired"]
