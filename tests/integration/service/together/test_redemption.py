"""Redeeming releases: the whole transaction once, by their party and key, or nothing; renewals of a redemption."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import quote

import httpx2
from sqlalchemy import select

from countersign.contract import (
    TYP_RELEASE,
    PrivateKey,
    sign,
)
from policy_service.storage.core import table
from policy_service.storage.tables import AttemptRow, RedemptionRow
from tests.fakes.payments import GROUPS, gate, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_outcomes import fired, undone


async def spent(bank: Bank, robot: Agent | None = None) -> tuple[int, int]:
    """How many attempts an agent has made, and how many effects they redeemed."""
    name = (robot or bank.robot).name
    attempts, redemptions = table(AttemptRow).c, table(RedemptionRow).c
    query = (
        select(attempts.attempt_id, redemptions.effect_id)
        .join(table(RedemptionRow), redemptions.attempt_id == attempts.attempt_id)
        .where(attempts.redeemer == name, redemptions.redeemer == name)
    )
    found = await bank.service.db.read(lambda conn: [(one, two) for one, two in conn.execute(query)])
    return len({attempt for attempt, _ in found}), len(found)


async def test_the_claims_of_a_release(bank: Bank) -> None:
    view, tokens = await bank.released(await pay(bank))
    claims, seen = bank.release_of(tokens[0]), view["effects"][0]
    assert (claims.iss, claims.aud, claims.sub) == (
        bank.settings.public_url,
        bank.robot.name,
        bank.robot.name,
    )
    assert (claims.txn, claims.txn_digest, claims.kind) == (view["txn"], view["txn_digest"], "effect")
    assert (claims.exp - claims.iat, claims.nbf - claims.iat) == (120, 0)
    assert claims.cnf_jkt == bank.robot.key.public.kid
    detail, decision = claims.detail, claims.decision
    assert (detail.effect_digest, detail.args_digest) == (seen["effect_digest"], seen["args_digest"])
    assert (decision.mode, decision.rev, decision.votes, decision.assurance) == ("auto", 1, (), "none")
    assert decision.bundle == bank.service.active.current.digest
    bank.clock.pass_(minutes=59, seconds=30)  # it never outlives the time releases may be used
    claims = bank.release_of((await bank.tokens(view))[0])
    assert 0 < claims.exp - claims.iat <= 30


async def test_the_receipt_proves_this_attempt_and_no_other(bank: Bank) -> None:
    view, tokens = await bank.released(await pay(bank), await mail(bank))
    answer = (await bank.robot.redeem(tokens)).json()
    receipt = bank.receipt_of(answer)
    assert (receipt.attempt, receipt.txn) == (bank.robot.attempt, view["txn"])
    assert receipt.txn_digest == view["txn_digest"]
    assert receipt.fire_by - receipt.iat == bank.settings.fire_window_s
    assert [e.effect_id for e in receipt.effects] == [e["effect_id"] for e in view["effects"]]
    assert [e.jti for e in receipt.effects] == [bank.release_of(token).jti for token in tokens]
    assert answer["transaction"]["state"] == "redeemed"


async def test_the_same_attempt_again_gets_the_same_effects_and_receipt(bank: Bank) -> None:
    _, tokens = await bank.released(await pay(bank))
    first = bank.receipt_of((await bank.robot.redeem(tokens)).json())
    other = await bank.another_key(bank.robot)
    for key, given, minutes in ((bank.robot, tokens, 10), (bank.robot, ["a.b.c"], 0), (other, tokens, 0)):
        again = bank.receipt_of((await key.redeem(given)).json())
        assert (again.effects, again.fire_by, again.attempt) == (first.effects, first.fire_by, first.attempt)
        assert again.cnf_jkt == key.key.public.kid
        bank.clock.pass_(minutes=minutes)  # the tokens are long over
    assert await spent(bank) == (1, 1)


async def test_another_attempt_is_refused_with_the_outcome_known_so_far(bank: Bank) -> None:
    view, tokens = await bank.released(await pay(bank))
    more, attempt = await bank.tokens(view), bank.robot.attempt
    await bank.robot.redeem(tokens)
    for used in (tokens, more):
        answer = await bank.robot.redeem(used, f"{attempt}-2")
        assert refusal(answer) == (409, "already_redeemed")
        assert answer.json()["effects"][0]["state"] == "redeemed"
    await bank.robot.report(attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"})
    assert (await bank.robot.redeem(tokens, f"{attempt}-3")).json()["effects"][0]["state"] == "fired"
    assert await spent(bank) == (1, 1)


async def test_sixteen_redeemers_get_one_receipt_and_sixteen_repeats_the_same_one(bank: Bank) -> None:
    _, tokens = await bank.released(await pay(bank), await mail(bank))
    attempts = [f"{bank.robot.attempt}-{n}" for n in range(16)]
    answers = await asyncio.gather(*(bank.robot.redeem(tokens, attempt) for attempt in attempts))
    codes = sorted(answer.json().get("code", "receipt") for answer in answers)
    assert codes == ["already_redeemed"] * 15 + ["receipt"]
    assert await spent(bank) == (1, 2)
    robot = await bank.fresh()  # and sixteen repeats of one attempt get the same receipt
    _, tokens = await bank.released(await pay(bank))
    answers = await asyncio.gather(*(robot.redeem(tokens) for _ in range(16)))
    assert len({bank.receipt_of(answer.json()).effects for answer in answers}) == 1
    assert await spent(bank) == (1, 1)


async def test_attempt_names_are_scoped_to_their_party(bank: Bank) -> None:
    """A name that another party used is neither refused nor answered with that party's attempt."""
    attempt, other = bank.robot.attempt, await bank.other_agent("of-the-same-word")
    view, tokens = await bank.released(await pay(bank))
    await bank.robot.redeem(tokens)
    theirs, more = await bank.released(await pay(bank), robot=other)
    mine, other_effect = view["effects"][0]["effect_id"], theirs["effects"][0]["effect_id"]
    lie = await other.report(attempt, {"effect_id": mine, "outcome": "failed"})
    longer = await other.send("POST", f"/v1/redemptions/{attempt}/renew", {"effect_ids": [mine]})
    assert [refusal(lie), refusal(longer)] == [(404, "unknown_attempt")] * 2
    assert bank.receipt_of((await other.redeem(more, attempt)).json()).effects[0].effect_id == other_effect
    assert (await spent(bank), await spent(bank, other)) == ((1, 1), (1, 1))
    await other.report(attempt, {"effect_id": other_effect, "outcome": "fired"})
    assert await bank.states(view) == ["redeemed", "redeemed"]
    assert bank.receipt_of((await bank.robot.redeem(tokens)).json()).effects[0].effect_id == mine
    third = await bank.other_agent("of-the-same-word-at-once")
    at_once = await bank.asks(10, robot=third, attempt_id=attempt)
    assert (at_once["state"], bool(at_once["receipt"])) == ("redeemed", True)


