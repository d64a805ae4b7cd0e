"""Eight at once for the same thing, on each engine; on PostgreSQL they ask two replicas by turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from policy_service.workflow.expiry import sweep
from tests.fakes.payments import ANYBODY, PEOPLE, Payments, gate, plain_forbid
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import pay
from tests.integration.service.engines import ENGINES, each_engine

__all__ = ["each_engine"]  # races are decided on each engine in its own way

CONTENDERS = 8


ROUNDS = range(2)


@pytest.fixture
def folder(folder: Payments) -> Payments:
    """All four people approve what is large."""
    folder.people({"all": PEOPLE})
    return folder.policies(ANYBODY + gate("all-four", "all", "context.input.amount > 100", quorum="4"))


@pytest.fixture
async def robots(replicas: list[World]) -> list[Agent]:
    """One agent, eight times, each of them at the next replica's door."""
    robot = await replicas[0].agent("robot")
    await robot.submit(await pay(replicas[0]), run_key="first")  # it knows a nonce, so no answer asks for one
    return [replace(robot, http=replicas[n % len(replicas)].http) for n in range(CONTENDERS)]


async def everybody(replicas: list[World]) -> list[Visitor]:
    """Four people at eight browsers."""
    people = [await replicas[0].person(name) for name in PEOPLE]
    return [
        replace(people[n % len(people)], http=replicas[n // len(people) % len(replicas)].http)
        for n in range(CONTENDERS)
    ]


def codes(answers: list[httpx2.Response]) -> Counter[str]:
    """What was answered, how often: the code of a refusal, or the status."""
    return Counter(str(a.json().get("code", a.status_code)) for a in answers)


@pytest.mark.parametrize("engine", ENGINES)
async def test_one_release_is_spent_once(replicas: list[World], robots: list[Agent]) -> None:
    for n in ROUNDS:
        view = (await robots[0].submit(await pay(replicas[0]), run_key=f"spend-{n}")).json()
        tokens = (await robots[0].release(view)).json()["releases"]
        asked = (robot.redeem(tokens, f"attempt-{n}-{i}") for i, robot in enumerate(robots))
        assert codes(await asyncio.gather(*asked)) == {"200": 1, "already_redeemed": CONTENDERS - 1}


@pytest.mark.parametrize("engine", ENGINES)
async def test_no_vote_is_missed_and_none_counts_twice(replicas: list[World], robots: list[Agent]) -> None:
    voters = await everybody(replicas)
    for n in ROUNDS:
        view = (await robots[0].submit(await pay(replicas[0], 500), run_key=f"ask-{n}")).json()
        assert codes(await asyncio.gather(*(voter.vote(view) for voter in voters))) == {"200": CONTENDERS}
        seen = await robots[0].see(view["txn"])
        assert (seen["state"], seen["effects"][0]["state"]) == ("ready", "released")


async def test_a_deny_among_approvals_has_one_outcome(replicas: list[World], robots: list[Agent]) -> None:
    voters = await everybody(replicas)
    for denier in ROUNDS:
        view = (await robots[0].submit(await pay(replicas[0], 500), run_key=f"ask-{denier}")).json()
        verdicts = ["deny" if i == denier else "approve" for i in range(CONTENDERS)]
        asked = (who.vote(view, how, reason="so") for who, how in zip(voters, verdicts, strict=True))
        answers = await asyncio.gather(*asked)
        assert codes(answers) == {"200": CONTENDERS}
        effect = (await robots[0].see(view["txn"]))["effects"][0]
        cast = answers[denier].json()["votes"]
        counted = any(vote["verdict"] == "deny" and vote["counted"] for vote in cast)
        assert effect["state"] == ("denied" if counted else "released")


async def test_one_key_makes_one_resource(replicas: list[World], robots: list[Agent]) -> None:
    same = CONTENDERS // 4
    for n in ROUNDS:
        bodies = [await pay(replicas[0], account=f"account-{i % 4}") for i in range(CONTENDERS)]
        asked = (
            robot.submit(body, run_key=f"key-{n}-{i % 4}", idempotency_key=f"key-{n}")
            for i, (robot, body) in enumerate(zip(robots, bodies, strict=True))
        )
        answers = await asyncio.gather(*asked)
        others = CONTENDERS - same
        assert codes(answers) == {"201": 1, "200": same - 1, "idempotency_key_reused": others}
        assert len({a.json()["txn"] for a in answers if a.is_success}) == 1


async def test_every_list_gets_a_revision_of_its_own(replicas: list[World], robots: list[Agent]) -> None:
    for lists, statuses in ((CONTENDERS, {"201": CONTENDERS}), (1, {"201": 1, "200": CONTENDERS - 1})):
        bodies = [await pay(replicas[0], 500, account=f"account-{i % lists}") for i in range(CONTENDERS)]
        asked = (r.submit(body, run_key=f"lists-{lists}") for r, body in zip(robots, bodies, strict=True))
        answers = await asyncio.gather(*asked)
        assert codes(answers) == statuses
        assert (await robots[0].see(answers[0].json()["txn"]))["rev"] == lists


async def test_a_redemption_and_a_withdrawal_have_one_outcome(
    replicas: list[World], robots: list[Agent]
) -> None:
    for n in ROUNDS:
        view = (await robots[0].submit(await pay(replicas[0]), run_key=f"back-{n}")).json()
        tokens = (await robots[0].release(view)).json()["releases"]
        path = f"/v1/transactions/{view['txn']}/withdraw"
        asked: list[Any] = [
            robot.redeem(tokens, f"back-{n}-{i}") if i % 2 else robot.send("POST", path, {})
            for i, robot in enumerate(robots)
        ]
        answers = await asyncio.gather(*asked)
        spent = (await robots[0].see(view["txn"]))["state"] == "redeemed"
        half = CONTENDERS // 2
        either = {"200": 1, "already_redeemed": CONTENDERS - 1} if spent else {"200": half, "not_ready": half}
        assert codes(answers) == either


async def ended(how: str, replica: World, txn: str) -> None:
    """Something ends a release, or stops it."""
    if how == "revoked":
        await replica.operator("revoke-transaction-if-open", {"txn": txn, "reason": "the card was stolen"})
    elif how == "over":
        replica.clock.pass_(hours=2)
        await sweep.expire_releases(replica.service.ctx)
    elif how == "forbidden":
        (replica.settings.bundle_dir / "stop.cedar").write_text(plain_forbid("stop"))
        await replica.activate()
    else:
        await replica.operator("freeze", {"agent": "robot"})


async def test_a_release_and_what_ends_it_have_one_order(replicas: list[World], robots: list[Agent]) -> None:
    """Spent before it ended, or ended and never spent: the log, the state and every answer say which."""
    loop = asyncio.get_running_loop()
    for how in ("revoked", "over", "forbidden", "frozen"):
        seen, takes = set(), 0.0
        shares: tuple[float | str | None, ...] = (None, "first", 0.5)
        for share in shares:  # without a race, to know how long one takes; and then
            run = f"{how}-{share}"
            view = (await robots[0].submit(await pay(replicas[0]), run_key=run)).json()
            tokens = (await robots[0].release(view)).json()["releases"]
            ending = [ended(how, replica, view["txn"]) for replica in replicas]
            if share == "first":
                await asyncio.gather(*ending)
            began = loop.time()
            asked = [asyncio.ensure_future(r.redeem(tokens, f"{run}-{i}")) for i, r in enumerate(robots)]
            if share is None:
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                takes = loop.time() - began
            if share != "first":
                await asyncio.sleep(takes * float(share or 0.0))
                await asyncio.gather(*ending)
            answers = [await answer for answer in asked]
            await _go_on(replicas)
            receipts = sum(bool(answer.json().get("redeemed")) for answer in answers)
            state = (await robots[0].see(view["txn"]))["state"]
            assert (receipts, state) in {(1, "redeemed"), (0, "ended"), (0, "ready")}, codes(answers)
            kinds = [kind for kind, _ in await replicas[0].log(view["txn"])]
            assert kinds.count("effect_redeemed") == receipts
            seen.add(receipts)
        assert seen == {0, 1}


async def _go_on(replicas: list[World]) -> None:
    """Lift what stopped everything, for the next round; what has ended stays ended."""
    (replicas[0].settings.bundle_dir / "stop.cedar").unlink(missing_ok=True)
    for replica in replicas:
        await replica.activate()
    await replicas[0].operator("unfreeze", {"agent": "robot"})
