"""A service that follows a branch: which commits become active, which do not, and what replicas agree on."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import hmac
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from policy_service import metrics
from policy_service.channels.http.webhook_signatures import require_strong_secret
from policy_service.cli import app
from policy_service.errors import InvalidRequestError, StartError
from policy_service.pap.git import git_source as follower
from policy_service.pap.git import git_source as mirrors
from policy_service.pap.git.commits import is_descendant
from policy_service.pap.git.objects import Objects
from policy_service.pap.git.remotes import parse_address
from policy_service.pap.problems import HeadError
from policy_service.workflow.active_commit import refresh_bundle
from tests.fakes.log_check import faults_of_log
from tests.fakes.pages import holds, words
from tests.fakes.patience import until
from tests.fakes.payments import ANYBODY, HUGE, LARGE, PAY, Payments, plain_forbid
from tests.fakes.repository import Key, Repository
from tests.fakes.vault import at
from tests.fakes.world import World, running
from tests.integration.service.effects import call, pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.together.bank import refusal


class Rules:
    """A repository whose bundle is that of the payments."""

    def __init__(self, path: Path, **files: str) -> None:
        self.folder, self.repository = Payments(path), Repository(path)
        for name, content in files.items():
            self.folder.write(name, content)
        self.first = self.repository.commit("the first rules\n\nof ours")

    def push(self, name: str = "stop") -> str:
        """A good commit with one rule more."""
        self.folder.write(f"{name}.cedar", plain_forbid(name))
        return self.repository.commit(name)

    def break_(self) -> str:
        """A commit that does not parse."""
        self.folder.write("broken.cedar", '// a comment\n@id("x") permit (principal,')
        return self.repository.commit("broken")


@asynccontextmanager
async def following(data: Path, rules: Rules, **more: Any) -> AsyncIterator[World]:
    """The service over that repository; it looks when a test says so."""
    given = {"policies_repository": str(rules.repository.path), "policies_poll_s": 3600, **more}
    async with running(data, data / "no-folder", **given) as world:
        yield world
        assert await world.service.db.read(faults_of_log) == []


def commit_of(world: World) -> str:
    """What is in force."""
    return world.service.active.current.commit


def finding(world: World) -> str:
    """What /readyz says about the bundle."""
    return "; ".join(one.wrong for one in world.service.health.findings() if one.check == "bundle")


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(tmp_path / "rules")


@pytest.fixture
async def world(tmp_path: Path, rules: Rules) -> AsyncIterator[World]:
    async with following(tmp_path / "data", rules) as started:
        yield started


async def refused_start(data: Path, rules: Rules, why: str, **more: Any) -> None:
    with pytest.raises(StartError, match=why):
        async with following(data, rules, **more):
            pass


async def accept(world: World, commit: str, reason: str = "we rewrote it together") -> None:
    """The operator's word, and the next look."""
    await world.operator("policies-accept", {"commit": commit, "reason": reason})
    await world.activate()


async def looked(world: World, commit: str, *words: str) -> None:
    """After a look that commit is active, and /readyz has these words."""
    await world.activate()
    assert commit_of(world) == commit
    holds(finding(world), *words)


async def in_force(world: World, commit: str) -> None:
    async with asyncio.timeout(30):
        while commit_of(world) != commit:  # noqa: ASYNC110  an activation sets no event
            await asyncio.sleep(0.01)


# -- what comes into force -------------------------------------------------------------------------------------------


async def test_decisions_and_tokens_name_the_pushed_commit(world: World, rules: Rules) -> None:
    robot = await world.agent("robot")
    view = (await robot.submit(await pay(world))).json()
    assert view["effects"][0]["decision"]["commit"] == commit_of(world) == rules.first
    released = (await robot.release(view)).json()["releases"]
    assert world.release_of(released[0]).decision.commit == rules.first
    pushed = rules.push()
    assert await world.activate()
    assert commit_of(world) == pushed
    digest = world.service.active.current.digest
    lines = await world.audited("bundle_%")
    assert [kind for kind, _ in lines] == ["bundle_activated", "bundle_activated"]
    assert lines[1][1] == {"commit": pushed, "bundle": digest, "before": rules.first}
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "denied"
    assert not await world.activate()
    assert len(await world.audited("bundle_%")) == 2


