"""Who presses: only a full member, linked to a person who may decide this one. Everybody else learns why, alone.

A refusal records nothing: no vote, no word, no line in the log.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from policy_service.channels.slack import client
from policy_service.storage.core import update_rows
from policy_service.storage.tables import PersonRow
from policy_service.workflow.effects.activate import reevaluate_open_effects
from tests.fakes.payments import Payments, gate, person
from tests.fakes.slack_deliveries import Json
from tests.fakes.slack_faults import CutAfter, Garbled, Hang, NotOk, Status
from tests.fakes.slack_truth import FOREIGN_TEAM, GUEST, LEFT, STRANGER
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import APPROVALS, Office

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_press_is_answered")]

MAYA: Final = ("maya", "approve", False)
EVERY: Final = ("approve", "deny", "ask")


@pytest.fixture
async def card(office: Office) -> Json:
    """A card of a payment that finance is asked about: maya and tomas."""
    return (await office.asked())[1]


async def refused(
    office: Office, user: str, card: Json, *because: str, actions: tuple[str, ...] = EVERY, **changes: Any
) -> None:
    """Require that no button or form of the card works for this account, and that it sees why."""
    await office.quiet()  # an answer that waits for long is dropped
    before = len(await office.answers())
    await office.pressed(user, card, *actions, **changes)
    output = (await office.answers())[before:]
    assert len(output) == len(actions)
    for one in output:
        assert (one["user"], one["channel"]) == (user, APPROVALS)
        assert all(words in one["sentence"] for words in because), one["sentence"]
    user_of = {path: value for path, value in changes.items() if path.startswith("user__")}
    for kind in actions:
        assert await office.sent(user, kind, value_of(card), **user_of) != ""
    assert await office.nothing_said()


async def counts(office: Office, user: str, card: Json) -> None:
    """That their press is maya's only vote."""
    await office.pressed(user, card)
    assert await office.votes() == [MAYA]


async def test_only_the_member_sees_why_they_may_not_decide(office: Office, card: Json) -> None:
    await refused(office, "U0SAM", card, "is not linked yet", "/countersign link")
    assert (await office.private_message("U0SAM", "is not linked yet"))["ephemeral_to"] == "U0SAM"
    assert len(await office.cards()) == 1
    assert await office.thread() == []
    ingrid = await office.link("ingrid")
    await refused(office, ingrid, card, "only people in finance decide this", "your administrator")


ACCOUNTS: Final[list[tuple[dict[str, Any], str]]] = [
    (GUEST, "guest"), ({"is_ultra_restricted": True}, "guest"), (LEFT, "deactivated"),
    ({"is_bot": True}, "app's"), ({"is_workflow_bot": True}, "app's"), (STRANGER, "another workspace"),
    ({"is_stranger": True}, "another workspace"), ({"team_id": FOREIGN_TEAM}, "another workspace"),
    (GUEST | LEFT | STRANGER, "another workspace"),
]  # fmt: skip


