"""Bad pushes, to a folder and to a repository: the last good bundle decides, and whoever looks reads what is wrong.

Every case is the same story: a good bundle is in force, something bad is pushed, it is looked for, a payment above the
limit still waits for people, and a good push afterwards comes into force.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from policy_service import metrics
from policy_service.pap import apart
from policy_service.pap.bundle import Bundle
from tests.fakes.bundles import PAY_ARGS, pay_manifest
from tests.fakes.payments import ANYBODY, HUGE, LARGE, Payments, plain_forbid
from tests.fakes.repository import Key, Repository
from tests.fakes.world import World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

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
LARGE_CASE = "cases/limits.yaml:7"
SMALL_ONLY = CASES.partition("  - it: a large")[0]
STOPPED = SMALL_ONLY.replace("release", "deny") + "    reasons: [stop]\n"


class Folder:
    """A bundle as it lies in a folder."""

    def __init__(self, path: Path) -> None:
        self.files = Payments(path)
        self.files.write("cases/limits.yaml", CASES)
        self.settings: dict[str, Any] = {"policies_require_cases": True, "bundle_dir": path}
        self._good = {file: file.read_bytes() for file in self._there()}
        self.push()

    def _there(self) -> list[Path]:
        found = (file for file in self.files.path.rglob("*") if file.is_file())
        return [file for file in found if ".git" not in file.parts]

    def take_back(self) -> None:
        """The files are what they were at first."""
        for file in self._there():
            file.unlink()
        for file, content in self._good.items():
            file.write_bytes(content)

    def push(self) -> str:
        """What lies there is what is looked at."""
        return "dir-"


class Repo(Folder):
    """A bundle in a repository."""

    def __init__(self, path: Path) -> None:
        self.repository = Repository(path)
        super().__init__(path)
        self.settings = {"policies_poll_s": 3600, "policies_repository": str(path)}

    def push(self) -> str:
        """A commit of everything."""
        return self.repository.commit()


@pytest.fixture(
    params=[pytest.param(Folder, id="folder"), pytest.param(Repo, id="repository", marks=pytest.mark.long)]
)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """Where the bundle comes from."""
    made: Folder = request.param(tmp_path / "rules")
    return made


@asynccontextmanager
async def serving(source: Folder, data: Path, **more: Any) -> AsyncIterator[World]:
    given = {**source.settings, **more}
    async with running(data, given.pop("bundle_dir", data / "none"), **given) as world:
        yield world


def refusals() -> float:
    """Looks that were refused, as /metrics counts them."""
    return next(iter(metrics.BUNDLE_REFUSED.collect())).samples[0].value


async def outcome(world: World, amount: int = 500) -> str:
    """What becomes of a payment now."""
    robot = await world.agent(f"robot-{uuid4().hex}")
    view = (await robot.submit(await pay(world, amount))).json()
    state: str = view["effects"][0]["state"]
    return state


async def told(world: World) -> str:
    """What a signed-in person reads of the newest bytes."""
    maya = await world.person("maya")
    view = (await maya.get("/v1/policies")).json()
    return "\n".join(f"{one['file']}:{one.get('line')}: {one['message']}" for one in view["problems"])


async def in_force_after(world: World, before: Bundle) -> None:
    """Wait until a look of the service's own finds another bundle: its timers go on, whatever the clock says."""
    for _ in range(6_000):
        if world.service.active.current is not before:
            return
        await asyncio.sleep(0.01)
    pytest.fail("no look of the service's own found the push")


def wrong(world: World) -> str:
    """What /readyz says."""
    return "; ".join(one.wrong for one in world.service.health.findings() if one.check == "bundle")


@dataclass(frozen=True)
class Bad:
    """What is pushed, and what is read of it: a pattern, from file and line to what to write instead."""

    push: Callable[[Payments], object]
    told: str


def deep(files: Payments) -> None:
    nested = "(" * 10_000 + "true" + ")" * 10_000
    files.write("z.cedar", f'@id("deep") forbid (principal, action, resource) when {{ {nested} }};\n')


def without_rules_and_cases(files: Payments) -> None:
    files.policies(ANYBODY)
    (files.path / "cases/limits.yaml").unlink()


def many(files: Payments) -> None:
    rule = "forbid(principal,action,resource);\n" * 25_000
    for n in range(4):
        files.write(f"many{n}.cedar", rule)


def forbid(annotations: str, when: str = "true") -> str:
    return f'// a line before\n{annotations} forbid (principal, action == Action::"pay", resource) when {{ {when} }};\n'


