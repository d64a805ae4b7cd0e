"""`policy-service webhooks` as an operator types it: what it says, what it refuses, and never a secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from policy_service.cli import app
from tests.fakes.receivers import Receiver, verify

HOOK = "billing"


@pytest.fixture
def shell(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A terminal in a deployment that was set up, with one receiver."""
    secret = str(tmp_path / "hook.secret")
    hook = {"name": HOOK, "url": f"{receiver.url}/canary-path", "secret_files": [secret]}
    monkeypatch.setenv("COUNTERSIGN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv(
        "COUNTERSIGN_WEBHOOKS", json.dumps([hook | {"addresses": ["127.0.0.0/8"], "timeout_s": 1}])
    )
    runner = CliRunner()
    assert said(runner, "secret", secret) == f"give the receiver what is in {tmp_path}/hook.secret"
    assert runner.invoke(app, ["init"]).exit_code == 0
    return runner


def said(shell: CliRunner, *words: str, code: int = 0) -> str:
    done = shell.invoke(app, ["webhooks", *words])
    assert done.exit_code == code, done.output
    assert "whsec_" not in done.output and "whsk_" not in done.output
    return done.output.strip().replace("\n", " ")


def test_a_test_is_signed_and_says_whether_it_was_taken(
    shell: CliRunner, receiver: Receiver, tmp_path: Path
) -> None:
    assert said(shell, "test", HOOK) == "billing took it: 204"
    (got,) = receiver.got
    assert got.event["type"] == "webhook_test"
    verify((tmp_path / "hook.secret").read_text().strip(), got.headers, got.raw)
    for step, why in (
        (500, "it answered 500"),
        ((302, {"Location": "http://169.254.169.254/"}), "it answered 302"),
        ("silent", "no answer within 1 s"),
    ):
        receiver.plan, before = [step], len(receiver.got)
        assert f"billing did not take it: {why}" in said(shell, "test", HOOK, code=1)
        assert len(receiver.got) == before + 1


def test_the_list_names_the_host_and_no_path_and_a_wrong_name_is_refused(
    shell: CliRunner, receiver: Receiver
) -> None:
    assert said(shell, "list") == f"billing  127.0.0.1:{receiver.port}  not met yet"
    (told,) = json.loads(said(shell, "list", "--json"))
    assert (told["name"], told["standing"]) == (HOOK, None)
    for verb in ("test", "retry"):
        wrong = said(shell, verb, "biling", code=1)
        assert "there is no webhook 'biling'; the settings have billing" in wrong
    assert "has not met the webhook 'billing' yet" in said(shell, "retry", HOOK, code=1)


def test_a_secret_is_never_overwritten_and_a_key_of_its_own_prints_its_public_half(
    shell: CliRunner, tmp_path: Path
) -> None:
    told = json.loads(said(shell, "secret", str(tmp_path / "own.secret"), "--ed25519", "--json"))
    assert told["public"].startswith("whpk_")
    assert (tmp_path / "own.secret").read_text().startswith("whsk_")
    before = (tmp_path / "hook.secret").read_bytes()
    assert "is never overwritten" in said(shell, "secret", str(tmp_path / "hook.secret"), code=1)
    assert (tmp_path / "hook.secret").read_bytes() == before
    assert "cannot be written" in said(shell, "secret", str(tmp_path / "none" / "hook.secret"), code=1)
