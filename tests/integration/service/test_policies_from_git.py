"""A service that follows a branch: what comes into force, what does not and why, and what replicas agree on."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from policy_service.channels.http.webhooks import require_usable
from policy_service.cli import app
from policy_service.errors import InvalidRequestError, StartError
from policy_service.pap.git import following as follower
from policy_service.pap.git import mirror as mirrors
from policy_service.pap.git.history import descends
from policy_service.pap.git.objects import Objects
from policy_service.pap.git.remotes import place_of
from policy_service.pap.problems import HeadError
from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from policy_service.workflow.looking import look
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import PAY, Payments, plain_forbid
from tests.fakes.repository import Key, Repository
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import call, pay
from tests.integration.service.engines import SQLITE_IN_SHORT

pytestmark = pytest.mark.anyio

_AUDIT = table(AuditRow).c
QUIET = {"policies_poll_s": 3600}


class Rules:
    """A repository whose bundle is that of the payments."""

    def __init__(self, path: Path) -> None:
        self.folder, self.repository = Payments(path), Repository(path)
        self.first = self.repository.commit("the first rules")

    def push(self, name: str = "stop") -> str:
        """A good commit with one rule more."""
        self.folder.write(f"{name}.cedar", plain_forbid(name))
        return self.repository.commit(name)

    def break_(self) -> str:
        """A commit that does not parse."""
        self.folder.write("broken.cedar", '// a comment\n@id("x") permit (principal,')
        return self.repository.commit("broken")


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(tmp_path / "rules")


@asynccontextmanager
async def following(data: Path, rules: Rules, **more: Any) -> AsyncIterator[World]:
    given = {"policies_repository": str(rules.repository.path), **QUIET, **more}
    async with running(data, data / "no-folder", **given) as world:
        yield world
        assert await world.service.db.read(faults_of_log) == []


@pytest.fixture
async def world(tmp_path: Path, rules: Rules) -> AsyncIterator[World]:
    async with following(tmp_path / "data", rules) as started:
        yield started


async def told(world: World, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
    """The lines of the log about policies, in order."""
    wanted = kinds or ("bundle_activated", "bundle_refused", "bundle_override")
    query = select(_AUDIT.kind, _AUDIT.body).where(_AUDIT.kind.in_(wanted)).order_by(_AUDIT.audit_id)
    found = await world.service.db.read(lambda conn: conn.execute(query).all())
    return [(row.kind, json.loads(row.body)) for row in found]


def commit_of(world: World) -> str:
    return world.service.active.current.commit


def finding(world: World) -> str:
    """What /readyz says about the bundle."""
    return "; ".join(one.wrong for one in world.service.health.findings() if one.check == "bundle")


# -- what comes into force -------------------------------------------------------------------------------------------


async def test_a_push_comes_into_force_and_stands_in_decisions_and_tokens(world: World, rules: Rules) -> None:
    robot = await world.agent("robot")
    view = (await robot.submit(await pay(world))).json()
    assert view["effects"][0]["decision"]["commit"] == commit_of(world) == rules.first
    released = (await robot.release(view)).json()["releases"]
    assert world.release_of(released[0]).decision.commit == rules.first
    pushed = rules.push()
    assert await world.activate()
    assert commit_of(world) == pushed
    digest = world.service.active.current.digest
    lines = await told(world)
    assert [kind for kind, _ in lines] == ["bundle_activated", "bundle_activated"]
    assert lines[1][1] == {"commit": pushed, "bundle": digest, "before": rules.first}
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "denied"
    assert not await world.activate()
    assert len(await told(world)) == 2


async def test_a_restart_under_the_same_commit_says_nothing_new_and_another_repository_begins_anew(
    tmp_path: Path, rules: Rules
) -> None:
    for _ in range(2):
        async with following(tmp_path / "data", rules) as world:
            assert [kind for kind, _ in await told(world)] == ["bundle_activated"]
    other = Rules(tmp_path / "other-rules")
    other.push("theirs")
    async with following(tmp_path / "data", other) as world:
        assert commit_of(world) == other.repository.head()
        assert "before" not in (await told(world))[1][1]


def newest(rules: Rules, ref: str) -> str:
    """The commit that is followed under that name."""
    place = place_of(str(rules.repository.path), None)
    return mirrors.Mirror(rules.repository.path.parent / "copy.git", place, ref, 30).newest()


def test_a_branch_or_a_tag_is_followed(rules: Rules) -> None:
    rules.repository.git("-c", "tag.gpgSign=false", "tag", "-a", "-m", "one", "v1")
    rules.repository.git("tag", "light")
    for ref in ("main", "refs/heads/main", "v1", "refs/tags/light"):
        assert newest(rules, ref) == rules.first
    rules.repository.git("tag", "main")
    for ref, told in (("main", "is a branch and a tag"), ("never", "no branch or tag 'never'")):
        with pytest.raises(HeadError, match=told):
            newest(rules, ref)


async def test_a_bundle_in_a_subfolder_of_a_bare_repository(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "mono")
    Payments(tmp_path / "mono/teams/pay")
    first = repository.commit()
    repository.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    more = {"policies_repository": str(tmp_path / "bare.git"), "policies_subfolder": "teams/pay", **QUIET}
    async with running(tmp_path / "data", **more) as world:
        assert commit_of(world) == first


# -- what does not ---------------------------------------------------------------------------------------------------


async def test_a_broken_push_keeps_the_last_good_bundle_and_is_told_once(world: World, rules: Rules) -> None:
    broken = rules.break_()
    for _ in range(3):
        assert not await world.activate()
    assert commit_of(world) == rules.first
    assert (await told(world))[1:] == [
        ("bundle_refused", {"commit": broken, "why": "invalid", "file": "broken.cedar", "line": 2})
    ]
    assert broken in finding(world) and rules.first in finding(world) and "broken.cedar:2" in finding(world)
    maya, robot = await world.person("maya"), await world.agent("robot")
    for_people = (await maya.get("/v1/policies")).json()
    assert (for_people["active_commit"], for_people["head_commit"]) == (rules.first, broken)
    assert for_people["differs"] == "invalid"
    assert for_people["problems"][0]["file"] == "broken.cedar" and for_people["problems"][0]["message"]
    for_agents = (await robot.send("GET", "/v1/policies")).json()
    assert for_agents["problems"] == [{"file": "broken.cedar", "line": 2}]
    (rules.folder.path / "broken.cedar").unlink()
    mended = rules.repository.commit("mended")
    await world.activate()
    assert (commit_of(world), finding(world)) == (mended, "")
    assert (await maya.get("/v1/policies")).json().get("differs") is None


async def test_a_broken_head_at_a_start_leaves_the_commit_that_was_in_force(
    tmp_path: Path, rules: Rules
) -> None:
    async with following(tmp_path / "data", rules):
        pass
    broken = rules.break_()
    async with following(tmp_path / "data", rules) as world:
        assert commit_of(world) == rules.first
        assert broken in finding(world)
    with pytest.raises(StartError, match=r"broken.cedar:2"):  # and nothing before it is no start
        async with following(tmp_path / "new", rules):
            pass


async def test_a_force_push_is_refused_until_an_operator_says_why(
    world: World, rules: Rules, tmp_path: Path
) -> None:
    second = rules.push()
    await world.activate()
    rules.repository.rewind(rules.first)
    rewritten = rules.push("other")
    await world.activate()
    await world.activate()
    assert commit_of(world) == second
    assert (await told(world))[2:] == [("bundle_refused", {"commit": rewritten, "why": "force_push"})]
    assert "does not descend" in finding(world)
    problem = str(world.service.active.status().error)
    assert f'policy-service policies accept {rewritten} --reason "..."' in problem
    await world.operator("policies-accept", {"commit": rewritten, "reason": "we rewrote it together"})
    await world.activate()
    assert (commit_of(world), finding(world)) == (rewritten, "")
    kinds = (await told(world))[3:]
    assert kinds[0] == ("bundle_override", {"commit": rewritten, "reason": "we rewrote it together"})
    assert kinds[1][1]["override"] == "we rewrote it together"
    rules.repository.rewind(rules.first)  # once is once
    await world.activate()
    assert commit_of(world) == rewritten
    await world.operator("policies-accept", {"commit": second, "reason": "not this one"})
    await world.activate()
    assert commit_of(world) == rewritten


async def test_a_refused_head_is_walked_back_from_once(
    world: World, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history of ten thousand commits would otherwise be read at every look for as long as nobody mends it."""
    walks: list[str] = []

    def walk(objects: Objects, head: str, accepted: str) -> bool:
        walks.append(head)
        return descends(objects, head, accepted)

    monkeypatch.setattr(follower, "descends", walk)
    second = rules.push()
    await world.activate()
    rules.repository.rewind(rules.first)
    rewritten = rules.push("other")
    for _ in range(3):
        await world.activate()
    assert (commit_of(world), walks) == (second, [second, rewritten])
    rules.repository.rewind(second)
    third = rules.push("more")
    await world.activate()
    assert (commit_of(world), walks) == (third, [second, rewritten, third])


