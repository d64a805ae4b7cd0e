"""What is slow: Slack is answered in time, what is acknowledged is durable, and nothing but Slack is called."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import pytest

from policy_service.channels.slack import dispatcher
from policy_service.errors import StorageUnavailableError
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import insert_row_or_ignore
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackDeliveryRow
from policy_service.workflow.effects import evaluation, evaluation_requests
from policy_service.workflow.reviews import vote as reviews_vote
from policy_service.workflow.slack import account_links, enqueue, interactions
from policy_service.workflow.slack.enqueue import MAX_PENDING_EPHEMERALS
from tests.fakes.slack_deliveries import Answer, Json, Kind
from tests.fakes.slack_faults import Hang, Status
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import PATIENCE_S, Office, until, words

pytestmark = pytest.mark.anyio

ELSEWHERE: Final = "http://127.0.0.1:9/answer-here"
MAYA: Final = ("maya", "approve", False)
TRIAL: Final = 'simulate robot pay {"account": "acct-1", "amount": 500}'


async def test_no_200_leaves_before_it_is_durable(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit that writes the press down is held: until it is let go, Slack hears nothing."""
    dana = await office.link("maya")
    _, card = await office.asked()
    reached, let_go = threading.Event(), threading.Event()

    def held(tx: Any, delivery: str) -> bool:
        reached.set()
        assert let_go.wait(30)
        return insert_row_or_ignore(tx.conn, SlackDeliveryRow(delivery=delivery, at=tx.now))

    monkeypatch.setattr(interactions, "record_delivery", held)
    monkeypatch.setattr(enqueue, "record_delivery", held)
    under_way = asyncio.create_task(office.deliver(office.press(dana, card)))
    try:
        assert await asyncio.to_thread(reached.wait, 30)
        assert not under_way.done()
    finally:
        let_go.set()
    assert (await under_way).status == 200
    assert await office.count(SlackDeliveryRow) == 1
    assert await office.votes() == [MAYA]


