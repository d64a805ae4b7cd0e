"""A database that is slow: Slack is answered within three seconds, and what was pressed is recorded all the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from policy_service.channels.slack import desk
from policy_service.errors import StorageUnavailableError
from policy_service.storage.alone import alone_with
from policy_service.storage.database import Tx
from policy_service.workflow.slack import acting
from tests.fakes.slack_deliveries import Answer, Json, Kind
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import Office, until, words

pytestmark = pytest.mark.anyio

SLACK_WAITS_S: Final = 3.0


@asynccontextmanager
async def locked(office: Office, view: Json) -> AsyncIterator[None]:
    """Another unit holds the transaction's lock, and SQLite's only writer with it."""
    reached, let_go = threading.Event(), threading.Event()

    def held(tx: Tx) -> None:
        alone_with(tx, view["txn"])
        reached.set()
        assert let_go.wait(30)

    unit = asyncio.create_task(office.world.service.db.write(held))
    try:
        assert await asyncio.to_thread(reached.wait, 30)
        yield
    finally:
        let_go.set()
        await unit


async def in_time(attacker: Attacker, payload: Json, kind: Kind = "interactive") -> Answer:
    """The answer to a delivery, given before Slack shows an error."""
    began = time.monotonic()
    answer = await attacker.deliver(payload, kind)
    assert time.monotonic() - began < SLACK_WAITS_S
    assert answer.status == 200
    return answer


async def shown(office: Office) -> str:
    """What the form shows in the end."""

    async def updated() -> str | None:
        found = [call.args["view"] for call in office.faults.calls if call.method == "views.update"]
        return words(found[-1]) if found else None

    return await until(updated)


async def test_a_press_is_answered_while_the_database_is_locked_and_counts_once(
    office: Office, attacker: Attacker
) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    press = attacker.press(dana, await office.card())
    async with locked(office, view):
        assert (await in_time(attacker, press)).body == b""
        assert await attacker.votes() == []
        await office.told(dana, "being recorded")
        # as Slack delivers again what it did not hear answered
        again = asyncio.create_task(attacker.deliver(press))
    assert (await again).status == 200
    await office.shows("Approved and released")
    assert (await in_time(attacker, press)).body == b""
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_a_form_is_answered_while_the_database_is_locked_and_shows_what_came_of_it(
    office: Office, attacker: Attacker
) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    form = attacker.form(dana, "deny", value_of(await office.card()), "not ours")
    async with locked(office, view):
        answer = (await in_time(attacker, form)).json
        assert answer["response_action"] == "update"
        assert "Keep this open" in words(answer["view"])
        assert await attacker.votes() == []
    assert "It is recorded" in await shown(office)
    assert await attacker.votes() == [("maya", "deny", False)]


async def test_what_is_refused_late_is_told_to_the_one_who_pressed(
    office: Office, attacker: Attacker
) -> None:
    view = await office.pay(500, "a")
    card = await office.card()
    async with locked(office, view):
        await in_time(attacker, attacker.press("U0SAM", card))
    await office.told("U0SAM", "Nothing was decided")
    assert await attacker.nothing_said()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database gives up after Slack was answered."""

    async def late(*given: Any, **more: Any) -> Any:
        await asyncio.sleep(desk.ANSWER_S + 0.2)
        raise StorageUnavailableError("the database is locked")

    monkeypatch.setattr(acting, "vote", late)


@pytest.mark.usefixtures("failing")
async def test_what_fails_late_is_told_to_the_one_who_pressed(office: Office, attacker: Attacker) -> None:
    dana = await office.link("maya")
    await office.pay(500, "a")
    card = await office.card()
    await in_time(attacker, attacker.press(dana, card))
    await office.told(dana, "may not be recorded: the database is locked; press again")
    await in_time(attacker, attacker.form(dana, "deny", value_of(card), "not ours"))
    assert "may not be recorded" in await shown(office)
    assert await attacker.votes() == []


async def test_a_command_is_answered_while_the_database_is_locked(office: Office, attacker: Attacker) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    async with locked(office, view):
        answer = await in_time(attacker, attacker.command(dana, "direct on"), "slash_commands")
        assert "longer than Slack waits" in answer.json["text"]


async def test_a_home_button_is_answered_while_the_database_is_locked(
    office: Office, attacker: Attacker
) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    home = {"container": {"type": "view", "view_id": "V0HOME"}, "view": {"id": "V0HOME", "type": "home"}}
    button = {"action_id": "direct", "value": "on"}
    async with locked(office, view):
        await in_time(attacker, attacker.press_of(dana, {"ts": ""}, button, **home))

    async def published() -> Json | None:
        return await office.slack.home(dana)

    assert "direct messages" in words(await until(published))
