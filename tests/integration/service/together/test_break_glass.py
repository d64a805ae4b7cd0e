"""Break-glass: a release without the approvals its gates require, by two signers, or by one with a later review."""

from __future__ import annotations

import re
from typing import Any

import pytest

from countersign.contract import Mode
from policy_service import metrics
from tests.fakes.payments import ANYBODY, GROUPS, LARGE, gate, person, plain_forbid
from tests.fakes.world import Visitor, stamp
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import Holder
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_edits import address

PEOPLE = {**GROUPS, "oncall": ("ingrid", "jonas"), "captain": ("jonas",)}

TWO = '@id("two") permit (principal in Group::"oncall", action == Action::"break_glass", resource);'

ALONE = (
    '@id("alone") permit (principal in Group::"captain", action == Action::"break_glass_alone", resource);'
)


@pytest.fixture
async def glass(bank: Bank) -> Bank:
    await bank.people(PEOPLE)
    await bank.rules(TWO, ALONE)
    return bank


async def shown(visitor: Visitor, view: dict[str, Any]) -> dict[str, str]:
    """What the form of a review's page says it showed; empty without a form."""
    page = (await visitor.get(f"{address(view)}?full=1")).text
    return dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', page))


async def sign(
    visitor: Visitor, view: dict[str, Any], reason: str = "it is down", *, read: dict[str, str] | None = None
) -> tuple[int, str]:
    """Send the form of the review's page; returns the status and the page's text."""
    form = {"verdict": "break_glass", "reason": reason, **stamp(view)} | (read or await shown(visitor, view))
    answer = await Holder(visitor).send(f"{address(view)}/votes", **form)
    return answer.status_code, " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


async def refused(visitor: Visitor, view: dict[str, Any], words: str, **how: Any) -> int:
    """The status of a refusal with this text."""
    status, page = await sign(visitor, view, **how)
    assert words in page
    return status


async def state(glass: Bank, view: dict[str, Any]) -> tuple[str, str | None]:
    seen = (await glass.robot.see(view["txn"]))["effects"][0]
    return seen["state"], seen["decision"].get("mode")


async def test_two_signers_release_it_and_the_token_says_so(glass: Bank) -> None:
    view = await glass.asks(5_000)
    assert (await sign(glass.ingrid, view))[0] == 303
    assert await state(glass, view) == ("review", None)
    assert (await sign(glass.jonas, view))[0] == 303
    assert await state(glass, view) == ("released", "break_glass")
    token = glass.release_of((await glass.tokens(view))[0])
    assert (token.decision.mode, len(token.decision.votes)) == (Mode.BREAK_GLASS, 2)
    assert (await glass.robot.spend(await glass.robot.see(view["txn"])))["receipt"]
    assert await glass.counts(view, "break_glass_signed", "break_glass_opened", "task_opened") == [2, 1, 0]


async def test_one_permitted_signer_releases_it_alone_and_another_person_reviews_it(glass: Bank) -> None:
    view = await glass.asks(5_000)
    before = metrics.BREAK_GLASS.labels("1")._value.get()
    assert (await sign(glass.jonas, view))[0] == 303
    assert await state(glass, view) == ("released", "break_glass")
    assert metrics.BREAK_GLASS.labels("1")._value.get() == before + 1
    task = await glass.maya.task(view, "break_glass_review")
    assert "Jonas released this alone by break-glass" in task["task"]["text"]
    own = await glass.jonas.settle(task, "justified")
    assert (own.status_code, "somebody else has to review" in own.json()["detail"]) == (403, True)
    assert (await glass.maya.settle(task, "fired")).json()["code"] == "wrong_answer"
    answer = await glass.maya.settle(task, "not_justified", reason="the site was up")
    assert (answer.status_code, answer.json()["task"]["settlement"]["answer"]) == (200, "not_justified")