async def test_tokens_of_another_key_or_agent_are_refused(bank: Bank) -> None:
    view, tokens = await bank.released(await pay(bank))
    other = await bank.another_key(bank.robot)
    for thief in (other, await bank.other_agent("thief")):
        assert refusal(await thief.redeem(tokens)) == (403, "not_redeemer")
    await bank.operator("agent-key-revoke", {"kid": bank.robot.key.public.kid})
    assert (await bank.robot.redeem(tokens)).status_code == 401
    assert refusal(await other.redeem(tokens)) == (403, "not_redeemer")
    assert await spent(bank) == (0, 0)
    assert (await other.spend(view))["redeemed"] is True  # the approval belongs to the agent, not to a key


async def test_a_release_ends_after_two_minutes(bank: Bank) -> None:
    for seconds, code in ((119, None), (120, "expired_token"), (121, "expired_token")):
        bank.clock.stop_at(bank.clock().replace(microsecond=0))
        view, tokens = await bank.released(await pay(bank), run_key=f"after-{seconds}")
        bank.clock.pass_(seconds=seconds)
        answer = await bank.robot.redeem(tokens, f"{bank.robot.attempt}-{seconds}")
        assert (answer.status_code, answer.json().get("code")) == (400 if code else 200, code)
    assert (await bank.robot.spend(view))["redeemed"] is True  # fresh ones may be had


def tampered(token: str, **claims: Any) -> str:
    head, body, signature = token.split(".")
    padded = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    changed = json.dumps(json.loads(padded) | claims).encode()
    return ".".join([head, base64.urlsafe_b64encode(changed).decode().rstrip("="), signature])