async def test_a_restart_under_the_same_commit_says_nothing_new(tmp_path: Path, rules: Rules) -> None:
    for _ in range(2):
        async with following(tmp_path / "data", rules) as world:
            assert [kind for kind, _ in await world.audited("bundle_%")] == ["bundle_activated"]
    other = Rules(tmp_path / "other-rules")
    other.push("theirs")
    async with following(tmp_path / "data", other) as world:
        assert commit_of(world) == other.repository.head()
        assert "before" not in (await world.audited("bundle_%"))[1][1]


def newest(rules: Rules, ref: str) -> str:
    """The commit that is followed under that name."""
    place = parse_address(str(rules.repository.path), None)
    return mirrors.Mirror(rules.repository.path.parent / "copy.git", place, ref, 30).newest()


def test_a_branch_or_a_tag_is_followed(rules: Rules) -> None:
    rules.repository.git("-c", "tag.gpgSign=false", "tag", "-a", "-m", "one", "v1")
    rules.repository.git("tag", "light")
    for ref in ("main", "refs/heads/main", "v1", "refs/tags/light"):
        assert newest(rules, ref) == rules.first
    rules.repository.git("tag", "main")
    for ref, why in (("main", "is a branch and a tag"), ("never", "no branch or tag 'never'")):
        with pytest.raises(HeadError, match=why):
            newest(rules, ref)


