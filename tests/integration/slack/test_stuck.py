"""No message blocks its place for ever: deleted, locked, refused, or with an unexplained error."""

from __future__ import annotations

from typing import Any

import pytest
from slack_sdk.web.async_client import AsyncWebClient

from policy_service.channels.slack import delivery
from policy_service.channels.slack.delivery import MAX_UNEXPLAINED_ATTEMPTS
from policy_service.channels.slack.send_queue import UNHEALTHY_FAILURES
from policy_service.storage import outbox
from policy_service.storage.core import update_rows
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow, lane_of
from policy_service.storage.system_tables import OutboxRow
from policy_service.workflow.slack.enqueue import CARD, MESSAGE_LIFETIME
from tests.fakes.slack_faults import CutAfter, Fault, NotOk
from tests.integration.slack.office import APPROVALS, POST, UPDATE, Office, until, words

pytestmark = pytest.mark.anyio

PLACE = {"place": "#approvals"}
GONE = {"channel": "C0BEFORE"}
OF_A_THREAD = (
    "restricted_action_thread_locked", "restricted_action_non_threadable_channel", "cannot_reply_to_message",
    "restricted_action_thread_only_channel",
)  # fmt: skip


async def rests(office: Office) -> bool:
    """Whether the channel has failed."""
    return any(row.failures for row in await office.find(SlackPlaceRow, **PLACE))


async def test_a_recreated_channel_is_found_after_a_retry_command(office: Office) -> None:
    view = await office.pay(quiet=True)
    for model in (SlackPlaceRow, SlackCardRow):
        await office.change(model, PLACE, GONE)
    await office.vote(view, "deny")
    await office.tried(UPDATE)
    await office.rests()
    await office.pay(501, "b", "acct-2")
    await office.retried()
    await office.quiet(step_s=20)
    _, first, second = await office.cards()
    assert ("Denied" in first, "acct-1" in first, "acct-2" in second) == (True, True, True)
    assert await office.finding() == ""


async def test_a_thread_in_a_channel_that_is_no_more_stops_nothing(office: Office) -> None:
    view = await office.pay(quiet=True)
    await office.change(SlackCardRow, PLACE, GONE)
    await office.comment(view, "who asked?")
    await office.quiet()
    assert not await rests(office)
    assert len(await office.cards()) == 2, "people are still asked, where the name leads now"


async def test_the_card_in_a_channel_that_is_shut_still_rests_with_it(office: Office) -> None:
    view = await office.pay(quiet=True)
    office.faults.on.next(UPDATE, *[NotOk("is_archived")] * 2)
    await office.vote(view, "deny")
    await office.rests()
    await office.quiet(step_s=20)
    (card,) = await office.cards()
    assert "Denied" in card


async def test_a_thread_that_takes_nothing_stops_no_channel(office: Office) -> None:
    view = await office.pay()
    for dead, error in enumerate(OF_A_THREAD, 1):
        await office.quiet()
        office.faults.on.next(POST, NotOk(error))
        await office.comment(view, f"who asked? {error}")
        await office.pay(501, error, f"acct-{error}", quiet=True)
        assert not await rests(office)
        assert f"acct-{error}" in words(await office.card())
        assert (await office.slack_status()).dead == dead, "the abandoned message is counted"


async def test_an_unexplained_error_is_abandoned_after_a_while_and_blocks_no_other(office: Office) -> None:
    """The first card is refused with a code that no page of Slack's has."""
    office.faults.on.next(POST, *[NotOk("something_new")] * MAX_UNEXPLAINED_ATTEMPTS)
    await office.pay()
    await office.quiet(step_s=150)
    assert office.faults.on.left() == 0
    status = await office.slack_status()
    assert (status.failures, status.dead) == (0, 1)
    await office.pay(501, "b", "acct-2", quiet=True)
    assert "acct-2" in words(await office.card())
    assert len(office.calls(POST)) == MAX_UNEXPLAINED_ATTEMPTS + 2, "the next line brings its card after all"


