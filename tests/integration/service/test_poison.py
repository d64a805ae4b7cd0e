"""A row nobody can read any more: it is set apart and told, and everything beside it goes on."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update
from sqlmodel import col

from policy_service import metrics
from policy_service.storage.core import table
from policy_service.storage.tables import EffectRow
from policy_service.workflow.pages import describing
from tests.fakes.pages import holds
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import review_of

pytestmark = pytest.mark.anyio

# args that are no text, that end too early, that are no object; gates that are none
BROKEN: list[dict[str, Any]] = [
    {"args": b"\xff\xfe"}, {"args": b'{"account":"ac'}, {"args": b"[1]"}, {"gates": [{"what": "is this"}]},
]  # fmt: skip


async def poisoned(bank: World, robot: Agent, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A review whose effect was written over by a hand that was not ours, and one beside it."""
    bad = (await robot.submit(await pay(bank, 500), run_key="bad")).json()
    good = (await robot.submit(await pay(bank, 600, "beta"), run_key="good")).json()
    if values:
        await written_over(bank, bad, **values)
    return bad, good


async def written_over(bank: World, view: dict[str, Any], **values: Any) -> None:
    which = col(EffectRow.effect_id) == view["effects"][0]["effect_id"]
    query = update(EffectRow).where(which).values(**values)
    assert await bank.service.db.write(lambda tx: tx.conn.execute(query).rowcount) == 1


def told() -> float:
    return metrics.REGISTRY.get_sample_value("countersign_rows_broken_total") or 0.0


async def nothing_of_it_goes_on(bank: World, maya: Visitor, bad: dict[str, Any]) -> None:
    """A vote on it releases nothing."""
    await maya.vote(bad)
    row = await bank.service.db.read(lambda conn: conn.execute(_row(bad)).one())
    assert row.state in {"review", "denied"}


def _row(view: dict[str, Any]) -> Any:
    return select(table(EffectRow)).where(col(EffectRow.effect_id) == view["effects"][0]["effect_id"])


async def test_a_row_that_cannot_be_read_breaks_no_page_and_is_told(bank: World, robot: Agent) -> None:
    bad, good = await poisoned(bank, robot)
    maya = await bank.person("maya")
    fields = ("args", "gates")
    row = await bank.service.db.read(lambda conn: conn.execute(_row(bad)).one())
    sound = {name: getattr(row, name) for name in fields}
    for values in BROKEN:
        await written_over(bank, bad, **(sound | values))
        before, queue = told(), await maya.get("/")
        assert queue.status_code == 200
        holds(queue.text, f"/reviews/{review_of(good)}", f"/reviews/{review_of(bad)}", "cannot be read")
        assert told() > before
        listed = (await maya.get("/v1/reviews")).json()["reviews"]
        assert [one["review_id"] for one in listed] == [review_of(good)]
        alone = await maya.get(f"/v1/reviews/{review_of(bad)}")
        assert (alone.status_code, alone.json()["code"]) == (500, "internal")
        page = await maya.get(f"/reviews/{review_of(bad)}")
        assert page.status_code == 500
        assert "<form" not in page.text or 'name="verdict"' not in page.text
    await nothing_of_it_goes_on(bank, maya, bad)
    assert (await maya.vote(good)).json()["state"] == "met"


@pytest.mark.parametrize("values", BROKEN[1::2], ids=["args", "gates"])
async def test_a_row_that_cannot_be_read_holds_up_no_job(
    bank: World, robot: Agent, folder: Payments, values: dict[str, Any]
) -> None:
    bad, good = await poisoned(bank, robot, **values)
    await bank.sweep()
    folder.policies(ANYBODY + gate("all", "legal"))
    await bank.activate()
    seen = (await robot.see(good["txn"]))["effects"][0]
    assert any("legal" in need["groups"] for need in seen["review"]["needs"])
    bank.clock.pass_(hours=25)
    await bank.sweep()
    assert (await robot.see(good["txn"]))["state"] == "ended"
    row = await bank.service.db.read(lambda conn: conn.execute(_row(bad)).one())
    assert row.state in {"expired", "review", "denied"}


async def test_a_sentence_may_raise(bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = await poisoned(bank, robot)
    usual = describing._value_piece

    def raising(manifest: Any, args: Any, *rest: Any, **more: Any) -> Any:
        if args["account"] == "acme":
            raise RuntimeError("a template of that day")
        return usual(manifest, args, *rest, **more)

    monkeypatch.setattr(describing, "_value_piece", raising)
    maya = await bank.person("maya")
    queue = await maya.get("/")
    assert queue.status_code == 200
    holds(queue.text, f"/reviews/{review_of(good)}", review_of(bad), "cannot be read")


async def test_a_tool_that_is_gone_breaks_no_page(bank: World, robot: Agent, folder: Payments) -> None:
    bad, good = await poisoned(bank, robot)
    maya = await bank.person("maya")
    await written_over(bank, bad, tool="gone", tool_digest="0" * 64)
    queue = await maya.get("/")
    assert queue.status_code == 200
    holds(queue.text, review_of(good), review_of(bad))
    page = await maya.get(f"/reviews/{review_of(bad)}")
    assert page.status_code == 200
    holds(page.text, "no longer holds this version")
    await nothing_of_it_goes_on(bank, maya, bad)
    assert (await maya.vote(good)).json()["state"] == "met"
