"""Who presses: only a full member, linked to a person who may decide this one. Everybody else learns why, alone.

A refusal records nothing: no vote, no word, no line in the log.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from policy_service.channels.slack import client
from policy_service.channels.slack.drawing.message import Pointer
from policy_service.storage.core import change
from policy_service.storage.tables import PersonRow
from policy_service.workflow.effects.activate import ask_about_open
from policy_service.workflow.pages.reviews import read_view
from policy_service.workflow.reviews.shown import SLACK, view_of
from policy_service.workflow.slack.subjects import ONLOOKER
from tests.fakes.payments import Payments, gate, person
from tests.fakes.slack_deliveries import Json
from tests.fakes.slack_faults import CutAfter, Garbled, Hang, NotOk, Status
from tests.fakes.slack_truth import FOREIGN_TEAM, GUEST, LEFT, SINGLE_CHANNEL_GUEST, STRANGER
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import APPROVALS, Office, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def card(office: Office) -> Json:
    """A card of a payment that finance is asked about: maya and tomas."""
    await office.pay(500, "a")
    return await office.card()


async def refused(attacker: Attacker, user: str, card: Json, *because: str, **changes: Any) -> None:
    """That no button of the card does anything for this account, and that it is told why."""
    before = len(await attacker.answers())
    for action in ("approve", "deny", "ask"):
        answer = await attacker.deliver(attacker.press(user, card, action, **changes))
        assert (answer.status, answer.body) == (200, b""), action
    told = (await attacker.answers())[before:]
    assert len(told) == 3
    for one in told:
        assert (one["user"], one["channel"]) == (user, APPROVALS)
        assert all(words in one["sentence"] for words in because), one["sentence"]
    user_of = {path: value for path, value in changes.items() if path.startswith("user__")}
    for kind in ("approve", "deny", "ask"):
        form = attacker.form(user, kind, value_of(card), "because I can", **user_of)
        assert (await attacker.deliver(form)).json["response_action"] == "errors"
    assert await attacker.nothing_said()


async def test_a_member_who_merely_sees_the_message_is_told_to_link(
    office: Office, attacker: Attacker, card: Json
) -> None:
    await refused(attacker, "U0SAM", card, "nobody's yet", "/countersign link")
    shown = await office.told("U0SAM", "nobody's yet")
    assert shown["ephemeral_to"] == "U0SAM"
    assert len(await office.slack.messages(APPROVALS)) == 1
    assert await office.slack.replies(APPROVALS, card["ts"]) == []


async def test_a_member_who_is_in_no_group_of_the_gate_is_told_whom_it_waits_for(
    office: Office, attacker: Attacker, card: Json
) -> None:
    ingrid = await office.link("ingrid")
    await refused(attacker, ingrid, card, "only people in finance decide this", "your administrator")


ACCOUNTS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "a guest": (GUEST, "guest"),
    "a guest of one channel": (SINGLE_CHANNEL_GUEST, "guest"),
    "a guest of one channel, and only that is said": ({"is_ultra_restricted": True}, "guest"),
    "deactivated": (LEFT, "deactivated"),
    "a bot": ({"is_bot": True}, "app's"),
    "a workflow": ({"is_workflow_bot": True}, "app's"),
    "of a shared channel": (STRANGER, "another workspace"),
    "a stranger of this workspace": ({"is_stranger": True}, "another workspace"),
    "of another workspace": ({"team_id": FOREIGN_TEAM}, "another workspace"),
    "all of it": (GUEST | LEFT | STRANGER, "another workspace"),
}


async def test_an_account_that_is_no_full_members_decides_nothing_though_it_is_linked(
    office: Office, attacker: Attacker, card: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a member's when it was linked; what it is now counts."""
    monkeypatch.setattr(client, "ACCOUNT_KEPT_S", 0.0)
    monkeypatch.setattr(client, "ACCOUNT_S", 20.0)  # a busy machine is no doubt about who it is
    dana = await office.link("maya")
    people = office.faults.truth.people
    try:
        for said, because in ACCOUNTS.values():
            people[dana] = said
            await refused(attacker, dana, card, because)
            for text in ("link", "", "unlink", "direct on", "simulate robot pay {}"):
                answer = await attacker.say(dana, text)
                assert because in answer.body.decode(), text
                assert b"invitation" not in answer.body
    finally:
        del people[dana]
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]


