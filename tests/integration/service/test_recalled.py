"""After a restore: what agents know of redemptions that the database forgot, told by their receipts."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from tests.fakes.log_check import faults_of_log
from tests.fakes.vault import REASON, Vault, at, serving, tasks
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio


def evidence(bank: World, view: dict[str, Any], receipt: str, **other: Any) -> dict[str, Any]:
    """What an agent tells of a redemption, from its own copy."""
    effects = [recalled(bank, effect) for effect in view["effects"]]
    return {"receipt": receipt, "run_key": view["run_key"], "effects": effects, **other}


def recalled(bank: World, effect: dict[str, Any]) -> dict[str, Any]:
    """One effect as its digest covers it."""
    manifests = bank.service.active.current.manifests
    undo = manifests[effect["tool"]].compensation
    told = {name: effect[name] for name in ("seq", "tool", "tool_digest", "resource", "args", "call_key")}
    if undo is not None:
        told["compensation"] = {
            "tool": undo.tool,
            "tool_digest": manifests[undo.tool].digest,
            "map": dict(undo.map),
        }
    return told


class Lost:
    """An effect redeemed in the part of the log that is lost: known to the database in some way, or not at all."""

    robot: Agent
    view: dict[str, Any]  # as the agent saw it spent
    recall: dict[str, Any]

    @property
    def effect(self) -> str:
        found: str = self.view["effects"][0]["effect_id"]
        return found

    def outcome(self, outcome: str = "fired", **more: Any) -> dict[str, Any]:
        return {"effect_id": self.effect, "outcome": outcome, **more}


async def lost(vault: Vault, known: str, *tools: Any) -> Lost:
    """``known``: how the copy of the database has it: never, released, or withdrawn."""
    story = Lost()
    async with serving(vault) as bank:
        story.robot = await bank.agent("robot")
        if known != "never":
            view = (await story.robot.submit(await pay(bank), run_key="lost")).json()
        if known == "withdrawn":
            await story.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        calls = [await pay(bank), *[await tool(bank) for tool in tools]]
        story.view = (await robot.submit(*calls, run_key="lost")).json()
        story.view = await robot.spend(story.view, "a")
        receipt = story.view["receipt"]
        story.view = story.view["transaction"]
        story.recall = evidence(bank, story.view, receipt)
    vault.bring_back(copy)
    assert vault.verb(*REASON)[0] == 0
    return story


@pytest.mark.parametrize("known", ["never", "released", "withdrawn"])
async def test_a_receipt_of_before_settles_it_however_much_of_it_is_known(vault: Vault, known: str) -> None:
    story = await lost(vault, known)
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        bare = await robot.report("a", story.outcome())
        assert (bare.status_code, bare.json()["code"]) == (404, "unknown_attempt")
        for _ in range(2):  # the same report again changes nothing
            done = await robot.report("a", story.outcome(), recall=story.recall)
            assert done.status_code == 200, done.text
            seen = done.json()
            assert (seen["state"], seen["attempt_id"]) == ("settled", "a")
            assert seen["effects"][0]["args"] == story.view["effects"][0]["args"]
            assert seen["txn_digest"] == story.view["txn_digest"]
        assert await tasks(bank) == []
        await bank.operator("go-on", {"tool": None})
        again = (await robot.submit(await pay(bank), run_key="lost", attempt_id="b")).json()
        assert (again["state"], again.get("receipt")) == ("settled", None)
        assert (await (await bank.person("maya")).get("/")).status_code == 200
        assert await bank.service.db.read(faults_of_log) == []


async def test_a_receipt_without_an_outcome_makes_it_unknown_and_nothing_redeems_it_again(
    vault: Vault,
) -> None:
    story = await lost(vault, "never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        assert (await robot.report("a", recall=story.recall)).json()["state"] == "unsettled"
        assert await tasks(bank) == [("restored", story.effect)]
        await bank.operator("go-on", {"tool": None})
        again = (await robot.submit(await pay(bank), run_key="lost", attempt_id="b")).json()
        assert (again["state"], again.get("receipt")) == ("unsettled", None)
        assert (await robot.report("a", story.outcome("failed"))).json()["state"] == "ended"
        assert await tasks(bank) == []
        assert await bank.service.db.read(faults_of_log) == []


async def test_a_compensation_of_before_settles_what_it_took_back(vault: Vault) -> None:
    story, robot_view = Lost(), {}
    async with serving(vault) as bank:
        story.robot = await bank.agent("robot")
        calls = [await pay(bank), await mail(bank)]
        robot_view = (await story.robot.submit(*calls, run_key="lost", attempt_id="a")).json()
        paid, mailed = (effect["effect_id"] for effect in robot_view["effects"])
        outcomes = ({"effect_id": paid, "outcome": "fired", "result": {"id": "p1"}},
                    {"effect_id": mailed, "outcome": "failed"})  # fmt: skip
        await story.robot.report("a", *outcomes)
    copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        path = f"/v1/transactions/{robot_view['txn']}/compensate"
        undo = (await robot.send("POST", path, {"effect_id": paid})).json()
        spent = (await robot.redeem([undo["release"]], "undo")).json()
        told = evidence(bank, {"effects": [undo["effect"]], "run_key": "lost"}, spent["receipt"])
    vault.bring_back(copy)
    assert vault.verb(*REASON)[0] == 0
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        fired = {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"}
        done = await robot.report("undo", fired, recall=told)
        assert done.status_code == 200, done.text
        states = [effect["state"] for effect in done.json()["effects"]]
        assert (done.json()["state"], states) == ("settled", ["compensated", "failed"])
        assert await bank.service.db.read(faults_of_log) == []


async def test_what_was_redeemed_before_and_after_is_a_task(vault: Vault) -> None:
    story = await lost(vault, "never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await bank.operator("go-on", {"tool": None})
        again = (await robot.submit(await pay(bank), run_key="lost", attempt_id="b")).json()
        assert again["attempt_id"] == "b"  # from another host, before the first one told
        told = await robot.report("a", story.outcome(), recall=story.recall)
        assert told.status_code == 200 and told.json()["attempt_id"] == "b"
        assert await tasks(bank) == [("contradiction", story.effect)]
        assert await bank.service.db.read(faults_of_log) == []


@pytest.mark.parametrize(("amount", "waits", "rev"), [(500, "review", 2), (10, "ready", 1)])
async def test_what_waits_again_under_its_run_key_is_superseded_or_settled(
    vault: Vault, amount: int, waits: str, rev: int
) -> None:
    story = await lost(vault, "never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await bank.operator("go-on", {"tool": None})
        again = (await robot.submit(await pay(bank, amount), run_key="lost")).json()
        assert again["state"] == waits
        done = (await robot.report("a", story.outcome(), recall=story.recall)).json()
        assert (done["state"], done["rev"]) == ("settled", rev)
        assert (await (await bank.person("maya")).get("/v1/reviews")).json()["reviews"] == []
        assert await bank.service.db.read(faults_of_log) == []


def changed(recall: dict[str, Any], **effect: Any) -> dict[str, Any]:
    return recall | {"effects": [recall["effects"][0] | effect, *recall["effects"][1:]]}


PROVES_NOTHING = {
    "other args": (lambda r: changed(r, args={"account": "acme", "amount": 11}), 400, "bad_token"),
    "another resource": (lambda r: changed(r, resource={"type": "Account", "id": "x"}), 400, "bad_token"),
    "another run key": (lambda r: r | {"run_key": "other"}, 400, "bad_token"),
    "as an independent effect": (lambda r: r | {"independent": True}, 400, "bad_token"),
    "half the list": (lambda r: r | {"effects": r["effects"][:1]}, 400, "bad_token"),
    "the list in another order": (lambda r: r | {"effects": r["effects"][::-1]}, 400, "bad_token"),
    "without its compensation": (
        lambda r: r | {"effects": [{k: v for k, v in e.items() if k != "compensation"} for e in r["effects"]]},
        400, "bad_token",
    ),
    "another signature": (lambda r: r | {"receipt": r["receipt"][:-8] + "AAAAAAAA"}, 400, "bad_token"),
    "no receipt at all": (lambda r: r | {"receipt": "a.b.c"}, 400, "bad_token"),
    "a member nobody knows": (lambda r: r | {"more": 1}, 400, "unknown_field"),
}  # fmt: skip


async def how_many_lines(bank: World) -> int:
    count = select(func.count()).select_from(table(AuditRow))
    return await bank.service.db.read(lambda conn: int(conn.execute(count).scalar_one()))


async def test_a_recall_that_proves_nothing_is_refused_and_changes_nothing(vault: Vault) -> None:
    story = await lost(vault, "never", mail)
    async with serving(vault) as bank:
        robot, before = at(bank, story.robot), await how_many_lines(bank)
        for name, (forged, status, code) in PROVES_NOTHING.items():
            answer = await robot.report("a", story.outcome(), recall=forged(story.recall))
            assert (answer.status_code, answer.json()["code"]) == (status, code), (name, answer.text)
        other = await robot.report("another", story.outcome(), recall=story.recall)
        assert (other.status_code, other.json()["code"]) == (400, "bad_token")
        nothing = await robot.report("a")
        assert (nothing.status_code, nothing.json()["code"]) == (400, "invalid_request")
        assert await how_many_lines(bank) == before
        stranger = await bank.agent("stranger")
        answer = await stranger.report("a", story.outcome(), recall=story.recall)
        assert (answer.status_code, answer.json()["code"]) == (403, "not_redeemer")
        # what it proves can be taken back
        mailed = {"effect_id": story.view["effects"][1]["effect_id"], "outcome": "failed"}
        done = await robot.report("a", story.outcome(result={"id": "p1"}), mailed, recall=story.recall)
        assert [one["state"] for one in done.json()["effects"]] == ["fired", "failed"]
        await bank.operator("go-on", {"tool": None})
        path = f"/v1/transactions/{story.view['txn']}/compensate"
        undo = (await robot.send("POST", path, {"effect_id": story.effect})).json()
        await robot.redeem([undo["release"]], "undo")
        last = await robot.report("undo", {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"})
        assert last.json()["state"] == "settled"


async def test_a_receipt_of_this_epoch_proves_nothing_that_is_forgotten(vault: Vault) -> None:
    async with serving(vault) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank), attempt_id="a")).json()
        told = evidence(bank, view, view["receipt"])
        fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
        refused = await robot.report("b", fired, recall=told)
        assert refused.json()["code"] == "bad_token"
        assert (await robot.report("a", fired, recall=told)).status_code == 404


async def test_an_agent_that_met_another_epoch_tells_first_and_submits_then(vault: Vault) -> None:
    story = await lost(vault, "never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await bank.operator("go-on", {"tool": None})
        early = await robot.submit(await pay(bank), run_key="lost", epoch=1)
        assert (early.status_code, early.json()["code"], early.json()["epoch"]) == (409, "other_epoch", 2)
        known = (await robot.send("GET", "/v1/epoch")).json()
        assert known["epoch"] == 2 and [one["epoch"] for one in known["restores"]] == [2]
        assert known["restores"][0]["lost_after"] < story.view["submitted_at"]
        assert (await robot.submit(await pay(bank), run_key="new", epoch=2)).status_code == 201
        late = await robot.submit(await pay(bank), run_key="newer", epoch=3)
        assert late.json()["code"] == "other_epoch" and "older copy" in late.json()["detail"]
    assert vault.verb("rotate-keys", "--compromised")[0] == 0
    async with serving(vault) as bank:  # the key that signed the receipt is not published any more
        answer = await at(bank, story.robot).report("a", story.outcome(), recall=story.recall)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_token")
