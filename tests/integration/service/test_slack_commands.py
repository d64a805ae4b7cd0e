"""`policy-service slack` as an operator types it: what it says, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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

SINCE = datetime(2026, 11, 17, 12, tzinfo=UTC)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A terminal in a deployment that was set up."""
    monkeypatch.setenv("COUNTERSIGN_DATA_DIR", str(tmp_path / "data"))
    runner = CliRunner()
    assert runner.invoke(app, ["init"]).exit_code == 0
    return runner


def said(shell: CliRunner, *words: str, code: int = 0) -> str:
    done = shell.invoke(app, ["slack", *words])
    assert done.exit_code == code, done.output
    return done.output.strip().replace("\n", " ")


def test_where_nobody_linked_one_and_without_an_app_or_before_it_is_met_it_says_so(
    shell: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(shell, "links") == "no Slack account is linked yet"
    assert json.loads(said(shell, "links", "--json")) == []
    assert said(shell, "status") == "the settings have no [slack]: people are asked on the web"
    assert "deploy/slack/README.md" in said(shell, "retry", code=1)
    an_app(monkeypatch, tmp_path / "slack", app_token_file=tmp_path / "slack" / "app")
    assert lines(shell) == [
        "the service has not met this app yet; start it with these settings",
        f"deliveries arrive over HTTP at {HTTP} and over Socket Mode",
        NOT_RUNNING,
    ]
    told = json.loads(said(shell, "status", "--json"))
    assert told["deliveries"] == {"http": HTTP, "socket_mode": True}


def test_the_list_says_whose_each_is_and_hides_no_letters_and_unlinking_happens_once_for_a_reason(
    shell: CliRunner,
) -> None:
    iss, _, sub = person("maya").partition("|")
    row = SlackLinkRow(  # its name moves the cursor
        team_id=TEAM, user_id="U0MAYA", iss=iss, sub=sub, assurance="dev", account="ma\x1b[2Jya", direct=True,
        linked_at=SINCE, linked_by="",
    )  # fmt: skip
    write(lambda tx: insert_row(tx.conn, row))
    line = said(shell, "links")
    for word in (TEAM, "U0MAYA", person("maya"), "dev", "direct messages", "2026-11-17"):
        assert word in line
    assert "\x1b" not in line
    (one,) = json.loads(said(shell, "links", "--json"))
    assert (one["team"], one["user"], one["person"], one["direct"]) == (TEAM, "U0MAYA", person("maya"), True)
    said(shell, "unlink", TEAM, "U0MAYA", code=2)
    assert "U0MAYA" in said(shell, "links")
    done = said(shell, "unlink", TEAM, "U0MAYA", "--reason", "a stolen phone")
    assert done == f"unlinked U0MAYA of {TEAM}, which was {person('maya')}'s"
    assert said(shell, "links") == "no Slack account is linked yet"
    assert "slack links" in said(shell, "unlink", TEAM, "U0MAYA", "--reason", "a stolen phone", code=1)


def test_the_status_says_what_waits_and_why_a_line_each_until_another_try(
    shell: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slack takes nothing, and one of its channels neither."""
    an_app(monkeypatch, tmp_path / "slack")
    since = {"since": SINCE, "not_before": SINCE}

    def away(tx: Tx) -> None:
        insert_row(
            tx.conn, SlackStandingRow(team_id=TEAM, upto=0, failures=4, last_error="no_answer", **since)
        )
        insert_row(tx.conn, SlackPlaceRow(place="#approvals", failures=3, last_error="is_archived", **since))
        more: Any = {"lane": "slack #approvals", "give_up_at": tx.now + timedelta(days=1)}
        for named in ("slk_1", "slk_2"):
            outbox.put_once(tx, named, "slack_card", {"card_id": "x"}, **more)
        outbox.set_aside(tx, "slk_2", "invalid_blocks")

    write(away)
    assert lines(shell) == [
        f"{TEAM}  waiting 1  set aside 1",
        "4 calls failed in a row since 2026-11-17T12:00:00.000000Z, the last: no_answer",
        "#approvals  rests since 2026-11-17T12:00:00.000000Z: is_archived",
        f"deliveries arrive over HTTP at {HTTP}",
        NOT_RUNNING,
    ]
    assert json.loads(said(shell, "status", "--json"))["resting"][0]["place"] == "#approvals"
    with monkeypatch.context() as patch:
        patch.setattr(slack, "is_embedded", lambda settings: False)  # no socket tells of replicas
        assert lines(shell)[-1] == "what a running service knows of it, its /readyz tells"
    assert "1 messages among it" in said(shell, "retry")
    assert said(shell, "status").startswith(f"{TEAM}  waiting 2  set aside 0 deliveries arrive")


def write(work: Callable[[Tx], None]) -> None:
    with open_database(load_settings()) as database:
        database.write_sync(work)


def an_app(monkeypatch: pytest.MonkeyPatch, folder: Path, **more: Any) -> None:
    """The settings have an app."""
    files = {name: str(value) for name, value in app_settings(folder, **more).items()}
    monkeypatch.setenv("COUNTERSIGN_SLACK", json.dumps(files))


def lines(shell: CliRunner) -> list[str]:
    return shell.invoke(app, ["slack", "status"]).output.splitlines()


HTTP = "http://127.0.0.1:8420/slack/events"


NOT_RUNNING = "the service is not running: nothing is sent and nothing arrives"
