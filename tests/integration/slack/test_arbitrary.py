"""Deliveries with arbitrary members, rightly signed, over HTTP: no error of ours, and nobody's vote.

Each is a press, a form, a command or an event of somebody who may approve, with one or more members replaced: by
another kind of value, by what databases and encoders stumble over, or by nothing; drawn from a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from tests.fakes.slack_deliveries import Json, Kind
from tests.integration.slack.attacking import GONE, changed, value_of
from tests.integration.slack.office import Office

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_press_is_answered")]

HOW_MANY: Final = 120
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


def _payloads(office: Office, dana: str, card: Json) -> list[tuple[Kind, Json]]:
    wrong = value_of(card)[:-64] + "0" * 64  # so that what is left as it is approves nothing either
    press = office.press_of(dana, card, {"type": "button", "action_id": "approve", "value": wrong})
    home = {"type": "view", "view_id": "V1"}
    return [
        ("interactive", press),
        ("interactive", office.form(dana, "approve", wrong, "because")),
        ("interactive", office.form("U0SAM", "deny", value_of(card), "because")),
        ("interactive", office.form("U0SAM", "ask", value_of(card), "because")),
        ("interactive", office.press("U0SAM", card, "deny")),
        ("interactive", office.press_of("U0SAM", card, {"action_id": "direct"}, container=home, view={"id": "V1"})),
        ("slash_commands", office.command("U0SAM", "link")),
        ("slash_commands", office.command("U0SAM", "simulate robot pay {}")),
        ("events_api", office.event("app_home_opened", event__user="U0SAM", event__tab="home")),
    ]  # fmt: skip


async def test_arbitrary_members_are_no_error_and_no_vote(office: Office) -> None:
    dana = await office.link("maya")
    view, card = await office.asked()
    with capture_logs() as lines:
        for kind, payload in _drawn(_payloads(office, dana, card)):
            assert (await office.deliver(payload, kind)).status in (200, 400, 401), payload
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []
    assert await office.nothing_said()
    assert await office.state(view) == "review"
    await office.pressed(dana, card)
    assert await office.votes() == [("maya", "approve", False)]


async def test_words_no_database_holds_are_refused_or_kept_and_no_error(office: Office) -> None:
    dana = await office.link("maya")
    _, card = await office.asked(5_000)
    for words in ("\0", "a\0b", "\ud800", "x\udfff", "\x1b[2J", "\u202e"):
        for kind in ("ask", "deny"):
            await office.sent(dana, kind, value_of(card), words)
        for path in ("user__id", "container__channel_id", "container__message_ts"):
            answer = await office.deliver(office.press("U0SAM", card, **{path: words}))
            assert answer.status in (200, 400), (path, words)
