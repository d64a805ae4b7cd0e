"""What an operator gives up and what time makes the channel forget; what is still needed is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from policy_service.channels.slack import projection, workers
from policy_service.channels.slack.delivery import MessageSender
from policy_service.channels.slack.send_queue import SendResult
from policy_service.errors import ConflictError, NotFoundError
from policy_service.storage import outbox
from policy_service.storage.core import Row
from policy_service.storage.database import Tx
from policy_service.storage.outbox import Message
from policy_service.storage.slack_tables import SlackCardRow, SlackDeliveryRow, SlackPlaceRow, lane_of
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.tables import ReviewRow
from policy_service.storage.unit_of_work import append
from policy_service.workflow.expiry.sweep import delete_expired_rows
from policy_service.workflow.slack.account_links import set_direct
from policy_service.workflow.slack.admin import DroppedPlace, drop_place
from policy_service.workflow.slack.enqueue import (
    CARD,
    CARDS_KEPT,
    DELIVERIES_KEPT,
    MESSAGE_LIFETIME,
    delete_expired_slack_rows,
    ensure_place,
)
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.slack_deliveries import Json
from tests.fakes.slack_faults import CutAfter, NotOk
from tests.integration.slack.conftest import OpenOffice
from tests.integration.slack.office import APPROVALS, PATIENCE_S, PAYMENTS, POST, Office, until, words

pytestmark = pytest.mark.anyio
Unit = Callable[[Tx], None]


async def given_up(office: Office, place: str) -> DroppedPlace:
    """What `slack drop` does; only then Slack takes messages again."""
    db = office.world.service.db
    dropped = await db.write(lambda tx: drop_place(tx, office.app, place, "the team moved on"))
    office.faults.on.lift()
    return dropped


async def places(office: Office) -> list[str]:
    """Where there are cards."""
    return sorted(card.place for card in await office.find(SlackCardRow))


async def nothing_is_left(office: Office, *others: str) -> None:
    """There are cards in the other places alone, and no message for #payments waits."""
    assert await places(office) == [*others]
    assert await office.find(OutboxRow, lane=lane_of("#payments"), state="waiting") == []


async def one_into_the_other(office: Office, first: Unit, second: Unit) -> None:
    """The second unit begins while the first one has not committed."""
    db = office.world.service.db

    def slowly(tx: Tx) -> None:
        first(tx)
        time.sleep(0.2)

    began = asyncio.create_task(db.write(slowly))
    await asyncio.sleep(0.1)
    await asyncio.gather(began, db.write(second))


async def refused(office: Office, method: str = POST, error: str = "is_archived") -> Json:
    """A payment whose card cannot be posted: its view."""
    office.faults.on.always(method, NotOk(error))
    view = await office.pay()
    await office.tried(method)
    await office.rests()
    return view


async def stuck_in(office: Office, bundle: Payments, channel: str) -> None:
    """A gate asks in a channel that is archived."""
    bundle.policies(ANYBODY + gate("large", "finance", "context.input.amount > 100", channel=channel))
    assert await office.world.activate()
    await refused(office)


async def shut(office: Office, place: str) -> None:
    """The place takes nothing, as far as we know."""
    failing = {"failures": 1, "last_error": "is_archived", "since": office.world.clock()}
    await office.change(SlackPlaceRow, {"place": place}, failing)


async def test_what_is_open_moves_to_the_default_channel(office: Office, bundle: Payments) -> None:
    await stuck_in(office, bundle, "#payments")
    await office.vote(await office.pay(501, "b", "acct-2"), "deny")
    await until(office.followed)
    dropped = await given_up(office, "#payments")
    assert dropped.cards >= 1
    assert dropped.messages >= 1
    await office.quiet()
    (only,) = await office.cards()
    assert "acct-1" in only
    assert await office.cards(PAYMENTS) == []
    assert await places(office) == ["#approvals"]
    assert await office.finding() == ""


async def test_dropping_the_default_channel_leaves_open_reviews_to_the_web(office: Office) -> None:
    view = await refused(office)
    assert (await given_up(office, "#approvals")).cards == 1
    await office.quiet()
    assert (await places(office), await office.cards()) == ([], [])
    await office.vote(view, "approve")
    assert await office.state(view) == "released"


async def test_a_review_with_another_card_is_asked_no_further(office: Office, bundle: Payments) -> None:
    bundle.rules(gate("more", "legal", "context.input.amount > 100", channel="#payments"))
    assert await office.world.activate()
    await office.pay(quiet=True)
    assert await places(office) == ["#approvals", "#payments"]
    await shut(office, "#payments")
    await given_up(office, "#payments")
    await office.quiet()
    assert await places(office) == ["#approvals"]
    assert len(await office.cards()) == 1


async def test_only_an_unusable_channel_is_dropped_with_its_buttons(office: Office) -> None:
    """A card in a working channel would stay open for ever."""
    dana = await office.link("maya")
    with pytest.raises(NotFoundError, match="nothing was ever sent to '#typo'"):
        await given_up(office, "#typo")
    view, card = await office.asked(quiet=True)
    with pytest.raises(ConflictError, match="'#approvals' accepts messages; name another channel"):
        await given_up(office, "#approvals")
    assert await places(office) == ["#approvals"]
    await shut(office, "#approvals")
    await given_up(office, "#approvals")
    await office.slack.click(APPROVALS, card["ts"], dana, "approve")
    assert "not a message of this service" in words(await office.private_message(dana, "Nothing was decided"))
    assert await office.state(view) == "review"