async def test_a_slack_that_hangs_holds_up_nothing(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the account lookup runs before the response, and it succeeds here."""
    dana = await office.link("maya")
    view, card = await office.asked(5_000)
    await office.pressed("U0SAM", card)  # who they are is known from now on
    await office.pressed(dana, card, "ask")
    # what waits for Slack waits for as long as the test
    monkeypatch.setattr(dispatcher, "VIEW_TIMEOUT_S", 600)
    office.faults.on.always("*", Hang())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await office.pressed(dana, card)
            await office.pressed("U0SAM", card)
            await office.pressed(dana, card, "deny")
            assert await office.sent(dana, "ask", value_of(card), "which invoice?") == ""
            assert (await office.say(dana, "")).status == 200
        assert await office.votes() == [MAYA]
        await office.vote(view, by="tomas")
        assert await office.state(view) == "released"
    finally:
        office.faults.on.lift()
    await office.shows("Approved and released")


@pytest.fixture
def slow_facts(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Facts that do not come until this is set: only who gives them up goes on."""
    lifted, known = asyncio.Event(), evaluation.gather_facts

    async def later(*given: Any) -> Any:
        await lifted.wait()
        return await known(*given)

    for module in (reviews_vote, evaluation_requests):
        monkeypatch.setattr(module, "gather_facts", later)
    return lifted


async def test_facts_slower_than_slack_decide_nothing(office: Office, slow_facts: asyncio.Event) -> None:
    dana = await office.link("maya")
    view, card = await office.asked()
    tried, _ = await asyncio.gather(office.say(dana, TRIAL), office.pressed(dana, card))
    assert b"longer than Slack waits; evaluate it on the web" in tried.body
    output = await office.answer()
    assert "longer than Slack waits; decide on the page" in output["sentence"]
    assert output["url"].endswith(f"/reviews/{view['effects'][0]['review']['review_id']}")
    assert await office.votes() == []

    other, second = await office.asked(501, "b")
    assert await office.sent(dana, "deny", value_of(second), "not this one") == "", "a deny needs no facts"
    assert (await office.state(other), await office.votes()) == ("denied", [("maya", "deny", False)])

    slow_facts.set()
    await office.pressed(dana, card)
    assert await office.votes() == [("maya", "deny", False), MAYA]
    tried = await office.say(dana, TRIAL)
    assert (tried.status, b"longer than Slack waits" in tried.body) == (200, False)


async def test_an_unlinked_account_asks_nothing(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what was read for the press and the unit that writes the question."""
    dana = await office.link("maya")
    view, card = await office.asked()
    known = interactions.comment

    async def unlinked_first(ctx: Any, *given: Any, **more: Any) -> None:
        await ctx.db.write(lambda tx: account_links.unlink_in(tx, office.app.team_id, dana, actor="operator"))
        await known(ctx, *given, **more)

    monkeypatch.setattr(interactions, "comment", unlinked_first)
    assert "is not linked yet" in await office.sent(dana, "ask", value_of(card), "which invoice?")
    assert "question_asked" not in [kind for kind, _ in await office.world.log(view["txn"])]


async def test_no_address_in_a_delivery_is_called(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    request = aiohttp.ClientSession._request

    async def heard(session: Any, method: str, url: Any, **more: Any) -> Any:
        called.append(str(session._base_url or "") + str(url))
        return await request(session, method, url, **more)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", heard)
    dana = await office.link("maya")
    view, card = await office.asked(account=ELSEWHERE)
    urls = {"response_url": ELSEWHERE, "response_urls": [{"response_url": ELSEWHERE}]}
    for press in (
        office.press("U0SAM", card, **urls),
        office.press(dana, card, message={"ts": card["ts"], "response_url": ELSEWHERE}, **urls),
        office.press_of(dana, card, {"action_id": "open", "url": ELSEWHERE, "value": ELSEWHERE}, **urls),
        office.form(dana, "deny", value_of(card), ELSEWHERE, **urls),
    ):
        assert (await office.deliver(press)).status == 200
    for text in ("link", "", f'simulate robot pay {{"account": "{ELSEWHERE}", "amount": 500}}'):
        assert (await office.say(dana, text, response_url=ELSEWHERE)).status == 200
    assert await office.state(view) == "released"
    await office.shows("Approved and released")
    await office.called("chat.postEphemeral")
    urls_of_ours = (office.faults.url, office.slack.url, office.world.settings.public_url)
    assert {urlsplit(url).netloc for url in called} <= {urlsplit(url).netloc for url in urls_of_ours}
    assert any("/api/chat.postMessage" in url for url in called), "nothing was heard at all"
    assert not any("answer-here" in url for url in called)


async def test_presses_of_one_account_do_not_pile_up_answers(office: Office) -> None:
    """Somebody who presses without end is answered about the first of it; nothing waits for Slack because of them."""
    _, card = await office.asked()
    office.faults.on.always("chat.postEphemeral", Status(429, retry_after=900))
    for _ in range(MAX_PENDING_EPHEMERALS + 2):
        await office.pressed("U0SAM", card)
    assert len(await office.answers()) == MAX_PENDING_EPHEMERALS == 5
    assert await office.nothing_said()
    office.faults.on.lift()
    other, _ = await office.asked(600, "b")  # the agent's own quota is not theirs to use up
    assert await office.state(other) == "review"


SLACK_WAITS_S: Final = 3.0
SOON_S: Final = 0.3


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack is answered sooner than it has to be: the test waits for that."""
    monkeypatch.setattr(dispatcher, "RESPONSE_TIMEOUT_S", SOON_S)


@asynccontextmanager
async def locked(office: Office, view: Json) -> AsyncIterator[None]:
    """Another unit holds the transaction's lock, and SQLite's only writer with it."""
    reached, let_go = threading.Event(), threading.Event()

    def held(tx: Tx) -> None:
        lock_transaction(tx, view["txn"])
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
        await office.private_message(dana, "being recorded")
        # as Slack delivers again what it did not hear answered
        again = asyncio.create_task(office.deliver(press))
    assert (await again).status == 200
    await office.shows("Approved and released")
    assert (await in_time(office, press)).body == b""
    assert await office.votes() == [("maya", "approve", False)]


@pytest.mark.usefixtures("soon")
async def test_everything_is_answered_while_the_database_is_locked(
    office: Office, request: pytest.FixtureRequest
) -> None:
    """A form, a press that is refused, a command, a button of the home."""
    dana = await office.link("maya")
    view, card = await office.asked()
    async with locked(office, view):
        form, _, command, _ = await asyncio.gather(
            in_time(office, office.form(dana, "deny", value_of(card), "not ours")),
            in_time(office, office.press("U0SAM", card)),
            in_time(office, office.command(dana, "direct on"), "slash_commands"),
            in_time(office, office.press_at_home(dana, "direct")),
        )
        assert form.json["response_action"] == "update"
        assert "Keep this open" in words(form.json["view"])
        # The lock of a transaction on PostgreSQL holds no command back.
        early = "postgresql" in request.node.name and "direct messages" in command.json["text"]
        assert early or "longer than Slack waits" in command.json["text"]
        assert await office.votes() == []
    assert "It is recorded" in await shown(office)
    await office.private_message("U0SAM", "Nothing was decided")
    assert "direct messages" in words(await until(lambda: office.slack.home(dana)))
    assert await office.votes() == [("maya", "deny", False)]


@pytest.mark.usefixtures("soon")
async def test_a_late_failure_is_reported(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database gives up after Slack was answered."""

    async def late(*given: Any, **more: Any) -> Any:
        await asyncio.sleep(SOON_S + 0.2)
        raise StorageUnavailableError("the database is locked")

    monkeypatch.setattr(interactions, "vote", late)
    dana = await office.link("maya")
    _, card = await office.asked()
    await in_time(office, office.press(dana, card))
    await office.private_message(dana, "may not be recorded: the database is locked; press again")
    await in_time(office, office.form(dana, "deny", value_of(card), "not ours"))
    assert "may not be recorded" in await shown(office)
    assert await office.votes() == []
