"""Revoked while it was on its way: a word or a redemption that began before a revocation does nothing after it."""

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
from policy_service.identity.callers import Caller
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.workflow.context import Context
from policy_service.workflow.edits.accept import accept
from policy_service.workflow.edits.decline import decline
from policy_service.workflow.edits.propose import Proposed, propose
from policy_service.workflow.effects import submit
from policy_service.workflow.oversight.stopping import Target, start_again, stop
from policy_service.workflow.pages.queue import queue_page
from policy_service.workflow.reading.queue import Wanted
from policy_service.workflow.releases import compensate, redeem, renew
from policy_service.workflow.reviews import vote
from policy_service.workflow.reviews.answer import answer as answer_question
from policy_service.workflow.reviews.comment import Remark, comment
from policy_service.workflow.reviews.voter import Voter
from tests.fakes.payments import person
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_compensation import fired, undone
from tests.integration.service.together.test_outcomes import told
from tests.integration.service.together.test_renewal import renewed
from tests.integration.service.together.test_renewal import spent as spent_at_once

pytestmark = pytest.mark.anyio
WHY = {"reason": "a stolen laptop"}
MAYA = Voter(DEV_ISSUER, "maya", "Maya", "dev")


class Held:
    """A body whose last byte comes when it is let go."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._go = asyncio.Event()
        self.begun = asyncio.Event()

    def let_go(self) -> None:
        self._go.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body[:-1]
        self.begun.set()
        await self._go.wait()
        yield self._body[-1:]


def ballot(view: dict[str, Any]) -> dict[str, Any]:
    seen = view["effects"][0]
    return {
        "verdict": "approve",
        "rev": view["rev"],
        "effect_digest": seen["effect_digest"],
        "txn_digest": view["txn_digest"],
    }


def by_api(visitor: Visitor, view: dict[str, Any]) -> tuple[str, bytes, dict[str, str]]:
    path = f"/v1/reviews/{view['effects'][0]['review']['review_id']}/votes"
    return path, json.dumps(ballot(view)).encode(), visitor.headers()


def by_form(visitor: Visitor, view: dict[str, Any]) -> tuple[str, bytes, dict[str, str]]:
    path = f"/reviews/{view['effects'][0]['review']['review_id']}/votes"
    form = {"csrf_token": visitor.csrf, **ballot(view)}
    return path, urlencode(form).encode(), visitor.headers() | {"Content-Type": _FORM}


def by_settling(visitor: Visitor, task: dict[str, Any]) -> tuple[str, bytes, dict[str, str]]:
    word = {
        "answer": "not_fired",
        "effect_digest": task["effect"]["effect_digest"],
        "effect_state": task["effect"]["state"],
        "reason": "I asked",
    }
    return f"/v1/tasks/{task['task']['task_id']}/settle", json.dumps(word).encode(), visitor.headers()


def by_settling_form(visitor: Visitor, task: dict[str, Any]) -> tuple[str, bytes, dict[str, str]]:
    path, word, _ = by_settling(visitor, task)
    form = {"csrf_token": visitor.csrf, **json.loads(word)}
    headers = visitor.headers() | {"Content-Type": _FORM}
    return path.removeprefix("/v1"), urlencode(form).encode(), headers


_FORM = "application/x-www-form-urlencoded"


async def _held_open(
    bank: Bank, sent: tuple[str, bytes, dict[str, str]], meanwhile: Callable[[], Awaitable[Any]]
) -> httpx2.Response:
    """What is answered to a request whose last byte is sent after something else happened."""
    path, raw, headers = sent
    body = Held(raw)
    asked = asyncio.create_task(bank.http.post(path, content=body, headers=headers))
    await body.begun.wait()
    await meanwhile()
    body.let_go()
    return await asked


@pytest.mark.parametrize("sent", [by_api, by_form])
@pytest.mark.parametrize("ends", ["revoked", "signed out"])
async def test_a_ballot_whose_last_byte_comes_later_is_cast_by_nobody(
    bank: Bank, sent: Callable[..., Any], ends: str
) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    who = await bank.person(f"{bank.robot.name}-{ends}")

    async def meanwhile() -> None:
        if ends == "revoked":
            await bank.operator("revoke-approver", {"person": person(who.sub), **WHY})
        else:
            await bank.service.sessions.sign_out(who.cookie)

    answer = await _held_open(bank, sent(who, view), meanwhile)
    assert answer.status_code == 401
    assert (await bank.robot.see(view["txn"]))["state"] == "review"


@pytest.mark.parametrize("sent", [by_settling, by_settling_form])
async def test_a_settlement_whose_last_byte_comes_later_settles_nothing(
    bank: Bank, sent: Callable[..., Any]
) -> None:
    view = await spent_at_once(bank.robot, await pay(bank))
    await told(bank.robot, (view["effects"][0]["effect_id"], "unknown"))
    tomas = bank.tomas
    task = await tomas.task(view, "unknown")
    answer = await _held_open(bank, sent(tomas, task), lambda: bank.service.sessions.sign_out(tomas.cookie))
    assert answer.status_code == 401
    assert (await bank.robot.see(view["txn"]))["effects"][0]["state"] == "unknown"


class Paused:
    """The look-up of facts in one module, which takes as long as somebody's database takes."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self._look_up = module.gather_facts
        self._go = asyncio.Event()
        self.begun = asyncio.Event()
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


