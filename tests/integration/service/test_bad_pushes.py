"""Bad pushes: the last good bundle decides, and whoever looks reads what is wrong; the next good push comes in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from policy_service import metrics
from tests.fakes.payments import ANYBODY, HUGE, LARGE, Payments, plain_forbid
from tests.fakes.repository import Key
from tests.fakes.world import World, running
from tests.integration.service.effects import pay
from tests.integration.service.patience import until
from tests.integration.service.pushing import Rules, commit_of, finding, following

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
def rules(tmp_path: Path) -> Rules:
    return Rules(tmp_path / "rules", **{"cases/limits.yaml": CASES})


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


async def test_a_bad_push_is_told_and_the_last_good_bundle_decides(folder: Payments, tmp_path: Path) -> None:
    async with serving(folder, tmp_path / "data") as world:
        for push, pattern in BAD:
            good, before = world.service.active.current, refusals()
            push(folder)
            assert not await world.activate(), pattern
            assert world.service.active.current is good
            assert await outcome(world) == "review"
            assert refusals() == before + 1
            assert good.digest in finding(world)
            assert re.search(pattern, await told(world)), await told(world)
            folder.restore()
            folder.write("cases/limits.yaml", CASES).write("notes.cedar", f"// {pattern}")
            assert await world.activate(), pattern
            assert (finding(world), await told(world)) == ("", "")
        folder.write("stop.cedar", plain_forbid("stop", "context.input.amount > 90000"))
        assert await world.activate()
        assert (await outcome(world), await outcome(world, 99_999)) == ("review", "denied")


async def test_a_commit_that_loosens_is_refused_until_accepted(tmp_path: Path, rules: Rules) -> None:
    async with following(tmp_path / "data", rules) as world:
        without_rules_and_cases(rules.folder)
        pushed = rules.repository.commit()
        await world.activate()
        assert f'policies accept {pushed} --reason "..."' in await told(world)
    async with following(tmp_path / "data", rules) as world:
        assert commit_of(world) == rules.first
        assert "cases it has to" in finding(world)
        assert await outcome(world) == "review"
        await world.operator("policies-accept", {"commit": pushed, "reason": "the limit is the bank's now"})
        assert await world.activate()
        assert (commit_of(world), await outcome(world)) == (pushed, "released")


async def test_the_setting_says_where_cases_are_asked(tmp_path: Path, folder: Payments, rules: Rules) -> None:
    async with serving(folder, tmp_path / "data", policies_require_cases=None) as world:
        assert world.service.active.status().guarded is None
        without_rules_and_cases(folder)
        assert await world.activate()
    async with following(tmp_path / "off", rules, policies_require_cases=False) as world:
        without_rules_and_cases(rules.folder)
        rules.repository.commit()
        assert await world.activate()
    assert not world.settings.cases_required


async def test_a_case_that_needs_a_database_is_not_run_and_told(folder: Payments, tmp_path: Path) -> None:
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


async def test_a_signature_counts_by_the_services_clock(tmp_path: Path, rules: Rules) -> None:
    key, signers = Key(tmp_path), tmp_path / "signers"
    signers.write_text(f'{key.name} valid-before="29990101Z" {key.public}\n')
    first = key.sign(rules.repository)
    async with following(tmp_path / "data", rules, policies_allowed_signers=signers) as world:
        rules.folder.write("note.cedar", "// nothing\n")
        second = key.sign(rules.repository)
        world.clock.pass_(days=365 * 1000)
        await world.activate()
        assert commit_of(world) == first
        assert "is not signed" in finding(world)
        world.clock.pass_(days=-365 * 1000)
        await world.activate()
        assert commit_of(world) == second
