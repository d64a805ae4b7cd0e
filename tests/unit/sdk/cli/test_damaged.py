"""A journal in which a row cannot be read: every verb shows the rest, names that one, and does not end with 0."""

import csv
import io
import json

import pytest
from typer.testing import Result

from countersign import MisuseError, ReviewPending
from countersign.simulation.recording import from_export
from tests.fakes.desk import Desk
from tests.unit.sdk.journals import both_engines, journal_command

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
def damaged(desk: Desk, refund, engine: str):
    """A journal of two steps, and this done to it."""
    for key in ("t-1", "t-2"):
        desk.run((refund, f"o-{key}", 100), (refund, f"p-{key}", 100), key=key)

    def change(sql: str) -> None:
        with desk.runtime.journal.database.unit(durable=True) as unit:
            assert unit.execute(sql.format(OF_IT, **WORDS[engine])).rowcount > 0

    return change


def said(desk: Desk, *args: str) -> Result:
    return journal_command(desk.runtime.settings.journal_path, *args)


def reported(desk: Desk, why: str, *args: str) -> str:
    """What a verb prints that has met the damage."""
    result = said(desk, *args)
    assert (result.exit_code, why in result.stdout) == (1, True), result.output
    assert (
        "1 of them cannot be read" in result.stderr and "`countersign journal verify` names" in result.stderr
    )
    return result.stdout


@pytest.mark.tampers
@pytest.mark.parametrize("what", A_CALL)
def test_of_a_step_the_other_calls_are_shown_and_exported(desk: Desk, damaged, what: str) -> None:
    sql, why = A_CALL[what]
    damaged(sql)
    (one,) = json.loads(reported(desk, why, "show", "t-1", "--json"))
    assert [(call["seq"], call["state"]) for call in one["effects"]] == [(1, "damaged"), (2, "fired")]
    assert (one["state"], one["effects"][1]["args"]) == ("settled", '{"amount_cents":100,"order_id":"p-t-1"}')
    assert [note[:10] for note in one["unreadable"]] == ["staged 1: "]
    text = reported(desk, why, "show", "t-1")
    assert "staged 1:  damaged" in text and "staged 2: refund fired" in text
    rows = csv.DictReader(io.StringIO(said(desk, "export", "--format", "csv").stdout))
    states = {f"{row['key']} {row['seq']}": row["effect_state"] for row in rows}
    assert states == {"t-1 1": "damaged", "t-1 2": "fired", "t-2 1": "fired", "t-2 2": "fired"}
    assert said(desk, "show", "t-2").exit_code == 0


@pytest.mark.tampers
@pytest.mark.parametrize("what", [*ITSELF, *A_CALL])
def test_lists_and_exports_mark_damage(desk: Desk, damaged, what: str, tmp_path) -> None:
    (sql, why), out = (A_CALL | ITSELF)[what], tmp_path / "export.json"
    damaged(sql)
    for verb in ("list", "filter"):
        rows = {one["key"]: one["state"] for one in json.loads(reported(desk, why, verb, "--json"))}
        assert rows == {"t-1": "damaged", "t-2": "settled"}
        reported(desk, "damaged", verb)
    other = said(desk, "filter", "--text", "t-2")
    assert (other.exit_code, other.stderr) == (0, "")
    document = json.loads(reported(desk, why, "export"))
    keys = {name: [one["key"] for one in document[name]] for name in ("transactions", "damaged")}
    assert keys == {"transactions": ["t-2"], "damaged": ["t-1"]}
    reported(desk, why.split("'")[-1], "export", "--format", "md")
    reported(desk, "2 transactions in", "export", "--out", str(out))
    assert from_export(out, "t-2").key == "t-2"
    with pytest.raises(MisuseError, match="no transaction 't-1'"):
        from_export(out, "t-1")
    if what in ITSELF:
        (one,) = json.loads(reported(desk, why, "show", "t-1", "--json"))
        assert (one["key"], one["state"], one["effects"]) == ("t-1", "damaged", [])
        reported(desk, "state: damaged", "show", "t-1")


def test_an_unbound_time_is_not_shown(desk: Desk, damaged) -> None:
    """It moves with the lease."""
    damaged("UPDATE transactions SET updated_at = -1e300 WHERE {}")
    for verb in ("list", "filter", "export"):
        reported(desk, "updated_at is no time", verb)


@pytest.mark.tampers
@pytest.mark.parametrize("engine", ["sqlite"])
@pytest.mark.parametrize(("table", "column"), ON_SQLITE)
def test_invalid_text_is_not_shown(desk: Desk, damaged, table: str, column: str) -> None:
    damaged(f"UPDATE {table} SET {column} = {NO_TEXT} WHERE {{}}")
    for verb in ("list", "filter", "export", "show t-1"):
        reported(desk, "Could not decode to UTF-8", *verb.split())
    assert said(desk, "show", "t-2").exit_code == 0


@pytest.mark.tampers
def test_a_note_of_changes_that_is_none_hides_no_call(desk: Desk, refund) -> None:
    txn = desk.run((refund, "o-1", 90_000), raises=ReviewPending).txn
    desk.runtime.journal.edits.note(txn, [])
    with desk.runtime.journal.database.unit(durable=True) as unit:
        assert unit.execute("UPDATE meta SET value = '[' WHERE substr(name, 1, 6) = 'edited'").rowcount == 1
    (one,) = json.loads(reported(desk, "note of the changes", "show", "t-1", "--json"))
    assert [call["state"] for call in one["effects"]] == ["review"]
