"""What the watch over open questions costs: the people are read once a round, and nothing settled is taken up again."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from policy_service.workflow.reviews import eligible, impossible
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_settling import asked, too_few

pytestmark = pytest.mark.anyio


def counting(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """The calls of one of its functions from here on."""
    calls: list[Any] = []
    original = getattr(module, name)

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return original(*given, **named)

    monkeypatch.setattr(module, name, counted)
    return calls


async def test_people_are_read_and_grouped_once_for_all_questions_of_a_round(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impossible, "_AT_ONCE", 1)
    for name in ("maya", "jonas", *(f"somebody-{n}" for n in range(10))):
        await bank.person(name)
    for n in range(5):
        await bank.robot.submit(await pay(bank, 500), run_key=f"r-{n}")
    read = counting(monkeypatch, impossible, "list_people")
    grouped = counting(monkeypatch, eligible, "groups_now")
    assert await impossible.watch_quorums(bank.service.ctx) == 0
    assert len(read) == 1
    assert len(grouped) < 2 * 15, "each of them once, not once for each question"


async def test_what_a_person_left_waiting_costs_no_unit_in_any_round(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    await too_few(bank)
    view = await asked(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "impossible_quorum"), "left_waiting")
    moved = counting(monkeypatch, impossible, "_move")
    assert await impossible.watch_quorums(bank.service.ctx) == 0
    assert moved == []
