"""The journal on PostgreSQL: what is its own there. The rules of every journal are in test_journal.py, on both."""

import multiprocessing
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from countersign import JournalError, MisuseError
from countersign.journal import Journal, Lease, open_database
from countersign.journal import postgres as engine_module
from countersign.journal.findings import Damage
from countersign.journal.location import JournalUrl
from countersign.journal.verification import verify
from tests.counterparts import postgres
from tests.fakes.chained import eventful_journal
from tests.fakes.desk import AGENT, Desk
from tests.fakes.running import fails, run
from tests.unit.sdk.journals import terminate

pytestmark = pytest.mark.xdist_group("journals")
TXN = "a" * 64


@pytest.fixture
def engine() -> str:
    return "postgresql"


@pytest.fixture
def journal(place: JournalUrl):
    opened = Journal(place)
    yield opened
    opened.close()


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


# --------------------------------------------------------------------------------------------------- its tables


def test_it_has_a_schema_of_its_own(server: str) -> None:
    with postgres.database(server) as url:
        journal = Journal(url.replace("+psycopg", ""))
        assert not journal.database.exists()
        write(journal, "a")
        assert journal.database.exists()
        found = journal.database.rows("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename = 'chain'")
        assert [row[0] for row in found] == ["countersign_journal"]
        journal.close()


def test_many_may_start_at_once_and_one_of_them_takes_a_lease(place: JournalUrl) -> None:
    together = threading.Barrier(6)

    def start(_: int) -> bool:
        journal = Journal(place)
        together.wait(30)
        journal.transactions.open(txn=TXN, agent=AGENT, run_key="t-1", independent=False)
        lease = journal.leases.acquire(TXN)
        together.wait(30)  # its holder keeps it until all have asked
        journal.close()
        return isinstance(lease, Lease)

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(start, range(6))) == [False] * 5 + [True]
    assert verify(place).sound


def test_another_programs_tables_are_refused(place: JournalUrl) -> None:
    name = place.secret.rpartition("%3D")[2]
    outside(place, f"CREATE SCHEMA {name}", f"CREATE TABLE {name}.theirs (x int)")
    for ask in (lambda journal: write(journal, "a"), lambda journal: journal.database.exists()):
        journal = Journal(place)
        with pytest.raises(JournalError, match="another program"):
            ask(journal)
        journal.close()


def test_a_schema_that_was_made_for_it_is_taken(place: JournalUrl, journal: Journal) -> None:
    """A role may be allowed one schema and none else."""
    outside(place, f"CREATE SCHEMA {place.secret.rpartition('%3D')[2]}")
    write(journal, "a")
    assert names(journal) == ["a"]


