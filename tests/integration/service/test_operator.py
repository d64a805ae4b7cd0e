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

import httpx2
import pytest
from sqlalchemy import create_engine, select
from typer.testing import CliRunner

from countersign.contract import PrivateKey
from policy_service.channels.operator import listing, stopping
from policy_service.channels.operator.listing import agent_text
from policy_service.channels.operator.socket import embedded_lock
from policy_service.cli import _welcome, app
from policy_service.errors import StartError
from policy_service.identity.agents import bring_key
from policy_service.identity.callers import Voucher
from policy_service.settings import load_settings
from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from policy_service.storage.types import time_text
from tests.counterparts import postgres
from tests.fakes.operated import Operated, environment, free_port
from tests.fakes.payments import Payments
from tests.fakes.world import fresh_data, running
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT

pytestmark = pytest.mark.anyio


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


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What verbs that stop something would send."""
    found: list[dict[str, Any]] = []

    def run(_settings: object, _name: str, args: dict[str, Any]) -> dict[str, Any]:
        found.append(args)
        return {"ended": ["x"]}

    monkeypatch.setattr(stopping, "run_verb", run)
    return found


def verb(env: dict[str, str], *args: str) -> tuple[int, str]:
    """One verb of the command line: how it ended and what it said."""
    result = CliRunner().invoke(app, list(args), env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.strip()


def enrolled(env: dict[str, str]) -> dict[str, Any]:
    code, said = verb(env, "agent", "list", "--json")
    assert code == 0, said
    return {agent["agent"]: agent for agent in json.loads(said)}


def test_verbs_go_through_the_running_service(up: Operated, tmp_path: Path) -> None:
    key = tmp_path / "robot.pem"
    code, said = verb(up.env, "agent", "enroll", "robot", "--role", "payer", "--key-out", str(key))
    assert code == 0 and "enrolled robot" in said
    assert key.stat().st_mode & 0o777 == 0o600
    kid = PrivateKey.from_pem(key.read_bytes()).public.kid
    (first,) = enrolled(up.env)["robot"]["keys"]
    assert (first["kid"], first["revoked"]) == (kid, False)
    jwk = json.dumps(PrivateKey.generate().public.jwk())
    code, said = verb(up.env, "agent", "key", "add", "robot", "--jwk", jwk)
    assert code == 0 and "robot has the key" in said
    assert verb(up.env, "agent", "key", "revoke", kid, "--reason", "lost")[0] == 0
    assert [entry["revoked"] for entry in enrolled(up.env)["robot"]["keys"]] == [True, False]


def test_an_agent_is_frozen_and_unfrozen_and_the_list_says_so(up: Operated) -> None:
    verb(up.env, "agent", "enroll", "stray")
    why = ("--reason", "it loops")
    for command_, more, frozen, words in (
        ("freeze", why, True, "stages, redeems"),
        ("unfreeze", (), False, "may act again"),
    ):
        for _ in range(2):  # safe to repeat
            code, said = verb(up.env, command_, "agent", "stray", *more)
            assert code == 0 and words in said
            assert enrolled(up.env)["stray"]["frozen"] is frozen
        assert ("stray  FROZEN" in verb(up.env, "agent", "list")[1].splitlines()) is frozen


@pytest.mark.parametrize(
    ("words", "name"),
    [(("freeze", "agent"), "agent"), (("revoke", "key"), "kid"), (("agent", "key", "revoke"), "kid")],
)
def test_a_freeze_of_an_agent_and_the_end_of_a_key_ask_for_the_reason(
    sent: list[dict[str, Any]], words: tuple[str, ...], name: str
) -> None:
    assert verb({}, *words, "x")[0] == 1, "it asks for the reason"
    for one in (
        ("x",) if name == "agent" else ("x", "-j3x", "--x7", "-Rq")
    ):  # a hyphen makes no option of a key id
        assert verb({}, *words, one, "--reason", "why")[0] == 0
        assert sent.pop() == {name: one, "reason": "why"}
    assert sent == []


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
            voucher = Voucher("robot", "k8s", "trust", now, "sub", until, None)
            await bank.service.db.write(lambda tx, key=key, voucher=voucher: bring_key(tx, key, voucher))  # type: ignore[misc]
        told = await bank.operator("agent-list", {})
        log = table(AuditRow).c
        bodies = select(log.body).where(log.kind.in_(["agent_frozen", "agent_key_revoked"]))
        logged = await bank.service.db.read(lambda conn: list(conn.execute(bodies).scalars()))
    assert {json.loads(one)["reason"] for one in logged} == {"it loops", "lost"}
    lines = agent_text(told).splitlines()
    assert lines[0] == "robot  owner https://idp|ann  roles payer  teams money"
    ends = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1:]}
    assert ends[keys[0].kid].startswith("REVOKED at 20")
    assert ends[keys[1].kid] == "live"
    assert ends[keys[2].kid] == f"live until {time_text(now + timedelta(hours=1))}  brought by k8s"
    assert ends[keys[3].kid] == f"over since {time_text(now - timedelta(hours=1))}  brought by k8s"


def test_api_keys_are_ended_also_where_they_are_switched_off(down: dict[str, str]) -> None:
    verb(down, "agent", "enroll", "trial")
    for _ in range(2):
        assert verb(down | {"COUNTERSIGN_API_KEYS": "true"}, "agent", "api-key", "trial")[0] == 0
    for count in (2, 0):
        code, said = verb(down, "agent", "api-key", "trial", "--revoke", "--json")
        assert (code, json.loads(said)) == (0, {"agent": "trial", "revoked": count})


REFUSED = [
    (("agent", "enroll", "taken"), "enrolled already"),
    (("agent", "enroll", "a b"), "cannot be an agent's name"),
    (("agent", "enroll", "x", "--owner", "maya"), "is not a person"),
    (("agent", "key", "add", "nobody", "--jwk", "{}"), "no Ed25519 public key"),
    (("agent", "key", "revoke", "none", "--reason", "x"), "there is no key"),
    (("agent", "api-key", "taken"), "switched off"),
    (("agent", "api-key", "nobody", "--revoke"), "not enrolled"),
    (("freeze", "agent", "nobody", "--reason", "x"), "not enrolled"),
    (("unfreeze", "agent", "nobody"), "not enrolled"),
]


def test_a_verb_that_is_refused_ends_in_a_sentence(up: Operated) -> None:
    verb(up.env, "agent", "enroll", "taken")
    for args, sentence in REFUSED:
        code, said = verb(up.env, *args)
        assert code == 1 and sentence in said and "Traceback" not in said, args


def test_a_key_file_is_never_overwritten_and_none_is_left_of_a_refused_enrolment(
    up: Operated, tmp_path: Path
) -> None:
    there, fresh = tmp_path / "there.pem", tmp_path / "fresh.pem"
    there.write_text("mine")
    code, said = verb(up.env, "agent", "enroll", "other", "--key-out", str(there))
    assert code == 1 and "never overwritten" in said and there.read_text() == "mine"
    assert verb(up.env, "agent", "enroll", "a b", "--key-out", str(fresh))[0] == 1
    assert not fresh.exists()


def test_a_running_service_gives_links_and_its_socket_to_its_own_user(up: Operated, folder: Path) -> None:
    assert (folder / "data/admin.sock").stat().st_mode & 0o777 == 0o600
    assert up.link("maya").startswith(f"{up.url}/sign-in/dev?token=")
    assert verb(up.env, "signin", "tomas")[1].startswith(f"{up.url}/sign-in/dev?token=")
    code, said = verb(
        up.env | {"COUNTERSIGN_PORT": str(free_port())}, "serve"
    )  # a second one, on the same data
    assert code == 1 and "in use by" in said
    assert httpx2.get(up.url + "/readyz").status_code == 200


def test_a_service_that_hangs_is_a_sentence_that_names_it_and_says_what_is_not_known(
    up: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_service.channels.operator.socket._TIMEOUT_S", 0.5)
    with up.hanging() as pid:
        code, said = verb(up.env, "freeze", "tool", "slow", "--reason", "x")
    assert code == 1 and f"pid {pid}" in said and "does not answer" in said
    assert "whether it was done is not known: repeat it" in said
    monkeypatch.undo()
    assert verb(up.env, "freeze", "tool", "slow", "--reason", "x")[0] == 0
    assert verb(up.env, "unfreeze", "tool", "slow")[0] == 0


NO_ANSWERS = [
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nFault",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\n[]",
    b"",
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
            code, said = verb(down, "freeze", "everything", "--reason", "x")
            server.join(30)
            assert code == 1 and "not known" in said, answer


ENDED = {
    "agent_unfrozen": (("freeze", "agent", "stopped"), ("unfreeze", "agent", "stopped")),
    "stop_ended": (("freeze", "everything"), ("unfreeze", "everything")),
    "approver_reinstated": (("revoke", "approver", "idp|zoe"), ("reinstate", "approver", "idp|zoe")),
}


def test_the_reason_for_ending_a_stop_is_logged(up: Operated, folder: Path) -> None:
    verb(up.env, "agent", "enroll", "stopped")
    line = table(AuditRow).c
    engine = create_engine(f"sqlite:///{folder / 'data/countersign.db'}")
    for kind, (stop, end) in ENDED.items():
        for reason in ((), ("--reason", f"{kind}: it is fixed")):  # the reason is optional
            assert verb(up.env, *stop, "--reason", "x")[0] == 0
            assert verb(up.env, *end, *reason)[0] == 0
        query = select(line.body).where(line.kind == kind).order_by(line.audit_id)
        with engine.connect() as conn:
            reasons = [json.loads(body).get("reason") for body in conn.execute(query).scalars()]
        assert reasons[-2:] == [None, f"{kind}: it is fixed"]
    engine.dispose()


def test_what_is_frozen_can_be_listed(up: Operated) -> None:
    assert verb(up.env, "freeze", "list") == (0, "nothing is frozen")
    verb(up.env, "agent", "enroll", "held")
    begun = [(("everything",), "it pays twice"), (("tool", "pay"), "slow"), (("agent", "held"), "x")]
    for words, reason in begun:
        assert verb(up.env, "freeze", *words, "--reason", reason)[0] == 0
    told = json.loads(verb(up.env, "freeze", "list", "--json")[1])
    assert [(one["what"], one["name"], one["reason"]) for one in told] == [
        (words[0], words[1] if words[1:] else None, reason) for words, reason in begun
    ]
    lines = verb(up.env, "freeze", "list")[1].splitlines()
    assert lines[1] == f"tool pay  since {told[1]['since']} by operator  slow"
    for words, _ in begun:
        verb(up.env, "unfreeze", *words)
    assert verb(up.env, "freeze", "list") == (0, "nothing is frozen")


def test_a_tool_nobody_has_is_frozen_with_a_warning_and_the_database_is_named(
    up: Operated, down: dict[str, str]
) -> None:
    for env in (up.env, down):
        database = f"{env['COUNTERSIGN_DATA_DIR']}/countersign.db"
        code, said = verb(env, "freeze", "tool", "pya", "--reason", "x")
        assert code == 0 and "pya is frozen" in said
        assert "WARNING" in said and "no tool 'pya'" in said and "pay" in said
        said = verb(env, "freeze", "tool", "pay", "--reason", "x")[1]
        assert "WARNING" not in said and database in said
        for tool in ("pya", "pay"):
            assert json.loads(verb(env, "unfreeze", "tool", tool, "--json")[1])["database"] == database


def test_verbs_work_while_the_service_is_down_and_it_finds_what_they_did(
    not_set_up: dict[str, str], tmp_path: Path
) -> None:
    env = not_set_up
    for made in (["nonces.secret", "release-current.pem", "release-next.pem"], []):  # safe to repeat
        code, said = verb(env, "init", "--json")
        assert code == 0 and sorted(json.loads(said)["keys_made"]) == made
    assert verb(env, "agent", "enroll", "robot")[0] == 0
    assert list(enrolled(env)) == ["robot"]
    with socket.socket(socket.AF_UNIX) as left_behind:  # by a service that was killed
        left_behind.bind(str(tmp_path / "data/admin.sock"))
    assert list(enrolled(env)) == ["robot"]
    code, said = verb(env, "agent", "enroll", "robot")
    assert code == 1 and "enrolled already" in said


def test_a_check_names_the_commit_as_decisions_do_and_a_mistake_with_file_and_line(
    not_set_up: dict[str, str], tmp_path: Path
) -> None:
    commit = json.loads(verb(not_set_up, "check", "--json")[1])["commit"]
    code, said = verb(not_set_up, "check")
    assert code == 0 and f"commit {commit}" in said
    Payments(tmp_path / "bundle").rules("permit (principal, action, resource);")
    code, said = verb(not_set_up, "check", "--json")
    problem = json.loads(said)["problems"][0]
    assert code == 1 and problem["file"] == "rules.cedar" and problem["line"] > 1


async def refused_start(data: Path, bundle: Path, told: str) -> None:
    """The service does not start, and says this."""
    with pytest.raises(StartError, match=told):
        async with running(data, bundle):
            pass


async def test_missing_keys_and_one_others_can_read_are_refused_with_the_command_that_mends_it(
    tmp_path: Path,
) -> None:
    data, bundle = tmp_path / "data", Payments(tmp_path / "bundle").path
    data.mkdir()
    await refused_start(data, bundle, "policy-service init")
    shutil.copytree(fresh_data(), data, dirs_exist_ok=True)
    key = data / "keys/release-current.pem"
    key.chmod(0o644)
    await refused_start(data, bundle, "chmod 600")
    key.chmod(0o600)
    async with running(data, bundle) as bank:  # the refused start left nothing locked
        assert (await bank.http.get("/readyz")).status_code == 200


async def test_a_database_from_a_backup_or_an_empty_one_beside_used_keys_does_not_start(
    tmp_path: Path,
) -> None:
    data, bundle = tmp_path / "data", Payments(tmp_path / "bundle").path
    async with running(data, bundle) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank))).json()
        await bank.service.sequencer.number()
    backup = (data / "countersign.db").read_bytes()
    async with running(data, bundle) as bank:
        robot.http = bank.http
        await robot.spend(view, "a1")
        await bank.service.sequencer.number()
    newest = (data / "countersign.db").read_bytes()
    for content in (backup, None):  # it has forgotten that the release was spent, or everything
        for file in data.glob("countersign.db*"):
            file.unlink()
        if content is not None:
            (data / "countersign.db").write_bytes(content)
        await refused_start(data, bundle, "restored or replaced")
    (data / "countersign.db").write_bytes(newest)
    async with running(data, bundle) as bank:
        robot.http = bank.http
        assert (await robot.see(view["txn"]))["state"] == "redeemed"


def test_a_sign_in_link_that_cannot_be_made_does_not_end_the_service(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody else holds the database here; a full disk at the wrong moment looks the same to `serve`."""
    settings = load_settings(data_dir=tmp_path, bundle_dir=folder / "bundle", dev_signin=True)
    (tmp_path / "countersign.db").touch()
    with embedded_lock(settings):
        _welcome(settings)
    said = capsys.readouterr()
    assert "listening on" in said.out and "sign in as" not in said.out
    assert "no link for maya (the database beside" in said.err
    assert "policy-service signin maya" in said.err


