"""What stands beside the facts on the review page: what was before, the meters, whom to ask, the whole transaction."""

from __future__ import annotations

import itertools
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from policy_service.queries import context_panel as past
from policy_service.queries.context_panel import ContextPanel
from policy_service.queries.review_models import ReviewPage
from policy_service.queries.reviews import review_page
from policy_service.queries.vote_eligibility import voter_from_person
from tests.fakes.pages import holds
from tests.fakes.payments import ANYBODY, MAIL, Payments, gate, person
from tests.fakes.world import Agent, Clock, Visitor, World, running
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.metered import metered
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.test_pages_of_reviews import caught_up, queries
from tests.integration.service.test_plans import plans, scans

pytestmark = pytest.mark.anyio

_runs = (f"run-{n}" for n in itertools.count())


async def seen(bank: World, visitor: Visitor, view: dict[str, Any]) -> ReviewPage:
    """The page of an effect's review, as its reader has it."""
    session = await bank.service.sessions.find(visitor.cookie)
    assert session is not None
    page = await review_page(bank.service.ctx, voter_from_person(session.person), review_of(view))
    assert page is not None
    return page


async def beside(bank: World, visitor: Visitor, view: dict[str, Any]) -> ContextPanel:
    found = (await seen(bank, visitor, view)).panel
    assert found is not None
    return found


async def page_of(visitor: Visitor, view: dict[str, Any]) -> str:
    """The page of a review as a browser gets it, on one line."""
    answer = await visitor.get(f"/reviews/{review_of(view)}")
    assert answer.status_code == 200
    return " ".join(unescape(answer.text).split())


async def asked(robot: Agent, *effects: dict[str, Any], run: str = "") -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(*effects, run_key=run or next(_runs))).json()
    assert "effects" in view, view
    return view


async def voted(
    visitor: Visitor, view: dict[str, Any], verdict: str = "approve", **more: Any
) -> dict[str, Any]:
    """The review after a vote that was taken."""
    answer = await visitor.vote(view, verdict, **more)
    assert answer.is_success, answer.text
    review: dict[str, Any] = answer.json()
    return review


async def fire(robot: Agent, view: dict[str, Any], outcome: str = "fired") -> None:
    await robot.spend(view, f"at-{view['txn'][:8]}")
    told = {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome}
    answer = await robot.report(f"at-{view['txn'][:8]}", told)
    assert answer.is_success, answer.text


# ------------------------------------------------------------------------------------------- the last approved one


async def test_it_is_compared_with_the_last_approved_one(bank: World, robot: Agent, maya: Visitor) -> None:
    await fire(robot, await asked(robot, await pay(bank, 10)))
    first = await asked(robot, await pay(bank, 300))
    last = (await beside(bank, maya, first)).last
    assert last is not None  # fired without anybody being asked: approved by the policy
    assert (last.effect.state, last.effect.review_id, last.approved_by) == ("fired", None, ())
    await voted(maya, first)
    await voted(maya, await asked(robot, await pay(bank, 400)), "deny", reason="too much")
    for n in range(6):  # it is found behind many that were not approved
        await asked(robot, await pay(bank, 410 + n))
    second = await asked(robot, await pay(bank, 500))
    await voted(maya, await asked(robot, await pay(bank, 600)))
    await voted(maya, second)
    last = (await beside(bank, maya, second)).last  # what was before its effect, whatever came later
    assert last is not None
    assert [(row.name, row.value_json) for row in last.args] == [("account", '"acme"'), ("amount", "300")]
    assert (last.approved_by, last.effect.review_id) == (("Maya",), review_of(first))
    last = (await beside(bank, maya, first)).last
    assert last is not None and last.effect.review_id is None


async def test_what_was_opened_was_approved_by_nobody(bank: World, robot: Agent, folder: Payments) -> None:
    opens = 'permit (principal in Group::"legal", action == Action::"break_glass_alone", resource);'
    folder.rules(f'@id("opens") {opens}')
    assert await bank.activate()
    ingrid = await bank.person("ingrid")
    opened = await asked(robot, await pay(bank, 300))
    assert (await Holder(ingrid).break_glass(review_of(opened))).status_code == 303
    view = await asked(robot, await pay(bank, 500))
    last = (await beside(bank, ingrid, view)).last
    assert last is not None
    assert (last.approved_by, last.opened_by) == ((), ("Ingrid",))
    page = await page_of(ingrid, view)
    holds(page, "released by break-glass, signed by Ingrid", without=["by the policy alone"])


