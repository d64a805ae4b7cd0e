"""Revocations end what was permitted, also during a request; freezes block it for a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from sqlalchemy import update
from sqlmodel import col

from policy_service.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ServiceError,
    UnauthenticatedError,
)
from policy_service.identity.agents import Caller
from policy_service.queries.queue import QueueFilter, queue_page
from policy_service.queries.stops import Target
from policy_service.storage.core import table
from policy_service.storage.tables import DecisionRow
from policy_service.workflow.edits.proposals import ProposalRequest, accept, decline, propose
from policy_service.workflow.releases import compensate, redeem, renew, submit
from policy_service.workflow.reviews import vote
from policy_service.workflow.reviews.comment import CommentDraft, comment
from policy_service.workflow.reviews.comment import answer as answer_question
from policy_service.workflow.revocation.stops_by_people import start_again, stop
from tests.fakes.payments import gate, person
from tests.fakes.world import Agent, Visitor, stamp
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import review_of
from tests.integration.service.together.bank import Bank, refusal, voter
from tests.integration.service.together.test_outcomes import fired, redeemed, report_outcomes, undone
from tests.integration.service.together.test_redemption import renewed

WHY = {"reason": "the card was stolen"}


async def ready(bank: Bank, robot: Agent | None = None, **members: Any) -> dict[str, Any]:
    robot = robot or bank.robot
    view: dict[str, Any] = (await robot.submit(await pay(bank), await mail(bank), **members)).json()
    assert view["state"] == "ready"
    return view


async def test_a_released_effect_is_revoked_with_its_transaction(bank: Bank) -> None:
    view = await ready(bank)
    tokens = await bank.tokens(view)
    done = await bank.operator("revoke-effect", {"effect_id": view["effects"][1]["effect_id"], **WHY})
    assert done == {"txn": view["txn"]}
    assert await bank.states(view) == ["ended", "withdrawn", "revoked"]
    assert refusal(await bank.robot.redeem(tokens)) == (409, "not_ready")
    assert (await bank.robot.release(view)).status_code == 409
    log = [body for kind, body in await bank.log(view["txn"]) if kind == "effect_revoked"]
    assert [(body["from"], body["reason"]) for body in log] == [("released", WHY["reason"])]


async def test_a_waiting_effect_is_revoked_and_its_review_with_it(bank: Bank) -> None:
    view = await bank.asks()
    await bank.operator("revoke-transaction", {"txn": view["txn"], **WHY})
    assert await bank.states(view) == ["ended", "revoked"]
    late = (await bank.maya.vote(view)).json()
    assert (late["state"], [vote["counted"] for vote in late["votes"]]) == ("revoked", [False])
    assert await bank.states(view) == ["ended", "revoked"]


async def test_a_redeemed_effect_cannot_be_revoked(bank: Bank) -> None:
    view = await ready(bank)
    await bank.robot.spend(view)
    effect, txn = {"effect_id": view["effects"][0]["effect_id"]}, {"txn": view["txn"]}
    for verb, args in (("revoke-effect", effect), ("revoke-transaction", txn)):
        with pytest.raises(ConflictError, match="redeemed"):
            await bank.operator(verb, args | WHY)
    assert not (await bank.operator("revoke-transaction-if-open", txn | WHY))["ended"]
    assert (await bank.states(view))[0] == "redeemed"


async def test_revoking_an_unknown_target_is_refused(bank: Bank) -> None:
    for verb, args in (
        ("revoke-effect", {"effect_id": "0" * 64}),
        ("revoke-transaction", {"txn": "0" * 64}),
        ("revoke-transaction-if-open", {"txn": "0" * 64}),
        ("revoke-effect-if-open", {"effect_id": "0" * 64}),
        ("revoke-agent", {"agent": "unknown"}),
        ("revoke-commit", {"commit": "never"}),
        ("reinstate-approver", {"person": person("jonas")}),
    ):
        with pytest.raises(NotFoundError):
            await bank.operator(verb, args | WHY)
    for slip in ("maya", "|maya", "https://idp.example|", ""):
        with pytest.raises(ServiceError, match="is not a person"):
            await bank.operator("revoke-approver", {"person": slip, **WHY})
    for tool in ("", "two words", "x" * 201, "a\nb"):
        with pytest.raises(ServiceError, match="cannot be a tool"):
            await bank.operator("stop", {"tool": tool, **WHY})


async def test_revoking_an_agent_ends_its_keys_and_open_transactions(bank: Bank) -> None:
    other = await bank.other_agent("friend")
    gone, stays = await ready(bank), await ready(bank, other)
    spent = (await bank.robot.submit(await mail(bank), run_key="spent", attempt_id="spent")).json()
    done = await bank.operator("revoke-agent", {"agent": bank.robot.name, **WHY})
    assert done["open"] == [gone["txn"]]
    assert (await bank.robot.submit(await mail(bank), run_key="next")).status_code == 401
    for txn in done["open"]:
        assert (await bank.operator("revoke-transaction-if-open", {"txn": txn, **WHY}))["ended"]
    back = await bank.another_key(bank.robot)
    assert await bank.states(gone, back) == ["ended", "revoked", "withdrawn"]
    assert (await bank.states(spent, back))[0] == "redeemed"
    assert (await back.submit(await mail(bank), run_key="next")).json()["code"] == "frozen"
    assert (await bank.states(stays, other))[0] == "ready"


async def test_a_revoked_approver_decides_nothing(bank: Bank) -> None:
    by_maya, by_both = await bank.asks(run_key="a"), await bank.asks(5_000, run_key="b")
    for view in (by_maya, by_both):
        assert (await bank.maya.vote(view)).json()["votes"][0]["counted"]
    tokens = await bank.tokens(by_maya)
    done = await bank.operator("revoke-approver", {"person": person("maya"), **WHY})
    try:
        assert done["votes"] >= 2
        assert (await bank.robot.redeem(tokens)).json()["redeemed"] is False
        assert await bank.states(by_maya) == ["review", "review"]
        assert (await bank.maya.vote(by_maya)).status_code == 401, "her session ended"
        with pytest.raises(AssertionError, match="taken you out"):
            await bank.person("maya")
        assert (await bank.tomas.vote(by_both)).json()["state"] == "open", "hers was one of the two"
        assert (await bank.tomas.vote(by_maya)).json()["state"] == "met", "others decide as before"
    finally:
        await bank.operator("reinstate-approver", {"person": person("maya")})
    answer = (await (await bank.person("maya")).vote(by_both)).json()
    assert answer["state"] == "met", "a new word of hers counts"
    assert [vote["counted"] for vote in answer["votes"]] == [False, True, True], "the old one stays out"


async def test_a_revoked_person_is_refused_at_their_first_sign_in(bank: Bank) -> None:
    """A revocation lost in a restore is repeated before they return, and a person can be barred in advance."""
    for name in ("never-here", "auth0|5f7c"):
        who = {"person": person(name)}
        for known in (False, True):  # safe to repeat
            done = await bank.operator("revoke-approver", {**who, **WHY})
            assert (done["votes"], done["known"]) == (0, known)
        with pytest.raises(AssertionError, match="taken you out"):
            await bank.person(name)
        listed = {one["person"]: one["revoked"] for one in await bank.operator("people-list", {})}
        assert listed[who["person"]] is True
        await bank.operator("reinstate-approver", who)
        await bank.person(name)


async def test_a_compensation_approved_only_by_a_revoked_person_returns_to_review(bank: Bank) -> None:
    text = (bank.folder.path / "tools/pay.json").read_text()
    bank.folder.write("tools/pay.json", text.replace("result:/id", "args:/account"))
    await bank.rules(gate("u", "finance", action="unpay"))
    view = await fired(bank, bank.robot, amount=500, approve=True)
    async with bank.revoked("maya"):
        pass
    assert (await undone(bank.robot, view)).json()["effect"]["state"] == "review"


async def test_revoking_a_commit_ends_the_effects_it_decided(bank: Bank) -> None:
    before, other = await ready(bank, run_key="before"), await ready(bank, run_key="other")
    view = await fired(bank, bank.robot)
    undo = (await undone(bank.robot, view)).json()
    commit = before["effects"][0]["decision"]["commit"]
    decided = [effect["decision"]["decision_id"] for effect in other["effects"]]
    rows = update(table(DecisionRow)).where(col(DecisionRow.decision_id).in_(decided))
    await bank.service.db.write(lambda tx: tx.conn.execute(rows.values(commit="another")).rowcount)
    open_ones = (await bank.operator("revoke-commit", {"commit": commit, **WHY}))["open"]
    assert {effect["effect_id"] for effect in [*before["effects"], undo["effect"]]} <= set(open_ones)
    assert not {effect["effect_id"] for effect in other["effects"]} & set(open_ones)
    ended = [await if_open(bank, effect["effect_id"]) for effect in before["effects"]]
    assert ended == [True, False], "the second ended with the first"
    for effect_id in open_ones:
        await if_open(bank, effect_id)
    assert (await bank.states(before))[0] == "ended"
    assert (await bank.robot.redeem([undo["release"]], f"{bank.robot.name}-undo")).status_code == 409
    assert await bank.maya.task(view, "compensation_failed")
    assert (await bank.operator("revoke-commit", {"commit": commit, **WHY}))["open"] == []
    # git's name is unknown where the bundle's folder is no repository, as in a container
    with pytest.raises(NotFoundError, match=rf"Recent commits: .*{commit}"):
        await bank.operator("revoke-commit", {"commit": "8e1f" * 10, **WHY})


async def if_open(bank: Bank, effect_id: str) -> bool:
    done: dict[str, bool] = await bank.operator("revoke-effect-if-open", {"effect_id": effect_id, **WHY})
    return done["ended"]


async def test_an_emergency_stop_blocks_compensations(bank: Bank) -> None:
    view = await fired(bank, bank.robot)
    for tool in ("unpay", None):
        await bank.operator("stop", {"tool": tool, **WHY})
        refused = await undone(bank.robot, view)
        await bank.operator("go-on", {"tool": tool})
        assert refusal(refused) == (403, "frozen")
        assert (await bank.states(view))[1] == "fired"
    assert (await undone(bank.robot, view)).json()["release"] is not None


@pytest.mark.parametrize("what", ["tool pay", "everything", "agent"])
async def test_a_stop_or_freeze_blocks_every_step_until_it_ends(bank: Bank, what: str) -> None:
    robot, named = bank.robot, f"agent {bank.robot.name}" if what == "agent" else what
    args: dict[str, Any] = {"tool": "pay" if what == "tool pay" else None}
    verb, end = ("stop", "go-on")
    if what == "agent":
        verb, end, args = "freeze", "unfreeze", {"agent": robot.name}
    waits, held = await bank.asks(run_key="a"), await ready(bank, run_key="b")
    tokens = await bank.tokens(held)
    effect_ids = await redeemed(robot, await pay(bank), await mail(bank), run_key="c")
    await report_outcomes(robot, (effect_ids[1], "unused"))

    async def asked() -> list[Any]:
        renew = f"/v1/redemptions/{robot.attempt}/renew"
        return [
            await robot.submit(await pay(bank), run_key="d"),
            await robot.release(held),
            await robot.redeem(tokens, robot.attempt + "-2"),
            await robot.send("POST", renew, {"effect_ids": effect_ids[:1]}),
        ]

    began = [await bank.operator(verb, args | WHY) for _ in range(2)]
    try:
        answers = await asked()
        assert [refusal(one) for one in answers] == [(403, "frozen")] * 4
        assert all(f"policy-service unfreeze {named}" in one.json()["detail"] for one in answers)
        assert (await bank.tomas.vote(waits)).json()["state"] == "met", "people may go on deciding"
        mailed = await robot.submit(await mail(bank), run_key="e")
        assert mailed.status_code == (201 if what == "tool pay" else 403), "another tool goes on"
        if what != "everything":
            paid = await (await bank.other_agent()).submit(await pay(bank))
            assert paid.status_code == (201 if what == "agent" else 403), "another agent goes on"
    finally:
        ended = [await bank.operator(end, args) for _ in range(2)]
    assert all(one.is_success for one in await asked())
    if what == "agent":
        rows = await bank.audited("agent_frozen", "agent_unfrozen")
        lines = [(kind, body) for kind, body in rows if body["agent"] == robot.name]
        assert lines == [("agent_frozen", args | WHY), ("agent_unfrozen", args)]
    else:
        assert [one["began"] for one in began] == [one["ended"] for one in ended] == [True, False]


# -- Revocations during a request: a vote or redemption that began before does nothing after

LESS = {"account": "acme", "amount": 300}


class Paused:
    """The look-up of facts in one module, which takes as long as somebody's database takes."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self._look_up = module.gather_facts
        self._go, self.begun = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(module, "gather_facts", self._later)

    async def _later(self, *given: Any) -> Any:
        self.begun.set()
        await self._go.wait()
        return await self._look_up(*given)

    async def until(self, asked: Awaitable[httpx2.Response], meanwhile: Awaitable[Any]) -> httpx2.Response:
        """The answer to a request during whose look-up something else happened."""
        answer = asyncio.ensure_future(asked)
        await self.begun.wait()
        await meanwhile
        self._go.set()
        return await answer


