"""Deliveries with arbitrary members, rightly signed, over HTTP and the socket: no error of ours, and nobody's vote.

Each is a press, a form, a command or an event of somebody who may approve, with one or more members replaced: by
another kind of value, by what databases and encoders stumble over, or by nothing; drawn from a fixed seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.counterparts.slack import SlackServer
from tests.fakes.payments import Payments
from tests.fakes.slack_deliveries import Delivery, Json, Kind
from tests.fakes.slack_faults import SlackFaults
from tests.integration.slack.attacking import GONE, Attacker, changed, value_of
from tests.integration.slack.office import Office, opened

pytestmark = pytest.mark.anyio

HOW_MANY: Final = 250
HOSTILE: Final[list[Any]] = [
    None, True, 0, -1, 1.5, 10**30, "", " ", "\0", "a\0b", "\ud800", "x\udfffy", "\U0010ffff", "a" * 20_000, [], {},
    [[]], [None], {"id": "U0DANA"}, {"value": "\0"}, "U0DANA", "approve", "deny", "ask", "unlink", "link", "%s%n",
    "'; DROP TABLE x;--", "<!channel>", "../..", "\n", "\r\n", GONE, {"reason": {"words": {"value": "\0"}}},
    {"values": {"reason": {"words": {"value": "a\0b"}}}}, {"values": {"reason": {"words": {"value": "\ud800"}}}},
    {"values": {"reason": {"words": {"value": "x" * 20_000}}}}, {"values": {"reason": {"words": {"value": ["x"]}}}},
]  # fmt: skip
OUR_OWN: Final = ("api_app_id", "team")  # replaced, it is 401, as `test_forged` shows


def _paths(value: Any, way: str = "") -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in items:
        yield f"{way}{name}"
        yield from _paths(one, f"{way}{name}.")


def _drawn(payloads: list[tuple[Kind, Json]]) -> Iterator[tuple[Kind, Json]]:
    dice = random.Random(20_261_119)
    for _ in range(HOW_MANY):
        kind, payload = dice.choice(payloads)
        paths = [path for path in _paths(payload) if not path.startswith((*OUR_OWN, "message", "token"))]
        told = changed(payload, {dice.choice(paths): dice.choice(HOSTILE)})
        if kind == "slash_commands" and "\\ud" in repr(told):
            continue  # a form cannot hold half a character
        yield kind, {name: value for name, value in told.items() if value is not GONE}


def _payloads(attacker: Attacker, dana: str, card: Json) -> list[tuple[Kind, Json]]:
    wrong = value_of(card)[:-64] + "0" * 64  # so that what is left as it is approves nothing either
    press = attacker.press_of(dana, card, {"type": "button", "action_id": "approve", "value": wrong})
    home = {"type": "view", "view_id": "V1"}
    return [
        ("interactive", press),
        ("interactive", attacker.form(dana, "approve", wrong, "because")),
        ("interactive", attacker.form("U0SAM", "deny", value_of(card), "because")),
        ("interactive", attacker.form("U0SAM", "ask", value_of(card), "because")),
        ("interactive", attacker.press("U0SAM", card, "deny")),
        ("interactive", attacker.press_of("U0SAM", card, {"action_id": "direct"}, container=home, view={"id": "V1"})),
        ("slash_commands", attacker.command("U0SAM", "link")),
        ("slash_commands", attacker.command("U0SAM", "simulate robot pay {}")),
        ("events_api", attacker.event("app_home_opened", event__user="U0SAM", event__tab="home")),
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["http", "socket"])
async def test_arbitrary_members_are_no_error_and_no_vote(
    tmp_path: Path,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    bundle: Payments,
    database: dict[str, str],
    way: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    slack, faults = slack_and_faults
    async with opened(tmp_path, slack, faults, bundle.path, ways=("signing", "app"), **database) as office:
        await faults.relay.until_open()
        attacker = Attacker(office)
        dana = await office.link("maya")
        view = await office.pay(500, "a")
        card = await office.card()
        unasked = []
        for kind, payload in _drawn(_payloads(attacker, dana, card)):
            if way == "http":
                answer = await attacker.deliver(payload, kind)
                assert answer.status in (200, 400, 401), payload
            else:
                unasked.append(
                    asyncio.create_task(faults.deliveries.send_by_socket(delivered(kind, payload)))
                )
        await asyncio.gather(*unasked)
        assert await attacker.nothing_said()
        assert await office.state(view) == "review"
        assert (await attacker.deliver(attacker.press(dana, card))).status == 200
        assert await attacker.votes() == [("maya", "approve", False)]
    said = capsys.readouterr().out
    assert "slack_delivery_failed" not in said
    assert "Traceback" not in said


def delivered(kind: Kind, payload: Json) -> Delivery:
    """For the socket, where nothing is signed."""
    return Delivery(kind, payload, b"", {})


@pytest.mark.parametrize("words", ["\0", "a\0b", "\ud800", "x\udfff", "\x1b[2J", "\u202e"])
async def test_words_no_database_holds_are_refused_or_kept_and_no_error(
    office: Office, bundle: Payments, words: str
) -> None:
    attacker = Attacker(office)
    dana = await office.link("maya")
    await office.pay(5_000, "a")
    value = value_of(await office.card())
    for kind in ("ask", "deny"):
        assert (await attacker.deliver(attacker.form(dana, kind, value, words))).status == 200


@pytest.mark.long
@pytest.mark.parametrize("engine", [pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
async def test_what_postgresql_does_not_hold_is_no_error_either(office: Office) -> None:
    attacker = Attacker(office)
    dana = await office.link("maya")
    await office.pay(5_000, "a")
    card = await office.card()
    for words in ("\0", "a\0b", "\ud800"):
        for kind in ("ask", "deny"):
            form = attacker.form(dana, kind, value_of(card), words)
            assert (await attacker.deliver(form)).status == 200, words
        for changes in (
            {"user__id": words},
            {"container__channel_id": words},
            {"container__message_ts": words},
        ):
            answer = await attacker.deliver(attacker.press("U0SAM", card, **changes))
            assert answer.status in (200, 400), (words, changes)