async def test_a_rewind_while_nobody_was_running_is_refused_too(tmp_path: Path, rules: Rules) -> None:
    async with following(tmp_path / "data", rules) as world:
        second = rules.push()
        await world.activate()
    rules.repository.rewind(rules.first)
    async with following(tmp_path / "data", rules) as world:
        assert commit_of(world) == second
        assert "does not descend" in finding(world)
    # a new disk, and the remote has forgotten the commit
    shutil.rmtree(mirrors.mirror_path(tmp_path / "data"))
    rules.repository.git("reflog", "expire", "--expire=now", "--all")
    rules.repository.git("gc", "-q", "--prune=now")
    with pytest.raises(StartError, match="policies accept"):
        async with following(tmp_path / "data", rules):
            pass


async def test_a_moved_tag_is_a_force_push(tmp_path: Path, rules: Rules) -> None:
    second = rules.push()
    rules.repository.git("tag", "live")
    async with following(tmp_path / "data", rules, policies_ref="live") as world:
        rules.repository.git("tag", "-f", "live", rules.first)
        await world.activate()
        assert commit_of(world) == second
        assert "does not descend" in finding(world)


async def test_a_branch_that_is_gone_and_one_that_never_was(tmp_path: Path, rules: Rules) -> None:
    rules.repository.git("branch", "live")
    async with following(tmp_path / "data", rules, policies_ref="live") as world:
        rules.repository.git("branch", "-D", "live")
        await world.activate()
        await world.activate()
        assert commit_of(world) == rules.first
        assert "not there" in finding(world)
        assert (await told(world))[1:] == [("bundle_refused", {"commit": "", "why": "gone"})]
    Repository(tmp_path / "empty")
    with pytest.raises(StartError, match=r"no branch or tag 'main'.*it is empty"):
        async with running(tmp_path / "other", policies_repository=str(tmp_path / "empty"), **QUIET):
            pass


