"""After a restore: what agents know of redemptions that the database forgot, told by their receipts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select

from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from tests.fakes.log_check import faults_of_log
from tests.fakes.vault import REASON, Vault, at, serving, tasks
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio


def evidence(bank: World, view: dict[str, Any], receipt: str) -> dict[str, Any]:
    """What an agent tells of a redemption, from its own copy: each effect as its digest covers it."""
    manifests, effects = bank.service.active.current.manifests, []
    for effect in view["effects"]:
        undo = manifests[effect["tool"]].compensation
        told = {name: effect[name] for name in ("seq", "tool", "tool_digest", "resource", "args", "call_key")}
        if undo is not None:
            digest = manifests[undo.tool].digest
            told["compensation"] = {"tool": undo.tool, "tool_digest": digest, "map": dict(undo.map)}
        effects.append(told)
    return {"receipt": receipt, "run_key": view["run_key"], "effects": effects}


class Lost:
    """Effects redeemed in the part of the log that is lost, by run key: the attempt has the same name."""

    robot: Agent
    views: dict[str, dict[str, Any]]  # as the agent saw them spent
    recalls: dict[str, dict[str, Any]]

    def effect(self, key: str = "lost") -> str:
        found: str = self.views[key]["effects"][0]["effect_id"]
        return found

    def outcome(self, key: str = "lost", outcome: str = "fired", **more: Any) -> dict[str, Any]:
        return {"effect_id": self.effect(key), "outcome": outcome, **more}

    async def told(self, robot: Agent, key: str = "lost", *outcomes: dict[str, Any]) -> httpx2.Response:
        """It is reported, with what the agent knows of its redemption."""
        return await robot.report(key, *outcomes, recall=self.recalls[key])


async def lost(vault: Vault, *tools: Any, **known: str) -> Lost:
    """``known``: how the copy of the database has each: never, released, or withdrawn."""
    story, known = Lost(), known or {"lost": "never"}
    story.views, story.recalls = {}, {}
    async with serving(vault) as bank:
        story.robot = await bank.agent("robot")
        for key, how in known.items():
            if how != "never":
                view = (await story.robot.submit(await pay(bank), run_key=key)).json()
            if how == "withdrawn":
                await story.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        calls = [await pay(bank), *[await tool(bank) for tool in tools]]
        for key in known:
            spent = await robot.spend((await robot.submit(*calls, run_key=key)).json(), key)
            story.views[key] = spent["transaction"]
            story.recalls[key] = evidence(bank, spent["transaction"], spent["receipt"])
    vault.bring_back(copy)
    assert vault.verb(*REASON)[0] == 0
    return story


async def test_a_receipt_of_before_settles_it_however_much_of_it_is_known(vault: Vault) -> None:
    known = {"never": "never", "released": "released", "withdrawn": "withdrawn"}
    story = await lost(vault, **known, untold="never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        for key in known:
            bare = await robot.report(key, story.outcome(key))
            assert (bare.status_code, bare.json()["code"]) == (404, "unknown_attempt")
            for _ in range(2):  # the same report again changes nothing
                done = await story.told(robot, key, story.outcome(key))
                assert done.status_code == 200, done.text
                seen = done.json()
                assert (seen["state"], seen["attempt_id"]) == ("settled", key)
                assert seen["effects"][0]["args"] == story.views[key]["effects"][0]["args"]
                assert seen["txn_digest"] == story.views[key]["txn_digest"]
        assert await tasks(bank) == []
        # without an outcome it is unknown
        assert (await story.told(robot, "untold")).json()["state"] == "unsettled"
        assert await tasks(bank) == [("restored", story.effect("untold"))]
        await bank.operator("go-on", {"tool": None})
        for key, state in (*dict.fromkeys(known, "settled").items(), ("untold", "unsettled")):
            again = (await robot.submit(await pay(bank), run_key=key, attempt_id="b")).json()
            assert (again["state"], again.get("receipt")) == (state, None), "nothing redeems it again"
        assert (await robot.report("untold", story.outcome("untold", "failed"))).json()["state"] == "ended"
        assert await tasks(bank) == []
        assert (await (await bank.person("maya")).get("/")).status_code == 200
        assert await bank.service.db.read(faults_of_log) == []


async def test_what_was_submitted_again_before_it_was_told_is_superseded_settled_or_a_task(
    vault: Vault,
) -> None:
    story = await lost(vault, review="never", ready="never", both="never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await bank.operator("go-on", {"tool": None})
        for key, amount, rev in (("review", 500, 2), ("ready", 10, 1)):
            assert (await robot.submit(await pay(bank, amount), run_key=key)).json()["state"] == key
            done = (await story.told(robot, key, story.outcome(key))).json()
            assert (done["state"], done["rev"]) == ("settled", rev)
        assert (await (await bank.person("maya")).get("/v1/reviews")).json()["reviews"] == []
        again = (await robot.submit(await pay(bank), run_key="both", attempt_id="b")).json()
        assert again["attempt_id"] == "b"  # from another host, before the first one told
        told = await story.told(robot, "both", story.outcome("both"))
        assert told.status_code == 200 and told.json()["attempt_id"] == "b"
        assert await tasks(bank) == [("contradiction", story.effect("both"))]
        assert await bank.service.db.read(faults_of_log) == []


async def test_a_compensation_of_before_settles_what_it_took_back(vault: Vault) -> None:
    async with serving(vault) as bank:
        first = await bank.agent("robot")
        calls = [await pay(bank), await mail(bank)]
        view = (await first.submit(*calls, run_key="lost", attempt_id="a")).json()
        paid, mailed = (effect["effect_id"] for effect in view["effects"])
        fired = {"effect_id": paid, "outcome": "fired", "result": {"id": "p1"}}
        await first.report("a", fired, {"effect_id": mailed, "outcome": "failed"})
    copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, first)
        path = f"/v1/transactions/{view['txn']}/compensate"
        undo = (await robot.send("POST", path, {"effect_id": paid})).json()
        spent = (await robot.redeem([undo["release"]], "undo")).json()
        told = evidence(bank, {"effects": [undo["effect"]], "run_key": "lost"}, spent["receipt"])
    vault.bring_back(copy)
    assert vault.verb(*REASON)[0] == 0
    async with serving(vault) as bank:
        undone = {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"}
        done = await at(bank, first).report("undo", undone, recall=told)
        assert done.status_code == 200, done.text
        states = [effect["state"] for effect in done.json()["effects"]]
        assert (done.json()["state"], states) == ("settled", ["compensated", "failed"])
        assert await bank.service.db.read(faults_of_log) == []


def without_compensation(recall: dict[str, Any]) -> dict[str, Any]:
    effects = [{k: v for k, v in e.items() if k != "compensation"} for e in recall["effects"]]
    return recall | {"effects": effects}


def changed(recall: dict[str, Any], **effect: Any) -> dict[str, Any]:
    return recall | {"effects": [recall["effects"][0] | effect, *recall["effects"][1:]]}


PROVES_NOTHING: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = [
    (lambda r: changed(r, args={"account": "acme", "amount": 11}), "bad_token"),
    (lambda r: changed(r, resource={"type": "Account", "id": "x"}), "bad_token"),
    (lambda r: r | {"run_key": "other"}, "bad_token"),
    (lambda r: r | {"independent": True}, "bad_token"),
    (lambda r: r | {"effects": r["effects"][:1]}, "bad_token"),
    (lambda r: r | {"effects": r["effects"][::-1]}, "bad_token"),
    (without_compensation, "bad_token"),
    (lambda r: r | {"receipt": r["receipt"][:-8] + "AAAAAAAA"}, "bad_token"),
    (lambda r: r | {"receipt": "a.b.c"}, "bad_token"),
    (lambda r: r | {"more": 1}, "unknown_field"),
]


async def how_many_lines(bank: World) -> int:
    count = select(func.count()).select_from(table(AuditRow))
    return await bank.service.db.read(lambda conn: int(conn.execute(count).scalar_one()))


async def test_a_recall_that_proves_nothing_is_refused_and_changes_nothing(vault: Vault) -> None:
    story = await lost(vault, mail)
    recall = story.recalls["lost"]
    async with serving(vault) as bank:
        robot, before = at(bank, story.robot), await how_many_lines(bank)
        for forged, code in PROVES_NOTHING:
            answer = await robot.report("lost", story.outcome(), recall=forged(recall))
            assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text
        other = await robot.report("another", story.outcome(), recall=recall)
        assert (other.status_code, other.json()["code"]) == (400, "bad_token")
        nothing = await robot.report("lost")
        assert (nothing.status_code, nothing.json()["code"]) == (400, "invalid_request")
        assert await how_many_lines(bank) == before
        answer = await story.told(await bank.agent("stranger"), "lost", story.outcome())
        assert (answer.status_code, answer.json()["code"]) == (403, "not_redeemer")
        # what it proves can be taken back
        mailed = {"effect_id": story.views["lost"]["effects"][1]["effect_id"], "outcome": "failed"}
        done = await story.told(robot, "lost", story.outcome(result={"id": "p1"}), mailed)
        assert [one["state"] for one in done.json()["effects"]] == ["fired", "failed"]
        await bank.operator("go-on", {"tool": None})
        path = f"/v1/transactions/{story.views['lost']['txn']}/compensate"
        undo = (await robot.send("POST", path, {"effect_id": story.effect()})).json()
        await robot.redeem([undo["release"]], "undo")
        last = await robot.report("undo", {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"})
        assert last.json()["state"] == "settled"


async def test_a_receipt_of_this_epoch_proves_nothing_that_is_forgotten(vault: Vault) -> None:
    async with serving(vault) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank), attempt_id="a")).json()
        told = evidence(bank, view, view["receipt"])
        fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
        assert (await robot.report("b", fired, recall=told)).json()["code"] == "bad_token"
        assert (await robot.report("a", fired, recall=told)).status_code == 404


async def test_an_agent_that_met_another_epoch_tells_first_and_submits_then(vault: Vault) -> None:
    story = await lost(vault)
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await bank.operator("go-on", {"tool": None})
        early = await robot.submit(await pay(bank), run_key="lost", epoch=1)
        assert (early.status_code, early.json()["code"], early.json()["epoch"]) == (409, "other_epoch", 2)
        known = (await robot.send("GET", "/v1/epoch")).json()
        assert known["epoch"] == 2 and [one["epoch"] for one in known["restores"]] == [2]
        assert known["restores"][0]["lost_after"] < story.views["lost"]["submitted_at"]
        assert (await robot.submit(await pay(bank), run_key="new", epoch=2)).status_code == 201
        late = await robot.submit(await pay(bank), run_key="newer", epoch=3)
        assert late.json()["code"] == "other_epoch" and "older copy" in late.json()["detail"]
    assert vault.verb("rotate-keys", "--compromised")[0] == 0
    async with serving(vault) as bank:  # the key that signed the receipt is not published any more
        answer = await story.told(at(bank, story.robot), "lost", story.outcome())
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_token")