async def test_a_foreign_or_tampered_token_is_refused(bank: Bank) -> None:
    """More of them: tests/unit/contract/test_jws.py."""
    _, tokens = await bank.released(await pay(bank))
    real = bank.release_of(tokens[0])
    pen, stranger = bank.service.ctx.signer, PrivateKey.generate()
    bad = {
        "an earlier epoch": pen.sign_release(real._replace(epoch=real.epoch - 1)),
        "of a later epoch": pen.sign_release(real._replace(epoch=real.epoch + 1)),
        "of another deployment": pen.sign_release(real._replace(iss="https://other.example")),
        "changed": tampered(tokens[0], exp=2**40),
        "signed by another": sign(real.to_claims(), typ=TYP_RELEASE, key=stranger),
        "nothing": "a.b.c",
    }
    for what, token in bad.items():
        assert refusal(await bank.robot.redeem([token])) == (400, "bad_token"), what
    assert await spent(bank) == (0, 0)


async def test_a_receipt_is_refused_as_a_release(bank: Bank) -> None:
    _, tokens = await bank.released(await pay(bank))
    receipt = (await bank.robot.redeem(tokens)).json()["receipt"]
    assert refusal(await bank.robot.redeem([receipt], f"{bank.robot.attempt}-2")) == (400, "bad_token")


async def test_a_transaction_is_redeemed_completely_or_not_at_all(bank: Bank) -> None:
    _, tokens = await bank.released(await pay(bank), await mail(bank))
    _, others = await bank.released(await pay(bank, 11), run_key="other")
    one, two = tokens
    lists = {
        "the second is missing": [one],
        "the first is missing": [two],
        "in another order": [two, one],
        "one twice": [one, one],
        "one twice next to the other": [one, two, two],
        "of another transaction": [*others, two],
        "one more of another transaction": [one, two, *others],
        "one of them no token": [one, "a.b.c"],
    }
    for what, given in lists.items():
        assert refusal(await bank.robot.redeem(given)) == (400, "bad_token"), what
    assert await spent(bank) == (0, 0)
    assert (await bank.robot.redeem(tokens)).json()["redeemed"] is True


async def test_tokens_minted_at_different_times_are_redeemed_together(bank: Bank) -> None:
    view, first = await bank.released(await pay(bank), await mail(bank))
    assert (await bank.robot.redeem([first[0], (await bank.tokens(view))[1]])).json()["redeemed"] is True


async def test_no_token_before_every_effect_may_be_released(bank: Bank) -> None:
    effects, attempt = [await pay(bank), await pay(bank, 500)], bank.robot.attempt
    view = (await bank.robot.submit(*effects, attempt_id=attempt)).json()
    assert (view["state"], view["releases"]) == ("review", [])
    answer = await bank.robot.release(view)
    assert refusal(answer) == (409, "not_ready")
    assert answer.json()["waiting"] == [view["effects"][1]["effect_id"]]
    assert await spent(bank) == (0, 0)
    await bank.maya.vote(view, effect=1)
    again = (await bank.robot.submit(*effects, attempt_id=attempt)).json()
    assert again["state"] == "ready" and "receipt" not in again  # what waited is redeemed by asking alone
    assert (await bank.robot.spend(again))["redeemed"] is True


async def test_an_ended_transaction_has_no_releases(bank: Bank) -> None:
    view, tokens = await bank.released(await pay(bank))
    await bank.withdraw(view)
    for answer in (await bank.robot.release(view), await bank.robot.redeem(tokens)):
        assert refusal(answer) == (409, "not_ready")
    assert await spent(bank) == (0, 0)
    view, tokens = await bank.released(await pay(bank), run_key="redeemed")
    await bank.robot.redeem(tokens)
    assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    assert refusal(await bank.withdraw(view)) == (409, "already_redeemed")


async def test_a_used_attempt_name_does_not_redeem_another_transaction(bank: Bank) -> None:
    one, tokens = await bank.released(await pay(bank))
    two, others = await bank.released(await pay(bank), run_key="other")
    await bank.robot.redeem(tokens)
    answer = (await bank.robot.redeem(others)).json()
    assert answer["transaction"]["txn"] == one["txn"]  # the attempt's own, and its receipt says so
    assert bank.receipt_of(answer).txn == one["txn"]
    assert (await bank.states(two))[0] == "ready"
    third = await bank.asks(10, run_key="third", attempt_id=bank.robot.attempt)
    assert (third["state"], third["releases"], "receipt" in third) == ("ready", [], False)