async def test_a_repository_that_vanished_changes_nothing_but_what_is_told(
    tmp_path: Path, rules: Rules
) -> None:
    moved = tmp_path / "moved"
    async with following(tmp_path / "data", rules) as world:
        rules.repository.path.rename(moved)
        await world.activate()
        assert commit_of(world) == rules.first
        assert "cannot be reached" in finding(world)
        robot = await world.agent("robot")
        view = (await robot.submit(await pay(world))).json()
        assert (await robot.spend(view))["redeemed"]
    async with following(tmp_path / "data", rules) as world:  # from the copy
        assert commit_of(world) == rules.first
        assert "cannot be reached" in finding(world)
        moved.rename(rules.repository.path)
        await world.activate()
        assert finding(world) == ""
    rules.repository.path.rename(moved)
    with pytest.raises(StartError, match="the repository cannot be read"):
        async with following(tmp_path / "nothing", rules):
            pass


# -- signatures ------------------------------------------------------------------------------------------------------


async def test_only_a_head_signed_by_somebody_named_comes_into_force(tmp_path: Path, rules: Rules) -> None:
    maya, stranger = Key(tmp_path, "maya"), Key(tmp_path, "stranger")
    file = tmp_path / "signers"
    file.write_text(f"{maya.name} {maya.public}\n")
    with pytest.raises(StartError, match="carries no signature"):
        async with following(tmp_path / "data", rules, policies_allowed_signers=file):
            pass
    first = maya.sign(rules.repository)
    async with following(tmp_path / "data", rules, policies_allowed_signers=file) as world:
        assert commit_of(world) == first
        unsigned = rules.push()
        await world.activate()
        assert commit_of(world) == first
        assert (await told(world))[-1] == ("bundle_refused", {"commit": unsigned, "why": "unsigned"})
        stranger.sign(rules.repository)
        await world.activate()
        assert commit_of(world) == first
        assert "not among policies_allowed_signers" in str(world.service.active.status().error)
        await world.operator("policies-accept", {"commit": rules.repository.head(), "reason": "let it"})
        await world.activate()
        assert commit_of(world) == first  # an override is about history, not about who signs
        head = maya.sign(rules.repository)  # above an unsigned one: what counts is who stands for these bytes
        await world.activate()
        assert commit_of(world) == head
        file.write_text("")  # nobody any more: what is in force stays, what is new is refused
        await world.activate()
        assert finding(world) == ""
        maya.sign(rules.repository)
        await world.activate()
        assert commit_of(world) == head