async def test_what_was_not_approved_is_not_compared(bank: World, robot: Agent, maya: Visitor) -> None:
    await voted(maya, await asked(robot, await pay(bank, 300)), "deny", reason="no")
    await asked(robot, await pay(bank, 10))  # released, and not fired
    await asked(robot, await pay(bank, 300))  # waits
    await voted(maya, await asked(await bank.agent("other", roles=()), await pay(bank, 300)))
    await fire(robot, await asked(robot, await mail(bank)))
    new = await asked(robot, await pay(bank, 500))
    assert (await beside(bank, maya, new)).last is None
    assert "First effect of this tool by this agent" in await page_of(maya, new)


# ------------------------------------------------------------------------------------------------ the like of it


async def test_similar_ones_tell_what_became_of_them(bank: World, robot: Agent, maya: Visitor) -> None:
    other = await bank.agent("other", roles=())
    await fire(robot, await asked(robot, await pay(bank, 10)))
    await fire(robot, await asked(robot, await pay(bank, 11)), "failed")
    denied = await asked(other, await pay(bank, 300))
    await voted(maya, denied, "deny", reason="not this account")
    await asked(robot, await pay(bank, 12, account="umbrella"))
    view = await asked(robot, await pay(bank, 500))
    found = (await beside(bank, maya, view)).past
    assert found is not None
    assert dict(found.counts) == {"fired": 1, "failed": 1, "denied": 1}
    assert [(row.state, row.agent, row.by, row.reason) for row in found.rows] == [
        ("denied", "other", "Maya", "not this account"),
        ("failed", "robot", None, ""),
        ("fired", "robot", None, ""),
    ]
    page = await page_of(maya, view)
    holds(page, "3 like it in 30 days: 1 fired, 1 denied, 1 failed", f'href="/reviews/{review_of(denied)}"')