BAD = {
    "no Cedar": Bad(
        lambda f: f.write("z.cedar", '\n@id("x") permit (principal);\n'), r"z.cedar:2: this is not Cedar"
    ),
    "no end": Bad(lambda f: f.write("z.cedar", '\n@id("x") permit (principal,'), r"z.cedar:2: .*;"),
    "an attribute no tool has": Bad(
        lambda f: f.write("z.cedar", forbid('@id("x")', "context.input.amuont > 1")), r"z.cedar:2: .*amuont.*"
    ),
    "a tool nobody has": Bad(
        lambda f: f.write("z.cedar", forbid('@id("x")').replace('"pay"', '"payy"')), r"z.cedar:2: .*payy"
    ),
    "an unknown annotation": Bad(
        lambda f: f.write("z.cedar", forbid('@id("x") @aproval("finance")')),
        r"z.cedar:2: .*aproval.*approval",
    ),
    "a gate on a permit": Bad(
        lambda f: f.write("z.cedar", '@id("x") @approval("cfo") permit (principal, action, resource);'),
        r"z.cedar:1: .*@approval.*forbid",
    ),
    "an id that is taken": Bad(
        lambda f: f.write("z.cedar", forbid('@id("large")')),
        r"z.cedar:2: @id 'large' is taken at rules.cedar:\d",
    ),
    "a group nobody has": Bad(
        lambda f: f.write("z.cedar", forbid('@id("x") @approval("finanse")')),
        r"z.cedar:2: .*did you mean 'finance'",
    ),
    "a manifest that is none": Bad(lambda f: f.write("tools/x.json", "{"), r"tools/x.json:"),
    "a schema that is none": Bad(
        lambda f: f.write("tools/x.json", pay_manifest(tool="x", args={**PAY_ARGS, "required": 3})),
        r"tools/x.json:.*JSON Schema",
    ),
    "a hundred thousand policies": Bad(many, r"more than 10000 policies"),
    "a file of five megabytes": Bad(
        lambda f: f.write("z.cedar", "// long\n" * 655_360), r"z.cedar:None: .*1048576 bytes.*split"
    ),
    "ten thousand brackets": Bad(deep, r"z.cedar:1: brackets are nested 10001 deep; 64 is the limit, split"),
    "no forbid and no case left": Bad(
        without_rules_and_cases,
        rf"{LARGE_CASE}: a case of the bundle in force does not hold: a large payment",
    ),
    "a limit raised beside its case": Bad(
        lambda f: f.policies(ANYBODY + LARGE.replace("> 100", "> 1000") + HUGE),
        rf"{LARGE_CASE}: a case of its own does not hold: a large payment asks finance: ",
    ),
    "a case nobody can read": Bad(
        lambda f: f.write("cases/more.yaml", "cases:\n  - it: x\n    tol: pay\n"),
        r"cases/more.yaml:\d: .*tol",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_push_is_told_and_the_last_good_bundle_decides(
    source: Folder, tmp_path: Path, name: str
) -> None:
    bad = BAD[name]
    async with serving(source, tmp_path / "data") as world:
        good, before = world.service.active.current, refusals()
        bad.push(source.files)
        source.push()
        assert not await world.activate()
        assert world.service.active.current is good
        assert await outcome(world) == "review"
        assert refusals() == before + 1
        assert good.digest in wrong(world)
        assert re.search(bad.told, await told(world)), await told(world)
        source.take_back()
        source.files.write("cases/limits.yaml", CASES).write(
            "stop.cedar", plain_forbid("stop", "context.input.amount > 90000")
        )
        source.push()
        assert await world.activate()
        assert (wrong(world), await told(world)) == ("", "")
        assert (await outcome(world), await outcome(world, 99_999)) == ("review", "denied")


async def test_a_refused_commit_is_refused_again_at_a_start(tmp_path: Path) -> None:
    source = Repo(tmp_path / "rules")
    async with serving(source, tmp_path / "data") as world:
        good = world.service.active.current.commit
    without_rules_and_cases(source.files)
    source.push()
    async with serving(source, tmp_path / "data") as world:
        assert world.service.active.current.commit == good
        assert "cases it has to" in wrong(world)
        assert await outcome(world) == "review"


async def test_an_operator_lets_a_commit_follow_that_loosens(tmp_path: Path) -> None:
    source = Repo(tmp_path / "rules")
    async with serving(source, tmp_path / "data") as world:
        without_rules_and_cases(source.files)
        pushed = source.push()
        await world.activate()
        assert f'policies accept {pushed} --reason "..."' in await told(world)
        await world.operator("policies-accept", {"commit": pushed, "reason": "the limit is the bank's now"})
        assert await world.activate()
        assert (world.service.active.current.commit, await outcome(world)) == (pushed, "released")


async def test_a_stricter_rule_needs_nobodys_word_and_a_mended_case_neither(
    source: Folder, tmp_path: Path
) -> None:
    async with serving(source, tmp_path / "data") as world:
        source.files.rules(plain_forbid("stop"))
        source.files.write("cases/limits.yaml", STOPPED)
        source.push()
        assert await world.activate(), await told(world)
        assert await outcome(world) == "denied"


async def test_cases_are_asked_for_where_the_setting_says(tmp_path: Path) -> None:
    source = Folder(tmp_path / "rules")
    async with serving(source, tmp_path / "data", policies_require_cases=None) as world:
        assert world.service.active.status().guarded is None
        without_rules_and_cases(source.files)
        assert await world.activate()
    other = Repo(tmp_path / "other")
    async with serving(other, tmp_path / "off", policies_require_cases=False) as world:
        without_rules_and_cases(other.files)
        other.push()
        assert await world.activate()
    assert not world.settings.cases_required


async def test_a_case_that_needs_a_database_is_not_run_and_told(tmp_path: Path) -> None:
    source = Folder(tmp_path / "rules")
    source.files.write(
        "facts.toml",
        '[entities.Account.attributes]\nopen = "Bool"\n[[source]]\nname = "bank"\nentity = "Account"\nkind = "sql"\n'
        'url_env = "NO_SUCH_DATABASE"\nmax_age = "1m"\nas_of = "seen"\noptional = true\n'
        'query = "SELECT open, seen FROM a WHERE id = :resource_id"\ntools = ["pay"]\n',
    )
    async with serving(source, tmp_path / "data") as world:
        passed = world.service.active.status().guarded
        assert passed is not None
        assert (passed.run, passed.not_run) == (0, 2)


async def test_a_process_that_ends_while_it_reads_a_push_leaves_the_last_good_bundle(
    source: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(source, tmp_path / "data") as world:
        good = world.service.active.current
        monkeypatch.setattr(world.service.active._preparer, "small_bytes", 0)
        real = apart._BEGIN
        monkeypatch.setattr(apart, "_BEGIN", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        source.files.rules(plain_forbid("stop"))
        source.push()
        assert not await world.activate()
        assert world.service.active.current is good
        assert "the process that read it ended (SIGKILL)" in await told(world)
        assert await outcome(world) == "review"
        monkeypatch.setattr(apart, "_BEGIN", real)
        source.files.write("cases/limits.yaml", STOPPED)
        source.push()
        assert await world.activate(), await told(world)
        assert await outcome(world) == "denied"


@pytest.mark.parametrize("days", [1, -1])
async def test_a_clock_that_jumps_opens_nothing_and_the_next_push_comes_into_force(
    source: Folder, tmp_path: Path, days: int
) -> None:
    often = {"poll_bundle_s": 0.05} if type(source) is Folder else {"policies_poll_s": 0.05}
    async with serving(source, tmp_path / "data", **often) as world:
        good = world.service.active.current
        world.clock.pass_(days=days)
        await world.activate()
        assert world.service.active.current is good
        assert await outcome(world) == "review"
        source.files.write("stop.cedar", plain_forbid("stop", "context.input.amount > 400"))
        source.files.write("cases/limits.yaml", SMALL_ONLY)
        source.push()
        await in_force_after(world, good)
        assert await outcome(world) == "denied"


async def test_a_signature_counts_by_the_services_clock_wherever_it_jumps(tmp_path: Path) -> None:
    source, key = Repo(tmp_path / "rules"), Key(tmp_path)
    signers = tmp_path / "signers"
    signers.write_text(f'{key.name} valid-before="29990101Z" {key.public}\n')
    first = key.sign(source.repository)
    async with serving(source, tmp_path / "data", policies_allowed_signers=signers) as world:
        source.files.write("note.cedar", "// nothing\n")
        second = key.sign(source.repository)
        world.clock.pass_(days=365 * 1000)
        await world.activate()
        assert world.service.active.current.commit == first
        assert "is not signed" in wrong(world)
        world.clock.pass_(days=-365 * 1000)
        await world.activate()
        assert world.service.active.current.commit == second


async def test_a_force_push_and_a_repository_that_vanished_leave_the_last_good_bundle(tmp_path: Path) -> None:
    source = Repo(tmp_path / "rules")
    first = source.repository.head()
    async with serving(source, tmp_path / "data") as world:
        source.files.write("note.cedar", "// nothing\n")
        second = source.push()
        assert await world.activate()
        source.repository.rewind(first)
        await world.activate()
        assert (world.service.active.current.commit, await outcome(world)) == (second, "review")
        assert "does not descend" in wrong(world)
        source.repository.path.rename(tmp_path / "moved")
        await world.activate()
        assert (world.service.active.current.commit, await outcome(world)) == (second, "review")
        assert "cannot be reached" in wrong(world)
        (tmp_path / "moved").rename(source.repository.path)
        source.repository.rewind(second)
        await world.activate()
        assert wrong(world) == ""


async def test_an_agent_reads_where_and_not_what(tmp_path: Path) -> None:
    source = Folder(tmp_path / "rules")
    async with serving(source, tmp_path / "data") as world:
        without_rules_and_cases(source.files)
        await world.activate()
        robot = await world.agent("robot")
        problems = (await robot.send("GET", "/v1/policies")).json()["problems"]
        assert problems == [{"file": "cases/limits.yaml", "line": 7}]
        assert json.dumps(problems).count("large") == 0
