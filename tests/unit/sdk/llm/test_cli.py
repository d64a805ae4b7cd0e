"""`countersign budget list | calls | settle`: what is shown of budgets and calls, and what is hidden."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from countersign import Budget, NotDone, llm_call, record_llm
from countersign.cli.app import app
from countersign.clock import SystemClock
from countersign.journal.spending import BudgetHold
from countersign.llm.budgets import day_of
from tests.fakes.desk import Desk, make_desk
from tests.fakes.llm_answers import ANTHROPIC, OPENAI_CHAT, SECRET

MODEL = "example-small"
ROWS = (Budget("a-day", "tokens", 10_000, "day"), Budget("a-run", "calls", 2, "run"))
FILED = """
[[budget]]
name = "filed"
measure = "money"
limit = "12.50"
currency = "USD"
per = "day"
models = ["other-*"]
"""


@pytest.fixture
def desk_of_today(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A journal with calls of today: one done, one never made, one unknown, one of long ago.

    The command line and this journal share the desk's clock, so the day cannot end in the middle of a test.
    """
    path = tmp_path / "budgets.toml"
    path.write_text(FILED)
    desk = make_desk(tmp_path, budgets=ROWS, budgets_path=path)
    monkeypatch.setenv("COUNTERSIGN_BUDGETS", str(path))
    monkeypatch.setenv("COUNTERSIGN_JOURNAL", str(desk.runtime.settings.journal_path))
    monkeypatch.setattr(SystemClock, "wall", desk.clock.wall)
    now = desk.clock.time
    with desk.runtime:
        desk.clock.time = now - 40 * 86_400
        record_llm(OPENAI_CHAT, model=MODEL, run="old\x1b[2J", runtime=desk.runtime)
        desk.clock.time = now
        asked: Any = {"max_tokens": 50, "input_tokens": 50, "run": "r-1", "runtime": desk.runtime}
        with llm_call(MODEL, reasoning=True, **asked) as call:
            call.record(ANTHROPIC)
        for error in (NotDone(), TimeoutError()):
            with pytest.raises(type(error)), llm_call(MODEL, **asked):
                raise error
    return desk


def said(*words: str) -> Any:
    result = CliRunner().invoke(app, ["budget", *words, "--json"])
    assert result.exit_code == 0, result.output
    assert result.output.isascii()
    assert SECRET not in result.output
    return json.loads(result.output)


def test_every_budget_is_listed_with_what_it_has_left(desk_of_today: Desk) -> None:
    rows = said("list")
    today = day_of(desk_of_today.clock.time)
    renews = datetime.combine(today + timedelta(days=1), datetime.min.time(), UTC).isoformat()
    found = [(row["budget"], row["period"], row["spent"], row["reserved"], row["left"]) for row in rows]
    assert found == [
        ("a-day", today.isoformat(), "2650", "100", "7250"),
        ("a-day", (today - timedelta(days=40)).isoformat(), "1500", "0", "8500"),
        ("filed", today.isoformat(), "0", "0", "12.5"),
        ("a-run", "r-1", "1", "1", "0"),
        ("a-run", "old\x1b[2J", "1", "0", "1"),
    ]
    assert [row["renews"] for row in rows] == [renews, None, renews, None, None]
    assert [row["over"] for row in rows] == [False] * 5


def test_calls_are_listed_newest_first_with_what_became_of_them(desk_of_today: Desk) -> None:
    rows = said("calls")
    assert [(row["state"], row["run"], row["cost"], row["has_reasoning"]) for row in rows] == [
        ("unknown", "r-1", None, False),
        ("released", "r-1", None, False),
        ("done", "r-1", None, True),
        ("done", "old\x1b[2J", None, False),
    ]
    assert rows[0]["note"] == "it is not known whether it was made: TimeoutError"
    assert rows[0]["input_tokens"] is None
    assert [row["state"] for row in said("calls", "--limit", "1")] == ["unknown"]


def test_a_table_of_calls_fits_a_terminal_and_gives_the_ids_that_settle_takes(desk_of_today: Desk) -> None:
    shown = CliRunner().invoke(app, ["budget", "calls"], env={"COLUMNS": "80"}).output
    for row in said("calls"):
        assert row["call_id"][:8] in shown and row["began"][:16].replace("T", " ") in shown
    assert {len(line) for line in shown.splitlines()} == {80}
    shown += CliRunner(env={"COLUMNS": "300"}).invoke(app, ["budget", "list"]).output
    assert "\x1b[2J" not in shown and "old" in shown and SECRET not in shown


def test_an_exceeded_budget_is_marked(desk_of_today: Desk) -> None:
    with desk_of_today.restarted() as later:
        for _ in range(5):
            record_llm(ANTHROPIC, model=MODEL, run="r-2", runtime=later.runtime)
    today = said("list")[0]
    assert (today["spent"], today["left"], today["over"]) == ("15900", "0", True)


def test_a_file_or_a_journal_that_is_gone_is_named(desk_of_today: Desk, monkeypatch: Any) -> None:
    for variable in ("COUNTERSIGN_BUDGETS", "COUNTERSIGN_JOURNAL"):
        monkeypatch.setenv(variable, "/nowhere")
        result = CliRunner().invoke(app, ["budget", "list"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "/nowhere" in result.stderr


def refused(*words: str) -> str:
    result = CliRunner().invoke(app, ["budget", *words])
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr


SETTLED: list[Any] = [("--made", "done", "2750", "0"), ("--not-made", "released", "2650", "0")]


@pytest.mark.parametrize(("answer", "state", "spent", "reserved"), SETTLED)
def test_a_person_settles(desk_of_today: Desk, answer: str, state: str, spent: str, reserved: str) -> None:
    unknown = said("calls")[0]
    (now,) = said("settle", unknown["call_id"][:8], answer)
    assert (now["call_id"], now["state"]) == (unknown["call_id"], state)
    assert "a person says" in now["note"]
    today = said("list")[0]
    assert (today["spent"], today["reserved"]) == (spent, reserved)
    ended = said("calls")
    for row in ended:
        assert f"is {row['state']}" in refused("settle", row["call_id"], answer)  # once is enough
    assert (said("list")[0], said("calls")) == (today, ended)


def test_what_a_killed_process_reserved_is_settled_once_it_is_old(desk_of_today: Desk) -> None:
    now = desk_of_today.clock.time
    hold = BudgetHold("a-day", "tokens", "day", "", 10_000, day_of(now).isoformat(), 70)
    for name, ago in (("aaaaaaaa-young", 60), ("bbbbbbbb-older", 3700)):
        desk_of_today.clock.time = now - ago
        with desk_of_today.restarted() as later:
            assert later.runtime.journal.spending.reserve(name, "r-9", MODEL, [hold]) is None
    desk_of_today.clock.time = now
    assert "may be running" in refused("settle", "aaaaaaaa", "--not-made")
    assert said("settle", "bbbbbbbb", "--not-made")[0]["state"] == "released"
    assert said("list")[0]["reserved"] == "170"  # the recent one's, and the unknown one's


def test_what_settles_nothing_is_refused_with_the_way_to_say_it(desk_of_today: Desk) -> None:
    known = said("calls")[0]["call_id"]
    assert "--made or --not-made" in refused("settle", known)
    for words in ("nothing", known[:7], "", "%" * 8, "_" * 8):
        assert "names no call" in refused("settle", words, "--made")
    with desk_of_today.restarted() as later:
        assert later.runtime.journal.spending.reserve(known[:-1] + "!", None, MODEL, []) is None
    assert "several calls" in refused("settle", known[:8], "--made")
