"""The journal from a terminal: verify, filter, export, stats."""

import csv
import io
import json
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from countersign import ReviewPending, resume, tool
from countersign.cli.app import app
from countersign.clock import SystemClock
from countersign.journal import Journal
from countersign.journal.export import COLUMNS, FORMAT, render_export
from countersign.journal.location import JournalUrl
from countersign.journal.queries import parse_time
from countersign.journal.sealing_keys import add_key
from tests.fakes.chained import eventful_journal
from tests.fakes.desk import Desk, TickingClock, refund_tool
from tests.unit.sdk.journals import journal_command as run
from tests.unit.sdk.journals import schema

ON_POSTGRES = pytest.mark.xdist_group("journals")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return eventful_journal(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def at_postgres(journal_database: str, tmp_path_factory):
    with schema(journal_database) as url:
        eventful_journal(tmp_path_factory.mktemp("at_postgres"), url)
        yield url


def keys(path: Path | JournalUrl, *args: str) -> set[str]:
    result = run(path, "filter", *args, "--json")
    assert result.exit_code == 0, result.output
    return {one["key"] for one in json.loads(result.output)}


def test_a_sound_journal_ends_with_zero(whole: Path) -> None:
    result = run(whole, "verify")
    assert (result.exit_code, result.output) == (0, "intact: 7 transactions, 93 lines\n")
    output = json.loads(run(whole, "verify", "fired", "--json").output)
    keys_found = [one["key"] for one in output["chains"]]
    assert (output["sound"], output["findings"], keys_found) == (True, [], ["fired"])


def test_damage_ends_with_one_and_is_named_with_transaction_and_line(whole: Path, tmp_path) -> None:
    path = Path(shutil.copy(whole, tmp_path))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE effects SET state = 'failed' WHERE state = 'unknown'")
    shown, output = run(path, "verify"), run(path, "verify", "--json")
    assert "row_changed" in shown.output
    assert "state is 'failed'; the line states 'unknown'" in shown.output
    (found,) = json.loads(output.output)["findings"]
    assert (found["damage"], found["line"]) == ("row_changed", 8)
    results = shown, output, run(path, "verify", found["txn"]), run(path, "verify", "fired")
    assert [one.exit_code for one in results] == [1, 1, 1, 0]


FILTERS: list[tuple[str, set[str]]] = [
    ("", {"fired", "taken back", "denied", "parked", "unknown", "settled by a person", "body"}),
    ("--state parked", {"parked"}),
    ("--state unsettled", {"unknown"}),
    ("--state compensated", {"taken back"}),
    ("--tool slow", {"unknown", "settled by a person"}),
    ("--tool refund --state settled", {"fired"}),
    ("--tool slo", set()),
    ("--agent support --text PARK", {"parked"}),
    ("--agent another", set()),
    ("--text %", set()),
    ("--text= --state settled", {"fired", "taken back", "settled by a person"}),
    ("--since 2027-01-15T08:00:00Z --text fired", {"fired"}),
    ("--since 2027-01-15T08:00:01Z", set()),
    ("--until 2027-01-15T08:00:00Z", set()),
    ("--until 2027-01-16 --since 2027-01-15 --state denied", {"denied"}),
]


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=ON_POSTGRES)])
def test_filters_are_combined_with_and(request, engine: str) -> None:
    place = request.getfixturevalue("whole" if engine == "sqlite" else "at_postgres")
    assert [(said, keys(place, *said.split())) for said, _ in FILTERS] == FILTERS
    assert len(keys(place, "--limit", "2")) == 2