async def held_open(
    visitor: Visitor, path: str, said: dict[str, Any], meanwhile: Awaitable[Any], *, form: bool
) -> httpx2.Response:
    """The response to a request, by API or form, whose last byte is sent after something else happened."""
    raw, headers = json.dumps(said).encode(), visitor.headers()
    if form:
        raw = urlencode({"csrf_token": visitor.csrf, **said}).encode()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    go, begun = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield raw[:-1]
        begun.set()
        await go.wait()
        yield raw[-1:]

    url = path if form else f"/v1{path}"
    asked = asyncio.create_task(visitor.http.post(url, content=body(), headers=headers))
    await begun.wait()
    await meanwhile
    go.set()
    return await asked


@pytest.mark.parametrize("form", [False, True])
async def test_a_vote_or_settlement_completed_after_a_revocation_is_refused(bank: Bank, form: bool) -> None:
    view = await bank.asks()
    path, ballot = f"/reviews/{review_of(view)}/votes", {"verdict": "approve", **stamp(view)}
    gone = await bank.person(f"{bank.robot.name}-gone")
    revoking = bank.operator("revoke-approver", {"person": person(gone.sub), **WHY})
    assert (await held_open(gone, path, ballot, revoking, form=form)).status_code == 401
    leaving = bank.service.sessions.sign_out(bank.maya.cookie)
    assert (await held_open(bank.maya, path, ballot, leaving, form=form)).status_code == 401
    assert (await bank.states(view))[0] == "review"
    spent = await bank.asks(10, run_key="spent", attempt_id=bank.robot.attempt)
    await report_outcomes(bank.robot, (spent["effects"][0]["effect_id"], "unknown"))
    task = await bank.tomas.task(spent, "unknown")
    read = {"effect_digest": task["effect"]["effect_digest"], "effect_state": "unknown"}
    word = {"answer": "not_fired", "reason": "I asked", **read}
    path = f"/tasks/{task['task']['task_id']}/settle"
    leaving = bank.service.sessions.sign_out(bank.tomas.cookie)
    assert (await held_open(bank.tomas, path, word, leaving, form=form)).status_code == 401
    assert (await bank.states(spent))[1] == "unknown"