async def test_one_remaining_signer_of_two_requires_a_review(glass: Bank) -> None:
    """Two signed and one is no longer permitted: the release depends on one person, so it is reviewed."""
    view = await glass.asks(5_000)
    for who in (glass.ingrid, glass.jonas):
        assert (await sign(who, view))[0] == 303
    ready = await glass.robot.see(view["txn"])
    async with glass.revoked("ingrid"):
        assert (await glass.robot.spend(ready))["receipt"]
    task = await glass.maya.task(view, "break_glass_review")
    assert "Jonas released this alone by break-glass" in task["task"]["text"]
    assert await glass.counts(view, "break_glass_opened", "task_opened") == [2, 1]


async def test_a_person_without_permission_cannot_sign(glass: Bank) -> None:
    view = await glass.asks(5_000)
    for visitor in (glass.maya, glass.tomas, await glass.person("stranger")):
        assert await refused(visitor, view, "o policy permits you to use break-glass here") == 403
    assert await refused(glass.jonas, view, "needs a reason", reason="  ") == 400
    read = await shown(glass.ingrid, view)
    for reason in ("the site is down", "it is still down"):  # one person is not two
        assert (await sign(glass.ingrid, view, reason, read=read))[0] == 303
    own = await glass.asks(5_000, robot=await glass.agent("of-jonas", owner=person("jonas")))
    assert await refused(glass.jonas, own, "so you cannot open this") == 403
    await glass.rules()  # a bundle without a break-glass policy permits no one
    for visitor in (glass.jonas, glass.maya):
        assert (await sign(visitor, view))[0] == 403
    assert await state(glass, view) == ("review", None)


async def test_a_signer_can_still_vote(glass: Bank) -> None:
    await glass.people({**PEOPLE, "oncall": ("ingrid", "maya")})
    view = await glass.asks(5_000)
    mine = view["effects"][0]["review"]["review_id"]
    assert (await sign(glass.maya, view))[0] == 303
    assert mine in (await glass.maya.get("/?tab=me")).text
    assert "You or Maya" in (await glass.tomas.get(f"/reviews/{mine}")).text
    assert (await glass.maya.vote(view)).status_code == 200
    assert mine not in (await glass.maya.get("/?tab=me")).text


async def test_a_signature_on_folded_arguments_is_refused(glass: Bank) -> None:
    """A signature names the page it was given on, and no argument was folded there."""
    view = (await glass.robot.submit(await pay(glass, 5_000, account="a" * 400))).json()
    assert await refused(glass.jonas, view, "does not name the view", read={"view_parts": ""}) == 400
    path = address(view)
    assert 'value="break_glass"' not in (await glass.jonas.get(path)).text
    folded = (await glass.maya.get(path)).text  # she may still deny with folded arguments
    read = dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', folded))
    assert read.keys() == {"view_digest", "view_parts"}
    assert await refused(glass.jonas, view, "was folded", read=read) == 400
    assert await state(glass, view) == ("review", None)
    assert (await sign(glass.jonas, view))[0] == 303


async def test_a_late_signature_never_counts(glass: Bank) -> None:
    view = await glass.asks(500)
    read = await shown(glass.jonas, view)
    assert (await glass.maya.vote(view)).json()["state"] == "met"
    assert await refused(glass.jonas, view, "Your vote was not counted", read=read) == 409
    assert (await state(glass, view))[0] == "released"
    await glass.rules(TWO, ALONE, gate("late", "cfo"))  # and it is asked again
    await glass.sweep()
    assert await state(glass, view) == ("review", None)


async def test_a_late_signer_is_informed_despite_a_signer_of_the_same_name(glass: Bank) -> None:
    view = await glass.asks(5_000)
    namesake = await glass.person("ingrid", name="Jonas")
    mine, read = await shown(glass.jonas, view), await shown(namesake, view)
    for _ in range(2):  # a second press is no late vote
        assert (await sign(glass.jonas, view, read=mine))[0] == 303
    assert await refused(namesake, view, "Your vote was not counted", read=read) == 409
    await glass.person("ingrid")


