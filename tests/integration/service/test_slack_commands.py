"""`policy-service slack` as an operator types it: what it says, and what it refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from policy_service.channels.operator import slack
from policy_service.channels.operator.socket import open_database
from policy_service.cli import app
from policy_service.settings import load_settings
from policy_service.storage import outbox
from policy_service.storage.core import insert_row
from policy_service.storage.slack_tables import SlackLinkRow, SlackPlaceRow, SlackStandingRow
from policy_service.storage.unit import Tx
from tests.fakes.payments import person
from tests.fakes.slack_accounts import TEAM, app_settings


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A terminal in a deployment that was set up."""
    monkeypatch.setenv("COUNTERSIGN_DATA_DIR", str(tmp_path / "data"))
    runner = CliRunner()
    assert runner.invoke(app, ["init"]).exit_code == 0
    return runner


@pytest.fixture
def linked(shell: CliRunner) -> CliRunner:
    """The same, where somebody has linked an account whose name moves the cursor."""
    iss, _, sub = person("maya").partition("|")
    row = SlackLinkRow(
        team_id=TEAM, user_id="U0MAYA", iss=iss, sub=sub, assurance="dev", account="ma\x1b[2Jya", direct=True,
        linked_at=datetime(2026, 11, 17, tzinfo=UTC), linked_by="",
    )  # fmt: skip
    with open_database(load_settings()) as database:
        database.write_sync(lambda tx: insert_row(tx.conn, row))
    return shell


def said(shell: CliRunner, *words: str, code: int = 0) -> str:
    done = shell.invoke(app, ["slack", *words])
    assert done.exit_code == code, done.output
    return done.output.strip().replace("\n", " ")


def test_where_nobody_linked_one_and_without_an_app_it_says_so(shell: CliRunner) -> None:
    assert said(shell, "links") == "no Slack account is linked yet"
    assert json.loads(said(shell, "links", "--json")) == []
    assert said(shell, "status") == "the settings have no [slack]: people are asked on the web"
    assert "deploy/slack/README.md" in said(shell, "retry", code=1)


def test_the_list_says_whose_each_is_and_hides_no_letters(linked: CliRunner) -> None:
    line = said(linked, "links")
    for word in (TEAM, "U0MAYA", person("maya"), "dev", "direct messages", "2026-11-17"):
        assert word in line
    assert "\x1b" not in line
    (one,) = json.loads(said(linked, "links", "--json"))
    assert (one["team"], one["user"], one["person"], one["direct"]) == (TEAM, "U0MAYA", person("maya"), True)


def test_unlinking_says_whose_it_was_and_happens_once_for_a_reason(linked: CliRunner) -> None:
    said(linked, "unlink", TEAM, "U0MAYA", code=2)
    assert "U0MAYA" in said(linked, "links")
    done = said(linked, "unlink", TEAM, "U0MAYA", "--reason", "a stolen phone")
    assert done == f"unlinked U0MAYA of {TEAM}, which was {person('maya')}'s"
    assert said(linked, "links") == "no Slack account is linked yet"
    again = said(linked, "unlink", TEAM, "U0MAYA", "--reason", "a stolen phone", code=1)
    assert "slack links" in again


@pytest.fixture
def away(linked: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """The same with the app in the settings, whose Slack and one of whose channels take nothing."""
    settings = app_settings(tmp_path / "slack")
    files = {name: str(value) for name, value in settings.items()}
    monkeypatch.setenv("COUNTERSIGN_SLACK", json.dumps(files))
    since = datetime(2026, 11, 17, 12, tzinfo=UTC)
    rows = (
        SlackStandingRow(
            team_id=TEAM, upto=0, failures=4, last_error="no_answer", since=since, not_before=since
        ),
        SlackPlaceRow(
            place="#approvals", failures=3, last_error="is_archived", since=since, not_before=since
        ),
    )

    def write(tx: Tx) -> None:
        for row in rows:
            insert_row(tx.conn, row)
        for named, state in (("slk_1", "waiting"), ("slk_2", "dead")):
            until = tx.now + timedelta(days=1)
            outbox.put_once(
                tx, named, "slack_card", {"card_id": "x"}, lane="slack #approvals", give_up_at=until
            )
            if state == "dead":
                outbox.set_aside(tx, named, "invalid_blocks")

    with open_database(load_settings()) as database:
        database.write_sync(write)
    return linked


def test_the_status_says_what_waits_and_why_a_line_each(
    away: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = away.invoke(app, ["slack", "status"]).output.splitlines()
    assert told == [
        f"{TEAM}  waiting 1  set aside 1",
        "4 calls failed in a row since 2026-11-17T12:00:00.000000Z, the last: no_answer",
        "#approvals  rests since 2026-11-17T12:00:00.000000Z: is_archived",
        "deliveries arrive over HTTP at http://127.0.0.1:8420/slack/events",
        "the service is not running: nothing is sent and nothing arrives",
    ]
    assert json.loads(said(away, "status", "--json"))["resting"][0]["place"] == "#approvals"
    monkeypatch.setattr(slack, "is_embedded", lambda settings: False)  # no socket tells of replicas
    told = away.invoke(app, ["slack", "status"]).output.splitlines()
    assert told[-1] == "what a running service knows of it, its /readyz tells"


def test_another_try_wakes_everything(away: CliRunner) -> None:
    assert "1 messages among it" in said(away, "retry")
    assert said(away, "status").startswith(f"{TEAM}  waiting 2  set aside 0 deliveries arrive")


def test_the_ways_by_which_deliveries_arrive_are_said_before_the_app_is_met(
    shell: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = app_settings(tmp_path / "slack", app_token_file=tmp_path / "slack" / "app")
    monkeypatch.setenv("COUNTERSIGN_SLACK", json.dumps({name: str(one) for name, one in settings.items()}))
    told = shell.invoke(app, ["slack", "status"]).output.splitlines()
    assert told == [
        "the service has not met this app yet; start it with these settings",
        "deliveries arrive over HTTP at http://127.0.0.1:8420/slack/events and over Socket Mode",
        "the service is not running: nothing is sent and nothing arrives",
    ]
    assert json.loads(said(shell, "status", "--json"))["deliveries"] == {
        "http": "http://127.0.0.1:8420/slack/events",
        "socket_mode": True,
    }
