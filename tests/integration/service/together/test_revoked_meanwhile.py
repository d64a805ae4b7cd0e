"""Revocations during a request: a vote or redemption that began before does nothing after."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from policy_service.errors import ForbiddenError, UnauthenticatedError
from policy_service.identity.agents import Caller
from policy_service.queries.queue import QueueFilter, queue_page
from policy_service.queries.stops import Target
from policy_service.workflow.edits.proposals import ProposalRequest, accept, decline, propose
from policy_service.workflow.releases import compensate, redeem, renew, submit
from policy_service.workflow.reviews import vote
from policy_service.workflow.reviews.comment import CommentDraft, comment
from policy_service.workflow.reviews.comment import answer as answer_question
from policy_service.workflow.revocation.stops_by_people import start_again, stop
from tests.fakes.payments import person
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import review_of
from tests.integration.service.together.bank import Bank, refusal, voter
from tests.integration.service.together.test_compensation import fired, undone
from tests.integration.service.together.test_outcomes import report_outcomes
from tests.integration.service.together.test_renewal import renewed

pytestmark = pytest.mark.anyio

WHY = {"reason": "a stolen laptop"}

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

    asked = asyncio.create_task(
        visitor.http.post(path if form else f"/v1{path}", content=body(), headers=headers)
    )
    await begun.wait()
    await meanwhile
    go.set()
    return await asked


@pytest.mark.parametrize("form", [False, True])
async def test_a_vote_or_settlement_completed_after_a_revocation_is_refused(bank: Bank, form: bool) -> None:
    view = await bank.asks()
    seen = view["effects"][0]
    path = f"/reviews/{seen['review']['review_id']}/votes"
    ballot = {"verdict": "approve", "rev": view["rev"], "effect_digest": seen["effect_digest"],
              "txn_digest": view["txn_digest"]}  # fmt: skip
    gone = await bank.person(f"{bank.robot.name}-gone")
    revoking = bank.operator("revoke-approver", {"person": person(gone.sub), **WHY})
    assert (await held_open(gone, path, ballot, revoking, form=form)).status_code == 401
    leaving = bank.service.sessions.sign_out(bank.maya.cookie)
    assert (await held_open(bank.maya, path, ballot, leaving, form=form)).status_code == 401
    assert (await bank.states(view))[0] == "review"
    spent = await bank.asks(10, run_key="spent", attempt_id=bank.robot.attempt)
    await report_outcomes(bank.robot, (spent["effects"][0]["effect_id"], "unknown"))
    task = await bank.tomas.task(spent, "unknown")
    word = {"answer": "not_fired", "effect_digest": task["effect"]["effect_digest"], "effect_state": "unknown",
            "reason": "I asked"}  # fmt: skip
    path, leaving = (
        f"/tasks/{task['task']['task_id']}/settle",
        bank.service.sessions.sign_out(bank.tomas.cookie),
    )
    assert (await held_open(bank.tomas, path, word, leaving, form=form)).status_code == 401
    assert (await bank.states(spent))[1] == "unknown"


async def test_a_vote_of_a_person_revoked_meanwhile_does_not_count(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await bank.asks()
    revoking = bank.operator("revoke-approver", {"person": person("maya"), **WHY})
    answer = await Paused(vote, monkeypatch).until(bank.maya.vote(view), revoking)
    await bank.operator("reinstate-approver", {"person": person("maya")})
    assert refusal(answer) == (403, "not_eligible")
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["review"]["state"]) == ("review", "open")


@pytest.mark.parametrize("verb", ["agent-key-revoke", "revoke-agent"])
async def test_a_key_revoked_while_facts_are_gathered_redeems_nothing(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    view, tokens = await bank.released(await pay(bank))
    revoked = {"kid": bank.robot.key.public.kid} if verb == "agent-key-revoke" else {"agent": bank.robot.name}
    revoking = bank.operator(verb, revoked | WHY)
    answer = await Paused(redeem, monkeypatch).until(bank.robot.redeem(tokens), revoking)
    assert answer.status_code in {401, 403}
    assert [kind for kind, _ in await bank.log(view["txn"]) if kind == "effect_redeemed"] == []


async def test_a_key_revoked_meanwhile_does_not_submit_renew_or_compensate(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    owned = await bank.agent(f"{bank.robot.name}-owned", owner=person("jonas"))
    view, other = await bank.asks(), await bank.asks(robot=owned)
    theirs, of_owned = await bank.maya.proposed(view, LESS), await bank.maya.proposed(other, LESS)
    seen, review_id, ctx = view["effects"][0], review_of(view), bank.service.ctx
    stamp = (view["rev"], seen["effect_digest"], view["txn_digest"])
    maya, jonas, everything = voter("maya"), voter("jonas"), Target("everything")
    before = [kind for kind, _ in await bank.log(view["txn"])]
    async with bank.revoked("maya", "jonas"):
        for word in (
            propose(ctx, maya, ProposalRequest(review_id, *stamp, LESS, "less", "api")),
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
