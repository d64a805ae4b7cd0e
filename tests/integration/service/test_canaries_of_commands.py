"""No secret is heard on a terminal: of a start that fails, of a command that is refused, of the SDK and its journal.

What is allowed: `agent api-key` prints the key it makes, `signin` and `serve` print the one-time link.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from countersign import CountersignError, Runtime, Settings, ToolRegistry, tool, transaction
from countersign.contract import PrivateKey
from policy_service.tokens.keys import CURRENT, NONCE_SECRET
from tests.fakes.operated import REPOSITORY, command, environment, free_port
from tests.fakes.payments import Payments
from tests.fakes.world import fresh_data

PASSWORD = "canary-password-9f31"
SECRET = "canary-client-secret-7a"
VERBS = (
    ("serve",),
    ("init",),
    ("settings",),
    ("settings", "--json"),
    ("agent", "list"),
    ("signin", "maya"),
    ("rotate-keys",),
    ("issuer-keys",),
    ("freeze", "everything", "--reason", "x"),
)


EVERY_DAY = frozenset({"serve", "signin"})  # each is a process of its own, which takes seconds
ASK_NO_DATABASE = frozenset({"settings", "rotate-keys", "issuer-keys"})


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A deployment that would start."""
    shutil.copytree(fresh_data(), tmp_path / "data")
    bundle = Payments(tmp_path / "bundle").path
    return environment(tmp_path / "data", bundle, free_port())


def heard(env: dict[str, str], *words: str) -> str:
    done = command(*words, env=env)
    assert done.returncode != 0 or words[0] in ASK_NO_DATABASE, done.stdout
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[] if words[0] in EVERY_DAY else [pytest.mark.long]) for words in VERBS],
    ids=" ".join,
)
def test_a_database_that_cannot_be_reached_keeps_its_password(
    env: dict[str, str], words: tuple[str, ...]
) -> None:
    url = f"postgresql://countersign:{PASSWORD}@127.0.0.1:{free_port()}/countersign"
    said = heard(env | {"COUNTERSIGN_DATABASE_URL": url}, *words)
    assert said
    assert PASSWORD not in said


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://countersign:{PASSWORD}@127.0.0.1:notaport/x",
        f"mysql://root:{PASSWORD}@127.0.0.1/x",
        f"countersign:{PASSWORD}@127.0.0.1/x",
        f"postgresql://x:{PASSWORD}@[::1/x",
        f"postgresql://127.0.0.1/x?password={PASSWORD}&nonsense={PASSWORD}",
    ],
)
@pytest.mark.parametrize("verb", ["serve", pytest.param("settings", marks=pytest.mark.long)])
def test_a_database_url_that_cannot_be_read_keeps_its_password(
    env: dict[str, str], url: str, verb: str
) -> None:
    assert PASSWORD not in heard(env | {"COUNTERSIGN_DATABASE_URL": url}, verb)


PROVIDER = {"name": "corp", "title": "Corp", "issuer": "https://login.example", "client_id": "c"}


@pytest.mark.parametrize(
    "variables",
    [
        {"COUNTERSIGN_PROVIDERS": f'[{{"client_secret": "{SECRET}"'},
        {"COUNTERSIGN_PROVIDERS": json.dumps([{"client_secret": SECRET}])},
        {"COUNTERSIGN_PROVIDERS": json.dumps([PROVIDER | {"client_secret": [SECRET]}])},
        {"COUNTERSIGN_PROVIDERS": json.dumps([PROVIDER | {"client_secret": SECRET, "nonsense": SECRET}])},
        {"COUNTERSIGN_PROVIDERS": json.dumps([PROVIDER | {"client_secret": SECRET}] * 2)},
        {
            "COUNTERSIGN_PROVIDERS": json.dumps([PROVIDER | {"client_secret": SECRET}]),
            "COUNTERSIGN_PORT": "x",
        },
    ],
    ids=["no JSON", "incomplete", "of another type", "unknown member", "twice", "another setting is wrong"],
)
def test_settings_that_are_refused_keep_their_secrets(env: dict[str, str], variables: dict[str, str]) -> None:
    assert SECRET not in heard(env | variables, "serve")


