"""Break-glass: gates open without the people they ask, by two, or by one whom others review; nothing else opens."""

from __future__ import annotations

import re
from typing import Any

import pytest

from countersign.contract import Mode
from policy_service import metrics
from tests.fakes.payments import ANYBODY, GROUPS, LARGE, Payments, gate, person, plain_forbid
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio

PEOPLE = {**GROUPS, "oncall": ("ingrid", "jonas"), "captain": ("jonas",)}
TWO = (
    '@id("oncall-opens") permit\n(principal in Group::"oncall", action == Action::"break_glass", resource);\n'
)
ALONE = (
    '@id("captain-opens-alone") permit\n'
    '(principal in Group::"captain", action == Action::"break_glass_alone", resource);\n'
)


@pytest.fixture
async def glass(bank: World, folder: Payments) -> World:
    folder.people(PEOPLE).rules(TWO, ALONE)
    await bank.activate()
    return bank


async def shown(visitor: Visitor, view: dict[str, Any], effect: int = 0) -> dict[str, str]:
    """What the form of a review's page says it showed; nothing where there is no form."""
    path = f"/reviews/{view['effects'][effect]['review']['review_id']}"
    headers = {name: value for name, value in visitor.headers().items() if name in ("Cookie", "Origin")}
    page = await visitor.http.get(path, params={"full": "1"}, headers=headers)
    return dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', page.text))


