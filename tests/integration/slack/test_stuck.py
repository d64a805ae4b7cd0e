"""Nothing stands at the head of a place for ever: a channel made again, a locked thread, or what nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from policy_service.channels.slack import courier
from policy_service.channels.slack.courier import TRIES_IN_THE_DARK
from policy_service.channels.slack.loops import SlackChannel
from policy_service.storage import outbox
from policy_service.storage.core import change, find_one
from policy_service.storage.plumbing import OutboxRow
from policy_service.storage.slack_lanes import lane_of
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow
from policy_service.workflow.slack import mending
from policy_service.workflow.slack.owing import CARD, OFFERED_FOR
from tests.fakes.slack_faults import CutAfter, NotOk
from tests.integration.slack.office import APPROVALS, Office, until, words
from tests.integration.slack.test_outage import finding, tried

pytestmark = pytest.mark.anyio

POST, UPDATE = "chat.postMessage", "chat.update"
GONE = "C0BEFORE"


async def made_again(office: Office) -> None:
    """The channel that had the name until now is no more, and the one that has it now is another."""

    def before(tx: Any) -> None:
        change(tx.conn, SlackPlaceRow, {"place": "#approvals"}, {"channel": GONE})
        change(tx.conn, SlackCardRow, {"place": "#approvals"}, {"channel": GONE})

    await office.world.service.db.write(before)


async def retried(office: Office) -> int:
    """What `slack retry` does."""
    return await office.world.service.db.write(lambda tx: mending.try_again(tx, office.app))


async def test_a_channel_made_again_under_its_name_is_found_when_the_operator_says_so(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    await made_again(office)
    await maya.vote(view, "deny", reason="no")
    await tried(office, UPDATE)
    await until(lambda: rests(office))
    await office.pay(501, "b", "acct-2")
    await retried(office)
    await office.quiet(step_s=20)
    _, *anew = map(words, await office.slack.messages(APPROVALS))
    assert len(anew) == 2
    assert "Denied" in anew[0]
    assert "acct-1" in anew[0]
    assert "acct-2" in anew[1]
    assert await finding(office) is None


async def rests(office: Office) -> bool | None:
    """Whether the place has failed."""
    row = await office.world.service.db.read(lambda conn: find_one(conn, SlackPlaceRow, place="#approvals"))
    return (row is not None and row.failures > 0) or None


async def test_a_thread_in_a_channel_that_is_no_more_stops_nothing(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()

    def before(tx: Any) -> None:
        change(tx.conn, SlackCardRow, {"place": "#approvals"}, {"channel": GONE})

    await office.world.service.db.write(before)
    await office.comment(maya, view, "who asked?")
    await office.quiet()
    assert await rests(office) is None
    assert len(await office.slack.messages(APPROVALS)) == 2, (
        "people are still asked, where the name leads now"
    )


async def test_the_card_in_a_channel_that_is_shut_still_rests_with_it(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    office.faults.on.next(UPDATE, *[NotOk("is_archived")] * 2)
    await maya.vote(view, "deny", reason="no")
    await until(lambda: rests(office))
    await office.quiet(step_s=20)
    (card,) = await office.slack.messages(APPROVALS)
    assert "Denied" in words(card)


@pytest.mark.parametrize(
    "error",
    [
        "restricted_action_thread_locked",
        "restricted_action_non_threadable_channel",
        "cannot_reply_to_message",
        "restricted_action_thread_only_channel",
    ],
)
async def test_a_thread_that_takes_nothing_stops_no_channel(office: Office, error: str) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    office.faults.on.next(POST, NotOk(error))
    await office.comment(maya, view, "who asked?")
    await office.pay(501, "b", "acct-2")
    await office.quiet()
    assert await rests(office) is None
    assert "acct-2" in words(await office.card())
    assert (await office.standing()).dead == 1, "it is told that one was set aside"


async def test_what_nobody_knows_is_set_aside_after_a_while_and_stops_nobody_else(
    office: Office, bundle: Any
) -> None:
    """The first card is refused with a code that no page of Slack's has; another place goes on meanwhile."""
    office.faults.on.next(POST, *[NotOk("something_new")] * TRIES_IN_THE_DARK)
    await office.pay(500, "a")
    await office.quiet(step_s=150)
    assert office.faults.on.left() == 0
    standing = await office.standing()
    assert (standing.failures, standing.dead) == (0, 1)
    await office.pay(501, "b", "acct-2")
    await office.quiet()
    assert "acct-2" in words(await office.card())
    posts = len([call for call in office.faults.calls if call.method == POST])
    assert posts == TRIES_IN_THE_DARK + 2, "the line after the first one brings its card after all"


async def test_what_slack_says_of_itself_sets_nothing_aside(office: Office) -> None:
    office.faults.on.next(POST, *[NotOk("internal_error")] * (TRIES_IN_THE_DARK + 2))
    await office.pay(500, "a")
    await office.quiet(step_s=30)
    assert office.faults.on.left() == 0
    assert len(await office.slack.messages(APPROVALS)) == 1