async def test_an_unusable_direct_message_can_be_dropped(office: Office) -> None:
    dana = await office.link("maya")
    await set_direct(office.world.service.ctx, office.app.team_id, dana, wanted=True)
    await refused(office, "conversations.open", "user_disabled")
    assert dana in await places(office)
    await given_up(office, dana)
    await office.quiet()
    assert await places(office) == ["#approvals"]


async def test_a_message_on_its_way_to_it_changes_nothing_when_it_arrives(
    office: Office, bundle: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stuck_in(office, bundle, "#payments")
    on_its_way, let_go, send_message = asyncio.Event(), asyncio.Event(), MessageSender.send_message

    async def slowly(self: MessageSender, place: SlackPlaceRow, message: Message) -> SendResult:
        if place.place == "#payments":
            on_its_way.set()
            await let_go.wait()
        return await send_message(self, place, message)

    monkeypatch.setattr(MessageSender, "send_message", slowly)
    office.world.clock.pass_(minutes=10)
    await asyncio.wait_for(on_its_way.wait(), PATIENCE_S)
    await given_up(office, "#payments")
    let_go.set()
    await office.quiet()
    await nothing_is_left(office, "#approvals")


@pytest.mark.parametrize("first", ["followed", "given up"])
async def test_projection_during_a_drop_leaves_no_messages(
    office: Office, bundle: Payments, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The projection has read already. Of the two units of work, the second one waits."""
    await stuck_in(office, bundle, "#payments")
    service = office.world.service

    async def rest(*_: Any) -> bool:
        return False

    monkeypatch.setattr(workers, "project_log", rest)
    (review,) = await office.find(ReviewRow, txn=next(iter(office.robot.txns)))
    of: Any = {"txn": review.txn, "effect_id": review.effect_id, "rev": review.rev}
    await service.db.write(lambda tx: append(tx, "slack_line", actor="operator", body={}, **of))
    await service.sequencer.number()
    news = await service.db.read(lambda conn: projection._read_batch(conn, service.ctx, office.app))
    assert news is not None
    assert news.lines

    def followed(tx: Tx) -> None:
        assert projection._enqueue_batch(tx, office.app, news)

    def dropped(tx: Tx) -> None:
        drop_place(tx, office.app, "#payments", "the team moved on")

    await one_into_the_other(office, *((followed, dropped) if first == "followed" else (dropped, followed)))
    await nothing_is_left(office)


async def kept(office: Office, row: type[Row], **where: Any) -> int:
    """How many rows there are after a sweep."""
    await delete_expired_rows(office.world.service.ctx)
    return len(await office.find(row, **where))


async def test_a_press_is_remembered_for_a_day_and_a_place_while_it_is_used(office: Office) -> None:
    """Where the only answer to a press was lost, nothing says when the place was last used."""
    _, card = await office.asked()
    office.faults.on.next("chat.postEphemeral", CutAfter())
    await office.slack.click(APPROVALS, card["ts"], "U0SAM", "approve")
    await office.quiet()
    assert office.faults.on.left() == 0
    assert await kept(office, SlackPlaceRow, place="@U0SAM") == 0
    assert await kept(office, SlackPlaceRow, place="#approvals") == 1
    (delivery,) = await office.find(SlackDeliveryRow)
    office.world.clock.stop_at(delivery.at + DELIVERIES_KEPT)
    office.world.clock.pass_(seconds=-1)
    assert await kept(office, SlackDeliveryRow) == 1
    office.world.clock.pass_(seconds=2)
    assert await kept(office, SlackDeliveryRow) == 0


async def test_a_card_is_kept_until_its_review_was_settled_long_ago(office: Office) -> None:
    first, _ = await office.pay(), await office.pay(501, "b", "acct-2", quiet=True)
    await office.vote(first, "deny")
    await office.quiet()
    office.world.clock.pass_(seconds=CARDS_KEPT.total_seconds() - 60)
    assert await kept(office, SlackCardRow) == 2
    office.world.clock.pass_(seconds=61)
    assert await kept(office, SlackCardRow) == 1, "the other one still waits for an answer"
    assert await kept(office, SlackPlaceRow, place="#approvals") == 1


async def test_a_digest_is_kept_as_long_as_what_it_holds(open_office: OpenOffice) -> None:
    """And a place as long as it is used."""
    async with open_office(app={"digest_above": 1}) as office:
        await office.backlog(3)
        assert await kept(office, SlackCardRow, kind="digest") == 1
        office.world.clock.pass_(days=2)
        await office.world.sweep()
        await office.quiet(step_s=20)
        office.world.clock.pass_(seconds=CARDS_KEPT.total_seconds() + 3_600)
        assert await kept(office, SlackCardRow) == 0
        assert await kept(office, SlackPlaceRow) == 0
        _, card = await office.asked(900, "later", "acct-later")
        assert "acct-later" in words(card)


@pytest.mark.parametrize("first", ["wanted", "forgotten"])
async def test_a_place_that_is_wanted_while_it_is_forgotten_is_there(office: Office, first: str) -> None:
    """Each of the two units of work reads before the other one has committed."""
    place = "#long-ago"

    def want(tx: Tx) -> None:
        ensure_place(tx, place)
        until = tx.now + MESSAGE_LIFETIME
        outbox.enqueue_once(tx, "slk_new", CARD, {"card_id": "none"}, lane=lane_of(place), give_up_at=until)

    await office.world.service.db.write(lambda tx: ensure_place(tx, place))
    units = (want, delete_expired_slack_rows)
    await one_into_the_other(office, *(units if first == "wanted" else units[::-1]))
    assert len(await office.find(SlackPlaceRow, place=place)) == 1
