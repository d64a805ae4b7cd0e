"""Slack that hangs, and addresses that are not Slack's: what is acknowledged is durable, and nothing else is called."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import pytest

from policy_service.channels.slack import desk
from policy_service.storage.core import insert_unless_taken
from policy_service.storage.slack_tables import SlackDeliveryRow, SlackPlaceRow
from policy_service.workflow.effects import asking
from policy_service.workflow.pages import trying
from policy_service.workflow.reviews import vote as reviews_vote
from policy_service.workflow.slack import acting, deliveries, linking
from tests.fakes.slack_faults import Hang
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import PATIENCE_S, Office, until

pytestmark = pytest.mark.anyio

ELSEWHERE: Final = "http://127.0.0.1:9/answer-here"


async def test_no_200_leaves_before_what_was_pressed_is_durable(
    office: Office, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit that writes the press down is held: until it is let go, Slack hears nothing."""
    dana = await office.link("maya")
    await office.pay(500, "a")
    press = attacker.press(dana, await office.card())
    reached, let_go = threading.Event(), threading.Event()

    def held(tx: Any, delivery: str) -> bool:
        reached.set()
        assert let_go.wait(30)
        return insert_unless_taken(tx.conn, SlackDeliveryRow(delivery=delivery, at=tx.now))

    monkeypatch.setattr(acting, "note_in", held)
    monkeypatch.setattr(deliveries, "note_in", held)
    under_way = asyncio.create_task(attacker.deliver(press))
    try:
        assert await asyncio.to_thread(reached.wait, 30)
        assert not under_way.done()
    finally:
        let_go.set()
    assert (await under_way).status == 200
    assert await attacker.count(SlackDeliveryRow) == 1
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_a_slack_that_hangs_holds_up_no_acknowledgement_and_no_vote_on_the_web(
    office: Office, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the question who somebody is stands before the answer, and that one is answered here."""
    dana = await office.link("maya")
    view = await office.pay(5_000, "a")
    card = await office.card()
    assert (
        await attacker.deliver(attacker.press("U0SAM", card))
    ).status == 200  # who they are is known from now on
    assert (await attacker.deliver(attacker.press(dana, card, "ask"))).status == 200
    monkeypatch.setattr(desk, "INLINE_S", 600)  # what waits for Slack waits for as long as the test
    office.faults.on.always("*", Hang())
    try:
        for press in (
            attacker.press(dana, card),
            attacker.press("U0SAM", card),
            attacker.press(dana, card, "deny"),
        ):
            async with asyncio.timeout(PATIENCE_S):
                assert (await attacker.deliver(press)).status == 200
        form = attacker.form(dana, "ask", value_of(card), "which invoice?")
        assert (await attacker.deliver(form)).body == b""
        assert (await attacker.say(dana, "")).status == 200
        assert await attacker.votes() == [("maya", "approve", False)]
        tomas = await office.world.person("tomas")
        assert (await tomas.vote(view)).status_code == 200
        assert await office.state(view) == "released"
    finally:
        office.faults.on.lift()
    await office.shows("Approved and released")


@pytest.fixture
def slow_facts(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Facts that do not come until this is set: only who gives them up goes on."""
    lifted, known = asyncio.Event(), asking.gather_facts

    async def later(*given: Any) -> Any:
        await lifted.wait()
        return await known(*given)

    for module in (reviews_vote, trying):
        monkeypatch.setattr(module, "gather_facts", later)
    return lifted


async def test_facts_slower_than_slack_waits_decide_nothing_and_say_where_to_go_on(
    office: Office, attacker: Attacker, slow_facts: asyncio.Event
) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    (told,) = await attacker.answers()
    assert "longer than Slack waits; decide on the page" in told["sentence"]
    assert told["url"].endswith(f"/reviews/{view['effects'][0]['review']['review_id']}")
    assert await attacker.votes() == []
    slow_facts.set()
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_a_deny_waits_for_no_facts(
    office: Office, attacker: Attacker, slow_facts: asyncio.Event
) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    form = attacker.form(dana, "deny", value_of(await office.card()), "not this one")
    assert (await attacker.deliver(form)).body == b""
    assert await attacker.votes() == [("maya", "deny", False)]
    assert await office.state(view) == "denied"
    assert not slow_facts.is_set()


async def test_a_trial_whose_facts_are_slow_is_answered_in_time(
    office: Office, attacker: Attacker, slow_facts: asyncio.Event
) -> None:
    dana = await office.link("maya")
    tried = await attacker.say(dana, 'simulate robot pay {"account": "acct-1", "amount": 500}')
    assert b"longer than Slack waits; try it on the web" in tried.body
    slow_facts.set()
    tried = await attacker.say(dana, 'simulate robot pay {"account": "acct-1", "amount": 500}')
    assert b"longer than Slack waits" not in tried.body
    assert tried.status == 200


async def test_a_question_of_an_account_that_is_unlinked_meanwhile_is_not_asked(
    office: Office, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between what was read for the press and the unit that writes the question."""
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    known = acting.comment

    async def unlinked_first(ctx: Any, *given: Any, **more: Any) -> None:
        await ctx.db.write(lambda tx: linking.unlink_in(tx, office.app.team_id, dana, actor="operator"))
        await known(ctx, *given, **more)

    monkeypatch.setattr(acting, "comment", unlinked_first)
    form = attacker.form(dana, "ask", value_of(card), "which invoice?")
    assert b"nobody's yet" in (await attacker.deliver(form)).body
    assert "question_asked" not in [kind for kind, _ in await office.world.log(view["txn"])]


async def test_no_address_in_a_delivery_is_ever_called(
    office: Office, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    request = aiohttp.ClientSession._request

    async def heard(session: Any, method: str, url: Any, **more: Any) -> Any:
        called.append(str(session._base_url or "") + str(url))
        return await request(session, method, url, **more)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", heard)
    dana = await office.link("maya")
    view = await office.pay(500, "a", account=ELSEWHERE)
    card = await office.card()
    urls = {"response_url": ELSEWHERE, "response_urls": [{"response_url": ELSEWHERE}]}
    for press in (
        attacker.press("U0SAM", card, **urls),
        attacker.press(dana, card, message={"ts": card["ts"], "response_url": ELSEWHERE}, **urls),
        attacker.press_of(dana, card, {"action_id": "open", "url": ELSEWHERE, "value": ELSEWHERE}, **urls),
        attacker.form(dana, "deny", value_of(card), ELSEWHERE, **urls),
    ):
        assert (await attacker.deliver(press)).status == 200
    for text in ("link", "", f'simulate robot pay {{"account": "{ELSEWHERE}", "amount": 500}}'):
        assert (await attacker.say(dana, text, response_url=ELSEWHERE)).status == 200
    assert await office.state(view) == "released"
    await office.shows("Approved and released")

    async def answered() -> bool | None:
        return any(call.method == "chat.postEphemeral" for call in office.faults.calls) or None

    await until(answered)
    ours = {
        urlsplit(url).netloc
        for url in (office.faults.url, office.slack.url, office.world.settings.public_url)
    }
    assert {urlsplit(url).netloc for url in called} <= ours
    assert any("/api/chat.postMessage" in url for url in called), "nothing was heard at all"
    assert not any("answer-here" in url for url in called)


async def test_presses_of_one_account_do_not_pile_up_answers(office: Office) -> None:
    """Somebody who presses without end is answered about the first of it; nothing waits for Slack because of them."""
    attacker = Attacker(office)  # the fixture of this name lifts the limit
    await office.pay(500, "a")
    card = await office.card()
    for _ in range(10):
        presses = [attacker.press("U0SAM", card) for _ in range(20)]
        answers = await asyncio.gather(*(attacker.deliver(press) for press in presses))
        assert {answer.status for answer in answers} == {200}
    assert len(await attacker.answers()) <= 20
    assert await attacker.nothing_said()
    assert await attacker.count(SlackPlaceRow) <= 2
    view = await office.pay(600, "b")  # the agent's own quota is not theirs to use up
    assert await office.state(view) == "review"
    await office.shows("600", nth=-1)
