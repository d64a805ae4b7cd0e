"""Break-glass: gates open without the people they ask, by two, or by one whom others review; nothing else opens."""

from __future__ import annotations

import re
from typing import Any

import pytest

from countersign.contract import Mode
from policy_service import metrics
from tests.fakes.payments import ANYBODY, GROUPS, LARGE, gate, person, plain_forbid
from tests.fakes.world import Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank

pytestmark = pytest.mark.anyio

PEOPLE = {**GROUPS, "oncall": ("ingrid", "jonas"), "captain": ("jonas",)}
TWO = '@id("two") permit (principal in Group::"oncall", action == Action::"break_glass", resource);'
ALONE = (
    '@id("alone") permit (principal in Group::"captain", action == Action::"break_glass_alone", resource);'
)


@pytest.fixture
async def glass(bank: Bank) -> Bank:
    bank.folder.people(PEOPLE).rules(TWO, ALONE)
    await bank.activate()
    return bank


def of_browser(visitor: Visitor) -> dict[str, str]:
    return {name: value for name, value in visitor.headers().items() if name in ("Cookie", "Origin")}


async def shown(visitor: Visitor, view: dict[str, Any]) -> dict[str, str]:
    """What the form of a review's page says it showed; nothing where there is no form."""
    path = f"/reviews/{view['effects'][0]['review']['review_id']}"
    page = await visitor.http.get(path, params={"full": "1"}, headers=of_browser(visitor))
    return dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', page.text))


async def sign(
    visitor: Visitor, view: dict[str, Any], reason: str = "it is down", *, read: dict[str, str] | None = None
) -> tuple[int, str]:
    """Send the form as the review's page would; the status and the page's words."""
    seen = view["effects"][0]
    form = {
        "csrf_token": visitor.csrf, "verdict": "break_glass", "rev": str(view["rev"]), "reason": reason,
        "effect_digest": seen["effect_digest"], "txn_digest": view["txn_digest"],
    }  # fmt: skip
    form |= read or await shown(visitor, view)
    path = f"/reviews/{seen['review']['review_id']}/votes"
    answer = await visitor.http.post(path, data=form, headers=of_browser(visitor))
    return answer.status_code, " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


async def asked(glass: Bank, amount: int = 5_000, **more: Any) -> dict[str, Any]:
    """A payment that waits."""
    view: dict[str, Any] = (await glass.robot.submit(await pay(glass, amount), **more)).json()
    return view


async def state(glass: Bank, view: dict[str, Any]) -> tuple[str, str | None]:
    seen = (await glass.robot.see(view["txn"]))["effects"][0]
    return seen["state"], seen["decision"].get("mode")


async def released(glass: Bank, view: dict[str, Any]) -> list[str]:
    seen = await glass.robot.see(view["txn"])
    tokens: list[str] = (await glass.robot.release(seen)).json()["releases"]
    return tokens


async def test_two_people_open_it_and_the_token_says_so(glass: Bank) -> None:
    view = await asked(glass)
    assert (await sign(glass.ingrid, view))[0] == 303
    assert await state(glass, view) == ("review", None)
    assert (await sign(glass.jonas, view))[0] == 303
    assert await state(glass, view) == ("released", "break_glass")
    ready = await glass.robot.see(view["txn"])
    token = glass.release_of((await glass.robot.release(ready)).json()["releases"][0])
    assert (token.decision.mode, len(token.decision.votes)) == (Mode.BREAK_GLASS, 2)
    assert (await glass.robot.spend(ready))["receipt"]
    kinds = [kind for kind, _ in await glass.log(view["txn"])]
    assert kinds.count("break_glass_signed") == 2
    assert kinds.count("break_glass_opened") == 1
    assert "task_opened" not in kinds


async def test_one_who_may_opens_it_alone_and_somebody_else_reviews_that(glass: Bank) -> None:
    view = await asked(glass)
    before = metrics.BREAK_GLASS.labels("1")._value.get()
    assert (await sign(glass.jonas, view))[0] == 303
    assert await state(glass, view) == ("released", "break_glass")
    assert metrics.BREAK_GLASS.labels("1")._value.get() == before + 1
    task = await glass.maya.task(view, "break_glass_review")
    assert task["task"]["text"] == "Jonas opened this alone, without the people its gates ask"
    own = await glass.jonas.settle(task, "justified")
    assert (own.status_code, "somebody else says whether" in own.json()["detail"]) == (403, True)
    assert (await glass.maya.settle(task, "fired")).json()["code"] == "wrong_answer"
    answer = await glass.maya.settle(task, "not_justified", reason="the site was up")
    assert (answer.status_code, answer.json()["task"]["settlement"]["answer"]) == (200, "not_justified")