OTHERS = {
    "UPDATE journal SET version = 99": "version 99",
    "UPDATE journal SET application = 1": "another program",
    "DELETE FROM journal": "another program",
    "DROP TABLE journal": "another program",
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_journal_of_another_version_or_kind_is_refused(place: JournalUrl, change: str) -> None:
    first = Journal(place)
    write(first, "a")
    first.close()
    outside(place, change)
    for use in (lambda: write(first, "b"), lambda: verify(place)):
        with pytest.raises(JournalError, match=OTHERS[change]):
            use()


@pytest.mark.parametrize("named", ['"$user"', "Agent-A", "a b"])
def test_a_schema_with_a_difficult_name_is_refused(journal_database: str, named: str) -> None:
    name = named if named.startswith('"') else f'"{named}"'
    address = f"{journal_database}?options=-csearch_path%3D{name.replace(' ', '%5C%20').replace('$', '%24')}"
    with pytest.raises(JournalError, match="one small word"):
        write(Journal(address), "a")


# ---------------------------------------------------------------------------------------------- what a unit keeps


LEVELS = {"on": "on", "off": "on", "local": "on", "remote_write": "on", "remote_apply": "remote_apply"}


@pytest.mark.parametrize("default", LEVELS)
def test_a_durable_unit_waits_for_the_disk_despite_server_defaults(place: JournalUrl, default: str) -> None:
    journal = Journal(f"{place.secret}%20-csynchronous_commit%3D{default}")
    for asked, level in ((True, LEVELS[default]), (False, "off"), (True, LEVELS[default])):
        with journal.database.unit(durable=asked) as unit:
            assert unit.execute("SHOW synchronous_commit").fetchone()[0] == level
    journal.close()


def test_a_commit_that_the_server_turned_into_a_rollback_is_an_error(journal: Journal) -> None:
    rolled_back = pytest.raises(JournalError, match="answered COMMIT with ROLLBACK")
    with rolled_back, journal.database.unit(durable=True) as unit:
        unit.execute("INSERT INTO meta (name, value) VALUES ('a', 'x')")
        with pytest.raises(psycopg.Error):
            unit.execute("SELECT nothing FROM nowhere")
    assert names(journal) == []


def test_units_wait_for_a_time(place: JournalUrl, journal: Journal, monkeypatch) -> None:
    monkeypatch.setattr(engine_module, "_WAIT_MS", 50)
    other = Journal(place)
    with journal.database.unit(durable=False):
        write(journal, "a")
        with pytest.raises(JournalError, match="lock timeout"):
            write(other, "b")
        assert names(other) == []
    write(other, "c")
    assert names(journal) == ["a", "c"]
    other.close()


# ------------------------------------------------------------------------------------------- a connection is lost


def test_an_idle_connection_that_was_lost_is_replaced(place: JournalUrl, journal: Journal) -> None:
    write(journal, "a")
    terminate(journal, place)
    write(journal, "b")
    terminate(journal, place)
    assert names(journal) == ["a", "b"]


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
def test_a_lost_commit_is_not_known(place: JournalUrl, journal: Journal, monkeypatch, written: bool) -> None:
    with monkeypatch.context() as lost:
        losing(lost, journal, place, written=written)
        with pytest.raises(JournalError, match="it is unknown whether it was written"):
            write(journal, "a", durable=True)
    assert names(journal) == (["a"] if written else [])
    write(journal, "b")


def losing(monkeypatch: pytest.MonkeyPatch, journal: Journal, place: JournalUrl, *, written: bool) -> None:
    """From here on the connection is lost at a COMMIT: before the server has it, or before its answer is here."""
    database = journal.database
    commit = database._commit

    def lose() -> None:
        if written:
            commit()
        terminate(journal, place)
        commit()

    monkeypatch.setattr(database, "_commit", lose)


def test_lost_leases_block_no_other_process(desk: Desk, refund, place: JournalUrl, monkeypatch) -> None:
    """The answer to the COMMIT was lost: the row names a holder that lives, and that has no lease."""
    journal = desk.runtime.journal
    journal.transactions.newest_ids(1)
    with monkeypatch.context() as lost:
        losing(lost, journal, place, written=True)
        kept = fails(desk, JournalError, (refund, "o-1", 5), match="it is unknown").error
    assert journal.transactions.find("t-1")[0].holder is not None
    run(desk, (refund, "o-1", 5))
    assert kept.__traceback__ is not None  # a kept error keeps its frames, and with them the lease
    assert desk.done == [("refund", "o-1", 5)]


def test_a_child_process_leaves_its_parents_connection_alone(journal: Journal) -> None:
    write(journal, "a")
    child = multiprocessing.get_context("fork").Process(target=write, args=(journal, "b"))
    child.start()
    child.join(60)
    session = journal.database._session
    assert (names(journal), journal.database._session is session) == (["a", "b"], True)


# ---------------------------------------------------------------------------------------------------- verifying


@pytest.fixture(scope="module")
def whole(server: str, tmp_path_factory):
    """A database with a journal that has seen everything, to be copied."""
    with postgres.database(server) as url:
        eventful_journal(tmp_path_factory.mktemp("whole"), JournalUrl(url.replace("+psycopg", "")))
        yield url.rpartition("/")[2]


@pytest.fixture
def eventful(server: str, whole: str):
    with postgres.database(server, whole) as url:
        yield JournalUrl(url.replace("+psycopg", ""))


IN_SCHEMA = "SET search_path = countersign_journal"


def _of(key: str) -> str:
    return f"txn = (SELECT txn FROM transactions WHERE run_key = '{key}')"


DAMAGES: dict[Damage, str] = {
    Damage.ROW_CHANGED: f"UPDATE effects SET state = 'failed' WHERE {_of('taken back')} AND lane = 'staged'",
    Damage.ROW_MISSING: f"DELETE FROM effects WHERE {_of('fired')} AND seq = 2",
    Damage.ROW_UNKNOWN: f"INSERT INTO receipts SELECT 'other', txn, 'x', 1 FROM transactions WHERE {_of('fired')}",
    Damage.LINE_CHANGED: f"UPDATE chain SET body = body || '\\x20'::bytea WHERE {_of('parked')} AND n = 2",
    Damage.LINE_MISSING: f"DELETE FROM chain WHERE {_of('unknown')} AND n = 3",
    Damage.TAIL_CUT: f"DELETE FROM chain WHERE {_of('settled by a person')}",
    Damage.HEAD_CHANGED: f"UPDATE transactions SET chain_hash = '' WHERE {_of('body')}",
}


def test_each_damage_is_named(eventful: JournalUrl) -> None:
    """test_chain.py explains each of them; here it is looked for by the statements of PostgreSQL."""
    assert verify(eventful).findings == ()
    triggers = ("ALTER TABLE chain DISABLE TRIGGER USER", "ALTER TABLE chain ENABLE TRIGGER USER")
    outside(eventful, IN_SCHEMA, triggers[0], *DAMAGES.values(), triggers[1])
    assert {one.damage for one in verify(eventful).findings} == set(DAMAGES)


QUIET = "CREATE TRIGGER quiet BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION chain_is_not_cut()"
FOLLOWS = "FUNCTION chain_follows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
SCHEMA_DAMAGES = {
    "trigger 'chain_is_not_cut' is missing": "DROP TRIGGER chain_is_not_cut ON chain",
    "trigger 'chain_follows' is not as made": "ALTER TABLE chain DISABLE TRIGGER chain_follows",
    "function 'chain_follows()' is not as made": f"CREATE OR REPLACE {FOLLOWS}",
    "trigger 'quiet' is not this SDK's": QUIET,
    "rule 'silent' is not this SDK's": "CREATE RULE silent AS ON INSERT TO outbox DO INSTEAD NOTHING",
    "column 'effects.state' is not as made": "ALTER TABLE effects ALTER state DROP NOT NULL",
    "index 'effects_by_id' is missing": "DROP INDEX effects_by_id",
    "constraint 'spent.spent_spent_check' is missing": "ALTER TABLE spent DROP CONSTRAINT spent_spent_check",
    "table 'effects' is not as made": "ALTER TABLE effects ENABLE ROW LEVEL SECURITY",
}


def test_what_is_not_as_made_is_named(eventful: JournalUrl) -> None:
    outside(eventful, IN_SCHEMA, *SCHEMA_DAMAGES.values())
    found = verify(eventful).findings
    assert {one.what for one in found} >= set(SCHEMA_DAMAGES)
    assert {one.damage for one in found} == {Damage.SCHEMA}


FORGED = (
    "INSERT INTO chain (id, txn, n, kind, body, prev, hash) "
    "SELECT 10000, txn, 10000, 'x', '', '', '' FROM transactions LIMIT 1"
)
UNTOUCHED = {
    "UPDATE chain SET kind = 'x'": "a line of the chain is never changed",
    "DELETE FROM chain": "a line of the chain is never deleted",
    "TRUNCATE chain": "a line of the chain is never deleted",
    FORGED: "the chain of this transaction was changed",
}


def test_lines_are_neither_changed_nor_deleted_nor_forged(eventful: JournalUrl) -> None:
    journal = Journal(eventful)
    for statement, says in UNTOUCHED.items():
        with pytest.raises(psycopg.errors.RaiseException, match=re.escape(says)):
            outside(eventful, IN_SCHEMA, statement)
        with pytest.raises(JournalError, match=re.escape(says)), journal.database.unit(durable=False) as unit:
            unit.execute(statement)
    journal.close()
    assert verify(eventful).sound
    assert [one.key for one in verify(eventful, "fired").chains] == ["fired"]


def test_a_database_without_a_journal_is_a_mistake_and_stays_as_it_is(place: JournalUrl) -> None:
    with pytest.raises(MisuseError, match="there is no journal at 'postgresql://"):
        verify(place)
    assert not open_database(place).exists()