async def test_a_word_for_a_commit_is_for_once_and_over_when_another_is_in_force(
    world: World, rules: Rules
) -> None:
    second = rules.push()
    await world.activate()
    await world.operator("policies-accept", {"commit": rules.first, "reason": "we may go back tonight"})
    third = rules.push("other")
    await world.activate()
    rules.repository.rewind(rules.first)
    await world.activate()
    assert commit_of(world) == third != second
    assert "does not descend" in finding(world)
    await world.operator("policies-accept", {"commit": rules.first, "reason": "back for now"})
    await world.activate()
    assert commit_of(world) == rules.first
    later = rules.push("another")
    await world.activate()
    rules.repository.rewind(rules.first)
    await world.activate()
    assert commit_of(world) == later


# -- the operator's word ---------------------------------------------------------------------------------------------


async def test_the_operators_word_needs_a_commit_and_a_reason(world: World) -> None:
    for commit, reason in (("main", "x"), ("abc", "x"), ("A" * 40, "x"), ("a" * 40, " ")):
        with pytest.raises(InvalidRequestError):
            await world.operator("policies-accept", {"commit": commit, "reason": reason})
    assert await told(world, "bundle_override") == []
    for header in ("X-Hub-Signature-256", "X-Gitlab-Token", "Webhook-Signature"):  # without a secret
        answer = await world.http.post("/v1/policies/sync", content=b"{}", headers={header: ""})
        assert answer.status_code == 401


def test_the_command_says_what_it_did_and_where(tmp_path: Path, rules: Rules) -> None:
    env = {"COUNTERSIGN_DATA_DIR": str(tmp_path / "data")}
    words = ["policies", "accept", "a" * 40, "--reason", "x"]
    assert CliRunner().invoke(app, ["init"], env=env).exit_code == 0
    refused = CliRunner().invoke(app, words, env=env)
    assert refused.exit_code == 1 and "policies_repository is not set" in refused.output
    env["COUNTERSIGN_POLICIES_REPOSITORY"] = f"https://maya:s3cret@127.0.0.1/{'x'}"
    done = CliRunner().invoke(app, words, env=env)
    assert done.exit_code == 0 and "at the next look" in done.output
    shown = CliRunner().invoke(app, ["settings"], env=env).output
    assert "https://127.0.0.1/x" in shown and "s3cret" not in shown


# -- the word that there may be something new ------------------------------------------------------------------------

SECRET = "a secret both sides share"


@pytest.fixture
async def hooked(tmp_path: Path, rules: Rules) -> AsyncIterator[World]:
    file = tmp_path / "webhook"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    async with following(tmp_path / "data", rules, policies_webhook_secret_file=file) as started:
        yield started


async def in_force(world: World, commit: str) -> None:
    async with asyncio.timeout(30):
        while commit_of(world) != commit:  # noqa: ASYNC110  an activation sets no event
            await asyncio.sleep(0.01)


