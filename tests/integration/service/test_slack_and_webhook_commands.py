"""`policy-service slack` and `webhooks` as operators type them: what they say, refuse, and never a secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policy_service.channels.admin import slack
from policy_service.channels.admin.socket import open_database
from policy_service.cli import app
from policy_service.settings import load_settings
from policy_service.storage import outbox
from policy_service.storage.core import insert_row
from policy_service.storage.slack_tables import SlackLinkRow, SlackPlaceRow, SlackStatusRow
from policy_service.storage.unit_of_work import Tx
from tests.fakes.payments import person
from tests.fakes.receivers import Receiver, verify
from tests.fakes.slack_accounts import TEAM, app_settings

SINCE = datetime(2026, 11, 17, 12, tzinfo=UTC)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A terminal in a deployment that was set up."""
    monkeypatch.setenv("COUNTERSIGN_DATA_DIR", str(tmp_path / "data"))
    runner = CliRunner()
    assert runner.invoke(app, ["init"]).exit_code == 0
    return runner


def slack_said(shell: CliRunner, *words: str, code: int = 0) -> str:
    done = shell.invoke(app, ["slack", *words])
    assert done.exit_code == code, done.output
    return done.output.strip().replace("\n", " ")


def test_an_unused_app(shell: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slack_said(shell, "links") == "no Slack account is linked yet"
    assert json.loads(slack_said(shell, "links", "--json")) == []
    assert slack_said(shell, "status") == "the settings have no [slack]: people decide on the web"
    assert "deploy/slack/README.md" in slack_said(shell, "retry", code=1)
    an_app(monkeypatch, tmp_path / "slack", app_token_file=tmp_path / "slack" / "app")
    assert lines(shell) == [
        "the service has not used this app yet; start it with these settings",
        f"payloads arrive over HTTP at {HTTP} and over Socket Mode",
        NOT_RUNNING,
    ]
    listed = json.loads(slack_said(shell, "status", "--json"))
    assert listed["deliveries"] == {"http": HTTP, "socket_mode": True}


def test_links_are_listed_and_unlinked_for_a_reason(shell: CliRunner) -> None:
    iss, _, sub = person("maya").partition("|")
    row = SlackLinkRow(  # its name moves the cursor
        team_id=TEAM, user_id="U0MAYA", iss=iss, sub=sub, assurance="dev", account="ma\x1b[2Jya", direct=True,
        linked_at=SINCE, linked_by="",
    )  # fmt: skip
    write(lambda tx: insert_row(tx.conn, row))
    line = slack_said(shell, "links")
    for word in (TEAM, "U0MAYA", person("maya"), "dev", "direct messages", "2026-11-17"):
        assert word in line
    assert "\x1b" not in line
    (one,) = json.loads(slack_said(shell, "links", "--json"))
    assert (one["team"], one["user"], one["person"], one["direct"]) == (TEAM, "U0MAYA", person("maya"), True)
    slack_said(shell, "unlink", TEAM, "U0MAYA", code=2)
    assert "U0MAYA" in slack_said(shell, "links")
    done = slack_said(shell, "unlink", TEAM, "U0MAYA", "--reason", "a stolen phone")
    assert done == f"unlinked U0MAYA of {TEAM} from {person('maya')}"
    assert slack_said(shell, "links") == "no Slack account is linked yet"
    assert "slack links" in slack_said(shell, "unlink", TEAM, "U0MAYA", "--reason", "a stolen phone", code=1)


def test_the_status_lists_what_waits(
    shell: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slack takes nothing, and one of its channels neither."""
    an_app(monkeypatch, tmp_path / "slack")
    since = {"since": SINCE, "not_before": SINCE}

    def away(tx: Tx) -> None:
        insert_row(tx.conn, SlackStatusRow(team_id=TEAM, upto=0, failures=4, last_error="no_answer", **since))
        insert_row(tx.conn, SlackPlaceRow(place="#approvals", failures=3, last_error="is_archived", **since))
        more: Any = {"lane": "slack #approvals", "give_up_at": tx.now + timedelta(days=1)}
        for named in ("slk_1", "slk_2"):
            outbox.enqueue_once(tx, named, "slack_card", {"card_id": "x"}, **more)
        outbox.mark_dead(tx, "slk_2", "invalid_blocks")

    write(away)
    assert lines(shell) == [
        f"{TEAM}  waiting 1  failed 1",
        "4 calls failed in a row since 2026-11-17T12:00:00.000000Z, the last: no_answer",
        "#approvals  paused since 2026-11-17T12:00:00.000000Z: is_archived",
        f"payloads arrive over HTTP at {HTTP}",
        NOT_RUNNING,
    ]
    assert json.loads(slack_said(shell, "status", "--json"))["resting"][0]["place"] == "#approvals"
    with monkeypatch.context() as patch:
        patch.setattr(slack, "is_embedded", lambda settings: False)  # there is no socket for replicas
        assert lines(shell)[-1] == "see /readyz of the running service for more"
    assert "including 1 failed ones" in slack_said(shell, "retry")
    assert slack_said(shell, "status").startswith(f"{TEAM}  waiting 2  failed 0 payloads arrive")


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

# -- `policy-service webhooks` as an operator types it ---------------------------------------------------------------


HOOK = "billing"


@pytest.fixture
def hooked(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A terminal in a deployment that was set up, with one receiver."""
    secret = str(tmp_path / "hook.secret")
    hook = {"name": HOOK, "url": f"{receiver.url}/canary-path", "secret_files": [secret], "timeout_s": 1}
    monkeypatch.setenv("COUNTERSIGN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COUNTERSIGN_WEBHOOKS", json.dumps([hook | {"addresses": ["127.0.0.0/8"]}]))
    runner = CliRunner()
    assert said(runner, "secret", secret) == f"give the receiver the content of {tmp_path}/hook.secret"
    assert runner.invoke(app, ["init"]).exit_code == 0
    return runner


def said(hooked: CliRunner, *words: str, code: int = 0) -> str:
    done = hooked.invoke(app, ["webhooks", *words])
    assert done.exit_code == code, done.output
    assert "whsec_" not in done.output and "whsk_" not in done.output
    return done.output.strip().replace("\n", " ")


def test_a_test_event_is_signed(hooked: CliRunner, receiver: Receiver, tmp_path: Path) -> None:
    assert said(hooked, "test", HOOK) == "billing accepted it: 204"
    (got,) = receiver.got
    assert got.event["type"] == "webhook_test"
    verify((tmp_path / "hook.secret").read_text().strip(), got.headers, got.raw)
    elsewhere = (302, {"Location": "http://169.254.169.254/"})
    answers = {"it answered 500": 500, "it answered 302": elsewhere, "no answer within 1 s": "silent"}
    for why, step in answers.items():
        receiver.plan, before = [step], len(receiver.got)
        assert f"billing did not accept it: {why}" in said(hooked, "test", HOOK, code=1)
        assert len(receiver.got) == before + 1


def test_the_list_names_the_host_but_no_path(hooked: CliRunner, receiver: Receiver) -> None:
    assert said(hooked, "list") == f"billing  127.0.0.1:{receiver.port}  not used yet"
    (listed,) = json.loads(said(hooked, "list", "--json"))
    assert (listed["name"], listed["standing"]) == (HOOK, None)
    for verb in ("test", "retry"):
        wrong = said(hooked, verb, "biling", code=1)
        assert "there is no webhook 'biling'; the settings have billing" in wrong
    assert "has not run with the webhook 'billing' yet" in said(hooked, "retry", HOOK, code=1)


def test_a_secret_is_never_overwritten(hooked: CliRunner, tmp_path: Path) -> None:
    listed = json.loads(said(hooked, "secret", str(tmp_path / "own.secret"), "--ed25519", "--json"))
    assert listed["public"].startswith("whpk_")
    assert (tmp_path / "own.secret").read_text().startswith("whsk_")
    before = (tmp_path / "hook.secret").read_bytes()
    assert "is never overwritten" in said(hooked, "secret", str(tmp_path / "hook.secret"), code=1)
    assert (tmp_path / "hook.secret").read_bytes() == before
    assert "cannot be written" in said(hooked, "secret", str(tmp_path / "none" / "hook.secret"), code=1)