async def sign(
    visitor: Visitor,
    view: dict[str, Any],
    reason: str = "the site is down",
    effect: int = 0,
    *,
    read: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Send the form as the review's page would; the status and the page's words."""
    seen = view["effects"][0]
    form = {
        "csrf_token": visitor.csrf, "verdict": "break_glass", "rev": str(view["rev"]), "reason": reason,
        "effect_digest": seen["effect_digest"], "txn_digest": view["txn_digest"],
    }  # fmt: skip
    headers = {name: value for name, value in visitor.headers().items() if name in ("Cookie", "Origin")}
    path = f"/reviews/{seen['review']['review_id']}/votes"
    form |= read or await shown(visitor, view, effect)
    answer = await visitor.http.post(path, data=form, headers=headers)
    return answer.status_code, " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


async def state(robot: Agent, view: dict[str, Any]) -> tuple[str, str | None]:
    seen = (await robot.see(view["txn"]))["effects"][0]
    return seen["state"], seen["decision"].get("mode")


async def test_two_people_open_it_and_the_token_says_so(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    assert (await sign(await glass.person("ingrid"), view))[0] == 303
    assert await state(robot, view) == ("review", None)
    assert (await sign(await glass.person("jonas"), view))[0] == 303
    assert await state(robot, view) == ("released", "break_glass")
    ready = await robot.see(view["txn"])
    token = glass.release_of((await robot.release(ready)).json()["releases"][0])
    assert (token.decision.mode, len(token.decision.votes)) == (Mode.BREAK_GLASS, 2)
    assert (await robot.spend(ready))["receipt"]
    kinds = [kind for kind, _ in await glass.log(view["txn"])]
    assert kinds.count("break_glass_signed") == 2
    assert kinds.count("break_glass_opened") == 1
    assert "task_opened" not in kinds


async def test_one_who_may_opens_it_alone_and_somebody_else_reviews_that(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    before = metrics.BREAK_GLASS.labels("1")._value.get()
    jonas, maya = await glass.person("jonas"), await glass.person("maya")
    assert (await sign(jonas, view))[0] == 303
    assert await state(robot, view) == ("released", "break_glass")
    assert metrics.BREAK_GLASS.labels("1")._value.get() == before + 1
    task = await maya.task(view, "break_glass_review")
    assert task["task"]["text"] == "Jonas opened this alone, without the people its gates ask"
    own = await jonas.settle(task, "justified")
    assert (own.status_code, own.json()["detail"]) == (
        403,
        "you opened this; somebody else says whether that was justified",
    )
    assert (await maya.settle(task, "fired")).json()["code"] == "wrong_answer"
    answer = await maya.settle(task, "not_justified", reason="the site was up")
    assert (answer.status_code, answer.json()["task"]["settlement"]["answer"]) == (200, "not_justified")


async def test_one_who_is_left_of_two_owes_a_review_as_one_alone(glass: World, robot: Agent) -> None:
    """Two opened it, and one of them was no approver: what goes then goes by one person's word, and somebody looks."""
    view = (await robot.submit(await pay(glass, 5_000))).json()
    for who in ("ingrid", "jonas"):
        assert (await sign(await glass.person(who), view))[0] == 303
    ready = await robot.see(view["txn"])
    await glass.operator("revoke-approver", {"person": person("ingrid"), "reason": "it was not her"})
    assert (await robot.spend(ready))["receipt"]
    task = await (await glass.person("maya")).task(view, "break_glass_review")
    assert task["task"]["text"] == "Jonas opened this alone, without the people its gates ask"
    kinds = [kind for kind, _ in await glass.log(view["txn"])]
    assert (kinds.count("break_glass_opened"), kinds.count("task_opened")) == (2, 1)
    await glass.operator("reinstate-approver", {"person": person("ingrid")})


@pytest.mark.parametrize("who", ["maya", "tomas", "nobody"])
async def test_nobody_opens_it_whom_policy_does_not_name(glass: World, robot: Agent, who: str) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    status, text = await sign(await glass.person(who), view)
    assert status == 403
    assert "o policy lets you open this in an emergency" in text
    assert await state(robot, view) == ("review", None)


async def test_a_bundle_that_names_nobody_means_nobody(bank: World, folder: Payments, robot: Agent) -> None:
    folder.people(PEOPLE)
    await bank.activate()
    view = (await robot.submit(await pay(bank, 5_000))).json()
    for who in ("ingrid", "jonas", "maya"):
        assert (await sign(await bank.person(who), view))[0] == 403
    assert await state(robot, view) == ("review", None)


async def test_the_owner_does_not_open_what_their_agent_asks_for(glass: World) -> None:
    mine = await glass.agent("of-jonas", owner=person("jonas"))
    view = (await mine.submit(await pay(glass, 5_000))).json()
    status, text = await sign(await glass.person("jonas"), view)
    assert (status, "nobody opens what their own side asks for" in text) == (403, True)
    assert await state(mine, view) == ("review", None)


async def test_one_person_is_not_two(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    ingrid = await glass.person("ingrid")
    read = await shown(ingrid, view)
    for reason in ("the site is down", "it is still down"):
        assert (await sign(ingrid, view, reason, read=read))[0] == 303
    assert await state(robot, view) == ("review", None)


async def test_a_signature_answers_no_gate_so_whoever_gave_it_is_still_asked(
    glass: World, folder: Payments, robot: Agent
) -> None:
    folder.people({**PEOPLE, "oncall": ("ingrid", "maya")})
    await glass.activate()
    view = (await robot.submit(await pay(glass, 5_000))).json()
    maya, mine = await glass.person("maya"), view["effects"][0]["review"]["review_id"]
    assert (await sign(maya, view))[0] == 303
    assert mine in (await maya.get("/?tab=me")).text
    tomas = await glass.person("tomas")
    assert "You or Maya" in (await tomas.get(f"/reviews/{mine}")).text
    assert (await maya.vote(view)).status_code == 200
    assert mine not in (await maya.get("/?tab=me")).text


async def test_nobody_opens_what_they_have_not_read_in_full(glass: World, robot: Agent) -> None:
    """A signature names the page it was given on, and on that page nothing stood folded."""
    view = (await robot.submit(await pay(glass, 5_000, account="a" * 400))).json()
    jonas = await glass.person("jonas")
    status, text = await sign(jonas, view, read={"view_parts": ""})
    assert (status, "does not say what was read" in text) == (400, True)
    path = f"/reviews/{view['effects'][0]['review']['review_id']}"
    assert 'value="break_glass"' not in (await jonas.get(path)).text
    folded = (await (await glass.person("maya")).get(path)).text  # she may deny, also what stands folded
    read = dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', folded))
    assert read.keys() == {"view_digest", "view_parts"}
    status, text = await sign(jonas, view, read=read)
    assert (status, "stood folded" in text) == (400, True)
    assert await state(robot, view) == ("review", None)
    assert (await sign(jonas, view))[0] == 303


async def test_a_signature_that_came_too_late_opens_nothing_when_the_question_is_asked_again(
    glass: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(glass, 500))).json()
    jonas = await glass.person("jonas")
    read = await shown(jonas, view)
    assert (await (await glass.person("maya")).vote(view)).json()["state"] == "met"
    status, page = await sign(jonas, view, read=read)
    assert (status, "Your vote was not counted" in page) == (409, True)
    assert (await state(robot, view))[0] == "released"
    folder.rules(TWO, ALONE, gate("late", "cfo"))
    await glass.activate()
    await glass.sweep()
    assert await state(robot, view) == ("review", None)


async def test_who_comes_too_late_is_told_though_somebody_of_the_same_name_signed(
    glass: World, robot: Agent
) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    jonas, namesake = await glass.person("jonas"), await glass.person("ingrid", name="Jonas")
    mine, read = await shown(jonas, view), await shown(namesake, view)
    for _ in range(2):  # a second press is no late vote
        assert (await sign(jonas, view, read=mine))[0] == 303
    status, page = await sign(namesake, view, read=read)
    assert (status, "Your vote was not counted" in page) == (409, True)
    await glass.person("ingrid")


async def test_a_reason_is_required(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    status, text = await sign(await glass.person("jonas"), view, reason="  ")
    assert (status, "needs a reason" in text) == (400, True)
    assert await state(robot, view) == ("review", None)


async def test_a_plain_forbid_wins_and_so_does_one_that_comes_later(
    glass: World, folder: Payments, robot: Agent
) -> None:
    early = (await robot.submit(await pay(glass, 5_000), run_key="early")).json()
    late = (await robot.submit(await pay(glass, 5_000), run_key="late")).json()
    jonas = await glass.person("jonas")
    read = await shown(jonas, early)
    assert (await sign(jonas, late))[0] == 303
    ready = await robot.see(late["txn"])
    token = (await robot.release(ready)).json()["releases"]
    folder.rules(TWO, ALONE, plain_forbid("never-large", "context.input.amount > 100"))
    await glass.activate()
    assert (await robot.redeem(token)).status_code == 409
    assert await state(robot, late) == ("denied", None)
    assert (await sign(jonas, early, read=read))[0] == 409  # recorded too late: the new rule has ended it
    assert await state(robot, early) == ("denied", None)


async def test_a_rule_that_cannot_be_worked_out_is_never_opened(
    glass: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    when = "context.input.amount * 9007199254740991 > 1"
    odd = f'@id("odd") forbid (principal, action == Action::"pay", resource) when {{ {when} }};'
    folder.rules(TWO, ALONE, odd)
    await glass.activate()
    await sign(await glass.person("jonas"), view)
    assert (await state(robot, view))[0] == "denied"


async def test_a_persons_deny_is_final(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    assert (await sign(await glass.person("ingrid"), view))[0] == 303
    assert (await (await glass.person("maya")).vote(view, "deny", reason="no")).status_code == 200
    await sign(await glass.person("jonas"), view)
    assert await state(robot, view) == ("denied", None)


@pytest.mark.parametrize("verb", ["stop", "freeze", "everything"])
async def test_a_stop_comes_before_any_emergency(glass: World, robot: Agent, verb: str) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    tool = {"stop": "pay", "everything": None}
    if verb == "freeze":
        await glass.operator("freeze", {"agent": robot.name, "reason": "look"})
    else:
        await glass.operator("stop", {"tool": tool[verb], "reason": "look"})
    status, text = await sign(await glass.person("jonas"), view)
    if verb != "freeze":
        await glass.operator("go-on", {"tool": tool[verb]})
    assert (status, "is frozen" in text) == (403, True)
    assert (await state(robot, view))[0] == "review"


async def test_it_is_used_within_a_quarter_of_an_hour_or_not_at_all(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    await sign(await glass.person("jonas"), view)
    ready = await robot.see(view["txn"])
    tokens = (await robot.release(ready)).json()["releases"]
    glass.clock.pass_(minutes=15)
    assert (await robot.redeem(tokens)).status_code in (400, 409)
    assert (await robot.release(ready)).json()["releases"] == []
    assert (await state(robot, view))[0] == "expired"


async def test_it_is_for_one_revision(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    await sign(await glass.person("jonas"), view)
    assert (await state(robot, view))[0] == "released"
    again = (await robot.submit(await pay(glass, 6_000))).json()
    assert (again["rev"], again["state"]) == (2, "review")
    status, _ = await sign(await glass.person("jonas"), view)
    assert status == 409
    assert (await state(robot, again))[0] == "review"


async def test_a_person_who_may_no_longer_takes_the_opening_along(
    glass: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    await sign(await glass.person("jonas"), view)
    tokens = (await robot.release(await robot.see(view["txn"]))).json()["releases"]
    folder.people({**PEOPLE, "captain": ("ingrid",), "oncall": ("ingrid",)})
    await glass.activate()
    assert (await robot.redeem(tokens)).status_code == 409
    assert (await state(robot, view))[0] == "review"


async def test_a_revoked_person_takes_the_opening_along(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 5_000))).json()
    await sign(await glass.person("jonas"), view)
    tokens = (await robot.release(await robot.see(view["txn"]))).json()["releases"]
    await glass.operator("revoke-approver", {"person": person("jonas"), "reason": "left"})
    assert "receipt" not in (await robot.redeem(tokens)).json()
    assert (await state(robot, view))[0] == "review"
    await glass.operator("reinstate-approver", {"person": person("jonas")})


async def test_it_does_without_people_but_not_without_the_passkey(
    glass: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + LARGE + gate("key", "cfo", step_up="passkey") + TWO + ALONE)
    await glass.activate()
    view = (await robot.submit(await pay(glass, 5_000))).json()
    status, text = await sign(await glass.person("jonas"), view)
    assert (status, "passkey" in text) == (403, True)
    assert (await state(robot, view))[0] == "review"


async def test_a_vote_that_meets_the_gates_makes_it_an_ordinary_release(glass: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(glass, 500))).json()
    await sign(await glass.person("ingrid"), view)
    assert (await (await glass.person("maya")).vote(view)).status_code == 200
    ready = await robot.see(view["txn"])
    token = glass.release_of((await robot.release(ready)).json()["releases"][0])
    assert (token.decision.mode, len(token.decision.votes)) == (Mode.REVIEW, 1)


async def test_the_other_effect_of_the_transaction_still_waits(
    glass: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(TWO, ALONE, gate("mails", "cfo", action="mail"))
    await glass.activate()
    view = (await robot.submit(await pay(glass, 5_000), await mail(glass))).json()
    await sign(await glass.person("jonas"), view)
    seen = await robot.see(view["txn"])
    assert [effect["state"] for effect in seen["effects"]] == ["released", "review"]
    assert (await robot.release(seen)).status_code == 409
