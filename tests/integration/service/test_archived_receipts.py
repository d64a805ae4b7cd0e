"""Receipts from before a restore, reported for a transaction that is archived since: nothing is lost in silence."""

from __future__ import annotations

from typing import Any

import pytest

from policy_service.storage.archive_tables import ArchivedTransactionRow, SpentEffectRow, archived_transaction
from policy_service.storage.core import find, update_rows
from policy_service.storage.tables import RedemptionRow
from tests.fakes.log_check import faults_of_log
from tests.fakes.vault import REASON, Vault, at, serving
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.test_archive import DAYS, archived, each_engine, keeping, lines, outcome
from tests.integration.service.test_restored import evidence
from tests.integration.service.together.bank import refusal

__all__ = ["each_engine"]  # the trigger differs


class Lost:
    """A payment that the agent redeemed and the database lost; the run key ended unredeemed and is archived."""

    robot: Agent
    view: dict[str, Any]
    recall: dict[str, Any]

    @property
    def txn(self) -> str:
        return str(self.view["txn"])

    def outcome(self, word: str = "fired", **more: Any) -> dict[str, Any]:
        return outcome(self.view, word, **more)


def taken_over(vault: Vault, *more: str) -> None:
    """The operator takes over a database that lost something."""
    code, text = vault.verb(*REASON, *more)
    assert code == 0, text


@pytest.fixture
async def lost(vault: Vault) -> Lost:
    story = Lost()
    async with serving(vault) as bank:
        story.robot = await bank.agent("robot")
        view = (await story.robot.submit(await pay(bank, 500), run_key="lost")).json()
        await story.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        story.view = (await robot.submit(await pay(bank), run_key="lost", attempt_id="lost")).json()
        story.recall = evidence(bank, story.view, story.view["receipt"])
    vault.bring_back(copy)
    taken_over(vault)
    async with keeping(vault) as bank:
        await bank.operator("go-on", {"tool": None})
        assert await archived(bank) == 1
        refused = await at(bank, story.robot).submit(await pay(bank), run_key="lost", epoch=2)
        assert refusal(refused) == (409, "illegal_state")
    return story


async def test_a_receipt_of_an_archived_key_is_recorded(vault: Vault, lost: Lost) -> None:
    """It is a new revision, with its attempt and redemption, whose task the report settles."""
    async with keeping(vault) as bank:
        robot = at(bank, lost.robot)
        answer = await robot.report("lost", lost.outcome(result={"id": "p1"}), recall=lost.recall)
        assert (answer.status_code, answer.json()["state"], answer.json()["rev"]) == (200, "settled", 2)
        (redemption,) = await bank.service.db.read(lambda conn: find(conn, RedemptionRow))
        assert (redemption.attempt_id, redemption.effect_id) == ("lost", lost.outcome()["effect_id"])
        log = await bank.log(lost.txn)
        kinds = [kind for kind, _ in log]
        assert {"redemption_recalled", "task_opened", "task_settled"} <= set(kinds)
        (submitted,) = [
            body for kind, body in log if kind == "transaction_submitted" and body.get("archived")
        ]
        (moved,) = [body for kind, body in log if kind == "rows_archived"]
        assert submitted["archived"] == {"rev": 1, "file": moved["file"], "digest": moved["digest"]}
        assert await bank.service.db.read(faults_of_log) == []
        again = await robot.report("lost", lost.outcome(), recall=lost.recall)
        assert again.status_code == 200, "and again changes nothing"
        assert await bank.log(lost.txn) == log
        assert (await robot.submit(await pay(bank), run_key="lost")).json()["state"] == "settled"
        assert refusal(await robot.submit(await mail(bank), run_key="lost")) == (409, "already_redeemed")


async def test_a_receipt_without_an_outcome_is_a_task(vault: Vault, lost: Lost) -> None:
    async with keeping(vault) as bank:
        answer = await at(bank, lost.robot).report("lost", recall=lost.recall)
        assert answer.json()["state"] == "unsettled", answer.text
        maya = await bank.person("maya")
        settled = await maya.settle(await maya.task(lost.view, "restored"), "fired")
        assert settled.status_code == 200, settled.text


async def test_what_came_back_is_archived_again_as_spent(vault: Vault, lost: Lost) -> None:
    """Each line holds other revisions."""
    async with keeping(vault) as bank:
        robot = at(bank, lost.robot)
        await robot.report("lost", lost.outcome(), recall=lost.recall)
        assert await archived(bank, days=2 * DAYS) == 1
        assert [[row["rev"] for row in line["rows"]["transactions"]] for line in lines(bank)] == [[1], [2]]
        (row,) = await bank.service.db.read(lambda conn: find(conn, SpentEffectRow, txn=lost.txn))
        assert (row.state, row.attempt_id) == ("fired", "lost")
        assert refusal(await robot.submit(await pay(bank), run_key="lost")) == (409, "already_redeemed")
        late = await robot.report("lost", lost.outcome(), recall=lost.recall)
        assert refusal(late) == (409, "already_reported")
        assert await bank.service.db.read(faults_of_log) == []