async def test_a_vote_of_a_person_revoked_meanwhile(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    view = await bank.asks()
    revoking = bank.operator("revoke-approver", {"person": person("maya"), **WHY})
    answer = await Paused(vote, monkeypatch).until(bank.maya.vote(view), revoking)
    await bank.operator("reinstate-approver", {"person": person("maya")})
    assert refusal(answer) == (403, "not_eligible")
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["review"]["state"]) == ("review", "open")


@pytest.mark.parametrize("verb", ["agent-key-revoke", "revoke-agent"])
async def test_a_key_revoked_meanwhile_redeems_nothing(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    view, tokens = await bank.released(await pay(bank))
    revoked = {"kid": bank.robot.key.public.kid} if verb == "agent-key-revoke" else {"agent": bank.robot.name}
    revoking = bank.operator(verb, revoked | WHY)
    answer = await Paused(redeem, monkeypatch).until(bank.robot.redeem(tokens), revoking)
    assert answer.status_code in {401, 403}
    assert [kind for kind, _ in await bank.log(view["txn"]) if kind == "effect_redeemed"] == []


async def test_a_key_revoked_meanwhile_is_refused(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    view, attempt = await fired(bank, bank.robot), f"{bank.robot.name}-b"
    running = await bank.asks(11, run_key="still-running", attempt_id=attempt)
    assert running["state"] == "redeemed"

    async def begun(module: ModuleType, asked: Callable[[Agent], Awaitable[httpx2.Response]]) -> int:
        with monkeypatch.context() as patched:
            key = await bank.another_key(bank.robot)
            await key.see(view["txn"])  # it knows a nonce
            revoking = bank.operator("agent-key-revoke", {"kid": key.key.public.kid})
            return (await Paused(module, patched).until(asked(key), revoking)).status_code

    new, effect_id = await pay(bank, 12), running["effects"][0]["effect_id"]
    assert await begun(submit, lambda key: key.submit(new, run_key="new")) == 401
    assert await begun(renew, lambda key: renewed(key, effect_id, attempt_id=attempt)) == 401
    assert await begun(compensate, lambda key: undone(key, view)) == 401
    assert (await bank.states(view))[1] == "fired"


async def test_a_unit_refuses_a_person_revoked_meanwhile(bank: Bank) -> None:
    """A request that was admitted and reaches its unit of work after the revocation is refused there."""
    owned = await bank.other_agent("owned", owner=person("jonas"))
    view, other = await bank.asks(), await bank.asks(robot=owned)
    theirs, of_owned = await bank.maya.proposed(view, LESS), await bank.maya.proposed(other, LESS)
    review_id, ctx = review_of(view), bank.service.ctx
    maya, jonas, everything = voter("maya"), voter("jonas"), Target("everything")
    before = [kind for kind, _ in await bank.log(view["txn"])]
    async with bank.revoked("maya", "jonas"):
        for word in (
            propose(
                ctx, maya, ProposalRequest(review_id, **stamp(view), args=LESS, reason="less", channel="api")
            ),
            comment(ctx, maya, CommentDraft(review_id, "look", question=False, channel="api")),
            comment(ctx, maya, CommentDraft(review_id, "why?", question=True, channel="api")),
            decline(ctx, maya, theirs, None),
            stop(ctx, maya, everything, "it goes out twice"),
            start_again(ctx, maya, everything, "fixed"),
            accept(ctx, jonas, of_owned),
            decline(ctx, jonas, of_owned, "no"),
        ):
            with pytest.raises(ForbiddenError, match="taken you out of its decisions"):
                await word
        assert [kind for kind, _ in await bank.log(view["txn"])] == before
        assert (await bank.asks(5, run_key="goes-on"))["state"] == "ready"
    assert (await owned.see(other["txn"]))["rev"] == 1


async def test_a_revoked_key_cannot_answer_a_question(bank: Bank) -> None:
    view = await bank.asks()
    theirs = await bank.maya.proposed(view, LESS)
    review_id, ctx = review_of(view), bank.service.ctx
    await comment(ctx, voter("maya"), CommentDraft(review_id, "why?", question=True, channel="api"))
    question = (await bank.maya.get(f"/v1/reviews/{review_id}")).json()["comments"][0]["comment_id"]
    key = await bank.another_key(bank.robot)
    await bank.operator("agent-key-revoke", {"kid": key.key.public.kid})
    caller = Caller(bank.robot.name, key.key.public.kid)
    for verb in (
        accept(ctx, caller, theirs),
        decline(ctx, caller, theirs, "no"),
        answer_question(ctx, caller, review_id, question, "because"),
    ):
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            await verb
    seen = await bank.robot.see(view["txn"])
    assert (seen["rev"], [one["state"] for one in seen["effects"][0]["review"]["proposals"]]) == (1, ["open"])


async def test_after_a_revocation_and_a_reinstatement_a_new_vote_counts(bank: Bank) -> None:
    view = await bank.asks(5_000)
    await bank.maya.vote(view)
    async with bank.revoked("maya"):
        pass
    again, review_id = await bank.person("maya"), review_of(view)
    queue = await queue_page(bank.service.ctx, voter("maya"), QueueFilter(), None, 200)
    assert review_id in {row.review_id for row in queue.rows if row.can_vote}, "she is asked"
    assert "You approved this" not in (await again.get(f"/reviews/{review_id}")).text
    answer = (await again.vote(view)).json()
    assert [vote["counted"] for vote in answer["votes"]] == [False, True]
    assert (await again.vote(view)).json()["votes"] == answer["votes"], "the same vote again is the same vote"
    assert (await bank.tomas.vote(view)).json()["state"] == "met"
