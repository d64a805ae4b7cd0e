"""The context panel of the review page: precedents, meters, who can sign, the whole transaction, costs."""

from __future__ import annotations

import itertools
from html import unescape
from typing import Any

import pytest

from policy_service.queries import context_panel
from policy_service.queries.context_panel import ContextPanel
from policy_service.queries.review_models import ReviewPage
from policy_service.queries.reviews import review_page
from policy_service.queries.vote_eligibility import voter_from_person
from tests.fakes.pages import holds
from tests.fakes.payments import ANYBODY, MAIL, gate, person
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.test_pages_of_reviews import caught_up, queries
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_plans import plans, scans

_runs = (f"run-{n}" for n in itertools.count())


async def seen(bank: Bank, visitor: Visitor, view: dict[str, Any]) -> ReviewPage:
    """The page of an effect's review, as its reader has it."""
    session = await bank.service.sessions.find(visitor.cookie)
    assert session is not None
    page = await review_page(bank.service.ctx, voter_from_person(session.person), review_of(view))
    assert page is not None
    return page


async def panel_of(bank: Bank, visitor: Visitor, view: dict[str, Any]) -> ContextPanel:
    found = (await seen(bank, visitor, view)).panel
    assert found is not None
    return found


async def last_of(bank: Bank, visitor: Visitor, view: dict[str, Any]) -> Any:
    """The effect that the panel compares with."""
    return (await panel_of(bank, visitor, view)).last


async def page_of(visitor: Visitor, view: dict[str, Any]) -> str:
    """The page of a review as a browser gets it, on one line."""
    answer = await visitor.get(f"/reviews/{review_of(view)}")
    assert answer.status_code == 200
    return " ".join(unescape(answer.text).split())


async def asked(robot: Agent, *effects: dict[str, Any], run: str = "") -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(*effects, run_key=run or next(_runs))).json()
    assert "effects" in view, view
    return view


async def voted(visitor: Visitor, view: dict[str, Any], verdict: str = "approve", **more: Any) -> Any:
    """The review after a vote that was taken."""
    answer = await visitor.vote(view, verdict, **more)
    assert answer.is_success, answer.text
    return answer.json()


async def fire(robot: Agent, view: dict[str, Any], outcome: str = "fired") -> None:
    attempt = f"at-{view['txn'][:8]}"
    await robot.spend(view, attempt)
    answer = await robot.report(attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome})
    assert answer.is_success, answer.text


# ------------------------------------------------------------------------------------------- the last approved one


async def test_it_is_compared_with_the_last_approved_one(bank: Bank, robot: Agent, maya: Visitor) -> None:
    await voted(maya, await asked(robot, await pay(bank, 300)), "deny", reason="no")
    await asked(robot, await pay(bank, 10))  # released, and not fired
    await asked(robot, await pay(bank, 300))  # waits
    await voted(maya, await asked(await bank.agent("other", roles=()), await pay(bank, 300)))
    await fire(robot, await asked(robot, await mail(bank)))
    assert await last_of(bank, maya, await asked(robot, await pay(bank, 500))) is None
    await fire(robot, await asked(robot, await pay(bank, 10)))
    first = await asked(robot, await pay(bank, 300))
    last = await last_of(bank, maya, first)  # fired without a review: approved by the policy
    assert (last.effect.state, last.effect.review_id, last.approved_by) == ("fired", None, ())
    await voted(maya, first)
    await voted(maya, await asked(robot, await pay(bank, 400)), "deny", reason="too much")
    for n in range(6):  # it is found behind many that were not approved
        await asked(robot, await pay(bank, 410 + n))
    second = await asked(robot, await pay(bank, 500))
    await voted(maya, await asked(robot, await pay(bank, 600)))
    await voted(maya, second)
    last = await last_of(bank, maya, second)  # what was before its effect, and none that came later
    assert [(row.name, row.value_json) for row in last.args] == [("account", '"acme"'), ("amount", "300")]
    assert (last.approved_by, last.effect.review_id) == (("Maya",), review_of(first))
    assert (await last_of(bank, maya, first)).effect.review_id is None


async def test_break_glass_is_not_an_approval(bank: Bank, robot: Agent) -> None:
    opens = 'permit (principal in Group::"legal", action == Action::"break_glass_alone", resource);'
    await bank.rules(f'@id("opens") {opens}')
    ingrid = await bank.person("ingrid")
    opened = await asked(robot, await pay(bank, 300))
    assert (await Holder(ingrid).break_glass(review_of(opened))).status_code == 303
    view = await asked(robot, await pay(bank, 500))
    last = await last_of(bank, ingrid, view)
    assert (last.approved_by, last.opened_by) == ((), ("Ingrid",))
    holds(await page_of(ingrid, view), "released by break-glass", without=["by the policy alone"])