async def test_one_who_is_left_of_two_owes_a_review_as_one_alone(glass: Bank) -> None:
    """Two opened it, and one of them was no approver: what goes then goes by one person's word, and somebody looks."""
    view = await asked(glass)
    for who in ("ingrid", "jonas"):
        assert (await sign(await glass.person(who), view))[0] == 303
    ready = await glass.robot.see(view["txn"])
    await glass.operator("revoke-approver", {"person": person("ingrid"), "reason": "it was not her"})
    assert (await glass.robot.spend(ready))["receipt"]
    task = await glass.maya.task(view, "break_glass_review")
    assert task["task"]["text"] == "Jonas opened this alone, without the people its gates ask"
    kinds = [kind for kind, _ in await glass.log(view["txn"])]
    assert (kinds.count("break_glass_opened"), kinds.count("task_opened")) == (2, 1)
    await glass.operator("reinstate-approver", {"person": person("ingrid")})


async def test_nobody_opens_it_whom_policy_does_not_name(glass: Bank) -> None:
    view = await asked(glass)
    for who in ("maya", "tomas", "nobody"):
        status, text = await sign(await glass.person(who), view)
        assert (status, "o policy lets you open this in an emergency" in text) == (403, True)
    status, text = await sign(glass.jonas, view, reason="  ")
    assert (status, "needs a reason" in text) == (400, True)
    await glass.rules()  # and a bundle that names nobody means nobody
    for visitor in (glass.ingrid, glass.jonas, glass.maya):
        assert (await sign(visitor, view))[0] == 403
    assert await state(glass, view) == ("review", None)


async def test_the_owner_does_not_open_what_their_agent_asks_for(glass: Bank) -> None:
    glass.robot = await glass.agent("of-jonas", owner=person("jonas"))
    view = await asked(glass)
    status, text = await sign(glass.jonas, view)
    assert (status, "nobody opens what their own side asks for" in text) == (403, True)
    assert await state(glass, view) == ("review", None)


async def test_one_person_is_not_two(glass: Bank) -> None:
    view = await asked(glass)
    read = await shown(glass.ingrid, view)
    for reason in ("the site is down", "it is still down"):
        assert (await sign(glass.ingrid, view, reason, read=read))[0] == 303
    assert await state(glass, view) == ("review", None)


async def test_a_signature_answers_no_gate_so_whoever_gave_it_is_still_asked(glass: Bank) -> None:
    await glass.people({**PEOPLE, "oncall": ("ingrid", "maya")})
    view = await asked(glass)
    mine = view["effects"][0]["review"]["review_id"]
    assert (await sign(glass.maya, view))[0] == 303
    assert mine in (await glass.maya.get("/?tab=me")).text
    assert "You or Maya" in (await glass.tomas.get(f"/reviews/{mine}")).text
    assert (await glass.maya.vote(view)).status_code == 200
    assert mine not in (await glass.maya.get("/?tab=me")).text


async def test_nobody_opens_what_they_have_not_read_in_full(glass: Bank) -> None:
    """A signature names the page it was given on, and on that page nothing stood folded."""
    view = (await glass.robot.submit(await pay(glass, 5_000, account="a" * 400))).json()
    status, text = await sign(glass.jonas, view, read={"view_parts": ""})
    assert (status, "does not say what was read" in text) == (400, True)
    path = f"/reviews/{view['effects'][0]['review']['review_id']}"
    assert 'value="break_glass"' not in (await glass.jonas.get(path)).text
    folded = (await glass.maya.get(path)).text  # she may deny, also what stands folded
    read = dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', folded))
    assert read.keys() == {"view_digest", "view_parts"}
    status, text = await sign(glass.jonas, view, read=read)
    assert (status, "stood folded" in text) == (400, True)
    assert await state(glass, view) == ("review", None)
    assert (await sign(glass.jonas, view))[0] == 303


async def test_a_signature_that_came_too_late_opens_nothing_later(glass: Bank) -> None:
    view = await asked(glass, 500)
    read = await shown(glass.jonas, view)
    assert (await glass.maya.vote(view)).json()["state"] == "met"
    status, page = await sign(glass.jonas, view, read=read)
    assert (status, "Your vote was not counted" in page) == (409, True)
    assert (await state(glass, view))[0] == "released"
    await glass.rules(TWO, ALONE, gate("late", "cfo"))  # and it is asked again
    await glass.sweep()
    assert await state(glass, view) == ("review", None)


async def test_who_comes_too_late_is_told_though_somebody_of_the_same_name_signed(glass: Bank) -> None:
    view = await asked(glass)
    namesake = await glass.person("ingrid", name="Jonas")
    mine, read = await shown(glass.jonas, view), await shown(namesake, view)
    for _ in range(2):  # a second press is no late vote
        assert (await sign(glass.jonas, view, read=mine))[0] == 303
    status, page = await sign(namesake, view, read=read)
    assert (status, "Your vote was not counted" in page) == (409, True)
    await glass.person("ingrid")


async def test_a_plain_forbid_wins_and_so_does_one_that_comes_later(glass: Bank) -> None:
    early, late = await asked(glass, run_key="early"), await asked(glass, run_key="late")
    read = await shown(glass.jonas, early)
    assert (await sign(glass.jonas, late))[0] == 303
    token = await released(glass, late)
    await glass.rules(TWO, ALONE, plain_forbid("never-large", "context.input.amount > 100"))
    assert (await glass.robot.redeem(token)).status_code == 409
    assert await state(glass, late) == ("denied", None)
    status, _ = await sign(glass.jonas, early, read=read)
    assert status == 409, "recorded too late: the new rule has ended it"
    assert await state(glass, early) == ("denied", None)


