"""The operator's side: one process for each database, verbs with the service up and down, refused starts."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
from sqlalchemy import create_engine, select
from typer.testing import CliRunner

from countersign.contract import PrivateKey
from examples.local_service import free_port
from policy_service.channels.admin import freeze_and_revoke, people
from policy_service.channels.admin.people import agent_text
from policy_service.channels.admin.socket import embedded_lock
from policy_service.cli import _print_welcome, app
from policy_service.errors import StartError
from policy_service.identity.agents import Voucher, add_vouched_key
from policy_service.settings import load_settings
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.types import time_text
from tests.counterparts import postgres
from tests.fakes.operated import Operated, environment
from tests.fakes.pages import holds
from tests.fakes.payments import Payments
from tests.fakes.world import fresh_data, running
from tests.integration.service.engines import SQLITE_IN_SHORT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data and the bundle of one deployment."""
    path = tmp_path_factory.mktemp("operated")
    shutil.copytree(fresh_data(), path / "data")
    Payments(path / "bundle")
    return path


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Operated]:
    """The deployment, running in a process of its own."""
    with Operated(environment(folder / "data", folder / "bundle", free_port())) as service:
        yield service


@pytest.fixture
def not_set_up(tmp_path: Path) -> dict[str, str]:
    """The settings of a deployment that has no data yet."""
    return environment(tmp_path / "data", Payments(tmp_path / "bundle").path, free_port())