def test_shown_settings_keep_their_secrets(env: dict[str, str]) -> None:
    providers = json.dumps([PROVIDER | {"client_secret": SECRET}])
    for words in (("settings",), ("settings", "--json")):
        assert SECRET not in heard(env | {"COUNTERSIGN_PROVIDERS": providers}, *words)


def test_a_settings_file_that_cannot_be_read_keeps_its_secrets(env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "data" / "countersign.toml"
    for text in (
        f'client_secret = "{SECRET}',
        f'[[providers]]\nclient_secret = "{SECRET}" oops',
        f'"{SECRET}',
    ):
        file.write_text(text)
        assert SECRET not in heard(env, "serve")


def test_damaged_keys_are_not_quoted(env: dict[str, str], tmp_path: Path) -> None:
    for name in (CURRENT, NONCE_SECRET):
        path = tmp_path / "data" / "keys" / name
        kept = path.read_bytes()
        path.write_text(PASSWORD)
        said = heard(env, "serve")
        assert PASSWORD not in said
        path.write_bytes(kept)


def test_a_private_key_given_by_mistake_is_not_repeated(env: dict[str, str]) -> None:
    private = base64.urlsafe_b64encode(b"canary-private-key-of-an-agent-!").decode().rstrip("=")
    jwk = PrivateKey.generate().public.jwk() | {"d": private}
    for text in (json.dumps(jwk), json.dumps(jwk)[:-1], json.dumps(jwk | {"x": private})):
        done = command("agent", "enroll", "robot", "--jwk", text, env=env)
        assert private not in done.stdout + done.stderr


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


def transfer_tool(registry: ToolRegistry, act: Callable[[], object] = lambda: None) -> Any:
    @tool("transfer", resource=("Account", "account"), registry=registry, secret=["/pin"])
    def transfer(account: str, pin: str) -> None:
        """Move money."""
        act()

    return transfer


def test_the_sdk_shows_no_key_and_no_secret_argument(
    agent: Settings, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    registry = ToolRegistry()
    transfer = transfer_tool(registry)
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
    everything = "\n".join([*said, caplog.text, told.out, told.err])
    assert key not in everything
    assert PASSWORD not in everything


def test_the_journal_is_shown_without_secrets(agent: Settings) -> None:
    registry = ToolRegistry()
    transfer = transfer_tool(registry)
    with (
        Runtime(agent, registry=registry) as runtime,
        pytest.raises(CountersignError),
        transaction("t", runtime=runtime),
    ):
        transfer("acct", PASSWORD)
    for words in (
        ("journal", "list"),
        ("journal", "show", "t"),
        ("journal", "show", "t", "--json"),
        ("resume",),
    ):
        done = subprocess.run(
            [sys.executable, "-c", "from countersign.cli import app; app()", *words],
            cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "sdk/python")]),
                 "COUNTERSIGN_JOURNAL": str(agent.journal_path), "COUNTERSIGN_URL": agent.url,
                 "COUNTERSIGN_AGENT": "robot", "COUNTERSIGN_KEY": str(agent.key_path)},
        )  # fmt: skip
        assert PASSWORD not in done.stdout + done.stderr, words
        assert done.stdout + done.stderr


@pytest.mark.parametrize("given", ["secret is in the key", "no PEM"])
def test_a_key_file_that_is_none_is_not_quoted(agent: Settings, given: str) -> None:
    assert agent.key_path is not None
    agent.key_path.write_text(f"-----BEGIN PRIVATE KEY-----\n{PASSWORD}\n" if "key" in given else PASSWORD)
    with pytest.raises(CountersignError) as failed:
        Runtime(agent)
    assert PASSWORD not in "".join(traceback.format_exception(failed.value))
