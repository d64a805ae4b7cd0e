"""A journal in which a row cannot be read: every verb shows the rest, names that one, and does not end with 0."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner, Result

from countersign import MisuseError, ReviewPending
from countersign.cli.app import app
from countersign.journal.location import JournalUrl
from countersign.simulation.recording import from_export
from tests.fakes.desk import Desk, refund_tool
from tests.unit.sdk.journals import both_engines

__all__ = ["both_engines"]

OF_IT = "txn = (SELECT txn FROM transactions WHERE run_key = 't-1')"
ITSELF = {
    "its state is none": ("UPDATE transactions SET state = 'none' WHERE {}", "unknown state 'none'"),
    "its time is none": ("UPDATE transactions SET created_at = 1e300 WHERE {}", "created_at is no time"),
}
A_CALL = {
    "the state of a call is none": ("state = 'none'", "'none' is not a valid"),
    "its arguments are others": ("args = CAST('{{}}' AS {bytes})", "do not match the stored digest"),
    "its result is no text": ("result = {broken}", "can't decode byte 0xff"),
}
ONE = "UPDATE effects SET {} WHERE {{}} AND seq = 1"
A_CALL = {name: (ONE.format(change), why) for name, (change, why) in A_CALL.items()}
WORDS = {
    "sqlite": {"bytes": "BLOB", "broken": "x'ff'"},
    "postgresql": {"bytes": "bytea", "broken": "decode('ff', 'hex')"},
}
NO_TEXT = "CAST(x'ff' AS TEXT)"  # SQLite keeps it, PostgreSQL does not
ON_SQLITE = [("transactions", "note"), ("effects", "error")]


@pytest.fixture
def damaged(desk: Desk, engine: str):
    """A journal of two steps, and this done to it."""
    refund = refund_tool(desk)
    for key in ("t-1", "t-2"):
        desk.run((refund, f"o-{key}", 100), (refund, f"p-{key}", 100), key=key)

    def change(sql: str) -> Desk:
        words = WORDS[engine]
        with desk.runtime.journal.database.unit(durable=True) as unit:
            assert unit.execute(sql.format(OF_IT, **words)).rowcount > 0
        return desk

    return change


def said(desk: Desk, *args: str) -> Result:
    place = desk.runtime.settings.journal_path
    named = place.secret if isinstance(place, JournalUrl) else str(place)
    command = ["journal", *args, "--journal", named]
    return CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": "250"})


def assert_reported(result: Result, why: str) -> None:
    assert (result.exit_code, why in result.stdout) == (1, True), result.output
    assert "1 of them cannot be read" in result.stderr
    assert "`countersign journal verify` names" in result.stderr


@pytest.mark.tampers
@pytest.mark.parametrize("what", A_CALL)
def test_of_a_step_the_other_calls_are_shown_and_exported(damaged, what: str) -> None:
    sql, why = A_CALL[what]
    desk = damaged(sql)
    result = said(desk, "show", "t-1", "--json")
    assert_reported(result, why)
    (one,) = json.loads(result.stdout)
    assert [(call["seq"], call["state"]) for call in one["effects"]] == [(1, "damaged"), (2, "fired")]
    assert (one["state"], one["effects"][1]["args"]) == ("settled", '{"amount_cents":100,"order_id":"p-t-1"}')
    (note,) = one["unreadable"]
    assert note.startswith("staged 1: ")
    text = said(desk, "show", "t-1")
    assert_reported(text, why)
    assert "staged 1:  damaged" in text.stdout and "staged 2: refund fired" in text.stdout
    rows = [*csv.DictReader(io.StringIO(said(desk, "export", "--format", "csv").stdout))]
    assert sorted((row["key"], row["seq"], row["effect_state"]) for row in rows) == [
        ("t-1", "1", "damaged"), ("t-1", "2", "fired"), ("t-2", "1", "fired"), ("t-2", "2", "fired"),
    ]  # fmt: skip
    assert said(desk, "show", "t-2").exit_code == 0


@pytest.mark.tampers
@pytest.mark.parametrize("what", [*ITSELF, *A_CALL])
def test_lists_and_exports_mark_damage(damaged, what: str, tmp_path) -> None:
    sql, why = (A_CALL | ITSELF)[what]
    desk, out = damaged(sql), tmp_path / "export.json"
    for verb in ("list", "filter"):
        result = said(desk, verb, "--json")
        assert_reported(result, why)
        rows = {one["key"]: one["state"] for one in json.loads(result.stdout)}
        assert rows == {"t-1": "damaged", "t-2": "settled"}
        assert_reported(said(desk, verb), "damaged")
    other = said(desk, "filter", "--text", "t-2")
    assert (other.exit_code, other.stderr) == (0, "")
    result = said(desk, "export")
    assert_reported(result, why)
    document = json.loads(result.stdout)
    assert [one["key"] for one in document["transactions"]] == ["t-2"]
    assert [one["key"] for one in document["damaged"]] == ["t-1"]
    assert_reported(said(desk, "export", "--format", "md"), why.split("'")[-1])
    assert_reported(said(desk, "export", "--out", str(out)), "2 transactions in")
    assert from_export(out, "t-2").key == "t-2"
    with pytest.raises(MisuseError, match="no transaction 't-1'"):
        from_export(out, "t-1")
    if what in ITSELF:
        result = said(desk, "show", "t-1", "--json")
        assert_reported(result, why)
        (one,) = json.loads(result.stdout)
        assert (one["key"], one["state"], one["effects"]) == ("t-1", "damaged", [])
        assert_reported(said(desk, "show", "t-1"), "state: damaged")


def test_an_unbound_time_is_not_shown(damaged) -> None:
    """It moves with the lease."""
    desk = damaged("UPDATE transactions SET updated_at = -1e300 WHERE {}")
    for verb in ("list", "filter", "export"):
        assert_reported(said(desk, verb), "updated_at is no time")


@pytest.mark.tampers
@pytest.mark.parametrize("engine", ["sqlite"])
@pytest.mark.parametrize(("table", "column"), ON_SQLITE)
def test_invalid_text_is_not_shown(damaged, table: str, column: str) -> None:
    desk = damaged(f"UPDATE {table} SET {column} = {NO_TEXT} WHERE {{}}")
    for verb in ("list", "filter", "export"):
        assert_reported(said(desk, verb), "Could not decode to UTF-8")
    assert_reported(said(desk, "show", "t-1"), "Could not decode to UTF-8")
    assert said(desk, "show", "t-2").exit_code == 0


@pytest.mark.tampers
def test_a_note_of_changes_that_is_none_hides_no_call(desk: Desk) -> None:
    txn = desk.run((refund_tool(desk), "o-1", 90_000), raises=ReviewPending).txn
    desk.runtime.journal.edits.note(txn, [])
    with desk.runtime.journal.database.unit(durable=True) as unit:
        assert unit.execute("UPDATE meta SET value = '[' WHERE substr(name, 1, 6) = 'edited'").rowcount == 1
    result = said(desk, "show", "t-1", "--json")
    assert_reported(result, "note of the changes")
    assert [call["state"] for call in json.loads(result.stdout)[0]["effects"]] == ["review"]