async def test_the_receipt_of_the_longest_list_is_accepted(bank: Bank) -> None:
    view, tokens = await bank.released(*[await pay(bank, account=f"account-{n}") for n in range(100)])
    receipt = bank.receipt_of((await bank.robot.redeem(tokens)).json())
    assert [one.effect_id for one in receipt.effects] == [one["effect_id"] for one in view["effects"]]


# More of each in the unit tests of the contract.
SOUND = ["-", "A.b-c_d~9", "-" * 200]
UNSOUND = ["a/b", "..", "a b", "a%2Fb", "a\n", "\xe9", "a" * 201]


async def test_an_attempt_name_that_cannot_be_in_a_path_is_refused(bank: Bank) -> None:
    view, tokens = await bank.released(await pay(bank))
    body = {"effect_ids": [view["effects"][0]["effect_id"]]}
    for attempt in UNSOUND:
        at_once = await bank.robot.submit(await mail(bank), run_key="other", attempt_id=attempt)
        assert refusal(at_once) == (400, "invalid_request"), attempt
        assert "/attempt_id" in at_once.text
        assert refusal(await bank.robot.redeem(tokens, attempt)) == (400, "invalid_request"), attempt
        renewed = await bank.robot.send("POST", f"/v1/redemptions/{quote(attempt, safe='')}/renew", body)
        assert renewed.status_code in {400, 404, 405}, attempt
    assert await spent(bank) == (0, 0)
    assert (await bank.robot.redeem(tokens)).json()["redeemed"] is True


async def test_every_redeemed_attempt_can_be_renewed_and_reported(bank: Bank) -> None:
    for attempt in SOUND:
        view, tokens = await bank.released(await pay(bank), run_key=f"run of {attempt}"[:50])
        assert (await bank.robot.redeem(tokens, attempt)).json()["redeemed"] is True, attempt
        effect = view["effects"][0]["effect_id"]
        renewed = await bank.robot.send("POST", f"/v1/redemptions/{attempt}/renew", {"effect_ids": [effect]})
        assert renewed.json()["redeemed"] is True, attempt
        response = await bank.robot.report(attempt, {"effect_id": effect, "outcome": "fired"})
        assert response.status_code == 200, attempt


# -- Renewals: more time to fire under the same attempt; everything is evaluated again, and a refusal renews nothing


async def renewed(robot: Agent, *effect_ids: str, attempt_id: str | None = None) -> httpx2.Response:
    path = f"/v1/redemptions/{attempt_id or robot.attempt}/renew"
    return await robot.send("POST", path, {"effect_ids": list(effect_ids)})


async def redeemed_at_once(robot: Agent, *effects: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(*effects, attempt_id=robot.attempt)).json()
    assert view["state"] == "redeemed"
    return view


async def approved(bank: Bank, amount: int) -> Any:
    """The effect of a payment that Maya approved and the agent redeemed."""
    view = await bank.asks(amount)
    await bank.maya.vote(view)
    await bank.robot.spend(await bank.robot.see(view["txn"]))
    return view["effects"][0]["effect_id"]


async def test_a_renewal_extends_the_named_effects(bank: Bank) -> None:
    view = await redeemed_at_once(bank.robot, await pay(bank), await mail(bank))
    before = bank.receipt_of(view)
    bank.clock.pass_(seconds=20)
    answer = (await renewed(bank.robot, view["effects"][1]["effect_id"])).json()
    after = bank.receipt_of(answer)
    assert answer["redeemed"] is True and answer["attempt_id"] == bank.robot.attempt
    assert [e.effect_id for e in after.effects] == [view["effects"][1]["effect_id"]]
    assert after.effects[0] == before.effects[1]
    assert 20 <= after.fire_by - before.fire_by <= 22
    bank.clock.pass_(seconds=60)
    await renewed(bank.robot, view["effects"][1]["effect_id"])
    bank.clock.pass_(seconds=50)  # it moves the time at which silence becomes unknown
    await bank.sweep()
    assert (await bank.states(view))[1:] == ["unknown", "redeemed"]