async def test_only_full_members_decide(office: Office, card: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a member's when it was linked; what it is now counts."""
    monkeypatch.setattr(client, "ACCOUNT_TIMEOUT_S", 20.0)  # a busy machine is no doubt about who it is
    dana = await office.link("maya")
    commands = ["link", "", "reviews", "unlink", "direct on", "simulate robot pay {}"]
    for said, because in ACCOUNTS:
        with office.known_as(dana, said):
            await refused(office, dana, card, because, actions=("approve",))
            for text in commands[:1] if said is not GUEST else commands:
                answer = await office.say(dana, text)
                assert because in answer.body.decode(), text
                assert b"invitation" not in answer.body
    await counts(office, dana, card)


async def test_who_is_no_full_member_is_handed_no_invitation(office: Office, card: Json) -> None:
    for who in ("grace", "walter", "ximena", "robot"):
        answer = await office.say(office.slack.users[who], "link")
        assert (answer.status, b"invitation" in answer.body) == (200, False)
        assert "Slack account is" in answer.body.decode()
        await refused(office, office.slack.users[who], card, "this Slack account is", actions=("deny",))


async def test_a_payload_cannot_claim_membership(office: Office, card: Json) -> None:
    dana = await office.link("maya")
    await refused(office, dana, card, "another workspace", user__team_id=FOREIGN_TEAM)
    await refused(office, "U0XIMENA", card, "another workspace", user__team_id=office.app.team_id)


async def test_unconfirmed_accounts_refuse(
    office: Office, card: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubt is a refusal, and a moment later there is none."""
    monkeypatch.setattr(client, "ACCOUNT_TIMEOUT_S", 0.3)
    dana = await office.link("maya")
    for fault in (
        NotOk("user_not_found"), NotOk("token_revoked"), Status(429, 30), Status(500), Hang(1), CutAfter(), Garbled(),
    ):  # fmt: skip
        office.faults.on.always("users.info", fault)
        await refused(office, dana, card, "Slack could not confirm your account", actions=("approve",))
        office.faults.on.lift()
    await counts(office, dana, card)


LIES: Final[list[dict[str, Any]]] = [
    {"id": "U0FELIX"}, {"id": None}, {"team_id": None}, {"team_id": ["T0NORTHWIND", "T0PARTNER"]},
    {"profile": "dana"}, {"deleted": "no"},
]  # fmt: skip


async def test_a_response_about_another_or_no_account_is_rejected(office: Office, card: Json) -> None:
    dana = await office.link("maya")
    await office.link("tomas")
    for said in LIES:
        with office.known_as(dana, said):
            await refused(office, dana, card, actions=("approve",))


async def test_an_account_that_was_deactivated_is_asked_about_again_after_a_minute(office: Office) -> None:
    dana = await office.link("maya")
    _, card = await office.asked(5_000)
    office.world.clock.stop_at(office.world.clock())
    await counts(office, dana, card)
    office.faults.truth.people[dana] = LEFT
    try:
        office.world.clock.pass_(seconds=59)
        await office.pressed(dana, card)
        assert len(office.calls("users.info")) == 1
        office.world.clock.pass_(seconds=1)
        await office.pressed(dana, card, "deny")
        assert "deactivated" in await office.sent(dana, "deny", value_of(card))
    finally:
        del office.faults.truth.people[dana]
    assert await office.votes() == [MAYA]


async def test_the_owner_of_the_agent_decides_nothing_in_slack(office: Office) -> None:
    maya = await office.link("maya")
    office.robot = await office.world.agent("owned", owner=person("maya"))
    _, card = await office.asked()
    await refused(office, maya, card, "you own owned")


async def test_one_person_counts_once_with_two_accounts_and_on_the_web(office: Office) -> None:
    dana, sam = await office.link("maya"), await office.link("maya", user_id="U0SAM")
    view, card = await office.asked(5_000)
    for user in (dana, sam, dana):
        await office.pressed(user, card)
    await office.vote(view)
    await counts(office, dana, card)
    assert await office.state(view) == "review"


async def test_who_left_the_group_before_the_press_decides_nothing(office: Office, bundle: Payments) -> None:
    """A person whose token with the group is too old is asked to sign in again."""
    dana = await office.link("maya")
    await office.pay()
    bundle.people({"finance": ("tomas",)})
    await office.world.activate()
    card = await office.card()
    await refused(office, dana, card, "you are not one of them")
    old = {"groups": ["finance"], "groups_at": office.world.clock().replace(year=2020)}
    await office.world.service.db.write(lambda tx: update_rows(tx.conn, PersonRow, {"sub": "maya"}, old))
    await refused(office, dana, card, "groups were read too long ago")
    assert (await office.answers())[-1]["url"].startswith(office.world.settings.public_url)


async def test_a_gate_that_asks_for_a_passkey_takes_no_press(office: Office, bundle: Payments) -> None:
    """Neither a card that was drawn with it, nor one of before the rules asked for it."""
    dana = await office.link("maya")
    view, before = await office.asked()
    bundle.rules(gate("sure", "finance", "context.input.amount > 100", step_up="passkey"))
    assert await office.world.activate()
    await reevaluate_open_effects(office.world.service.ctx)
    await office.pressed(dana, before)
    other, after = await office.asked(500, "b")
    for shown, card in ((view, before), (other, after)):
        pointer = await office.pointer(shown)
        await office.forged(dana, card, value=pointer)
        assert await office.sent(dana, "approve", pointer) != ""
    assert await office.votes() == []
    assert await office.state(view) == "review"
    assert ["passkey" in one["sentence"] for one in await office.answers()] == [True] * 3


async def test_approve_and_deny_at_once_by_two_people_end_in_one_order(office: Office) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    view, card = await office.asked()
    deny = office.sent(felix, "deny", value_of(card), "not like this")
    await asyncio.gather(office.pressed(dana, card), deny)
    assert await office.state(view) in ("released", "denied")
    votes = await office.votes()
    assert {sub for sub, _, _ in votes} <= {"maya", "tomas"}
    assert [late for _, _, late in votes].count(False) == 1


async def test_approve_and_deny_at_once_by_one_person_end_in_one_order(office: Office) -> None:
    dana = await office.link("maya")
    view, card = await office.asked(5_000)
    deny = office.sent(dana, "deny", value_of(card), "not like this")
    await asyncio.gather(office.pressed(dana, card), deny)
    assert await office.state(view) == "denied"
    assert ("maya", "deny", False) in await office.votes()
    await office.shows("Denied")
