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
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import Office, until, words

pytestmark = pytest.mark.anyio

SLACK_WAITS_S: Final = 3.0
SOON_S: Final = 0.3


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack is answered sooner than it has to be: the test waits for that."""
    monkeypatch.setattr(desk, "ANSWER_S", SOON_S)


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


async def in_time(office: Office, payload: Json, kind: Kind = "interactive") -> Answer:
    """The answer to a delivery, given before Slack shows an error."""
    began = time.monotonic()
    answer = await office.deliver(payload, kind)
    assert time.monotonic() - began < SLACK_WAITS_S
    assert answer.status == 200
    return answer


async def shown(office: Office) -> str:
    """What the form shows in the end."""

    async def updated() -> str:
        return "".join(words(call.args["view"]) for call in office.calls("views.update")[-1:])

    return await until(updated)


async def test_a_press_is_answered_while_the_database_is_locked_and_counts_once(office: Office) -> None:
    dana = await office.link("maya")
    view, card = await office.asked()
    press = office.press(dana, card)
    async with locked(office, view):
        assert (await in_time(office, press)).body == b""
        assert await office.votes() == []
        await office.told(dana, "being recorded")
        # as Slack delivers again what it did not hear answered
        again = asyncio.create_task(office.deliver(press))
    assert (await again).status == 200
    await office.shows("Approved and released")
    assert (await in_time(office, press)).body == b""
    assert await office.votes() == [("maya", "approve", False)]


@pytest.mark.usefixtures("soon")
async def test_everything_is_answered_while_the_database_is_locked_and_says_later_what_came_of_it(
    office: Office,
) -> None:
    """A form, a press that is refused, a command, a button of the home."""
    dana = await office.link("maya")
    view, card = await office.asked()
    home = {"container": {"type": "view", "view_id": "V0HOME"}, "view": {"id": "V0HOME", "type": "home"}}
    button = office.press_of(dana, {"ts": ""}, {"action_id": "direct", "value": "on"}, **home)
    async with locked(office, view):
        form, _, command, _ = await asyncio.gather(
            in_time(office, office.form(dana, "deny", value_of(card), "not ours")),
            in_time(office, office.press("U0SAM", card)),
            in_time(office, office.command(dana, "direct on"), "slash_commands"),
            in_time(office, button),
        )
        assert form.json["response_action"] == "update"
        assert "Keep this open" in words(form.json["view"])
        assert "longer than Slack waits" in command.json["text"]
        assert await office.votes() == []
    assert "It is recorded" in await shown(office)
    await office.told("U0SAM", "Nothing was decided")
    assert "direct messages" in words(await until(lambda: office.slack.home(dana)))
    assert await office.votes() == [("maya", "deny", False)]


@pytest.mark.usefixtures("soon")
async def test_what_fails_late_is_told_to_the_one_who_pressed(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database gives up after Slack was answered."""

    async def late(*given: Any, **more: Any) -> Any:
        await asyncio.sleep(SOON_S + 0.2)
        raise StorageUnavailableError("the database is locked")

    monkeypatch.setattr(acting, "vote", late)
    dana = await office.link("maya")
    _, card = await office.asked()
    await in_time(office, office.press(dana, card))
    await office.told(dana, "may not be recorded: the database is locked; press again")
    await in_time(office, office.form(dana, "deny", value_of(card), "not ours"))
    assert "may not be recorded" in await shown(office)
    assert await office.votes() == []