@pytest.mark.parametrize("who", ["grace", "walter", "ximena", "robot"])
async def test_who_is_no_full_member_is_handed_no_invitation(
    office: Office, attacker: Attacker, card: Json, who: str
) -> None:
    user = office.slack.users[who]
    for text in ("link", "", "reviews", "simulate robot pay {}", "unlink", "direct on"):
        answer = await attacker.say(user, text)
        assert answer.status == 200
        assert b"invitation" not in answer.body
        assert "Slack account is" in answer.body.decode(), text
    await refused(attacker, user, card, "this Slack account is")


async def test_what_a_delivery_says_of_its_user_makes_nobody_a_member(
    office: Office, attacker: Attacker, card: Json
) -> None:
    dana = await office.link("maya")
    await refused(attacker, dana, card, "another workspace", user__team_id=FOREIGN_TEAM)
    await refused(attacker, "U0XIMENA", card, "another workspace", user__team_id=office.app.team_id)


async def test_whoever_slack_does_not_vouch_for_decides_nothing(
    office: Office, attacker: Attacker, card: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubt is a refusal, and a moment later there is none."""
    monkeypatch.setattr(client, "ACCOUNT_KEPT_S", 0.0)
    monkeypatch.setattr(client, "ACCOUNT_S", 0.3)
    dana = await office.link("maya")
    for fault in (
        NotOk("user_not_found"), NotOk("token_revoked"), Status(429, 30), Status(500), Hang(1), CutAfter(), Garbled(),
    ):  # fmt: skip
        office.faults.on.always("users.info", fault)
        await refused(attacker, dana, card, "Slack does not say who you are")
        office.faults.on.lift()
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]


LIES: Final[dict[str, dict[str, Any]]] = {
    "another user's": {"id": "U0FELIX"},
    "nobody's": {"id": None},
    "of no workspace": {"team_id": None},
    "of two workspaces": {"team_id": ["T0NORTHWIND", "T0PARTNER"]},
    "with a profile that is none": {"profile": "dana"},
    "with a flag that is text": {"deleted": "no"},
}


async def test_an_answer_about_somebody_else_or_about_nobody_is_none(
    office: Office, attacker: Attacker, card: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ACCOUNT_KEPT_S", 0.0)
    dana = await office.link("maya")
    await office.link("tomas")
    try:
        for said in LIES.values():
            office.faults.truth.people[dana] = said
            await refused(attacker, dana, card)
    finally:
        del office.faults.truth.people[dana]


async def test_an_account_that_was_deactivated_is_asked_about_again_after_a_minute(
    office: Office, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dana = await office.link("maya")
    await office.pay(5_000, "two people")
    card = await office.card()
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]
    office.faults.truth.people[dana] = LEFT
    try:
        later = time.monotonic() + 60
        monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: later))
        assert (await attacker.deliver(attacker.press(dana, card, "deny"))).status == 200
        form = attacker.form(dana, "deny", value_of(card), "because I can")
        assert "deactivated" in (await attacker.deliver(form)).body.decode()
    finally:
        del office.faults.truth.people[dana]
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_the_owner_of_the_agent_decides_nothing_in_slack(
    office: Office, attacker: Attacker, bundle: Payments
) -> None:
    maya = await office.link("maya")
    owned = await office.world.agent("owned", owner=person("maya"))
    office.robot = owned
    await office.pay(500, "a")
    await refused(attacker, maya, await office.card(), "you own owned")


async def test_one_person_in_slack_and_on_the_web_counts_once(office: Office, attacker: Attacker) -> None:
    dana = await office.link("maya")
    view = await office.pay(5_000, "two people")
    card = await office.card()
    maya = await office.world.person("maya")
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert (await maya.vote(view)).status_code == 200
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await office.state(view) == "review"
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_two_accounts_of_one_person_count_once(office: Office, attacker: Attacker) -> None:
    dana = await office.link("maya")
    sam = await office.link("maya", user_id="U0SAM")
    view = await office.pay(5_000, "two people")
    card = await office.card()
    for user in (dana, sam, dana):
        assert (await attacker.deliver(attacker.press(user, card))).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]
    assert await office.state(view) == "review"


async def test_who_left_the_group_before_the_press_decides_nothing(
    office: Office, attacker: Attacker, card: Json, bundle: Payments
) -> None:
    dana = await office.link("maya")
    bundle.people({"finance": ("tomas",)})
    await office.world.activate()
    card = await office.card()
    answer = await attacker.deliver(attacker.press(dana, card))
    assert answer.status == 200
    (told,) = await attacker.answers()
    assert "you are not one of them" in told["sentence"]
    assert await attacker.nothing_said()


async def test_a_person_who_was_revoked_decides_nothing(own_office: Office) -> None:
    dana = await own_office.link("maya")
    await own_office.pay(500, "a")
    await own_office.world.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    await refused(Attacker(own_office), dana, await own_office.card())


@pytest.mark.parametrize("does", ["approve", "deny", "ask"])
async def test_groups_of_a_token_that_is_too_old_are_told_with_the_way_on(
    office: Office, attacker: Attacker, card: Json, bundle: Payments, does: str
) -> None:
    """They were in finance by their token, and the token is of the day before yesterday."""
    dana = await office.link("maya")
    bundle.people({"finance": ("tomas",)})
    await office.world.activate()
    old = {"groups": ["finance"], "groups_at": office.world.clock().replace(year=2020)}
    await office.world.service.db.write(lambda tx: change(tx.conn, PersonRow, {"sub": "maya"}, old))
    assert (await attacker.deliver(attacker.press(dana, await office.card(), does))).status == 200
    (told,) = await attacker.answers()
    assert "groups were read too long ago" in told["sentence"]
    assert told["url"].startswith(office.world.settings.public_url)
    assert await attacker.nothing_said()


async def test_what_was_linked_through_the_development_sign_in_ends_with_it(
    office: Office, attacker: Attacker, card: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    dana = await office.link("maya")
    service = office.world.service
    assert service.slack is not None
    off = replace(service.ctx, settings=service.ctx.settings.model_copy(update={"dev_signin": False}))
    monkeypatch.setattr(service.slack.desk, "_ctx", off)
    await refused(attacker, dana, card, "development sign-in, which is off")


async def test_a_gate_that_asks_for_a_passkey_takes_no_press(
    office: Office, attacker: Attacker, bundle: Payments
) -> None:
    """Neither a card that was drawn with it, nor one of before the rules asked for it."""
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    before = await office.card()
    bundle.rules(gate("sure", "finance", "context.input.amount > 100", step_up="passkey"))
    assert await office.world.activate()
    await ask_about_open(office.world.service.ctx)
    assert (await attacker.deliver(attacker.press(dana, before))).status == 200
    await office.pay(500, "b")
    after = await office.card()
    for pressed_on in (before, after):
        forged = {"type": "button", "action_id": "approve", "value": await _pointer(attacker, pressed_on)}
        assert (await attacker.deliver(attacker.press_of(dana, pressed_on, forged))).status == 200
        form = attacker.form(dana, "approve", forged["value"], "because I can")
        assert (await attacker.deliver(form)).json["response_action"] == "errors"
    assert await attacker.votes() == []
    assert await office.state(view) == "review"
    told = [one["sentence"] for one in await attacker.answers()]
    assert len(told) == 3
    assert all("passkey" in one for one in told), told


async def _pointer(attacker: Attacker, card: Json) -> str:
    """What the button of a card would say as the card stands now, whether it has one or not."""
    ctx = attacker.office.world.service.ctx
    (row,) = [one for one in await attacker.cards() if one["ts"] == card["ts"]]
    page = await ctx.db.read(lambda conn: read_view(conn, ctx, ONLOOKER, row["review_id"], ctx.clock()))
    assert page is not None
    return Pointer(row["card_id"], view_of(page, SLACK).digest).value


async def test_approve_and_deny_at_once_by_two_people_end_in_one_order(
    office: Office, attacker: Attacker
) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    for turn in range(2):
        view = await office.pay(500, f"race {turn}")
        card = await _card_of(office, view)
        await asyncio.gather(
            attacker.deliver(attacker.press(dana, card)),
            attacker.deliver(attacker.form(felix, "deny", value_of(card), "not like this")),
        )
        assert await office.state(view) in ("released", "denied")
    for (one, _, first), (other, _, second) in _pairs(await attacker.votes()):
        assert {one, other} == {"maya", "tomas"}
        assert not (first and second)


async def test_approve_and_deny_at_once_by_one_person_end_in_one_order(
    office: Office, attacker: Attacker
) -> None:
    dana = await office.link("maya")
    view = await office.pay(5_000, "two people")
    card = await office.card()
    await asyncio.gather(
        attacker.deliver(attacker.press(dana, card)),
        attacker.deliver(attacker.form(dana, "deny", value_of(card), "not like this")),
    )
    assert await office.state(view) == "denied"
    assert ("maya", "deny", False) in await attacker.votes()
    await office.shows("Denied")


async def _card_of(office: Office, view: Json) -> Json:
    review = view["effects"][0]["review"]["review_id"]

    async def there() -> Json | None:
        messages = await office.slack.messages(APPROVALS)
        return next((one for one in messages if review in one["blocks"][0].get("block_id", "")), None)

    return await until(there)


def _pairs(votes: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(votes[::2], votes[1::2], strict=True))