async def test_a_signed_webhook_brings_a_push_into_force(hooked: World, rules: Rules) -> None:
    pushed, body = rules.push(), b'{"ref": "refs/heads/whatever"}'

    async def sent(content: bytes, **headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await hooked.http.post("/v1/policies/sync", content=content, headers=given)
        assert answer.json().get("looking") is (True if answer.is_success else None)
        return answer.status_code

    signed = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    for wrong in (signed[:-1] + ("0" if signed[-1] != "0" else "1"), "sha256=", "", "sha1=x"):
        assert await sent(body, X_Hub_Signature_256=wrong) == 401
    assert await sent(body + b" ", X_Hub_Signature_256=signed) == 401
    assert await sent(body, X_Gitlab_Token="another") == 401
    mac = hmac.new(SECRET.encode(), b"msg_1.1790000000.{}", hashlib.sha256).digest()
    good = f"v1,{base64.b64encode(mac).decode()}"
    who = {"webhook_id": "msg_1", "webhook_timestamp": "1790000000"}
    assert await sent(b"{}", webhook_signature=good, **(who | {"webhook_id": "msg_2"})) == 401
    assert not hooked.service.ctx.looks.asked and commit_of(hooked) == rules.first
    for _ in range(3):  # a replay is one look more at most
        assert await sent(body, X_Hub_Signature_256=signed) == 202
    await in_force(hooked, pushed)
    assert await sent(body, X_Gitlab_Token=SECRET) == 202
    assert await sent(b"{}", webhook_signature=f"v1,xxx {good}", **who) == 202


async def test_an_agent_and_a_person_may_ask_for_a_look_and_a_stranger_may_not(
    world: World, rules: Rules
) -> None:
    robot, maya = await world.agent("robot"), await world.person("maya")
    nobody = await world.http.post("/v1/policies/sync", json={})
    assert nobody.status_code == 401
    assert (await world.http.get("/v1/policies")).status_code == 401
    pushed = rules.push()
    assert (await robot.send("POST", "/v1/policies/sync", {})).status_code == 202
    await in_force(world, pushed)
    pushed = rules.push("more")
    answer = await world.http.post("/v1/policies/sync", content=b"{}", headers=maya.headers())
    assert answer.status_code == 202
    await in_force(world, pushed)


# -- replicas --------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> str:
    return "postgresql"


@asynccontextmanager
async def two(tmp_path: Path, rules: Rules, database: dict[str, str]) -> AsyncIterator[list[World]]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(following(tmp_path / "data-0", rules, **database))
        await first.service.sequencer.number()
        await first.service.mark.write()  # a replica begins with the keys folder of another one
        shutil.copytree(tmp_path / "data-0" / "keys", tmp_path / "keys")
        keys = {"key_dir": tmp_path / "keys"}
        yield [
            first,
            await stack.enter_async_context(following(tmp_path / "data-1", rules, **database, **keys)),
        ]


def at(world: World, who: Agent) -> Agent:
    return Agent(who.name, who.key, world.http, who.clock)


async def test_a_replica_never_redeems_under_a_commit_it_does_not_know(
    tmp_path: Path, rules: Rules, database: dict[str, str]
) -> None:
    async with two(tmp_path, rules, database) as (one, other):
        robot = await one.agent("robot")
        there = at(other, robot)
        view = (await there.submit(await pay(other))).json()
        released = (await there.release(view)).json()["releases"]
        pushed = rules.push()
        await one.activate()
        assert (commit_of(one), commit_of(other)) == (pushed, rules.first)
        answer = await there.redeem(released)  # its copy does not hold the commit yet
        assert (answer.status_code, answer.json()["code"]) == (503, "policies_behind")
        assert int(answer.headers["retry-after"]) > 0
        await in_force(other, pushed)  # that was a word to look, too
        answer = await there.redeem(released)
        assert not answer.is_success or not answer.json()["redeemed"]
        assert len(await told(one)) == 2  # one of them put it in force, and said so


async def test_a_replica_lets_no_live_effect_run_under_a_commit_it_does_not_know(
    tmp_path: Path, rules: Rules, database: dict[str, str]
) -> None:
    rules.folder.write(
        "tools/note.json", PAY | {"tool": "note", "lane": "live", "ask": "live", "compensation": None}
    )
    rules.first = rules.repository.commit("a live tool")
    async with two(tmp_path, rules, database) as (one, other):
        robot = await one.agent("robot")
        effect = await call(other, "note", {"account": "acme", "amount": 1})
        question = {"run_key": "r", "effects": [effect], "live": True}
        there = at(other, robot)
        assert (await there.send("POST", "/v1/evaluations", question)).status_code == 200
        pushed = rules.push()
        await one.activate()
        assert (commit_of(one), commit_of(other)) == (pushed, rules.first)
        answer = await there.send("POST", "/v1/evaluations", question)
        assert (answer.status_code, answer.json()["code"]) == (503, "policies_behind")


async def test_a_replica_with_other_settings_than_the_newest_is_told_so(
    tmp_path: Path, rules: Rules, database: dict[str, str]
) -> None:
    rules.repository.git("branch", "newer")
    async with two(tmp_path, rules, database) as (first, _):
        await first.activate()
        assert finding(first) == ""
        keys = {"key_dir": tmp_path / "keys", "policies_ref": "newer"}
        async with following(tmp_path / "data-2", rules, **database, **keys) as third:
            rules.push()
            await first.activate()
            assert "restart this one with the same settings" in finding(first)
            assert finding(third) == ""


async def test_a_replica_that_holds_the_commit_follows_before_it_redeems(
    tmp_path: Path, rules: Rules, database: dict[str, str]
) -> None:
    async with two(tmp_path, rules, database) as (one, other):
        robot = await one.agent("robot")
        there = at(other, robot)
        rules.repository.write("README.md", "says more")
        second = rules.repository.commit()
        await asyncio.to_thread(other.service.active._source._mirror.newest)  # type: ignore[attr-defined]
        await one.activate()
        assert (commit_of(one), commit_of(other)) == (second, rules.first)
        view = (await there.submit(await pay(other), run_key="at once", attempt_id="a1")).json()
        assert view["receipt"] and commit_of(other) == second
        assert view["effects"][0]["decision"]["commit"] == second


async def test_two_replicas_that_see_a_push_together_record_it_once(
    tmp_path: Path, rules: Rules, database: dict[str, str]
) -> None:
    async with two(tmp_path, rules, database) as worlds:
        pushed = rules.push()
        await asyncio.gather(*(world.activate() for world in worlds))
        await asyncio.gather(*(world.activate() for world in worlds))
        assert [commit_of(world) for world in worlds] == [pushed, pushed]
        assert [body["commit"] for _, body in await told(worlds[0])] == [rules.first, pushed]


async def test_a_replica_that_falls_behind_a_rewind_keeps_to_what_stands(
    tmp_path: Path, rules: Rules, database: dict[str, str]
) -> None:
    async with two(tmp_path, rules, database) as (one, other):
        pushed = rules.push()
        await one.activate()
        rules.repository.rewind(rules.first)
        await other.activate()  # the head it sees is its own commit, which is in force no more
        assert commit_of(one) == pushed
        assert "not in force" in finding(other)
        robot = await one.agent("robot")
        answer = await at(other, robot).submit(await pay(other), run_key="late", attempt_id="a1")
        assert answer.json().get("code") == "policies_behind" or not answer.json().get("receipt")


@pytest.mark.parametrize("engine", SQLITE_IN_SHORT)
async def test_what_was_recorded_and_not_swapped_is_in_force_after_a_restart(
    tmp_path: Path, rules: Rules, database: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path / "data", rules, **database) as world:
        pushed = rules.push()
        with monkeypatch.context() as patched:
            patched.setattr(world.service.active, "_swap", _dies)
            with pytest.raises(RuntimeError, match="died"):
                await look(world.service.ctx)
        assert commit_of(world) == rules.first
        robot = await world.agent("robot")
        answer = await robot.submit(await pay(world), attempt_id="a1")
        assert not answer.json().get("receipt")  # it follows what is recorded, which forbids it
        assert commit_of(world) == pushed
    async with following(tmp_path / "data", rules, **database) as world:
        assert commit_of(world) == pushed
        assert len(await told(world)) == 2


async def _dies(bundle: object) -> bool:
    raise RuntimeError("died")


def test_a_secret_that_anybody_guesses_is_refused_at_the_start() -> None:
    for secret in (b"short", b"whsec_", b"whsec_----------------------------", b"whsec_AAAA"):
        with pytest.raises(StartError, match="openssl rand -hex 32"):
            require_usable(secret)
    for good in (b"0123456789abcdef", b"whsec_MDEyMzQ1Njc4OWFiY2RlZg=="):
        assert require_usable(good)