@pytest.fixture
def down(not_set_up: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The settings of a deployment that does not run."""
    shutil.copytree(fresh_data(), tmp_path / "data")
    return not_set_up


def verb(env: dict[str, str], *args: str) -> tuple[int, str]:
    """One verb of the command line: how it ended and what it said."""
    result = CliRunner().invoke(app, list(args), env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.strip()


def said(env: dict[str, str], words: str, *printed: str, code: int = 0, more: tuple[str, ...] = ()) -> str:
    """The output of a verb that ended with this code and printed these phrases."""
    ended, text = verb(env, *words.split(), *more)
    assert ended == code, text
    holds(text, *printed, without=["Traceback"])
    return text


def enrolled(env: dict[str, str]) -> dict[str, Any]:
    return {agent["agent"]: agent for agent in json.loads(said(env, "agent list --json"))}


def test_verbs_go_through_the_running_service(up: Operated, folder: Path, tmp_path: Path) -> None:
    assert (folder / "data/admin.sock").stat().st_mode & 0o777 == 0o600
    assert up.link("maya").startswith(f"{up.url}/sign-in/dev?token=")
    assert said(up.env, "signin tomas").startswith(f"{up.url}/sign-in/dev?token=")
    key, there, fresh = tmp_path / "robot.pem", tmp_path / "there.pem", tmp_path / "fresh.pem"
    said(up.env, f"agent enroll robot --role payer --key-out {key}", "enrolled robot")
    assert key.stat().st_mode & 0o777 == 0o600
    kid = PrivateKey.from_pem(key.read_bytes()).public.kid
    (first,) = enrolled(up.env)["robot"]["keys"]
    assert (first["kid"], first["revoked"]) == (kid, False)
    jwk = json.dumps(PrivateKey.generate().public.jwk())
    said(up.env, "agent key add robot --jwk", "robot has the key", more=(jwk,))
    said(up.env, f"agent key revoke {kid} --reason lost")
    assert [entry["revoked"] for entry in enrolled(up.env)["robot"]["keys"]] == [True, False]
    there.write_text("mine")
    said(up.env, f"agent enroll other --key-out {there}", "never overwritten", code=1)
    said(up.env, "agent enroll --key-out", code=1, more=(str(fresh), "a b"))
    assert (there.read_text(), fresh.exists()) == ("mine", False)
    said(up.env | {"COUNTERSIGN_PORT": str(free_port())}, "serve", "in use by", code=1)  # a second one
    assert httpx2.get(up.url + "/readyz").status_code == 200


def test_a_stop_asks_for_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(return_value={"ended": ["x"]})
    monkeypatch.setattr(freeze_and_revoke, "run_admin_command", run)
    for words, name in (("freeze agent", "agent"), ("revoke key", "kid"), ("agent key revoke", "kid")):
        said({}, f"{words} x", code=1)
        for one in ("x", "-j3x", "--x7", "-Rq") if name == "kid" else ("x",):  # a hyphen makes no option
            said({}, f"{words} {one} --reason why")
            assert run.call_args.args[2] == {name: one, "reason": "why"}
    assert run.call_count == 9


async def test_the_list_of_agents_shows_what_revoke_key_and_a_401_ask_for(tmp_path: Path) -> None:
    async with running(tmp_path / "data", Payments(tmp_path / "bundle").path) as bank:
        args = {"name": "robot", "owner": "https://idp|ann", "roles": ["payer"], "teams": ["money"]}
        await bank.operator("agent-enroll", args)
        keys = [PrivateKey.generate().public for _ in range(4)]
        for key in keys[:2]:
            await bank.operator("agent-key-add", {"name": "robot", "jwk": key.jwk()})
        await bank.operator("agent-key-revoke", {"kid": keys[0].kid, "reason": "lost"})
        await bank.operator("freeze", {"agent": "robot", "reason": "it loops"})
        await bank.operator("unfreeze", {"agent": "robot"})
        now = bank.clock()
        for key, until in zip(keys[2:], (now + timedelta(hours=1), now - timedelta(hours=1)), strict=True):
            vouched = (key, Voucher("robot", "k8s", "trust", now, "sub", until, None))
            await bank.service.db.write(lambda tx, vouched=vouched: add_vouched_key(tx, *vouched))  # type: ignore[misc]
        printed = await bank.operator("agent-list", {})
        logged = await bank.audited("agent_frozen", "agent_key_revoked")
    assert {body["reason"] for _, body in logged} == {"it loops", "lost"}
    lines = agent_text(printed).splitlines()
    assert lines[0] == "robot  owner https://idp|ann  roles payer  teams money"
    ends = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1:]}
    assert ends[keys[0].kid].startswith("REVOKED at 20")
    assert ends[keys[1].kid] == "live"
    assert ends[keys[2].kid] == f"live until {time_text(now + timedelta(hours=1))}  enrolled through k8s"
    assert ends[keys[3].kid] == f"expired at {time_text(now - timedelta(hours=1))}  enrolled through k8s"


def test_api_keys_are_ended_also_where_they_are_switched_off(down: dict[str, str]) -> None:
    said(down, "agent enroll trial")
    for _ in range(2):
        said(down | {"COUNTERSIGN_API_KEYS": "true"}, "agent api-key trial")
    for count in (2, 0):
        found = json.loads(said(down, "agent api-key trial --revoke --json"))
        assert found == {"agent": "trial", "revoked": count}


REFUSED = {
    "agent enroll x --owner maya": "is not a person",
    "agent key add unknown --jwk {}": "not an Ed25519 public key",
    "agent key revoke none --reason x": "there is no key",
    "agent api-key taken": "disabled",
    "agent api-key unknown --revoke": "not enrolled",
    "freeze agent unknown --reason x": "not enrolled",
    "unfreeze agent unknown": "not enrolled",
}


def test_a_verb_that_is_refused_ends_in_a_sentence(up: Operated) -> None:
    said(up.env, "agent enroll taken")
    for words, sentence in REFUSED.items():
        said(up.env, words, sentence, code=1)


def test_a_service_that_hangs_is_named(up: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy_service.channels.admin.socket._TIMEOUT_S", 0.5)
    not_known = "so the result is unknown: repeat the command"
    with up.hanging() as pid:
        said(up.env, "freeze tool slow --reason x", f"pid {pid}", "does not respond", not_known, code=1)
    monkeypatch.undo()
    said(up.env, "freeze tool slow --reason x")
    said(up.env, "unfreeze tool slow")


NO_ANSWERS = [
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nFault",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\n[]",
    b"220 smtp ready\r\n",
]


def test_an_answer_that_is_none_is_a_sentence(down: dict[str, str], tmp_path: Path) -> None:
    def serve(listener: socket.socket, answer: bytes) -> None:
        for _ in range(2):  # the look whether somebody listens, and the verb
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                with suppress(OSError):
                    peer.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "data/admin.sock"))
        listener.listen()
        for answer in NO_ANSWERS:
            server = threading.Thread(target=serve, args=[listener, answer])
            server.start()
            text = verb(down, "freeze", "everything", "--reason", "x")
            server.join(30)
            assert text[0] == 1 and "unknown" in text[1], answer


ENDED = {
    "agent_unfrozen": ("freeze agent stopped", "unfreeze agent stopped"),
    "stop_ended": ("freeze everything", "unfreeze everything"),
    "approver_reinstated": ("revoke approver idp|zoe", "reinstate approver idp|zoe"),
}


def test_the_reason_for_ending_a_stop_is_logged(up: Operated, folder: Path) -> None:
    said(up.env, "agent enroll stopped")
    line = table(AuditRow).c
    engine = create_engine(f"sqlite:///{folder / 'data/countersign.db'}")
    for kind, (stop, end) in ENDED.items():
        for reason in ("", " --reason fixed"):  # which is optional
            said(up.env, f"{stop} --reason x")
            said(up.env, end + reason)
        query = select(line.body).where(line.kind == kind).order_by(line.audit_id)
        with engine.connect() as conn:
            reasons = [json.loads(body).get("reason") for body in conn.execute(query).scalars()]
        assert reasons[-2:] == [None, "fixed"]
    engine.dispose()


def test_what_is_frozen_is_listed_until_it_is_unfrozen(up: Operated) -> None:
    said(up.env, "agent enroll held")
    begun = {"everything": "twice", "tool pay": "slow", "agent held": "x"}
    assert said(up.env, "freeze list") == "nothing is frozen"
    for words, reason in begun.items():
        said(up.env, f"freeze {words} --reason {reason}")
    printed = json.loads(said(up.env, "freeze list --json"))
    found = {" ".join(filter(None, (one["what"], one["name"]))): one["reason"] for one in printed}
    assert found == begun
    assert enrolled(up.env)["held"]["frozen"] is True
    assert "held  FROZEN" in said(up.env, "agent list").splitlines()
    lines = said(up.env, "freeze list").splitlines()
    assert lines[1] == f"tool pay  since {printed[1]['since']} by operator  slow"
    for words in begun:
        said(up.env, f"unfreeze {words}")
    assert enrolled(up.env)["held"]["frozen"] is False
    assert said(up.env, "freeze list") == "nothing is frozen"


def test_freezing_an_unknown_tool_warns(up: Operated, down: dict[str, str]) -> None:
    for env in (up.env, down):
        database = f"{env['COUNTERSIGN_DATA_DIR']}/countersign.db"
        said(env, "freeze tool pya --reason x", "pya is frozen", "WARNING", "no tool 'pya'", "pay")
        assert "WARNING" not in said(env, "freeze tool pay --reason x", database)
        for tool in ("pya", "pay"):
            assert json.loads(said(env, f"unfreeze tool {tool} --json"))["database"] == database


def test_verbs_work_while_the_service_is_down(not_set_up: dict[str, str], tmp_path: Path) -> None:
    env = not_set_up
    for made in (["nonces.secret", "release-current.pem", "release-next.pem"], []):  # safe to repeat
        assert sorted(json.loads(said(env, "init --json"))["keys_made"]) == made
    said(env, "agent enroll robot")
    with socket.socket(socket.AF_UNIX) as left_behind:  # by a service that was killed
        left_behind.bind(str(tmp_path / "data/admin.sock"))
    assert list(enrolled(env)) == ["robot"]
    said(env, "agent enroll robot", "enrolled already", code=1)
    commit = json.loads(said(env, "check --json"))["commit"]
    said(env, "check", f"commit {commit}")
    Payments(tmp_path / "bundle").rules("permit (principal, action, resource);")
    (problem, *_) = json.loads(said(env, "check --json", code=1))["problems"]
    assert problem["file"] == "rules.cedar" and problem["line"] > 1


def test_a_failing_sign_in_link_is_only_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody else holds the database here; a full disk at the wrong moment looks the same to `serve`."""
    settings = load_settings(data_dir=tmp_path, bundle_dir=folder / "bundle", dev_signin=True)
    (tmp_path / "countersign.db").touch()
    with embedded_lock(settings):
        _print_welcome(settings)
    printed = capsys.readouterr()
    holds(printed.out, "listening on", without=["sign in as"])
    holds(printed.err, "no link for maya (the database of", "policy-service signin maya")


ELSEWHERE = [
    "freeze everything --reason twice", "unfreeze tool pay", "revoke agent robot --reason stolen", "people", "serve",
    "agent enroll robot --key-out robot.pem", "restored --dry-run", "signin maya",
]  # fmt: skip


def test_a_verb_in_another_folder_makes_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Payments(tmp_path / "bundle").path
    env = {"COUNTERSIGN_BUNDLE_DIR": str(bundle), "COUNTERSIGN_DEV_SIGNIN": "true"}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for words in ELSEWHERE:
        said(env, words, "policy-service init", code=1)
        assert list((tmp_path / "elsewhere").iterdir()) == [], words


@pytest.mark.parametrize("engine", SQLITE_IN_SHORT)
def test_an_empty_database_is_none(
    request: pytest.FixtureRequest, not_set_up: dict[str, str], tmp_path: Path, engine: str
) -> None:
    env = not_set_up
    with ExitStack() as stack:
        if engine == "postgresql":
            server = request.getfixturevalue("postgres_server")
            env["COUNTERSIGN_DATABASE_URL"] = stack.enter_context(postgres.database(server))
        else:
            (tmp_path / "data").mkdir()
            (tmp_path / "data/countersign.db").touch()
        for _ in range(2):  # the refusal makes no table either
            said(env, "freeze everything --reason x", "there is no database", code=1)
        said(env, "init")
        said(env, "freeze everything --reason x")


ESCAPES = "\x1b[2K\x1b]0;owned\x07\x9b1A\u202e"


def test_no_list_and_no_refusal_moves_a_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"person": "idp|m", "name": "Maya\x1b[2K\r  REVOKED", "groups": ["a\nb"], "revoked": False}
    monkeypatch.setattr(people, "run_admin_command", lambda *_: [row])
    assert verb({}, "people") == (0, r"idp|m  Maya\x1b[2K\r  REVOKED  a\nb")
    key = {"kid": "k", "revoked": False, "until": None, "issuer": ESCAPES, "revoked_at": None, "over": False}
    of = {"owner": ESCAPES, "roles": [ESCAPES], "teams": [], "frozen": False, "keys": [key]}
    monkeypatch.setattr(people, "run_admin_command", lambda *_: [{"agent": f"a{ESCAPES}\nb", **of}])
    for words in ("agent list", "agent list --json"):
        text = said({}, words)
        assert text.isascii() and not {"\x1b", "\x07", "\x9b"} & set(text)
    assert len(said({}, "agent list").splitlines()) == 2

    def refuse(*_: object) -> None:
        raise StartError(f"no agent {ESCAPES}")

    monkeypatch.setattr(people, "run_admin_command", refuse)
    assert verb({}, "agent", "list") == (1, r"policy-service: no agent \x1b[2K\x1b]0;owned\x07\x9b1A\u202e")