ELSEWHERE = [
    "freeze everything --reason twice", "unfreeze tool pay", "revoke agent robot --reason stolen", "people", "serve",
    "agent enroll robot --key-out robot.pem", "restored --dry-run", "signin maya",
]  # fmt: skip


def test_a_verb_in_another_folder_makes_no_database_and_says_that_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Payments(tmp_path / "bundle").path
    env = {"COUNTERSIGN_BUNDLE_DIR": str(bundle), "COUNTERSIGN_DEV_SIGNIN": "true"}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for words in ELSEWHERE:
        code, said = verb(env, *words.split())
        assert code == 1 and "policy-service init" in said, words
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
            code, said = verb(env, "freeze", "everything", "--reason", "x")
            assert code == 1 and "there is no database" in said
        assert verb(env, "init")[0] == 0
        assert verb(env, "freeze", "everything", "--reason", "x")[0] == 0


ESCAPES = "\x1b[2K\x1b]0;owned\x07\x9b1A\u202e"


def test_no_list_and_no_refusal_moves_a_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"person": "idp|m", "name": "Maya\x1b[2K\r  REVOKED", "groups": ["a\nb"], "revoked": False}
    monkeypatch.setattr(listing, "run_verb", lambda *_: [row])
    assert verb({}, "people") == (0, r"idp|m  Maya\x1b[2K\r  REVOKED  a\nb")
    key = {"kid": "k", "revoked": False, "until": None, "issuer": ESCAPES, "revoked_at": None, "over": False}
    of = {"owner": ESCAPES, "roles": [ESCAPES], "teams": [], "frozen": False, "keys": [key]}
    monkeypatch.setattr(listing, "run_verb", lambda *_: [{"agent": f"a{ESCAPES}\nb", **of}])
    for words in (("agent", "list"), ("agent", "list", "--json")):
        code, said = verb({}, *words)
        assert code == 0 and said.isascii()
        assert not {"\x1b", "\x07", "\x9b"} & set(said)
    assert len(verb({}, "agent", "list")[1].splitlines()) == 2

    def refuse(*_: object) -> None:
        raise StartError(f"no agent {ESCAPES}")

    monkeypatch.setattr(listing, "run_verb", refuse)
    code, said = verb({}, "agent", "list")
    assert (code, said) == (1, r"policy-service: no agent \x1b[2K\x1b]0;owned\x07\x9b1A\u202e")