MISTAKES = [
    ("filter --state approved", "there is no state 'approved'"),
    ("filter --since yesterday", "'yesterday' is no time"),
    ("filter --since '2 h'", "how long ago, like 2h or 7d"),
    ("export --format xml", "there is no format 'xml'"),
    ("export --out journal.db", "'journal.db' is there already; nothing was written"),
    ("export --out no/export.json", "cannot be written: No such file or directory"),
    ("verify absent", "no transaction 'absent'"),
    ("show ''", "has no transaction ''"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES)
def test_a_mistake_is_a_sentence(whole: Path, words: str, says: str, monkeypatch) -> None:
    monkeypatch.chdir(whole.parent)
    result = run(whole, *shlex.split(words))
    assert (result.exit_code, says in result.output) == (1, True)


def test_an_export_is_one_document_for_its_reader_alone(whole: Path, tmp_path) -> None:
    out = tmp_path / "export.json"
    assert run(whole, "export", "--tool", "charge", "--out", str(out)).output.startswith("1 transactions in")
    output = json.loads(out.read_text())
    assert (out.stat().st_mode & 0o077, output["format"], len(output["transactions"])) == (0, FORMAT, 1)
    assert [one["tool"] for one in output["transactions"][0]["effects"]] == ["charge", "notify", "void"]


def staged_by_a_bad_agent(desk: Desk) -> Path:
    """Its text is a formula, a link, an image and an escape sequence; one argument is secret."""

    @tool("pay", resource=("Order", "order_id"), secret=["card"], registry=desk.registry)
    def pay(order_id: str, amount_cents: int, card: str) -> str:
        """Pay."""
        return f"=1+{order_id}"

    desk.publish(pay)
    desk.run((pay, "| <img src=x> |", 5, "4111 1111"), key='=HYPERLINK("x")|`\x1b[2J[a](http://b)')
    return desk.runtime.settings.journal_path


@pytest.mark.parametrize("form", ["json", "csv", "md"])
def test_exports_contain_no_secret_and_no_control_character(desk: Desk, form: str) -> None:
    result = run(staged_by_a_bad_agent(desk), "export", "--format", form)
    assert [text in result.output for text in ("4111", "(secret)", "\x1b")] == [False, True, False]
    assert result.exit_code == 0
    if form == "csv":  # and no cell begins as a formula
        (row,) = csv.DictReader(io.StringIO(result.output))
        assert tuple(row) == COLUMNS and row["key"].startswith("'=HYPERLINK")
        assert (row["lane"], row["tool"], row["effect_state"]) == ("staged", "pay", "fired")


MARKUP = {"plain": "`plain`", "a|b": "`a\\x7cb`", "`": "`` ` ``", "a``b`": "``` a``b` ```", "\n": "`\\n`"}


@pytest.mark.parametrize(("text", "shown"), MARKUP.items())
def test_nothing_an_agent_wrote_is_markup(text: str, shown: str) -> None:
    names = ("lane", "seq", "tool", "state", "args", "result", "error", "settled")
    effect = dict.fromkeys(names) | {"args": text}
    one = dict.fromkeys(("txn", "agent", "state", "revision", "attempt", "created", "changed", "note"))
    output = render_export("md", [one | {"key": "k", "effects": [effect], "dropped": []}], "now")
    assert output.splitlines()[-1] == f"|  |  |  |  | {shown} |  |  |  |"


def test_a_list_fits_a_terminal_and_shows_live_calls(whole: Path) -> None:
    """What is broken over lines cannot be read, nor copied."""
    command = ["journal", "list", "--journal", str(whole)]
    output = CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": "80"}).output
    times = {one["changed"][:16].replace("T", " ") for one in json.loads(run(whole, "list", "--json").output)}
    assert {len(line) for line in output.splitlines()} == {80} and all(time in output for time in times)
    assert "note kept" in " ".join(run(whole, "list").output.split())


def test_stats_count_what_happened(whole: Path) -> None:
    output = json.loads(run(whole, "stats", "--json").output)
    assert output["transactions"] == {"ended": 2, "parked": 1, "settled": 3, "unsettled": 1}
    names = ("called", "fired", "unknown", "compensated", "compensations")
    assert [output["effects"][name] for name in names] == [11, 5, 1, 1, 1]
    fired = {one["tool"]: one["fired"] for one in output["tools"]}
    assert fired == {"charge": 1, "note": 1, "notify": 0, "refund": 2, "slow": 1}
    assert "1 calls needed a review and 0 were decided" in run(whole, "stats", "--state", "parked").output


def test_stats_know_how_long_people_took(desk: Desk) -> None:
    """Also of an answer that a rerun found."""
    refund, path = refund_tool(desk), desk.runtime.settings.journal_path
    for key, minutes in (("a", 1), ("b", 2), ("c", 9)):
        txn = desk.run((refund, "o-1", 90_000), key=key, raises=ReviewPending).txn
        desk.clock.advance(60 * minutes)
        desk.service.approve(txn)
        if key == "a":
            desk.run((refund, "o-1", 90_000), key=key)
        else:
            resume(desk.runtime)
    people = json.loads(run(path, "stats", "--json").output)["people"]
    assert people == {"asked": 3, "answered": 3, "median_seconds": 120.0, "longest_seconds": 540.0}
    assert "3 were decided after 120 s (median)" in run(path, "stats").output


# ------------------------------------------------------------------------------------- the same on PostgreSQL


@ON_POSTGRES
def test_every_verb_reads_postgresql(whole: Path, at_postgres: JournalUrl, monkeypatch) -> None:
    monkeypatch.setattr(SystemClock, "wall", TickingClock().wall)  # today is the journal's day
    assert run(at_postgres, "verify").output == "intact: 7 transactions, 93 lines\n"
    assert run(at_postgres, "stats", "--json").output == run(whole, "stats", "--json").output
    shown = [json.loads(run(one, "show", "fired", "--json").output)[0] for one in (at_postgres, whole)]
    there, here = ([(one["tool"], one["args"]) for one in document["effects"]] for document in shown)
    assert there == here and len(there) == 3
    assert len(json.loads(run(at_postgres, "export").output)["transactions"]) == 7
    assert "taken back" in run(at_postgres, "list").output
    budgets = CliRunner().invoke(app, ["budget", "list", "--json", "--journal", at_postgres.secret])
    found = [(one["budget"], one["spent"], one["reserved"]) for one in json.loads(budgets.output)]
    assert found == [("support/day", "5", "100"), ("support/run", "80", "0")]


EMPTY = [
    ("journal list", "the journal is empty"),
    ("journal filter --tool nothing", "no transaction matches"),
    ("budget list", "no budget was asked"),
    ("budget calls", "no call to a language model"),
]


@pytest.mark.parametrize(("words", "says"), EMPTY)
def test_empty_results_are_stated(tmp_path, words: str, says: str) -> None:
    command = [*words.split(), "--journal", str(tmp_path / "journal.db")]
    Journal(tmp_path / "journal.db").transactions.newest_ids(1)
    result = CliRunner(env={"COUNTERSIGN_BUDGETS": ""}).invoke(app, command)
    assert (result.exit_code, result.output.startswith(says)) == (0, True), result.output
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).output) == []