async def test_what_proves_nothing_leaves_it_archived(vault: Vault, lost: Lost) -> None:
    async with keeping(vault) as bank:
        robot = at(bank, lost.robot)
        other = lost.recall | {"run_key": "other"}
        assert refusal(await robot.report("lost", lost.outcome(), recall=other)) == (400, "bad_token")
        named = {"effect_id": "0" * 64, "outcome": "fired"}
        assert refusal(await robot.report("lost", named, recall=lost.recall)) == (404, "not_found")
        stranger = await bank.agent("stranger")
        answer = await stranger.report("lost", lost.outcome(), recall=lost.recall)
        assert refusal(answer) == (403, "not_redeemer")
        assert await narrow(bank, lost.txn) is not None


async def narrow(bank: World, txn: str) -> ArchivedTransactionRow | None:
    return await bank.service.db.read(lambda conn: archived_transaction(conn, txn))


# -- of a transaction with spent effects -----------------------------------------------------------------------


@pytest.fixture
async def spent(vault: Vault) -> Lost:
    """A payment that was redeemed and reported, and is archived; the database was replaced since."""
    story = Lost()
    async with keeping(vault) as bank:
        story.robot = robot = await bank.agent("robot")
        story.view = (await robot.submit(await pay(bank), run_key="lost", attempt_id="a")).json()
        story.recall = evidence(bank, story.view, story.view["receipt"])
        await robot.report("a", story.outcome())
        assert await archived(bank) == 1
    taken_over(vault, "--even-so")
    return story


async def test_a_receipt_of_the_archived_attempt_is_known(vault: Vault, spent: Lost) -> None:
    async with serving(vault) as bank:
        answer = await at(bank, spent.robot).report("a", spent.outcome(), recall=spent.recall)
        assert refusal(answer) == (409, "already_reported")
        assert "redemption_contradicted" not in [kind for kind, _ in await bank.log(spent.txn)]
        assert await narrow(bank, spent.txn) is not None


async def test_a_second_redemption_of_an_archived_effect_is_logged(vault: Vault, spent: Lost) -> None:
    """No task can show it, because its rows are gone. The agent's SDK must not send it for ever."""
    effect_id = spent.outcome()["effect_id"]
    async with serving(vault) as bank:
        other = {"attempt_id": "b"}  # as if the effect had been redeemed again after the restore
        await bank.service.db.write(
            lambda tx: update_rows(tx.conn, SpentEffectRow, {"effect_id": effect_id}, other)
        )
        answer = await at(bank, spent.robot).report("a", spent.outcome(), recall=spent.recall)
        assert refusal(answer) == (409, "already_reported"), answer.text
        assert "archived" in answer.json()["detail"] and "redeemed" in answer.json()["detail"]
        (body,) = [body for kind, body in await bank.log(spent.txn) if kind == "redemption_contradicted"]
        recorded = {"attempt_id": "a", "epoch": 1, "effects": [effect_id], "outcomes": {effect_id: "fired"}}
        assert {**body, **recorded} == body and body["file"].endswith(".jsonl")
        assert await narrow(bank, spent.txn) is not None


async def test_another_list_of_an_archived_key_is_logged_too(vault: Vault) -> None:
    """After the restore the agent did something else under the same run key."""
    async with serving(vault) as bank:
        robot = await bank.agent("robot")
    copy = vault.save()
    async with serving(vault) as bank:
        view = (await at(bank, robot).submit(await mail(bank), run_key="lost", attempt_id="a")).json()
        recall = evidence(bank, view, view["receipt"])
    vault.bring_back(copy)
    taken_over(vault)
    async with keeping(vault) as bank:
        robot = at(bank, robot)
        await bank.operator("go-on", {"tool": None})
        after = (await robot.submit(await pay(bank), run_key="lost", attempt_id="b")).json()
        await robot.report("b", outcome(after, "fired"))
        assert await archived(bank, days=2 * DAYS) == 1
        answer = await robot.report("a", outcome(view, "fired"), recall=recall)
        assert refusal(answer) == (409, "already_reported")
        (body,) = [body for kind, body in await bank.log(view["txn"]) if kind == "redemption_contradicted"]
        assert body["effects"] == [view["effects"][0]["effect_id"]]
        assert await bank.service.db.read(faults_of_log) == []