async def test_a_rule_that_cannot_be_worked_out_is_never_opened(glass: Bank) -> None:
    view = await asked(glass)
    when = "context.input.amount * 9007199254740991 > 1"
    odd = f'@id("odd") forbid (principal, action == Action::"pay", resource) when {{ {when} }};'
    await glass.rules(TWO, ALONE, odd)
    await sign(glass.jonas, view)
    assert (await state(glass, view))[0] == "denied"


async def test_a_persons_deny_is_final(glass: Bank) -> None:
    view = await asked(glass)
    assert (await sign(glass.ingrid, view))[0] == 303
    assert (await glass.maya.vote(view, "deny", reason="no")).status_code == 200
    await sign(glass.jonas, view)
    assert await state(glass, view) == ("denied", None)


STOPS = [
    ("stop", {"tool": "pay"}, "go-on"),
    ("stop", {"tool": None}, "go-on"),
    ("freeze", {"agent": ""}, "unfreeze"),
]


@pytest.mark.parametrize(("verb", "what", "end"), STOPS, ids=["a tool", "everything", "the agent"])
async def test_a_stop_comes_before_any_emergency(
    glass: Bank, verb: str, what: dict[str, Any], end: str
) -> None:
    view = await asked(glass)
    named = {"agent": glass.robot.name} if verb == "freeze" else what
    await glass.operator(verb, named | {"reason": "look"})
    status, text = await sign(glass.jonas, view)
    await glass.operator(end, named)
    assert (status, "is frozen" in text) == (403, True)
    assert (await state(glass, view))[0] == "review"


async def test_it_is_used_within_a_quarter_of_an_hour_or_not_at_all(glass: Bank) -> None:
    view = await asked(glass)
    await sign(glass.jonas, view)
    ready = await glass.robot.see(view["txn"])
    tokens = (await glass.robot.release(ready)).json()["releases"]
    glass.clock.pass_(minutes=15)
    assert (await glass.robot.redeem(tokens)).status_code in (400, 409)
    assert (await glass.robot.release(ready)).json()["releases"] == []
    assert (await state(glass, view))[0] == "expired"


async def test_it_is_for_one_revision(glass: Bank) -> None:
    view = await asked(glass)
    await sign(glass.jonas, view)
    assert (await state(glass, view))[0] == "released"
    again = await asked(glass, 6_000)
    assert (again["rev"], again["state"]) == (2, "review")
    status, _ = await sign(glass.jonas, view)
    assert status == 409
    assert (await state(glass, again))[0] == "review"


async def test_a_person_who_may_no_longer_takes_the_opening_along(glass: Bank) -> None:
    left = await asked(glass)
    await sign(glass.jonas, left)
    tokens = await released(glass, left)
    await glass.people({**PEOPLE, "captain": ("ingrid",), "oncall": ("ingrid",)})
    assert (await glass.robot.redeem(tokens)).status_code == 409
    assert (await state(glass, left))[0] == "review"
    await glass.people(PEOPLE)
    revoked = await asked(glass, run_key="revoked")
    await sign(glass.jonas, revoked)
    tokens = await released(glass, revoked)
    await glass.operator("revoke-approver", {"person": person("jonas"), "reason": "left"})
    assert "receipt" not in (await glass.robot.redeem(tokens)).json()
    assert (await state(glass, revoked))[0] == "review"
    await glass.operator("reinstate-approver", {"person": person("jonas")})


async def test_it_does_without_people_but_not_without_the_passkey(glass: Bank) -> None:
    await glass.policies(ANYBODY + LARGE + gate("key", "cfo", step_up="passkey") + TWO + ALONE)
    view = await asked(glass)
    status, text = await sign(glass.jonas, view)
    assert (status, "passkey" in text) == (403, True)
    assert (await state(glass, view))[0] == "review"


async def test_a_vote_that_meets_the_gates_makes_it_an_ordinary_release(glass: Bank) -> None:
    view = await asked(glass, 500)
    await sign(glass.ingrid, view)
    assert (await glass.maya.vote(view)).status_code == 200
    ready = await glass.robot.see(view["txn"])
    token = glass.release_of((await glass.robot.release(ready)).json()["releases"][0])
    assert (token.decision.mode, len(token.decision.votes)) == (Mode.REVIEW, 1)


async def test_the_other_effect_of_the_transaction_still_waits(glass: Bank) -> None:
    await glass.rules(TWO, ALONE, gate("mails", "cfo", action="mail"))
    view = (await glass.robot.submit(await pay(glass, 5_000), await mail(glass))).json()
    await sign(glass.jonas, view)
    seen = await glass.robot.see(view["txn"])
    assert [effect["state"] for effect in seen["effects"]] == ["released", "review"]
    assert (await glass.robot.release(seen)).status_code == 409