async def test_a_renewal_does_not_extend_other_effects(bank: Bank) -> None:
    """Repeating the redemption afterwards does not extend them either."""
    view = await redeemed_at_once(bank.robot, await pay(bank), await mail(bank))
    before = bank.receipt_of(view)
    await bank.rules(plain_forbid("no-more-pay"))
    bank.clock.pass_(seconds=25)
    assert (await renewed(bank.robot, view["effects"][1]["effect_id"])).json()["redeemed"] is True
    assert (await renewed(bank.robot, *(e["effect_id"] for e in view["effects"]))).json()["redeemed"] is False
    again = bank.receipt_of((await bank.robot.redeem(["a.b.c"], bank.robot.attempt)).json())
    assert again.fire_by == before.fire_by and len(again.effects) == 2


async def test_an_effect_that_would_not_be_released_now_is_not_renewed(bank: Bank) -> None:
    for rule in (plain_forbid("stop"), gate("late", "legal")):
        robot = await bank.fresh()
        effect_id = (await redeemed_at_once(robot, await pay(bank)))["effects"][0]["effect_id"]
        await bank.rules(rule)
        answer = (await renewed(robot, effect_id)).json()
        assert answer["redeemed"] is False and "receipt" not in answer
        (effect,) = answer["transaction"]["effects"]
        assert effect["state"] == "redeemed"  # only the redeemer knows what fired
        unused = await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": "unused"})
        assert unused.json()["state"] == "ended"
        await bank.rules()
    await bank.fresh()
    effect_id = await approved(bank, 500)  # nor is it renewed once the person who approved it has left
    await bank.people(GROUPS | {"finance": ("tomas",)})
    assert (await renewed(bank.robot, effect_id)).json()["redeemed"] is False


async def test_no_renewal_after_the_validity_of_the_release(bank: Bank) -> None:
    for valid_for, seconds, shorter, later in (("1m", 50, "1m", 11), ("1h", 300, "1m", 0)):
        await bank.fresh()
        await bank.rules(gate("brief", "finance", valid_for=valid_for))
        effect_id = await approved(bank, 10)
        bank.clock.pass_(seconds=seconds)
        assert (await renewed(bank.robot, effect_id)).json()["redeemed"] is True
        await bank.rules(gate("brief", "finance", valid_for=shorter))
        bank.clock.pass_(seconds=later)
        assert (await renewed(bank.robot, effect_id)).json()["redeemed"] is False


async def test_a_compensation_is_renewed_within_its_own_validity(bank: Bank) -> None:
    view, attempt = await fired(bank, bank.robot), f"{bank.robot.name}-undo"
    undo = (await undone(bank.robot, view)).json()
    assert (await bank.robot.redeem([undo["release"]], attempt)).json()["redeemed"] is True
    times = 0
    while (await renewed(bank.robot, undo["effect"]["effect_id"], attempt_id=attempt)).json()["redeemed"]:
        bank.clock.pass_(seconds=80)
        times += 1
        assert times < 1_000, "it may be renewed for ever"
    assert times > 1
    bank.clock.pass_(seconds=200)
    await bank.sweep()
    assert await (await bank.person("tomas")).task(view, "unknown")


async def test_an_effect_with_an_outcome_is_not_renewed(bank: Bank) -> None:
    for outcome in ("fired", "failed", "unknown", "unused"):
        robot = await bank.fresh()
        effect_id = (await redeemed_at_once(robot, await pay(bank)))["effects"][0]["effect_id"]
        await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": outcome})
        assert refusal(await renewed(robot, effect_id)) == (409, "illegal_state")


async def test_only_effects_of_the_attempt_are_renewed_and_audited(bank: Bank) -> None:
    view = await redeemed_at_once(bank.robot, await pay(bank))
    effect_id = view["effects"][0]["effect_id"]
    for effect_ids in (["0" * 64], [effect_id, "0" * 64]):
        assert refusal(await renewed(bank.robot, *effect_ids)) == (404, "not_found")
    other = await bank.another_key(bank.robot)
    receipt = bank.receipt_of((await renewed(other, effect_id, effect_id)).json())
    assert (len(receipt.effects), receipt.cnf_jkt) == (1, other.key.public.kid)
    await bank.rules(plain_forbid("stop"))
    await renewed(bank.robot, effect_id)
    assert await bank.counts(view, "redemption_renewed", "renewal_refused") == [1, 1]