def new_key(file: Path, **env: str) -> str:
    runner = CliRunner(env={"COUNTERSIGN_JOURNAL_KEY": None, **env})
    result = runner.invoke(app, ["journal", "new-key", str(file)])
    assert result.exit_code == 0, result.output
    return result.stderr


def test_a_new_key_file_that_would_replace_a_used_one_is_warned_about(tmp_path) -> None:
    journal, other = tmp_path / "journal.db", tmp_path / "other.key"
    here = {"COUNTERSIGN_JOURNAL": str(journal)}
    assert new_key(tmp_path / "first.key", **here) == ""  # there is no other
    add_key(tmp_path / "journal.db.key")
    assert "journal.db.key' has sealed does not open with it" in new_key(other, **here)
    assert new_key(other, **here) == ""  # it is in use by now, and another line of it takes nothing away
    assert new_key(tmp_path / "journal.db.key", **here) == ""
    named = {"COUNTERSIGN_JOURNAL": "postgresql://db.example/j", "COUNTERSIGN_JOURNAL_KEY": str(other)}
    assert "other.key' has sealed" in new_key(tmp_path / "third.key", **named)
    assert new_key(tmp_path / "fourth.key", COUNTERSIGN_JOURNAL="", COUNTERSIGN_AGENT="") == ""


def test_a_time_may_be_relative() -> None:
    ago = {"90m": 5_400, "2h": 7_200, "7d": 604_800, "0m": 0}
    assert {text: 1_000_000 - parse_time(text, 1_000_000.0) for text in ago} == ago
