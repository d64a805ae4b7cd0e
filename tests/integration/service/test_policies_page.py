"""The page about the policies: what is in force, a trial, the shadow, commits and cases."""

from __future__ import annotations

import re

from tests.fakes.pages import holds, words
from tests.fakes.payments import ANYBODY, plain_forbid
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import Holder
from tests.integration.service.together.bank import Bank, sizes


async def text_of(visitor: Visitor) -> str:
    return words((await visitor.get("/policies")).text)


async def attempt(maya: Visitor, **changes: str) -> tuple[int, str]:
    """Send the form as the page would."""
    fields = {"agent": "robot", "tool": "pay", "args": '{"account": "a1", "amount": 500}'} | changes
    answer = await Holder(maya).send("/policies/try", **fields)
    return answer.status_code, words(answer.text)


async def test_the_page_says_what_is_in_force(bank: Bank, robot: Agent) -> None:
    for n in range(3):
        await robot.submit(await pay(bank, 500), run_key=f"run-{n}")
    text = await text_of(await bank.person("maya"))
    holds(text, bank.service.active.current.commit, "3 decisions in 7 days")
    assert re.search(r"large rules.cedar, line 2 gate finance 3 none", text)
    assert re.search(r"huge rules.cedar, line \d+ gate 2 of finance not lately", text)
    bank.clock.pass_(days=8)
    holds(await text_of(await bank.person("maya")), "0 decisions in 7 days")
    await bank.rules('@id("who") permit (principal, action == Action::"approve", resource);\n')
    about_people = r"who rules.cedar, line \d+ who may approve no approval"
    assert re.search(about_people, await text_of(await bank.person("maya")))


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({"agent": "unknown"}, 404, "No agent 'unknown' is enrolled here"),
    ({"args": "[1]"}, 400, "effects/0/args"),
    ({"args": '{"account": "a1", "amount": 1.5e400}'}, 400, "not valid JSON"),
    ({"tool": "x" * 201}, 400, "effects/0/tool"),
]


async def test_a_trial_is_not_recorded(bank: Bank, robot: Agent, maya: Visitor) -> None:
    before = await bank.service.db.read(sizes)
    status, text = await attempt(maya)
    assert status == 200
    holds(text, "Review, approval needed Asks 1 of finance.")
    holds((await attempt(maya, args='{"account": "a1", "amount": 5}'))[1], "Release, no approval needed")
    holds((await attempt(maya, tool="gone"))[1], "the active bundle holds no tool 'gone'")
    for changes, status, said in REFUSED:
        found, text = await attempt(maya, **changes)
        assert (found, said.lower() in text.lower()) == (status, True), text
    assert await bank.service.db.read(sizes) == before
    await bank.policies(ANYBODY + plain_forbid("stop"))
    holds((await attempt(maya))[1], "Deny stop says no")


async def test_the_cases_of_the_rules_are_counted(bank: Bank, maya: Visitor) -> None:
    holds(await text_of(maya), "0 cases: nothing holds these rules")
    case = "agents: { robot: { name: robot } }\ncases:\n  - it: a large payment asks\n    agent: robot\n    tool: pay\n"
    case += "    args: { account: a1, amount: 500 }\n    expect: review\n"
    for cases, summary in (
        (case + "    needs: { finance: 1 }\n", "1 cases, all pass"),
        (case + "    needs: { cfo: 1 }\n", "1 cases, 1 do not hold"),
        ("cases: [", "cases cannot be read: cases/pay.yaml:"),
    ):
        await bank.write("cases/pay.yaml", cases)
        text = await text_of(maya)
        holds(text, summary)
        counted = re.search(r"large rules.cedar, line 2 gate finance not lately 1 ", text)
        assert "all pass" not in summary or counted
