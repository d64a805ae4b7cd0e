"""The policies page over a real bundle: what is in force, how often it decided, and an effect that is tried."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from policy_service.storage.tables import DecisionRow
from policy_service.workflow.trials import shadow
from tests.fakes.payments import ANYBODY, Payments, gate, plain_forbid
from tests.fakes.repository import Repository
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio


def words(html: str) -> str:
    """The text of a page, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


async def attempt(maya: Visitor, **changes: str) -> tuple[int, str]:
    """Send the form as the page would."""
    fields = {"agent": "robot", "tool": "pay", "args": '{"account": "a1", "amount": 500}'} | changes
    answer = await maya.http.post(
        "/policies/try",
        data={"csrf_token": maya.csrf, **fields},
        headers={key: value for key, value in maya.headers().items() if key != "Content-Type"}
        | {"Sec-Fetch-Site": "same-origin"},
    )
    return answer.status_code, words(answer.text)


async def rows_written(bank: World) -> tuple[int, int]:
    def count(conn: Any) -> tuple[int, int]:
        return tuple(  # type: ignore[return-value]
            conn.execute(select(func.count()).select_from(table(model))).scalar_one()
            for model in (DecisionRow, AuditRow)
        )

    return await bank.service.db.read(count)


async def test_the_page_says_what_is_in_force_and_how_often_it_decided(bank: World, robot: Agent) -> None:
    for n in range(3):
        await robot.submit(await pay(bank, 500), run_key=f"run-{n}")
    maya = await bank.person("maya")
    text = words((await maya.get("/policies")).text)
    bundle = bank.service.active.current
    assert bundle.commit in text
    assert re.search(r"large rules.cedar, line 2 gate finance 3 none", text)
    assert re.search(r"huge rules.cedar, line \d+ gate 2 of finance not lately", text)
    assert "3 decisions in 7 days" in text
    bank.clock.pass_(days=8)
    maya = await bank.person("maya")
    assert "0 decisions in 7 days" in words((await maya.get("/policies")).text)


async def test_rules_about_people_are_told_apart(bank: World, folder: Payments) -> None:
    rule = '@id("who") permit (principal, action == Action::"approve", resource);\n'
    folder.policies(ANYBODY + gate("large", "finance") + rule)
    await bank.activate()
    maya = await bank.person("maya")
    assert re.search(
        r"who rules.cedar, line \d+ who may approve nobody", words((await maya.get("/policies")).text)
    )


async def test_an_effect_is_tried_and_nothing_is_recorded(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    before = await rows_written(bank)
    status, text = await attempt(maya)
    assert status == 200
    assert "Review, people are asked Asks 1 of finance." in text
    status, text = await attempt(maya, args='{"account": "a1", "amount": 5}')
    assert "Release, nobody is asked" in text
    assert await rows_written(bank) == before


async def test_a_denial_says_why_and_what_would_change_it(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.policies(ANYBODY + plain_forbid("stop"))
    await bank.activate()
    maya = await bank.person("maya")
    assert "Deny stop says no" in (await attempt(maya))[1]
    _, text = await attempt(maya, tool="gone")
    assert "the active bundle holds no tool 'gone'" in text
    assert "countersign tools export" in text


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({"agent": "nobody"}, 404, "No agent 'nobody' is enrolled here"),
    ({"args": "[1]"}, 400, "effects/0/args"),
    ({"args": '{"account": "a1", "amount": 1.5e400}'}, 400, "not JSON we take"),
    ({"tool": "x" * 201}, 400, "effects/0/tool"),
]


async def test_what_cannot_be_tried_is_refused_in_words(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    for changes, status, said in REFUSED:
        found, text = await attempt(maya, **changes)
        assert (found, said.lower() in text.lower()) == (status, True), text


async def test_the_shadow_is_on_the_page(tmp_path: Path, folder: Payments) -> None:
    candidate = Payments(tmp_path / "candidate")
    candidate.policies(ANYBODY)
    async with running(tmp_path / "data", folder.path, shadow_dir=candidate.path) as bank:
        ctx = bank.service.ctx
        assert ctx.candidate is not None
        await shadow.follow(ctx, ctx.candidate, "one")
        robot = await bank.agent("robot")
        await robot.submit(await pay(bank, 500))
        await bank.service.sequencer.number()
        await shadow.follow(ctx, ctx.candidate, "one")
        maya = await bank.person("maya")
        text = words((await maya.get("/policies")).text)
    assert "0 the same 0 stricter 1 looser 0 ask others" in text
    assert "pay robot review by 1 of finance release, looser large" in text


async def test_commits_that_came_and_were_refused_are_told(tmp_path: Path) -> None:
    folder = Payments(tmp_path / "rules")
    repository = Repository(folder.path)
    first = repository.commit("Ask finance\n\nfrom 100 on")
    given = {"policies_repository": str(folder.path), "policies_poll_s": 3600}
    async with running(tmp_path / "data", tmp_path / "none", **given) as bank:
        folder.policies(ANYBODY + '@id("x") @aproval("finance")\nforbid (principal, action, resource);\n')
        bad = repository.commit("A slip\n\nnobody reads on")
        await bank.activate()
        maya = await bank.person("maya")
        text = words((await maya.get("/policies")).text)
        shutil.rmtree(tmp_path / "data" / "policies.git")
        without = words((await maya.get("/policies")).text)
    assert "Ask finance Maya <maya@example.com>, " in text
    assert "from 100 on" not in text
    by = "Maya <maya@example.com>"
    assert re.search(f"{bad[:4]} .{{,40}}refused A slip {by} does not load: rules.cedar:2", text)
    assert re.search(f"{first[:4]} .{{,40}}in force Ask finance {by} ", text)
    assert "nobody reads on" not in text
    assert re.search(f"{bad[:4]} .{{,40}}refused does not load: rules.cedar:2", without)


async def test_the_cases_that_hold_the_rules_are_counted(bank: World, folder: Payments) -> None:
    maya = await bank.person("maya")
    assert "0 cases: nothing holds these rules" in words((await maya.get("/policies")).text)
    case = "agents: { robot: { name: robot } }\ncases:\n  - it: a large payment asks\n    agent: robot\n    tool: pay\n"
    args = "    args: { account: a1, amount: 500 }\n    expect: review\n"
    folder.write("cases/pay.yaml", case + args + "    needs: { finance: 1 }\n")
    await bank.activate()
    text = words((await maya.get("/policies")).text)
    assert "1 cases, all pass" in text
    assert re.search(r"large rules.cedar, line 2 gate finance not lately 1 ", text)
    folder.write("cases/pay.yaml", case + args + "    needs: { cfo: 1 }\n")
    await bank.activate()
    assert "1 cases, 1 do not hold" in words((await maya.get("/policies")).text)
    folder.write("cases/pay.yaml", "cases: [")
    await bank.activate()
    assert "cases cannot be read: cases/pay.yaml:" in words((await maya.get("/policies")).text)