async def test_a_vote_of_somebody_who_is_revoked_while_it_is_weighed_does_not_count(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    try:
        revoking = bank.operator("revoke-approver", {"person": person("maya"), **WHY})
        answer = await Paused(vote, monkeypatch).until(bank.maya.vote(view), revoking)
        assert refusal(answer) == (403, "not_eligible")
        seen = await bank.robot.see(view["txn"])
        assert (seen["state"], seen["effects"][0]["review"]["state"]) == ("review", "open")
    finally:
        await bank.operator("reinstate-approver", {"person": person("maya")})


@pytest.mark.parametrize("what", ["a key", "its agent"])
async def test_a_key_that_is_revoked_while_facts_are_looked_up_spends_nothing(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    view = (await bank.robot.submit(await pay(bank))).json()
    tokens = (await bank.robot.release(view)).json()["releases"]
    key, agent = {"kid": bank.robot.key.public.kid, **WHY}, {"agent": bank.robot.name, **WHY}
    verb = ("agent-key-revoke", key) if what == "a key" else ("revoke-agent", agent)
    answer = await Paused(redeem, monkeypatch).until(bank.robot.redeem(tokens), bank.operator(*verb))
    assert answer.status_code in {401, 403}
    assert [kind for kind, _ in await bank.log(view["txn"]) if kind == "effect_redeemed"] == []


async def test_nor_does_it_submit_renew_or_take_back(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    view = await fired(bank, bank.robot)
    more = {"run_key": "still-running", "attempt_id": f"{bank.robot.name}-b"}
    running = (await bank.robot.submit(await pay(bank, 11), **more)).json()
    assert running["state"] == "redeemed"

    async def begun(module: ModuleType, asked: Callable[[Agent], Awaitable[httpx2.Response]]) -> int:
        with monkeypatch.context() as patched:
            key = await bank.another_key(bank.robot)
            await key.see(view["txn"])  # it knows a nonce
            revoking = bank.operator("agent-key-revoke", {"kid": key.key.public.kid})
            return (await Paused(module, patched).until(asked(key), revoking)).status_code

    new = [await pay(bank, 12)]
    effect_id = running["effects"][0]["effect_id"]
    assert await begun(submit, lambda key: key.submit(*new, run_key="new")) == 401
    assert await begun(renew, lambda key: renewed(key, effect_id, attempt_id=f"{bank.robot.name}-b")) == 401
    assert await begun(compensate, lambda key: undone(key, view)) == 401
    assert (await bank.robot.see(view["txn"]))["effects"][0]["state"] == "fired"


# A word that was let in at the door and reaches its unit of work after the revocation: the unit itself refuses it.
WORDS: dict[str, Callable[[Context, Voter, dict[str, Any], str], Awaitable[Any]]] = {
    "a proposal": lambda ctx, voter, view, _: propose(ctx, voter, proposed(view)),
    "a comment": lambda ctx, voter, view, _: comment(
        ctx, voter, Remark(review_of(view), "look", question=False, channel="api")
    ),
    "a question": lambda ctx, voter, view, _: comment(
        ctx, voter, Remark(review_of(view), "why?", question=True, channel="api")
    ),
    "taking a proposal back": lambda ctx, voter, _, theirs: decline(ctx, voter, theirs, None),
    "a stop": lambda ctx, voter, *_: stop(ctx, voter, Target("everything"), "it goes out twice"),
    "an end of a stop": lambda ctx, voter, *_: start_again(ctx, voter, Target("everything"), "mended"),
}


def proposed(view: dict[str, Any]) -> Proposed:
    seen = view["effects"][0]
    stamp = (view["rev"], seen["effect_digest"], view["txn_digest"])
    return Proposed(review_of(view), *stamp, {"account": "acme", "amount": 7}, "less", "api")


def review_of(view: dict[str, Any]) -> str:
    found: str = view["effects"][0]["review"]["review_id"]
    return found


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
async def test_no_word_of_a_revoked_person_is_taken(
    bank: Bank,
    word: Callable[[Context, Voter, dict[str, Any], str], Awaitable[Any]],
) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    theirs = await bank.maya.proposed(view, {"account": "acme", "amount": 300})
    before = [kind for kind, _ in await bank.log(view["txn"])]
    try:
        await bank.operator("revoke-approver", {"person": person("maya"), **WHY})
        with pytest.raises(ForbiddenError, match="taken you out of its decisions"):
            await word(bank.service.ctx, MAYA, view, theirs)
        assert [kind for kind, _ in await bank.log(view["txn"])] == before
        assert (await bank.robot.submit(await pay(bank, 5), run_key="goes-on")).status_code == 201
    finally:
        await bank.operator("reinstate-approver", {"person": person("maya")})


async def test_a_revoked_owner_answers_for_no_agent(bank: Bank) -> None:
    owned = await bank.agent("of-a-revoked-owner", owner=person("jonas"))
    view = (await owned.submit(await pay(bank, 500))).json()
    theirs = await bank.maya.proposed(view, {"account": "acme", "amount": 300})
    jonas = Voter(DEV_ISSUER, "jonas", "Jonas", "dev")
    try:
        await bank.operator("revoke-approver", {"person": person("jonas"), **WHY})
        for verb in (accept(bank.service.ctx, jonas, theirs), decline(bank.service.ctx, jonas, theirs, "no")):
            with pytest.raises(ForbiddenError, match="taken you out of its decisions"):
                await verb
    finally:
        await bank.operator("reinstate-approver", {"person": person("jonas")})
    assert (await owned.see(view["txn"]))["rev"] == 1


async def test_a_revoked_key_answers_nothing_for_its_agent(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    theirs = await bank.maya.proposed(view, {"account": "acme", "amount": 300})
    review_id, ctx = review_of(view), bank.service.ctx
    await comment(ctx, MAYA, Remark(review_id, "why?", question=True, channel="api"))
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
    view = (await bank.robot.submit(await pay(bank, 5_000))).json()
    await bank.maya.vote(view)
    await bank.operator("revoke-approver", {"person": person("maya"), **WHY})
    await bank.operator("reinstate-approver", {"person": person("maya")})
    again = await bank.person("maya")
    review_id = view["effects"][0]["review"]["review_id"]
    queue = await queue_page(bank.service.ctx, MAYA, Wanted(), None, 200)
    assert review_id in {row.review_id for row in queue.rows if row.can_vote}, "she is asked"
    assert "You approved this" not in (await again.get(f"/reviews/{review_id}")).text
    answer = (await again.vote(view)).json()
    assert [vote["counted"] for vote in answer["votes"]] == [False, True]
    assert (await again.vote(view)).json()["votes"] == answer["votes"], "the same vote again is the same vote"
    assert (await bank.tomas.vote(view)).json()["state"] == "met"