async def test_only_so_many_are_counted_and_fewer_are_shown(
    bank: World, robot: Agent, maya: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(past.MAX_SHOWN + 2):
        await asked(robot, await pay(bank, n + 1))
    view = await asked(robot, await pay(bank, 500))
    found = (await beside(bank, maya, view)).past
    assert found is not None
    assert (len(found.rows), sum(found.counts.values()), found.capped) == (
        past.MAX_SHOWN,
        past.MAX_SHOWN + 2,
        False,
    )
    monkeypatch.setattr(past, "MAX_COUNTED", 3)
    found = (await beside(bank, maya, view)).past
    assert found is not None and (sum(found.counts.values()), found.capped) == (3, True)
    assert "The newest 3 like it" in await page_of(maya, view)


async def test_what_is_older_or_of_the_same_transaction_is_not_like_it(bank: World, robot: Agent) -> None:
    await asked(robot, await pay(bank, 10))
    bank.clock.pass_(days=past.PRECEDENT_DAYS, seconds=1)
    await asked(robot, await pay(bank, 300), run="again")
    again = await asked(robot, await pay(bank, 300), await pay(bank, 12), run="again")
    assert again["rev"] == 2
    assert (await beside(bank, await bank.person("maya"), again)).past is None


async def test_same_recipients_are_found(bank: World, robot: Agent, folder: Payments, maya: Visitor) -> None:
    letter: Any = {**MAIL, "recipients": ["/to"], "resource": {"type": "Account", "id": "/text"}}
    folder.write("tools/mail.json", letter)
    folder.rules(gate("letters", "finance", action="mail"))
    assert await bank.activate()
    first = await asked(robot, await mail(bank, "one"))
    await asked(robot, await call(bank, "mail", {"to": "somebody else", "text": "two"}))
    found = (await beside(bank, maya, await asked(robot, await mail(bank, "three")))).past
    assert found is not None and found.to_recipients
    assert [row.review_id for row in found.rows] == [review_of(first)]


# ------------------------------------------------------------------------------------------------------- secrets

SECRET = "hunter2-of-the-vault"


async def with_secret(bank: World, folder: Payments, *pointers: str) -> None:
    args = {**MAIL["args"], "required": ["to"]}
    folder.write("tools/mail.json", {**MAIL, "args": args, "secret": list(pointers)})
    folder.rules(gate("letters", "finance", action="mail"))
    assert await bank.activate()


async def test_a_secret_is_hidden_there_too(
    bank: World, robot: Agent, folder: Payments, maya: Visitor
) -> None:
    """Also one that nobody called a secret when it was sent, and one that the new call leaves out."""
    await with_secret(bank, folder)
    then = await asked(robot, await mail(bank, SECRET))
    await voted(maya, then)
    assert SECRET in await page_of(maya, then)
    await with_secret(bank, folder, "/text")
    for new in ({"text": f"{SECRET}-new"}, {}):
        page = await page_of(maya, await asked(robot, await call(bank, "mail", {"to": "acme", **new})))
        holds(page, "Compared with", "Hidden values, not compared: <code>text</code>")
        assert SECRET not in page
    page = await page_of(maya, await asked(robot, await pay(bank, 500), await mail(bank, SECRET)))
    assert "hidden value, 20 bytes" in page
    assert SECRET not in page


async def test_a_tool_that_is_gone_is_hidden(
    bank: World, robot: Agent, folder: Payments, maya: Visitor
) -> None:
    await with_secret(bank, folder)
    await voted(maya, await asked(robot, await mail(bank, SECRET)))
    now = await asked(robot, await mail(bank, SECRET))
    (folder.path / "tools/mail.json").unlink()
    folder.rules()
    assert await bank.activate()
    last = (await beside(bank, maya, now)).last
    assert last is not None and last.args
    assert all(row.secret for row in last.args)


async def test_meters_are_told_as_at_the_effects_own_reservation(tmp_path: Path) -> None:
    folder = metered(tmp_path / "metered")
    async with running(tmp_path / "data", folder.path, clock=Clock.from_noon()) as counted:
        robot, maya = await counted.agent("robot", roles=()), await counted.person("maya")
        await asked(robot, await pay(counted, 100))
        view = await asked(robot, await pay(counted, 600))
        await asked(robot, await pay(counted, 50))
        spent, shipped = (await beside(counted, maya, view)).meters
        page = await page_of(maya, view)
    assert (spent.name, spent.before, spent.this, spent.until) == ("spent", 100, 600, None)
    assert spent.limit is not None
    assert (spent.limit.total, spent.limit.policy_id, spent.limit.asks) == (1_000, "cap", False)
    assert (shipped.before, shipped.this, shipped.limit and shipped.limit.total) == (1, 1, 10)
    assert shipped.until is not None and shipped.until > counted.clock()
    assert 'aria-label="100 before, 600 for this effect, 300 left of 1,000"' in page
    assert "Above 1,000 it is forbidden by cap." in page
    assert "meter spent" not in page, "told once, not as a fact as well"


# ----------------------------------------------------------------------------------------------------- whom to ask


async def test_an_open_line_names_who_could_sign_it(bank: World, robot: Agent, maya: Visitor) -> None:
    view = await asked(robot, await pay(bank, 500))
    assert "You or Tomas" in await page_of(maya, view)
    assert "Maya or Tomas could sign." in await page_of(await bank.person("stranger"), view)
    await voted(maya, view)
    assert {gate.could_sign for gate in (await seen(bank, maya, view)).gates} == {()}
    view = await asked(await bank.agent("owned", owner=person("tomas")), await pay(bank, 500))
    for visitor, signs, barred in ((maya, (), ("Tomas",)), (await bank.person("tomas"), ("Maya",), ())):
        (entry,) = (await seen(bank, visitor, view)).gates
        assert (entry.could_sign, entry.barred) == (signs, barred)


async def test_a_large_group_is_counted(bank: World, robot: Agent, folder: Payments, maya: Visitor) -> None:
    many = tuple(f"https://id.example|p{n}@mail.example" for n in range(50))
    folder.people({"finance": ("maya", "tomas", "ingrid", "jonas", *many)})
    assert await bank.activate()
    view = await asked(robot, await pay(bank, 5_000))
    gates = (await seen(bank, maya, view)).gates
    assert [(gate.own_quorum, gate.quorum) for gate in gates] == [(1, 2), (2, 2)]
    page = await page_of(maya, view)
    assert "<b>large</b> requires 1 person of finance to approve." in page
    assert "<b>huge</b> requires 2 people of finance to approve." in page
    await voted(maya, view)
    ingrid = await bank.person("ingrid")
    gates = (await seen(bank, ingrid, view)).gates
    assert {(gate.could_sign, gate.could_sign_more) for gate in gates} == {(("Jonas", "Tomas"), 50)}
    assert "mail.example" not in await page_of(ingrid, view)


async def test_those_it_escalated_to_are_named(bank: World, robot: Agent, folder: Payments) -> None:
    folder.policies(ANYBODY + gate("slow", "finance", escalate="legal", answer_within="4h"))
    assert await bank.activate()
    view = await asked(robot, await pay(bank, 500))
    bank.clock.pass_(hours=2, seconds=1)
    await bank.sweep()
    (entry,) = (await seen(bank, await bank.person("maya"), view)).gates
    assert entry.could_sign == ("Ingrid", "Tomas")


async def test_whose_vote_can_move_is_named(
    bank: World, robot: Agent, folder: Payments, maya: Visitor
) -> None:
    folder.policies(ANYBODY + gate("a-finance", "finance") + gate("b-cfo", "cfo"))
    assert await bank.activate()
    view = await asked(robot, await pay(bank, 500))
    await voted(await bank.person("tomas"), view)
    stranger = await bank.person("stranger")
    finance, cfo = (await seen(bank, stranger, view)).gates
    assert (finance.have, finance.could_sign) == (1, ())
    assert (cfo.have, cfo.could_sign, cfo.also) == (0, ("Maya",), ("finance",))
    assert "Maya could sign." in await page_of(stranger, view)
    assert (await voted(maya, view))["state"] == "met"


# -------------------------------------------------------------------------- the whole transaction, the story, the proof


async def test_a_transaction_is_shown_whole(bank: World, robot: Agent, maya: Visitor) -> None:
    view = await asked(robot, await pay(bank, 500), await pay(bank, 501), await mail(bank, "<b>see me</b>"))
    page = await page_of(maya, view)
    assert "Approving this releases nothing yet: 1 more of its transaction waits for people." in page
    assert "Countersign and release" not in page
    assert view["txn_digest"][:4] + " " + view["txn_digest"][4:8] in page
    assert "501" in page and "<b>see me</b>" in page
    await voted(maya, view, effect=1)
    page = await page_of(maya, view)
    assert "Approving this releases all 3 effects of its transaction together" in page
    assert "Countersign and release" in page


async def test_the_story_says_how_and_under_which_rules(bank: World, robot: Agent, maya: Visitor) -> None:
    view = await asked(robot, await pay(bank, 500))
    await voted(maya, view)
    found = await seen(bank, maya, view)
    assert found.panel is not None and found.panel.proof is None
    told = {line.kind: (line.channel, line.commit) for line in found.timeline}
    assert told["effect_submitted"] == told["vote_recorded"] == ("api", "")
    assert told["decision_made"] == ("", bank.service.active.current.commit)
    page = await page_of(maya, view)
    for line in found.timeline:
        assert f'id="log-{line.line}"' in page and f'href="#log-{line.line}"' in page
    await fire(robot, await robot.see(view["txn"]))
    proof = (await beside(bank, maya, view)).proof
    assert proof is not None
    assert (proof.redeemer, proof.attempt_id) == ("robot", f"at-{view['txn'][:8]}")
    page = await page_of(maya, view)
    assert proof.jti and proof.jti in page and proof.attempt_id in page


# ---------------------------------------------------------------------------------------------------------- costs

# Statements of a review page, with its session and frame, what was written and what was proposed.
AT_MOST = 28


async def test_a_page_asks_no_more_however_much_there_was(bank: World, robot: Agent, maya: Visitor) -> None:
    await voted(maya, await asked(robot, await pay(bank, 300)))
    counts = []
    for more in (2, 10):
        for n in range(more):
            await asked(robot, await pay(bank, 400 + n))
        view = await asked(robot, await pay(bank, 500))
        await caught_up(bank)
        with queries(bank) as found:
            await page_of(maya, view)
        counts.append(len(found))
    assert counts[0] == counts[1] <= AT_MOST


@pytest.mark.parametrize("engine", SQLITE_IN_SHORT)
async def test_the_past_is_found_by_an_index(bank: World, robot: Agent, maya: Visitor) -> None:
    for n in range(3):
        await asked(robot, await pay(bank, n + 1))
    view = await asked(robot, await pay(bank, 500))
    with plans(bank) as found:
        await page_of(maya, view)
    assert scans(found) == []
    plan = "\n".join(line for line, statement in found if "asked_at" in statement)
    holds(plan, "ix_effects_kind", "ix_effects_resource")
