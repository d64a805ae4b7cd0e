"""No secret is heard on a terminal: of a start that fails, of a command that is refused, of the SDK and its journal.

What is allowed: `agent api-key` prints the key it makes, `signin` and `serve` print the one-time link.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import traceback
from pathlib import Path

import pytest
from typer.testing import CliRunner

from countersign import CountersignError, Runtime, Settings, ToolRegistry, tool, transaction
from countersign.cli import app as sdk_app
from countersign.contract import PrivateKey
from policy_service.cli import app
from policy_service.tokens.keys import CURRENT, NONCE_SECRET
from tests.fakes.operated import command, environment, free_port
from tests.fakes.payments import Payments
from tests.fakes.world import fresh_data

PASSWORD = "canary-password-9f31"
SECRET = "canary-client-secret-7a"
PROVIDER = {"name": "corp", "title": "Corp", "issuer": "https://login.example", "client_id": "c"}
WITH_SECRET = PROVIDER | {"client_secret": SECRET}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A deployment that would start."""
    shutil.copytree(fresh_data(), tmp_path / "data")
    bundle = Payments(tmp_path / "bundle").path
    return environment(tmp_path / "data", bundle, free_port())


def heard(env: dict[str, str], *words: str, ends: int | None = 1) -> str:
    """All that a command says, and the trace it would end with."""
    done = CliRunner().invoke(app, list(words), env=env)
    assert ends in (None, done.exit_code), done.output
    assert done.exc_info is not None
    return done.output + "".join(traceback.format_exception(*done.exc_info))


UNREACHABLE = {
    "init": 1, "settings": 0, "settings --json": 0, "agent list": 1, "signin maya": 1, "rotate-keys": None,
    "issuer-keys": 0, "freeze everything --reason x": 1,
}  # fmt: skip


def test_a_database_that_cannot_be_reached_keeps_its_password(env: dict[str, str]) -> None:
    place = f"127.0.0.1:{free_port()}/countersign"
    env["COUNTERSIGN_DATABASE_URL"] = f"postgresql://countersign:{PASSWORD}@{place}"
    done = command("serve", env=env)  # it listens, so it has a process of its own
    assert done.returncode != 0
    for said in (
        done.stdout + done.stderr,
        *(heard(env, *w.split(), ends=e) for w, e in UNREACHABLE.items()),
    ):
        assert said and PASSWORD not in said


REFUSED_URLS = [
    f"postgresql://countersign:{PASSWORD}@127.0.0.1:notaport/x",
    f"mysql://root:{PASSWORD}@127.0.0.1/x",
    f"countersign:{PASSWORD}@127.0.0.1/x",
    f"postgresql://x:{PASSWORD}@[::1/x",
    f"postgresql://127.0.0.1/x?password={PASSWORD}&nonsense={PASSWORD}",
]
REFUSED_PROVIDERS = [
    f'[{{"client_secret": "{SECRET}"',
    json.dumps([{"client_secret": SECRET}]),
    json.dumps([PROVIDER | {"client_secret": [SECRET]}]),
    json.dumps([WITH_SECRET | {"nonsense": SECRET}]),
    json.dumps([WITH_SECRET] * 2),
]
BAD_FILES = [f'client_secret = "{SECRET}', f'[[providers]]\nclient_secret = "{SECRET}" oops', f'"{SECRET}']


def test_settings_that_are_refused_or_shown_keep_their_secrets(env: dict[str, str], tmp_path: Path) -> None:
    for url in REFUSED_URLS:
        assert PASSWORD not in heard(env | {"COUNTERSIGN_DATABASE_URL": url}, "serve"), url
    for text in REFUSED_PROVIDERS:
        assert SECRET not in heard(env | {"COUNTERSIGN_PROVIDERS": text}, "serve"), text
    good = env | {"COUNTERSIGN_PROVIDERS": json.dumps([WITH_SECRET])}
    assert SECRET not in heard(good | {"COUNTERSIGN_PORT": "x"}, "serve")
    for words in (("settings",), ("settings", "--json")):
        assert SECRET not in heard(good, *words, ends=0)
    for text in BAD_FILES:
        (tmp_path / "data" / "countersign.toml").write_text(text)
        assert SECRET not in heard(env, "serve"), text
    (tmp_path / "data" / "countersign.toml").unlink()
    for name in (NONCE_SECRET, CURRENT):  # damaged keys
        (tmp_path / "data" / "keys" / name).write_text(PASSWORD)
        assert PASSWORD not in heard(env, "serve"), name


def test_a_private_key_given_by_mistake_is_not_repeated(env: dict[str, str]) -> None:
    private = base64.urlsafe_b64encode(b"canary-private-key-of-an-agent-!").decode().rstrip("=")
    jwk = PrivateKey.generate().public.jwk() | {"d": private}
    for text in (json.dumps(jwk), json.dumps(jwk)[:-1], json.dumps(jwk | {"x": private})):
        assert private not in heard(env, "agent", "enroll", "robot", "--jwk", text)


# -- the SDK -----------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(tmp_path: Path) -> Settings:
    """An agent whose service nobody runs."""
    key = tmp_path / "agent.pem"
    key.write_bytes(PrivateKey.generate().to_pem())
    key.chmod(0o600)
    return Settings(
        url=f"http://127.0.0.1:{free_port()}", agent="robot", key_path=key,
        journal_path=tmp_path / "journal.db", retries=0, retry_base_seconds=0.001,
    )  # fmt: skip


def test_the_sdk_and_its_journal_show_no_key_and_no_secret_argument(
    agent: Settings, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    registry = ToolRegistry()

    @tool("transfer", resource=("Account", "account"), registry=registry, secret=["/pin"])
    def transfer(account: str, pin: str) -> None:
        """Move money."""

    assert agent.key_path is not None
    key = agent.key_path.read_text().splitlines()[1]
    said: list[str] = []
    with Runtime(agent, registry=registry) as runtime:
        said += [repr(runtime), repr(agent), repr(runtime._key), repr(runtime.engine(runtime.sync_waits()))]
        with pytest.raises(CountersignError) as failed, transaction("t", runtime=runtime) as txn:
            placed = transfer("acct", PASSWORD)
            said += [repr(placed), repr(txn), str(runtime.manifests)]
        said += ["".join(traceback.format_exception(failed.value)), repr(failed.value)]
        known = runtime.journal.transactions
        said += [repr(known.require(one)) for one in known.newest_ids(9)]
    told = capsys.readouterr()
    env = {
        "COUNTERSIGN_JOURNAL": str(agent.journal_path), "COUNTERSIGN_URL": agent.url, "COUNTERSIGN_AGENT": "robot",
        "COUNTERSIGN_KEY": str(agent.key_path),
    }  # fmt: skip
    for words in ("journal list", "journal show t", "journal show t --json", "resume"):
        done = CliRunner().invoke(sdk_app, words.split(), env=env)
        assert done.output and done.exc_info is not None
        said += [done.output, *traceback.format_exception(*done.exc_info)]
    everything = "\n".join([*said, caplog.text, told.out, told.err])
    assert key not in everything
    assert PASSWORD not in everything


def test_a_key_file_that_is_none_is_not_quoted(agent: Settings) -> None:
    assert agent.key_path is not None
    for text in (f"-----BEGIN PRIVATE KEY-----\n{PASSWORD}\n", PASSWORD):
        agent.key_path.write_text(text)
        with pytest.raises(CountersignError) as failed:
            Runtime(agent)
        assert PASSWORD not in "".join(traceback.format_exception(failed.value))
