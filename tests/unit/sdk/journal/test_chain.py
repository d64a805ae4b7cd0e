"""The chain names what was done to a journal behind the SDK's back (scenario 62, weakness W16)."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from countersign import JournalError, MisuseError
from countersign.journal.chain import UNBOUND
from countersign.journal.findings import Damage
from countersign.journal.spending import BudgetHold
from countersign.journal.verification import verify
from tests.fakes.chained import eventful_journal
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import run

_IS_FIRED = "(SELECT txn FROM transactions WHERE run_key = 'fired')"
_LAST = f"(SELECT max(n) FROM chain WHERE txn = {_IS_FIRED})"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return eventful_journal(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def journal(whole: Path, tmp_path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "journal.db"))


def edited(journal: Path, *statements: str) -> Path:
    """What anybody with `sqlite3` can do, the triggers put back as they were."""
    db = sqlite3.connect(journal, isolation_level=None)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        assert db.execute(statement).rowcount != 0, statement
    for _, sql in triggers:
        db.execute(sql)
    db.close()
    return journal


def id_of(journal: Path, run_key: str) -> str:
    with closing(sqlite3.connect(journal)) as db:
        (found,) = db.execute("SELECT txn FROM transactions WHERE run_key = ?", (run_key,)).fetchone()
    return str(found)


def test_what_the_sdk_wrote_is_sound_and_looking_changes_nothing(journal: Path) -> None:
    before, found = journal.read_bytes(), verify(journal)
    assert (found.findings, found.sound, journal.read_bytes()) == ((), True, before)
    assert {one.key for one in found.chains} >= {"fired", "taken back", "denied", "parked", "unknown"}
    assert all(one.lines and one.head for one in found.chains)


DAMAGES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "a state was changed": (
        Damage.ROW_CHANGED, (f"UPDATE effects SET state = 'failed' WHERE txn = {_IS_FIRED} AND lane = 'staged'",)),
    "an effect was deleted": (Damage.ROW_MISSING, (f"DELETE FROM effects WHERE txn = {_IS_FIRED} AND seq = 2",)),
    "a transaction was deleted, its lines were left": (
        Damage.ROW_MISSING, ("DELETE FROM effects WHERE txn = (SELECT txn FROM transactions WHERE run_key = 'parked')",
                             "DELETE FROM transactions WHERE run_key = 'parked'")),
    "an effect was put in": (
        Damage.ROW_UNKNOWN,
        ("INSERT INTO effects (txn, staging, lane, seq, effect_id, tool, call_key, args, state, updated_at) "
         "SELECT txn, staging, lane, 99, effect_id, tool, call_key, args, state, updated_at FROM effects "
         f"WHERE txn = {_IS_FIRED} AND lane = 'staged' AND seq = 1",)),
    "a line was rewritten": (
        Damage.LINE_CHANGED,
        ("UPDATE chain SET body = CAST(replace(CAST(body AS TEXT), 'fired', 'wired') AS BLOB) "
         f"WHERE txn = {_IS_FIRED}",)),
    "a line was deleted": (Damage.LINE_MISSING, (f"DELETE FROM chain WHERE txn = {_IS_FIRED} AND n = 3",)),
    "the tail was cut off": (Damage.TAIL_CUT, (f"DELETE FROM chain WHERE txn = {_IS_FIRED} AND n > {_LAST} - 2",)),
    "every line was deleted": (Damage.TAIL_CUT, (f"DELETE FROM chain WHERE txn = {_IS_FIRED}",)),
    "two lines changed places": (
        Damage.LINE_MOVED,
        (f"UPDATE chain SET n = -n WHERE txn = {_IS_FIRED} AND n IN (3, 4)",
         f"UPDATE chain SET n = 7 + n WHERE txn = {_IS_FIRED} AND n < 0")),
    "the head was changed": (
        Damage.HEAD_CHANGED, (f"UPDATE transactions SET chain_hash = '' WHERE txn = {_IS_FIRED}",)),
    "the head was set back with the tail": (
        Damage.ROW_CHANGED,
        (f"DELETE FROM chain WHERE txn = {_IS_FIRED} AND n = {_LAST}",
         f"UPDATE transactions SET (chain_n, chain_hash) = (SELECT n, hash FROM chain WHERE txn = {_IS_FIRED} "
         f"ORDER BY n DESC LIMIT 1) WHERE txn = {_IS_FIRED}")),
}  # fmt: skip
"""What somebody did, what it is called, and how."""


@pytest.mark.parametrize("what", DAMAGES)
def test_each_damage_is_named_with_its_transaction(journal: Path, what: str) -> None:
    damage, statements = DAMAGES[what]
    of = id_of(journal, "parked" if "transaction was deleted" in what else "fired")
    found = verify(edited(journal, *statements))
    named = [one for one in found.findings if one.damage is damage and one.txn == of]
    assert named and all(one.line or damage is Damage.ROW_UNKNOWN for one in named), found.findings
    assert {one.txn for one in found.findings} <= {of, None}
    assert damage in {one.damage for one in verify(journal, of).findings}


def test_a_transaction_that_is_gone_with_all_its_lines_leaves_a_gap(journal: Path) -> None:
    of = id_of(journal, "parked")
    tables = ("effects", "chain", "transactions")
    statements = [f"DELETE FROM {table} WHERE txn = '{of}'" for table in tables]
    found = verify(edited(journal, *statements, f"DELETE FROM meta WHERE name LIKE '%{of}'"))
    assert {one.damage for one in found.findings} == {Damage.LINE_MISSING}
    assert found.findings[0].txn is None


def test_a_missing_trigger_and_a_strange_one_are_named(journal: Path) -> None:
    body = "BEGIN DELETE FROM outbox WHERE id = NEW.id; END"
    with closing(sqlite3.connect(journal)) as db:
        db.execute("DROP TRIGGER chain_is_not_cut")
        db.execute(f"CREATE TRIGGER quiet AFTER INSERT ON outbox {body}")
    missing, strange = (one.what for one in verify(journal).findings)
    assert "'chain_is_not_cut' is missing" in missing and "'quiet' is not this SDK's" in strange


KEPT = [(0.0, "no journal"), (0.5, "malformed"), (0.0001, "not a database")]


@pytest.mark.parametrize(("keep", "says"), KEPT, ids=["nothing is left", "half is left", "a piece is left"])
def test_a_truncated_file_is_named(journal: Path, keep: float, says: str) -> None:
    raw = journal.read_bytes()
    journal.write_bytes(raw[: int(len(raw) * keep)])
    found = verify(journal)
    assert any(says in one.what for one in found.findings), found.findings
    assert journal.stat().st_size == int(len(raw) * keep)  # looking does not make a new journal of it


def test_a_missing_file_is_a_mistake_and_no_damage(tmp_path) -> None:
    with pytest.raises(MisuseError, match="no journal"):
        verify(tmp_path / "missing.db")
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("statement", ["UPDATE chain SET kind = 'x'", "DELETE FROM chain"])
def test_lines_are_neither_changed_nor_deleted(journal: Path, statement: str) -> None:
    refused = pytest.raises(sqlite3.IntegrityError, match="line of the chain is never")
    with closing(sqlite3.connect(journal)) as db, refused:
        db.execute(statement)


@pytest.mark.tampers
def test_nothing_is_written_after_a_cut_tail(desk: Desk, refund) -> None:
    """The SDK does not build on a chain whose head is false: it stops before anything is asked or fired."""
    run(desk, (refund, "o-1", 5))
    desk.runtime.close()
    edited(desk.runtime.settings.journal_path, "UPDATE transactions SET chain_hash = 'false'")
    refused = pytest.raises(JournalError, match="journal verify")
    with desk.restarted() as again, refused, again.step():
        refund("o-1", 6)
    assert desk.done == [("refund", "o-1", 5)]


def test_a_line_holds_no_agent_text(desk: Desk) -> None:
    """Scenario 63: what may be secret is bound by digest. The chain may be shown where the journal may not."""
    run(desk, (refund_tool(desk, secret=["order_id"]), "secret-order", 5), key="secret-key")
    journal = desk.runtime.journal
    hold = BudgetHold("a", "tokens", "run", "", 10, "secret-run", 1)
    journal.spending.reserve("c-1", "secret-run", "secret-model", [hold])
    bodies = b"".join(row["body"] for row in journal.database.rows("SELECT body FROM chain"))
    assert b"llm_reserved" in bodies and b'"refund"' in bodies and b"secret" not in bodies


SPENT = [
    ("UPDATE budgets SET most = 999999 WHERE name = 'support/day'", Damage.ROW_CHANGED, "most is 999999"),
    ("UPDATE spent SET spent = 0 WHERE budget = 'support/run'", Damage.ROW_CHANGED, "the line states 80"),
    ("UPDATE spent SET reserved = 0 WHERE reserved = 100", Damage.ROW_CHANGED, "the line states 100"),
    ("UPDATE llm_calls SET state = 'released' WHERE call_id = 'c-2'", Damage.ROW_CHANGED, "states 'unknown'"),
    ("UPDATE llm_holds SET charged = 1 WHERE call_id = 'c-1'", Damage.ROW_CHANGED, "states 80"),
    ("DELETE FROM llm_holds WHERE call_id = 'c-3'", Damage.ROW_MISSING, "llm_holds c-3 support/day is missing"),
    ("INSERT INTO spent VALUES ('support/day', '2026-11-26', 0, 0, 0)", Damage.ROW_UNKNOWN, "no line states"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "kind", "says"), SPENT)
def test_what_was_spent_is_bound_as_well(journal: Path, edit: str, kind: Damage, says: str) -> None:
    """W13 and scenario 62 together: a budget raised behind the SDK's back is detected."""
    (found,) = verify(edited(journal, edit)).findings
    assert (found.damage, found.txn) == (kind, None)
    assert says in found.what


def test_only_the_lease_and_the_head_are_unbound() -> None:
    """A new unbound column needs a reason in chain.py."""
    lease = {"holder", "generation", "lease_until", "updated_at"}
    assert dict(UNBOUND) == {"transactions": lease | {"chain_n", "chain_id", "chain_hash"}}