async def test_errors_of_slack_itself_abandon_no_message(office: Office) -> None:
    office.faults.on.next(POST, *[NotOk("internal_error")] * (MAX_UNEXPLAINED_ATTEMPTS + 2))
    await office.pay()
    await office.quiet(step_s=60)
    assert office.faults.on.left() == 0
    assert len(await office.cards()) == 1


async def test_an_unrenderable_message_is_abandoned(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, poison = delivery.read_content, []

    def broken(conn: Any, ctx: Any, message: Any, now: Any) -> Any:
        poison.append(message.outbox_id)
        if message.outbox_id == poison[0]:
            raise KeyError("comment_id")
        return kept(conn, ctx, message, now)

    monkeypatch.setattr(delivery, "read_content", broken)
    await office.pay()
    await office.quiet(step_s=150)
    await office.pay(501, "b", "acct-2", quiet=True)
    assert "acct-2" in words(await office.card())
    assert (await office.slack_status()).dead == 1


async def test_an_unacknowledged_update_is_overwritten(office: Office) -> None:
    """An unacknowledged update may show other content, so the same content as before it must be sent again."""
    _, first = await office.asked(quiet=True)
    (row,) = await office.find(SlackCardRow)
    web = AsyncWebClient(office.slack.bot_token, base_url=office.slack.api_url)
    drew = [{"type": "section", "text": {"type": "plain_text", "text": "Approved"}}]
    await web.chat_update(channel=APPROVALS, ts=first["ts"], text="Approved", blocks=drew)

    def owed(tx: Any) -> None:
        """One more message that brings the card up to date, tried once already."""
        payload, give_up_at = {"card_id": row.card_id}, tx.now + MESSAGE_LIFETIME
        outbox.enqueue_once(tx, "one", CARD, payload, lane=lane_of(row.place), give_up_at=give_up_at)
        update_rows(tx.conn, OutboxRow, {"outbox_id": "one"}, {"attempts": 1})

    await office.world.service.db.write(owed)
    await office.quiet()
    assert words((await office.card())["blocks"]) == words(first["blocks"])


async def test_an_update_in_doubt_is_not_trusted_by_the_next_one(office: Office) -> None:
    view = await office.pay(quiet=True)
    office.faults.on.next(UPDATE, CutAfter())
    await office.vote(view, "deny")

    async def in_doubt() -> bool:
        return (await office.find(SlackCardRow))[0].drawn is None

    await until(in_doubt)
    await office.quiet(step_s=20)
    assert len(office.faults.accepted(UPDATE)) == 2


async def test_a_failing_retry_keeps_the_start_of_the_failure(office: Office) -> None:
    office.faults.on.always(POST, NotOk("is_archived"))
    await office.pay()
    await office.tried(POST)
    await office.rests()
    (before,) = (await office.slack_status()).resting
    office.world.clock.pass_(hours=1)
    await office.retried()
    await office.tried(POST, 3)
    await office.rests()
    (after,) = (await office.slack_status()).resting
    assert after.since == before.since is not None
    office.faults.on.lift()
    await office.quiet(step_s=20)
    assert (await office.slack_status()).resting == ()


async def test_a_retry_revives_no_answer_to_a_press_and_wakes_only_who_is_owed(office: Office) -> None:
    _, card = await office.asked()
    office.faults.on.next("chat.postEphemeral", NotOk("invalid_blocks"))
    await office.slack.click(APPROVALS, card["ts"], "U0SAM", "approve")
    await office.quiet()
    office.world.clock.pass_(days=7)
    assert await office.retried() == 0
    await office.quiet()
    assert await office.slack.ephemerals(APPROVALS, "U0SAM") == []
    (place,) = await office.find(SlackPlaceRow, **PLACE)
    assert place.channel == APPROVALS, "nothing waits there, and nothing was forgotten"


async def test_too_much_to_look_through_rests_alone(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that may have been posted is not posted again, and later messages wait hours, not weeks."""
    with monkeypatch.context() as patch:
        patch.setattr(delivery, "_PAGES", 0)
        office.faults.on.next(POST, CutAfter())
        await office.pay()
        await office.tried(POST)

        async def rests_later() -> bool:
            office.world.clock.pass_(seconds=5)
            return await rests(office)

        await until(rests_later)
        assert "too_much_to_look_through" in await office.finding()
        assert (await office.slack_status()).failures <= 1
    await office.quiet(step_s=600)
    assert len(await office.cards()) == 1


async def test_a_message_is_searched_since_its_creation_and_updated_without_markup(office: Office) -> None:
    view = await office.pay(quiet=True)
    office.world.clock.pass_(minutes=20)
    asked = office.world.clock().timestamp()
    office.faults.on.next(POST, CutAfter())
    await office.comment(view, "one")
    await office.vote(view, "deny")
    await office.quiet(step_s=20)
    assert float(office.calls("conversations.replies")[0].args["oldest"]) >= asked - 600
    last = office.calls(UPDATE)[-1].args
    assert (last["parse"], last["link_names"]) == ("none", False)


TAKEN_AWAY, REFUSED = NotOk("message_not_found"), NotOk("invalid_blocks")


async def denied_after(office: Office, *faults: Fault) -> list[str]:
    """The cards once one is denied whose updates fail so."""
    view = await office.pay(quiet=True)
    office.faults.on.next(UPDATE, *faults)
    await office.vote(view, "deny")
    await office.quiet()
    return await office.cards()


async def test_a_message_somebody_deleted_is_posted_anew_once(office: Office) -> None:
    cards = await denied_after(office, TAKEN_AWAY)
    assert ["Denied" in card for card in cards] == [False, True], "this Slack deletes nothing by itself"


async def test_a_message_that_is_gone_again_and_again_is_not_posted_for_ever(office: Office) -> None:
    cards = await denied_after(office, *[TAKEN_AWAY] * 20)
    assert (await office.slack_status()).waiting == 0
    assert len(cards) <= 3
    office.faults.on.lift()


async def test_a_thread_that_is_gone_has_its_card_posted_anew_and_loses_no_line(office: Office) -> None:
    view = await office.pay(quiet=True)
    office.faults.on.next(POST, NotOk("thread_not_found"))
    for text in ("one", "two"):
        await office.comment(view, text)
        await office.quiet()
    assert len(await office.cards()) == 2
    (line,) = await office.thread()
    assert line.endswith("two"), "the new card is newer than the first comment, which the page has"


@pytest.mark.parametrize("error", ["invalid_blocks", "msg_too_long"])
async def test_refused_blocks_leave_a_bare_card_with_a_link(office: Office, error: str) -> None:
    office.faults.on.next(POST, NotOk(error))
    office.faults.on.next(UPDATE, NotOk(error))
    view, card = await office.asked(quiet=True)
    assert office.faults.on.left() == 0, "what is drawn anew is tried in full, and is bare again"
    assert "'approve'" not in str(card["blocks"])
    assert view["effects"][0]["review"]["review_id"] in str(card["blocks"])
    assert (await office.slack_status()).dead == 0


async def test_a_refused_message_is_reported_for_a_day_and_searched_before_a_retry(office: Office) -> None:
    """One of its attempts may have arrived, for all that anybody knows weeks later."""
    office.faults.on.next(POST, *[REFUSED] * 4)
    await office.pay(quiet=True)
    await office.pay(501, "b", "acct-2", quiet=True)
    (card,) = await office.cards()
    assert "acct-2" in card
    assert "failed permanently" in await office.finding()
    assert (await office.slack_status()).failures < UNHEALTHY_FAILURES
    office.world.clock.pass_(hours=23)
    assert await office.finding() != ""
    office.world.clock.pass_(hours=2)
    assert await office.finding() == ""
    assert office.calls("conversations.history") == []
    assert await office.retried() == 2
    await office.quiet()
    assert len(await office.cards()) == 2
    assert office.calls("conversations.history") != []


async def test_a_card_found_again_and_then_refused_is_not_posted_again(office: Office) -> None:
    """The message was posted without acknowledgement, and Slack refuses its update: it must not be posted again."""
    office.faults.on.next(POST, CutAfter())
    office.faults.on.next(UPDATE, REFUSED, REFUSED)
    view = await office.pay(quiet=True)
    assert office.faults.on.left() == 0
    await office.vote(view, "deny")
    await office.quiet()
    (card,) = await office.cards()
    assert "Denied" in card
