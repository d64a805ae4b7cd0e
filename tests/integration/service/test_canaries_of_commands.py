"""No secret is heard on a terminal: of a start that fails, of a command that is refused, of a key that is damaged.

What is allowed: `agent api-key` prints the key it makes, `signin` and `serve` print the one-time link.
"""

from __future__ import annotations

import base64
import json
import shutil
import traceback
from pathlib import Path

import pytest
from typer.testing import CliRunner

from countersign.contract import PrivateKey
from examples.local_service import free_port
from policy_service.cli import app
from policy_service.tokens.keys import CURRENT, NONCE_SECRET
from tests.fakes.operated import command, environment
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
    return environment(tmp_path / "data", Payments(tmp_path / "bundle").path, free_port())


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
    said_by = [heard(env, *words.split(), ends=ends) for words, ends in UNREACHABLE.items()]
    for said in (done.stdout + done.stderr, *said_by):
        assert said and PASSWORD not in said


REFUSED_URLS = [
    f"postgresql://countersign:{PASSWORD}@127.0.0.1:notaport/x",
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