async def test_a_plain_forbid_overrides_break_glass(glass: Bank) -> None:
    early, late = await glass.asks(5_000, run_key="early"), await glass.asks(5_000, run_key="late")
    unknown = await glass.asks(500, run_key="unknown")
    read = await shown(glass.jonas, early)
    assert (await sign(glass.jonas, late))[0] == 303
    token = await glass.tokens(late)
    await glass.rules(TWO, ALONE, plain_forbid("never-large", "context.input.amount > 1000"))
    assert (await glass.robot.redeem(token)).status_code == 409
    assert await state(glass, late) == ("denied", None)
    assert (await sign(glass.jonas, early, read=read))[0] == 409, "the new rule has ended it"
    assert await state(glass, early) == ("denied", None)
    # nor is a rule opened that cannot be worked out
    await glass.rules(TWO, ALONE, plain_forbid("odd", "context.input.amount * 9223372036854775807 > 1"))
    await sign(glass.jonas, unknown)
    assert (await state(glass, unknown))[0] == "denied"


async def test_votes_before_and_after_a_signature_count(glass: Bank) -> None:
    view, other = await glass.asks(5_000), await glass.asks(500, run_key="met")
    for asked in (view, other):
        assert (await sign(glass.ingrid, asked))[0] == 303
    assert (await glass.maya.vote(view, "deny", reason="no")).status_code == 200
    await sign(glass.jonas, view)
    assert await state(glass, view) == ("denied", None)
    assert (await glass.maya.vote(other)).status_code == 200
    token = glass.release_of((await glass.tokens(other))[0])
    assert (token.decision.mode, len(token.decision.votes)) == (Mode.REVIEW, 1)


async def test_an_emergency_stop_blocks_break_glass(glass: Bank) -> None:
    view = await glass.asks(5_000)
    freeze = ("freeze", {"agent": glass.robot.name}, "unfreeze")
    for verb, what, end in (*(("stop", {"tool": tool}, "go-on") for tool in ("pay", None)), freeze):
        await glass.operator(verb, what | {"reason": "look"})
        status = await refused(glass.jonas, view, "is frozen")
        await glass.operator(end, what)
        assert (status, (await state(glass, view))[0]) == (403, "review")


async def test_a_break_glass_release_expires_after_15_minutes(glass: Bank) -> None:
    view = await glass.asks(5_000)
    await sign(glass.jonas, view)
    ready, tokens = await glass.robot.see(view["txn"]), await glass.tokens(view)
    glass.clock.pass_(minutes=15)
    assert (await glass.robot.redeem(tokens)).status_code in (400, 409)
    assert (await glass.robot.release(ready)).json()["releases"] == []
    assert (await state(glass, view))[0] == "expired"


async def test_a_signature_is_for_one_revision_and_one_effect(glass: Bank) -> None:
    view = await glass.asks(5_000)
    await sign(glass.jonas, view)
    again = await glass.asks(6_000)
    assert (again["rev"], again["state"]) == (2, "review")
    assert (await sign(glass.jonas, view))[0] == 409
    assert (await state(glass, again))[0] == "review"
    await glass.rules(TWO, ALONE, gate("mails", "cfo", action="mail"))
    both = (await glass.robot.submit(await pay(glass, 5_000), await mail(glass), run_key="both")).json()
    await sign(glass.jonas, both)
    assert await glass.states(both) == ["review", "released", "review"]
    assert (await glass.robot.release(both)).status_code == 409


async def test_a_signature_stops_counting_with_its_signers_permission(glass: Bank) -> None:
    left, revoked = await glass.asks(5_000), await glass.asks(5_000, run_key="revoked")
    await sign(glass.jonas, left)
    tokens = await glass.tokens(left)
    await glass.people({**PEOPLE, "captain": ("ingrid",), "oncall": ("ingrid",)})
    assert (await glass.robot.redeem(tokens)).status_code == 409
    assert (await state(glass, left))[0] == "review"
    await glass.people(PEOPLE)
    await sign(glass.jonas, revoked)
    tokens = await glass.tokens(revoked)
    async with glass.revoked("jonas"):
        assert "receipt" not in (await glass.robot.redeem(tokens)).json()
    assert (await state(glass, revoked))[0] == "review"


async def test_break_glass_does_not_waive_the_passkey(glass: Bank) -> None:
    await glass.policies(ANYBODY + LARGE + gate("key", "cfo", step_up="passkey") + TWO + ALONE)
    view = await glass.asks(5_000)
    assert await refused(glass.jonas, view, "passkey") == 403
    assert (await state(glass, view))[0] == "review"