# ------------------------------------------------------------------------------------------------------ precedents


async def test_precedents_show_their_outcome(bank: Bank, robot: Agent, maya: Visitor) -> None:
    await fire(robot, await asked(robot, await pay(bank, 10)))
    await fire(robot, await asked(robot, await pay(bank, 11)), "failed")
    denied = await asked(await bank.agent("other", roles=()), await pay(bank, 300))
    await voted(maya, denied, "deny", reason="not this account")
    await asked(robot, await pay(bank, 12, account="umbrella"))
    view = await asked(robot, await pay(bank, 500))
    found: Any = (await panel_of(bank, maya, view)).past
    assert dict(found.counts) == {"fired": 1, "failed": 1, "denied": 1}
    assert [(row.state, row.agent, row.by, row.reason) for row in found.rows] == [
        ("denied", "other", "Maya", "not this account"),
        ("failed", "robot", None, ""),
        ("fired", "robot", None, ""),
    ]
    holds(await page_of(maya, view), "3 like it in 30 days", f'href="/reviews/{review_of(denied)}"')


async def test_precedents_are_limited(
    bank: Bank, robot: Agent, maya: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = context_panel.MAX_SHOWN
    for n in range(most + 2):
        await asked(robot, await pay(bank, n + 1))
    view = await asked(robot, await pay(bank, 500))
    found: Any = (await panel_of(bank, maya, view)).past
    assert (len(found.rows), sum(found.counts.values()), found.capped) == (most, most + 2, False)
    monkeypatch.setattr(context_panel, "MAX_COUNTED", 3)
    found = (await panel_of(bank, maya, view)).past
    assert (sum(found.counts.values()), found.capped) == (3, True)
    # none is older, or of the transaction itself
    bank.clock.pass_(days=context_panel.PRECEDENT_DAYS, seconds=1)
    await asked(robot, await pay(bank, 300), run="again")
    again = await asked(robot, await pay(bank, 300), await pay(bank, 12), run="again")
    assert again["rev"] == 2
    assert (await panel_of(bank, await bank.person("maya"), again)).past is None


async def letters(bank: Bank, **manifest: Any) -> None:
    """Mails wait for finance, and have another manifest."""
    bank.folder.write("tools/mail.json", MAIL | manifest)
    await bank.rules(gate("letters", "finance", action="mail"))


async def test_same_recipients_are_found(bank: Bank, robot: Agent, maya: Visitor) -> None:
    await letters(bank, recipients=["/to"], resource={"type": "Account", "id": "/text"})
    first = await asked(robot, await mail(bank, "one"))
    await asked(robot, await call(bank, "mail", {"to": "somebody else", "text": "two"}))
    found: Any = (await panel_of(bank, maya, await asked(robot, await mail(bank, "three")))).past
    assert (found.to_recipients, [row.review_id for row in found.rows]) == (True, [review_of(first)])


SECRET = "hunter2-of-the-vault"
OPTIONAL_TEXT = MAIL["args"] | {"required": ["to"]}


async def test_a_secret_is_hidden_there_too(bank: Bank, robot: Agent, maya: Visitor) -> None:
    """Also one that was no secret when it was sent, and one that the new call leaves out."""
    await letters(bank, args=OPTIONAL_TEXT)
    then = await asked(robot, await mail(bank, SECRET))
    await voted(maya, then)
    assert SECRET in await page_of(maya, then)
    await letters(bank, args=OPTIONAL_TEXT, secret=["/text"])
    for new in ({"text": f"{SECRET}-new"}, {}):
        page = await page_of(maya, await asked(robot, await call(bank, "mail", {"to": "acme", **new})))
        holds(page, "Compared with", "Hidden values, not compared: <code>text</code>", without=[SECRET])
    page = await page_of(maya, await asked(robot, await pay(bank, 500), await mail(bank, SECRET)))
    holds(page, "hidden value, 20 bytes", without=[SECRET])


async def test_a_tool_that_is_gone_is_hidden(bank: Bank, robot: Agent, maya: Visitor) -> None:
    await letters(bank)
    await voted(maya, await asked(robot, await mail(bank, SECRET)))
    now = await asked(robot, await mail(bank, SECRET))
    (bank.folder.path / "tools/mail.json").unlink()
    await bank.rules()
    last = await last_of(bank, maya, now)
    assert last.args and all(row.secret for row in last.args)


# ----------------------------------------------------------------------------------------------------- who can sign


async def test_an_open_line_names_who_could_sign_it(bank: Bank, robot: Agent, maya: Visitor) -> None:
    view = await asked(robot, await pay(bank, 500))
    assert "You or Tomas" in await page_of(maya, view)
    assert "Maya or Tomas could sign." in await page_of(await bank.person("stranger"), view)
    await voted(maya, view)
    assert {gate.could_sign for gate in (await seen(bank, maya, view)).gates} == {()}
    view = await asked(await bank.agent("owned", owner=person("tomas")), await pay(bank, 500))
    for visitor, signs, barred in ((maya, (), ("Tomas",)), (await bank.person("tomas"), ("Maya",), ())):
        (entry,) = (await seen(bank, visitor, view)).gates
        assert (entry.could_sign, entry.barred) == (signs, barred)
    await bank.policies(ANYBODY + gate("slow", "finance", escalate="legal", answer_within="4h"))
    view = await asked(robot, await pay(bank, 500))
    bank.clock.pass_(hours=2, seconds=1)
    await bank.sweep()  # it escalates
    (entry,) = (await seen(bank, await bank.person("maya"), view)).gates
    assert entry.could_sign == ("Ingrid", "Tomas")


async def test_a_large_group_is_counted(bank: Bank, robot: Agent, maya: Visitor) -> None:
    many = tuple(f"https://id.example|p{n}@mail.example" for n in range(50))
    await bank.people({"finance": ("maya", "tomas", "ingrid", "jonas", *many)})
    view = await asked(robot, await pay(bank, 5_000))
    gates = (await seen(bank, maya, view)).gates
    assert [(gate.own_quorum, gate.quorum) for gate in gates] == [(1, 2), (2, 2)]
    page = await page_of(maya, view)
    holds(page, "<b>large</b> requires 1 person of finance", "<b>huge</b> requires 2 people of finance")
    await voted(maya, view)
    ingrid = await bank.person("ingrid")
    gates = (await seen(bank, ingrid, view)).gates
    assert {(gate.could_sign, gate.could_sign_more) for gate in gates} == {(("Jonas", "Tomas"), 50)}
    assert "mail.example" not in await page_of(ingrid, view)


async def test_whose_vote_can_move_is_named(bank: Bank, robot: Agent, maya: Visitor) -> None:
    await bank.policies(ANYBODY + gate("a-finance", "finance") + gate("b-cfo", "cfo"))
    view = await asked(robot, await pay(bank, 500))
    await voted(await bank.person("tomas"), view)
    stranger = await bank.person("stranger")
    finance, cfo = (await seen(bank, stranger, view)).gates
    assert (finance.have, finance.could_sign) == (1, ())
    assert (cfo.have, cfo.could_sign, cfo.also) == (0, ("Maya",), ("finance",))
    assert "Maya could sign." in await page_of(stranger, view)
    assert (await voted(maya, view))["state"] == "met"


# -------------------------------------------------------------------- the whole transaction, the timeline, the proof


async def test_a_transaction_is_shown_whole(bank: Bank, robot: Agent, maya: Visitor) -> None:
    view = await asked(robot, await pay(bank, 500), await pay(bank, 501), await mail(bank, "<b>see me</b>"))
    digest = view["txn_digest"][:4] + " " + view["txn_digest"][4:8]
    page = await page_of(maya, view)
    holds(page, "releases nothing yet", digest, "501", "<b>see me</b>", without=["Countersign and release"])
    await voted(maya, view, effect=1)
    holds(await page_of(maya, view), "releases all 3 effects", "Countersign and release")


async def test_the_story_says_how_and_under_which_rules(bank: Bank, robot: Agent, maya: Visitor) -> None:
    view = await asked(robot, await pay(bank, 500))
    await voted(maya, view)
    found = await seen(bank, maya, view)
    assert found.panel is not None and found.panel.proof is None
    lines = {line.kind: (line.channel, line.commit) for line in found.timeline}
    assert lines["effect_submitted"] == lines["vote_recorded"] == ("api", "")
    assert lines["decision_made"] == ("", bank.service.active.current.commit)
    page = await page_of(maya, view)
    for line in found.timeline:
        holds(page, f'id="log-{line.line}"', f'href="#log-{line.line}"')
    await fire(robot, await robot.see(view["txn"]))
    proof: Any = (await panel_of(bank, maya, view)).proof
    assert (proof.redeemer, proof.attempt_id) == ("robot", f"at-{view['txn'][:8]}")
    holds(await page_of(maya, view), proof.jti, proof.attempt_id)


# Statements of a review page, with its session and frame, what was written and what was proposed.
AT_MOST = 28


async def test_a_page_asks_no_more_however_much_there_was(bank: Bank, robot: Agent, maya: Visitor) -> None:
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
async def test_the_past_is_found_by_an_index(bank: Bank, robot: Agent, maya: Visitor) -> None:
    for n in range(3):
        await asked(robot, await pay(bank, n + 1))
    view = await asked(robot, await pay(bank, 500))
    with plans(bank) as found:
        await page_of(maya, view)
    assert scans(found) == []
    plan = "\n".join(line for line, statement in found if "asked_at" in statement)
    holds(plan, "ix_effects_kind", "ix_effects_resource")