@contextmanager
def held(mirror: Path) -> Iterator[None]:
    """Another process fetches into this mirror, and hangs."""
    handle = os.open(mirror, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


async def test_a_mirror_that_another_process_holds_is_a_finding(
    world: World, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that hangs must not block the other workers for longer than a fetch may take."""
    rules.push()
    clock = SimpleNamespace(monotonic=count(0, 1_000).__next__, sleep=lambda _: None)
    monkeypatch.setattr(mirrors, "time", clock)
    with held(mirrors.mirror_path(world.settings.data_dir)):
        await looked(world, rules.first, "cannot be reached")
        error = world.service.active.status().error
        assert error is not None and "another process has held its mirror" in str(error.problems[0].message)
    assert await world.activate()
    assert finding(world) == ""


async def test_a_mirror_that_is_held_while_a_bundle_is_swapped_is_a_finding(
    world: World, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, keep = rules.push(), mirrors.Mirror.keep

    def hangs(mirror: mirrors.Mirror, commit: str) -> None:
        with held(mirror.path):
            keep(mirror, commit)

    clock = SimpleNamespace(monotonic=count(0, 1_000).__next__, sleep=lambda _: None)
    monkeypatch.setattr(mirrors, "time", clock)
    monkeypatch.setattr(mirrors.Mirror, "keep", hangs)
    await looked(world, rules.first, "cannot be reached")
    monkeypatch.undo()
    await world.activate()
    assert (commit_of(world), finding(world)) == (second, "")


async def test_a_bundle_in_a_subfolder_of_a_bare_repository(tmp_path: Path, rules: Rules) -> None:
    Payments(rules.repository.path / "teams/pay")
    first = rules.repository.commit()
    rules.repository.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    more = {"policies_repository": str(tmp_path / "bare.git"), "policies_subfolder": "teams/pay"}
    async with following(tmp_path / "data", rules, **more) as world:
        assert commit_of(world) == first


# -- what does not ---------------------------------------------------------------------------------------------------


async def test_a_broken_push_keeps_the_last_good_bundle(tmp_path: Path, rules: Rules) -> None:
    async with following(tmp_path / "data", rules) as world:
        broken = rules.break_()
        for _ in range(3):
            await looked(world, rules.first, broken, rules.first, "broken.cedar:2")
        refused = {"commit": broken, "why": "invalid", "file": "broken.cedar", "line": 2}
        assert (await world.audited("bundle_%"))[1:] == [("bundle_refused", refused)]
        maya, robot = await world.person("maya"), await world.agent("robot")
        for_people = (await maya.get("/v1/policies")).json()
        assert (for_people["active_commit"], for_people["head_commit"]) == (rules.first, broken)
        (problem,) = for_people["problems"]
        assert (for_people["differs"], problem["file"]) == ("invalid", "broken.cedar") and problem["message"]
        for_agents = (await robot.send("GET", "/v1/policies")).json()
        assert for_agents["problems"] == [{"file": "broken.cedar", "line": 2}]
        page, by = words((await maya.get("/policies")).text), "Maya <maya@example.com>"
        assert re.search(f"{rules.first[:4]} .{{,40}}in force the first rules {by} ", page)
        assert re.search(f"{broken[:4]} .{{,40}}refused broken {by} does not load: broken.cedar:2", page)
        mirror = mirrors.mirror_path(tmp_path / "data")
        mirror.rename(tmp_path / "elsewhere")
        page = words((await maya.get("/policies")).text)
        assert re.search(f"{broken[:4]} .{{,40}}refused does not load: broken.cedar:2", page)
        (tmp_path / "elsewhere").rename(mirror)
    async with following(tmp_path / "data", rules) as world:  # a start keeps it as well
        await looked(world, rules.first, broken)
        await refused_start(tmp_path / "new", rules, "broken.cedar:2")  # and nothing before it is no start
        (rules.folder.path / "broken.cedar").unlink()
        await looked(world, rules.repository.commit("repaired"))
        assert finding(world) == ""
        assert (await (await world.person("maya")).get("/v1/policies")).json().get("differs") is None


async def test_a_force_push_needs_an_override(
    world: World, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[str] = []

    def walk(objects: Objects, head: str, accepted: str) -> bool:
        walks.append(head)
        return is_descendant(objects, head, accepted)

    monkeypatch.setattr(follower, "is_descendant", walk)
    second = rules.push()
    await accept(world, rules.first, "we may go back tonight")  # over, as soon as another is in force
    assert commit_of(world) == second
    rules.repository.rewind(rules.first)
    await looked(world, second)
    rewritten = rules.push("other")
    for _ in range(3):
        await looked(world, second, "does not descend")
    refused = [("bundle_refused", {"commit": head, "why": "force_push"}) for head in (rules.first, rewritten)]
    assert (await world.audited("bundle_%"))[3:] == refused
    assert walks == [second, rules.first, rewritten], "a long history is walked once, not at every look"
    problem = str(world.service.active.status().error)
    assert f'policy-service policies accept {rewritten} --reason "..."' in problem
    await accept(world, rewritten)
    assert (commit_of(world), finding(world)) == (rewritten, "")
    override, activated = (await world.audited("bundle_%"))[5:]
    assert override == ("bundle_override", {"commit": rewritten, "reason": "we rewrote it together"})
    assert activated[1]["override"] == "we rewrote it together"
    third = rules.push("more")
    await looked(world, third)
    rules.repository.rewind(rewritten)  # once is once
    await looked(world, third)
    await accept(world, second, "not the one at the head")
    assert commit_of(world) == third


async def test_a_rewind_during_downtime_is_refused(tmp_path: Path, rules: Rules) -> None:
    async with following(tmp_path / "data", rules) as world:
        second = rules.push()
        await looked(world, second)
    rules.repository.rewind(rules.first)
    async with following(tmp_path / "data", rules) as world:
        await looked(world, second, "does not descend")
    # a new disk, and the remote has forgotten the commit
    shutil.rmtree(mirrors.mirror_path(tmp_path / "data"))
    rules.repository.git("reflog", "expire", "--expire=now", "--all")
    rules.repository.git("gc", "-q", "--prune=now")
    await refused_start(tmp_path / "data", rules, "policies accept")


async def test_a_tag_that_moves_or_is_gone_changes_nothing(tmp_path: Path, rules: Rules) -> None:
    second = rules.push()
    rules.repository.git("tag", "live")
    async with following(tmp_path / "data", rules, policies_ref="live") as world:
        rules.repository.git("tag", "-f", "live", rules.first)
        await looked(world, second, "does not descend")
        rules.repository.git("tag", "-d", "live")
        for _ in range(2):
            await looked(world, second, "not there")
        assert (await world.audited("bundle_%"))[2:] == [("bundle_refused", {"commit": "", "why": "gone"})]
    empty = {"policies_repository": str(Repository(tmp_path / "empty").path)}
    await refused_start(tmp_path / "other", rules, r"no branch or tag 'main'.*it is empty", **empty)


async def test_a_repository_that_vanished_changes_nothing(tmp_path: Path, rules: Rules) -> None:
    moved = tmp_path / "moved"
    async with following(tmp_path / "data", rules) as world:
        rules.repository.path.rename(moved)
        await looked(world, rules.first, "cannot be reached")
        robot = await world.agent("robot")
        assert (await robot.spend((await robot.submit(await pay(world))).json()))["redeemed"]
    async with following(tmp_path / "data", rules) as world:  # from the copy
        assert commit_of(world) == rules.first
        holds(finding(world), "cannot be reached")
        await refused_start(tmp_path / "nothing", rules, "the repository cannot be read")
        moved.rename(rules.repository.path)
        await looked(world, rules.first)
        assert finding(world) == ""


async def test_only_a_head_by_an_allowed_signer_is_activated(tmp_path: Path, rules: Rules) -> None:
    maya, stranger = Key(tmp_path, "maya"), Key(tmp_path, "stranger")
    file = tmp_path / "signers"
    file.write_text(f"{maya.name} {maya.public}\n")
    signers = {"policies_allowed_signers": file}
    await refused_start(tmp_path / "data", rules, "carries no signature", **signers)
    first = maya.sign(rules.repository)
    async with following(tmp_path / "data", rules, **signers) as world:
        assert commit_of(world) == first
        unsigned = rules.push()
        await looked(world, first)
        refused = ("bundle_refused", {"commit": unsigned, "why": "unsigned"})
        assert (await world.audited("bundle_%"))[-1] == refused
        stranger.sign(rules.repository)
        await looked(world, first)
        assert "not among policies_allowed_signers" in str(world.service.active.status().error)
        await accept(world, rules.repository.head())
        assert commit_of(world) == first  # an override is about history, not about who signs
        head = maya.sign(rules.repository)  # above an unsigned one: the signer vouches for its bytes
        await looked(world, head)
        file.write_text("")  # no signer any more: what is in force stays, what is new is refused
        await looked(world, head)
        assert finding(world) == ""
        maya.sign(rules.repository)
        await looked(world, head)


def test_the_command_says_what_it_did_and_where(tmp_path: Path) -> None:
    env = {"COUNTERSIGN_DATA_DIR": str(tmp_path / "data")}
    words = ["policies", "accept", "a" * 40, "--reason", "x"]
    assert CliRunner().invoke(app, ["init"], env=env).exit_code == 0
    refused = CliRunner().invoke(app, words, env=env)
    assert refused.exit_code == 1 and "policies_repository is not set" in refused.output
    env["COUNTERSIGN_POLICIES_REPOSITORY"] = "https://maya:s3cret@127.0.0.1/x"
    done = CliRunner().invoke(app, words, env=env)
    assert done.exit_code == 0 and "at the next refresh" in done.output
    shown = CliRunner().invoke(app, ["settings"], env=env).output
    assert "https://127.0.0.1/x" in shown and "s3cret" not in shown


# -- the word that there may be something new ------------------------------------------------------------------------

SECRET = "a secret both sides share"
SYNC = "/v1/policies/sync"


async def test_a_signed_webhook_brings_a_push_into_force(tmp_path: Path, rules: Rules) -> None:
    file, body = tmp_path / "webhook", b'{"ref": "refs/heads/any"}'
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    signed = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    mac = hmac.new(SECRET.encode(), b"msg_1.1790000000.{}", hashlib.sha256).digest()
    good = f"v1,{base64.b64encode(mac).decode()}"
    who = {"Webhook-Id": "msg_1", "Webhook-Timestamp": "1790000000"}
    wrong = [signed[:-1] + ("0" if signed[-1] != "0" else "1"), "sha256=", "", "sha1=x"]
    refused = [(body, {"X-Hub-Signature-256": one}) for one in wrong]
    refused += [
        (body + b" ", {"X-Hub-Signature-256": signed}),
        (body, {"X-Gitlab-Token": "another"}),
        (b"{}", {**who, "Webhook-Signature": good, "Webhook-Id": "msg_2"}),
    ]
    async with following(tmp_path / "data", rules, policies_webhook_secret_file=file) as world:
        pushed = rules.push()
        for content, headers in refused:
            answer = await world.http.post(SYNC, content=content, headers=headers)
            assert (answer.status_code, answer.json().get("looking")) == (401, None), headers
        assert not world.service.ctx.looks.asked and commit_of(world) == rules.first
        for content, headers in (
            *[(body, {"X-Hub-Signature-256": signed})] * 3,  # a replay is one look more at most
            (body, {"X-Gitlab-Token": SECRET}),
            (b"{}", {**who, "Webhook-Signature": f"v1,xxx {good}"}),
        ):
            answer = await world.http.post(SYNC, content=content, headers=headers)
            assert (answer.status_code, answer.json()["looking"]) == (202, True), headers
        await in_force(world, pushed)


async def test_an_agent_and_a_person_may_ask_for_a_look(world: World, rules: Rules) -> None:
    robot, maya = await world.agent("robot"), await world.person("maya")
    assert (await world.http.post(SYNC, json={})).status_code == 401
    for header in ("X-Hub-Signature-256", "X-Gitlab-Token", "Webhook-Signature"):  # without a secret
        assert (await world.http.post(SYNC, content=b"{}", headers={header: ""})).status_code == 401
    assert (await world.http.get("/v1/policies")).status_code == 401
    for commit, reason in (("main", "x"), ("abc", "x"), ("A" * 40, "x"), ("a" * 40, " ")):
        with pytest.raises(InvalidRequestError):
            await accept(world, commit, reason)
    assert await world.audited("bundle_override") == []
    pushed = rules.push()
    assert (await robot.send("POST", SYNC, {})).status_code == 202
    await in_force(world, pushed)
    pushed = rules.push("more")
    assert (await world.http.post(SYNC, content=b"{}", headers=maya.headers())).status_code == 202
    await in_force(world, pushed)


def test_a_secret_that_anybody_guesses_is_refused_at_the_start() -> None:
    for secret in (b"short", b"whsec_", b"whsec_----------------------------", b"whsec_AAAA"):
        with pytest.raises(StartError, match="openssl rand -hex 32"):
            require_strong_secret(secret)
    for good in (b"0123456789abcdef", b"whsec_MDEyMzQ1Njc4OWFiY2RlZg=="):
        assert require_strong_secret(good)


# -- replicas --------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> str:
    return "postgresql"


@asynccontextmanager
async def two(
    tmp_path: Path, rules: Rules, database: dict[str, str], **more: Any
) -> AsyncIterator[tuple[World, World]]:
    """Two over one database; the second with other settings."""
    async with following(tmp_path / "data-0", rules, **database) as first:
        await first.service.sequencer.number()
        await first.service.mark.write()  # a replica begins with the keys folder of another one
        shutil.copytree(tmp_path / "data-0" / "keys", tmp_path / "keys")
        given = {**database, "key_dir": tmp_path / "keys", **more}
        async with following(tmp_path / "data-1", rules, **given) as second:
            yield first, second


async def test_a_replica_that_is_behind_waits(tmp_path: Path, rules: Rules, database: dict[str, str]) -> None:
    live = {"tool": "note", "lane": "live", "ask": "live", "compensation": None}
    rules.folder.write("tools/note.json", PAY | live)
    rules.first = rules.repository.commit("a live tool")
    async with two(tmp_path, rules, database) as (one, other):
        robot = await one.agent("robot")
        there = at(other, robot)
        effect = await call(other, "note", {"account": "acme", "amount": 1})
        question = {"run_key": "r", "effects": [effect], "live": True}
        assert (await there.send("POST", "/v1/evaluations", question)).status_code == 200
        rules.repository.write("README.md", "says more")
        pushed = rules.repository.commit()
        await one.activate()
        assert (commit_of(one), commit_of(other)) == (pushed, rules.first)
        assert refusal(await there.send("POST", "/v1/evaluations", question)) == (503, "policies_behind")
        await in_force(other, pushed)  # that was a word to look, too
        view = (await there.submit(await pay(other))).json()
        released = (await there.release(view)).json()["releases"]
        forbidding = rules.push()
        await one.activate()
        assert (commit_of(one), commit_of(other)) == (forbidding, pushed)
        answer = await there.redeem(released)  # its copy does not hold the commit yet
        assert refusal(answer) == (503, "policies_behind")
        assert int(answer.headers["retry-after"]) > 0
        await in_force(other, forbidding)
        answer = await there.redeem(released)
        assert not answer.is_success or not answer.json()["redeemed"]
        assert len(await one.audited("bundle_%")) == 3  # one of them put it in force, and said so


async def test_replicas_record_a_push_once(tmp_path: Path, rules: Rules, database: dict[str, str]) -> None:
    async with two(tmp_path, rules, database) as (one, other):
        there = at(other, await one.agent("robot"))
        rules.repository.write("README.md", "says more")
        second = rules.repository.commit()
        await asyncio.to_thread(other.service.active._source._mirror.newest)  # type: ignore[attr-defined]
        await one.activate()
        assert (commit_of(one), commit_of(other)) == (second, rules.first)
        view = (await there.submit(await pay(other), run_key="at once", attempt_id="a1")).json()
        assert view["receipt"] and commit_of(other) == second  # it holds the commit, and follows first
        assert view["effects"][0]["decision"]["commit"] == second
        third = rules.push()
        for _ in range(2):
            await asyncio.gather(one.activate(), other.activate())
        assert (commit_of(one), commit_of(other)) == (third, third)
        assert [body["commit"] for _, body in await one.audited("bundle_%")] == [rules.first, second, third]
        fourth = rules.push("more")
        await one.activate()
        rules.repository.rewind(third)
        await other.activate()  # the head it sees is its own commit, which is in force no more
        assert commit_of(one) == fourth
        assert "not in force" in finding(other)
        answer = await there.submit(await pay(other), run_key="late", attempt_id="a2")
        assert answer.json().get("code") == "policies_behind" or not answer.json().get("receipt")


async def test_replicas_with_different_settings_are_reported(
    tmp_path: Path, rules: Rules, database: dict[str, str]
) -> None:
    rules.repository.git("branch", "newer")
    async with two(tmp_path, rules, database, policies_ref="newer") as (first, newer):
        rules.push()
        await first.activate()
        assert "restart this one with the same settings" in finding(first)
        assert finding(newer) == ""


@pytest.mark.parametrize("engine", SQLITE_IN_SHORT)
async def test_a_recorded_commit_is_active_after_a_restart(
    tmp_path: Path, rules: Rules, database: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(bundle: object) -> bool:
        raise RuntimeError("died")

    async with following(tmp_path / "data", rules, **database) as world:
        pushed = rules.push()
        with monkeypatch.context() as patched:
            patched.setattr(world.service.active, "_swap", dies)
            with pytest.raises(RuntimeError, match="died"):
                await refresh_bundle(world.service.ctx)
        assert commit_of(world) == rules.first
        robot = await world.agent("robot")
        answer = await robot.submit(await pay(world), attempt_id="a1")
        assert not answer.json().get("receipt")  # it follows what is recorded, which forbids it
        assert commit_of(world) == pushed
    async with following(tmp_path / "data", rules, **database) as world:
        assert commit_of(world) == pushed
        assert len(await world.audited("bundle_%")) == 2


# -- Bad pushes: the last good bundle decides, the problem is shown, and the next good push is activated

CASES = """
defaults: {agent: {name: robot}, tool: pay}
cases:
  - it: a small payment goes at once
    args: {account: acme, amount: 10}
    expect: release
  - it: a large payment asks finance
    args: {account: acme, amount: 500}
    expect: review
    gates: [large]
    needs: {finance: 1}
"""
SMALL_ONLY = CASES.partition("  - it: a large")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Payments:
    made = Payments(tmp_path / "bundle")
    made.write("cases/limits.yaml", CASES)
    return made


@asynccontextmanager
async def serving(folder: Payments, data: Path, **more: Any) -> AsyncIterator[World]:
    async with running(data, folder.path, **({"policies_require_cases": True} | more)) as world:
        yield world


@pytest.fixture
def guarded(tmp_path: Path) -> Rules:
    return Rules(tmp_path / "rules", **{"cases/limits.yaml": CASES})


def refusals() -> float:
    """Looks that were refused, as /metrics counts them."""
    return next(iter(metrics.BUNDLE_REFUSED.collect())).samples[0].value


async def outcome(world: World, amount: int = 500) -> Any:
    """What becomes of a payment now."""
    robot = await world.agent(f"robot-{uuid4().hex}")
    return (await robot.submit(await pay(world, amount))).json()["effects"][0]["state"]


async def problems(world: World) -> str:
    """What a signed-in person reads of the newest bytes."""
    view = (await (await world.person("maya")).get("/v1/policies")).json()
    return "\n".join(f"{one['file']}:{one.get('line')}: {one['message']}" for one in view["problems"])


def file(name: str, content: Any) -> Callable[[Payments], object]:
    return lambda folder: folder.write(name, content)


def without_rules_and_cases(files: Payments) -> None:
    files.policies(ANYBODY)
    (files.path / "cases/limits.yaml").unlink()


RAISED = ANYBODY + LARGE.replace("> 100", "> 1000") + HUGE
# What is pushed, and a pattern of what is read of it. More of them: tests/unit/pap/test_bundle.py, test_annotations.py.
BAD = [
    (file("z.cedar", '\n@id("x") permit (principal);\n'), r"z.cedar:2: this is not Cedar"),
    (file("tools/x.json", "{"), r"tools/x.json:"),
    (file("z.cedar", "// long\n" * 655_360), r"z.cedar:None: .*1048576 bytes.*split"),
    (without_rules_and_cases, r"cases/limits.yaml:7: a case of the bundle in force does not hold"),
    (lambda files: files.policies(RAISED), r"cases/limits.yaml:7: a case of its own does not hold"),
]


async def test_a_bad_push_is_reported(folder: Payments, tmp_path: Path) -> None:
    async with serving(folder, tmp_path / "data") as world:
        for push, pattern in BAD:
            good, before = world.service.active.current, refusals()
            push(folder)
            assert not await world.activate(), pattern
            assert world.service.active.current is good
            assert await outcome(world) == "review"
            assert refusals() == before + 1
            assert good.digest in finding(world)
            assert re.search(pattern, await problems(world)), await problems(world)
            folder.restore()
            folder.write("cases/limits.yaml", CASES).write("notes.cedar", f"// {pattern}")
            assert await world.activate(), pattern
            assert (finding(world), await problems(world)) == ("", "")
        folder.write("stop.cedar", plain_forbid("stop", "context.input.amount > 90000"))
        assert await world.activate()
        assert (await outcome(world), await outcome(world, 99_999)) == ("review", "denied")


async def test_a_commit_that_loosens_is_refused_until_accepted(tmp_path: Path, guarded: Rules) -> None:
    async with following(tmp_path / "data", guarded) as world:
        without_rules_and_cases(guarded.folder)
        pushed = guarded.repository.commit()
        await world.activate()
        assert f'policies accept {pushed} --reason "..."' in await problems(world)
    async with following(tmp_path / "data", guarded) as world:
        assert commit_of(world) == guarded.first
        assert "cases it has to" in finding(world)
        assert await outcome(world) == "review"
        await world.operator("policies-accept", {"commit": pushed, "reason": "the limit is the bank's now"})
        assert await world.activate()
        assert (commit_of(world), await outcome(world)) == (pushed, "released")


async def test_the_setting_says_where_cases_are_asked(
    tmp_path: Path, folder: Payments, guarded: Rules
) -> None:
    async with serving(folder, tmp_path / "data", policies_require_cases=None) as world:
        assert world.service.active.status().guarded is None
        without_rules_and_cases(folder)
        assert await world.activate()
    async with following(tmp_path / "off", guarded, policies_require_cases=False) as world:
        without_rules_and_cases(guarded.folder)
        guarded.repository.commit()
        assert await world.activate()
    assert not world.settings.cases_required


async def test_a_case_that_needs_a_database_is_not_run(folder: Payments, tmp_path: Path) -> None:
    folder.write(
        "facts.toml",
        '[entities.Account.attributes]\nopen = "Bool"\n[[source]]\nname = "bank"\nentity = "Account"\nkind = "sql"\n'
        'url_env = "NO_SUCH_DATABASE"\nmax_age = "1m"\nas_of = "seen"\noptional = true\n'
        'query = "SELECT open, seen FROM a WHERE id = :resource_id"\ntools = ["pay"]\n',
    )
    async with serving(folder, tmp_path / "data") as world:
        passed = world.service.active.status().guarded
        assert passed is not None and (passed.run, passed.not_run) == (0, 2)


async def test_a_clock_that_jumps_opens_nothing(folder: Payments, tmp_path: Path) -> None:
    async with serving(folder, tmp_path / "data", poll_bundle_s=0.05) as world:
        good = world.service.active.current
        for days in (1, -2):
            world.clock.pass_(days=days)
            await world.activate()
            assert world.service.active.current is good
            assert await outcome(world) == "review"
        folder.write("stop.cedar", plain_forbid("stop", "context.input.amount > 400"))
        folder.write("cases/limits.yaml", SMALL_ONLY)
        await until(lambda: world.service.active.current is not good, seconds=60)
        assert await outcome(world) == "denied"


async def test_a_signature_counts_by_the_services_clock(tmp_path: Path, guarded: Rules) -> None:
    key, signers = Key(tmp_path), tmp_path / "signers"
    signers.write_text(f'{key.name} valid-before="29990101Z" {key.public}\n')
    first = key.sign(guarded.repository)
    async with following(tmp_path / "data", guarded, policies_allowed_signers=signers) as world:
        guarded.folder.write("note.cedar", "// nothing\n")
        second = key.sign(guarded.repository)
        world.clock.pass_(days=365 * 1000)
        await world.activate()
        assert commit_of(world) == first
        assert "is not signed" in finding(world)
        world.clock.pass_(days=-365 * 1000)
        await world.activate()
        assert commit_of(world) == second