async def test_a_message_that_cannot_be_carried_is_set_aside_and_the_next_one_leaves(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, poison = courier.read_subject, []

    def broken(conn: Any, ctx: Any, message: Any, now: Any) -> Any:
        if message.outbox_id == (poison or poison.append(message.outbox_id) or poison)[0]:
            raise KeyError("comment_id")
        return kept(conn, ctx, message, now)

    monkeypatch.setattr(courier, "read_subject", broken)
    await office.pay(500, "a")
    await office.quiet(step_s=150)
    await office.pay(501, "b", "acct-2")
    await office.quiet()
    assert "acct-2" in words(await office.card())
    assert (await office.standing()).dead == 1


async def test_what_was_set_aside_is_looked_for_before_it_is_posted(office: Office) -> None:
    """One of its attempts may have arrived, for all that anybody knows weeks later."""
    office.faults.on.next(POST, *[NotOk("invalid_blocks")] * 4)
    await office.pay(500, "a")
    await office.quiet()
    assert await retried(office) == 2
    await office.quiet()
    assert len(await office.slack.messages(APPROVALS)) == 1
    assert [call.method for call in office.faults.calls if call.method == "conversations.history"]


def channel(office: Office) -> SlackChannel:
    """The office's own."""
    found = office.world.service.slack
    assert found is not None
    return found


async def test_what_a_lost_update_drew_is_drawn_over(office: Office) -> None:
    """An update that Slack did and nobody heard of shows one thing; what stands afterwards is what was drawn before
    it, and has to be said again."""
    await office.pay(500, "a")
    await office.quiet()
    (first,) = await office.slack.messages(APPROVALS)
    row = await office.world.service.db.read(lambda conn: find_one(conn, SlackCardRow, place="#approvals"))
    assert row is not None
    web = channel(office)._slack
    drew = [{"type": "section", "text": {"type": "plain_text", "text": "Approved"}}]
    await web.call(UPDATE, channel=row.channel, ts=row.ts, text="Approved", blocks=drew)
    await owed(office, row, "one", attempts=1)
    await office.quiet()
    (card,) = await office.slack.messages(APPROVALS)
    assert words(card["blocks"]) == words(first["blocks"])


async def test_an_update_in_doubt_is_not_trusted_by_the_next_one(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    office.faults.on.next(UPDATE, CutAfter())
    await maya.vote(view, "deny", reason="no")

    async def in_doubt() -> bool | None:
        row = await office.world.service.db.read(
            lambda conn: find_one(conn, SlackCardRow, place="#approvals")
        )
        return (row is not None and row.drawn is None) or None

    await until(in_doubt)
    await office.quiet(step_s=20)
    assert len(office.faults.accepted(UPDATE)) == 2


async def test_a_retry_in_vain_still_tells_since_when_it_fails(office: Office) -> None:
    office.faults.on.always(POST, NotOk("is_archived"))
    await office.pay(500, "a")
    await tried(office, POST)
    await until(lambda: rests(office))
    (before,) = (await office.standing()).resting
    office.world.clock.pass_(hours=1)
    await retried(office)
    await tried(office, POST, 3)
    await until(lambda: rests(office))
    (after,) = (await office.standing()).resting
    assert after.since == before.since is not None
    office.faults.on.lift()
    await office.quiet(step_s=20)
    assert (await office.standing()).resting == ()


async def owed(office: Office, row: SlackCardRow, outbox_id: str, *, attempts: int) -> None:
    """One more message that brings the card up to date, tried so often already."""

    def put(tx: Any) -> None:
        until_ = tx.now + OFFERED_FOR
        payload = {"card_id": row.card_id}
        outbox.put_once(tx, outbox_id, CARD, payload, lane=lane_of(row.place), give_up_at=until_)
        change(tx.conn, OutboxRow, {"outbox_id": outbox_id}, {"attempts": attempts})

    await office.world.service.db.write(put)


async def test_a_retry_revives_no_answer_to_a_press_and_wakes_only_who_is_owed(office: Office) -> None:
    await office.pay(500, "a")
    card = await office.card()
    office.faults.on.next("chat.postEphemeral", NotOk("invalid_blocks"))
    sam = office.slack.users["sam"]
    await office.slack.click(APPROVALS, card["ts"], sam, "approve")
    await office.quiet()
    office.world.clock.pass_(days=7)
    assert await retried(office) == 0
    await office.quiet()
    assert await office.slack.ephemerals(APPROVALS, sam) == []
    place = await office.world.service.db.read(lambda conn: find_one(conn, SlackPlaceRow, place="#approvals"))
    assert place is not None
    assert place.channel == APPROVALS, "nothing waits there, and nothing was forgotten"


async def test_a_channel_that_says_too_much_to_look_through_stops_alone_and_not_for_ever(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may have been posted is not posted again, and what stands behind it waits for hours, not for weeks."""
    monkeypatch.setattr(courier, "_PAGES", 0)
    office.faults.on.next(POST, CutAfter())
    await office.pay(500, "a")
    await tried(office, POST)
    await until(lambda: rests_later(office))
    told = await finding(office)
    assert told is not None
    assert "too_much_to_look_through" in told["wrong"]
    assert (await office.standing()).failures <= 1
    monkeypatch.setattr(courier, "_PAGES", 25)
    await office.quiet(step_s=600)
    assert len(await office.slack.messages(APPROVALS)) == 1


async def rests_later(office: Office) -> bool | None:
    """Whether the place has failed, while time passes."""
    office.world.clock.pass_(seconds=5)
    return await rests(office)


async def test_a_message_is_looked_for_since_it_was_owed_and_changed_as_it_is_written(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    office.world.clock.pass_(minutes=20)
    asked = office.world.clock().timestamp()
    office.faults.on.next(POST, CutAfter())
    await office.comment(maya, view, "one")
    await maya.vote(view, "deny", reason="no")
    await office.quiet(step_s=20)
    (search, *_) = [call for call in office.faults.calls if call.method == "conversations.replies"]
    assert float(search.args["oldest"]) >= asked - 600
    (*_, change_) = [call for call in office.faults.calls if call.method == UPDATE]
    assert (change_.args["parse"], change_.args["link_names"]) == ("none", False)
