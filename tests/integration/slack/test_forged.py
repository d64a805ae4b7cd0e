"""Deliveries that Slack never sent, or sent for another: what is not signed, is old, or is of another app is 401.

Nothing is said of why, and nothing is done. What is signed and is no delivery is refused without an error of ours.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from policy_service.storage.core import find_one
from policy_service.storage.plumbing import OutboxRow
from policy_service.storage.slack_tables import SlackDeliveryRow, SlackStandingRow
from tests.counterparts.slack import SECRET
from tests.fakes.slack_deliveries import FORM, JSON, Json, Kind, signature, signed
from tests.integration.slack.attacking import GONE, Attacker
from tests.integration.slack.office import Office

pytestmark = pytest.mark.anyio

URL: Final = "/slack/events"


@pytest.fixture
async def asked(office: Office) -> Json:
    """A card whose payment dana may approve."""
    await office.link("maya")
    await office.pay(500, "a")
    return await office.card()


async def _post(office: Office, body: bytes, headers: Any) -> Any:
    return await office.world.http.post(URL, content=body, headers=headers)


async def test_an_approval_that_is_not_signed_is_401_and_says_no_more(
    office: Office, attacker: Attacker, asked: Json
) -> None:
    press, now = attacker.press("U0DANA", asked), office.world.clock().timestamp()
    body, good = signed("interactive", press, SECRET, now)
    bare = {"Content-Type": FORM}
    again = good | {"X-Slack-Signature": "v0=" + "0" * 64}
    refused: dict[str, Any] = {
        "no header at all": bare,
        "no signature": {**bare, "X-Slack-Request-Timestamp": good["X-Slack-Request-Timestamp"]},
        "no time": {**bare, "X-Slack-Signature": good["X-Slack-Signature"]},
        "a wrong one": again,
        "another secret's": signed("interactive", press, "9" * 32, now)[1],
        "an empty secret's": signed("interactive", press, "", now)[1],
        "upper case": good | {"X-Slack-Signature": good["X-Slack-Signature"].upper()},
        "no ASCII": [*good.items(), ("X-Slack-Signature", "é".encode("latin-1"))],
        "two": [*good.items(), ("X-Slack-Signature", again["X-Slack-Signature"])],
        "an old one": signed("interactive", press, SECRET, now - 302)[1],
        "one of tomorrow": signed("interactive", press, SECRET, now + 302)[1],
        "a time that is text": bare | {**good, "X-Slack-Request-Timestamp": "now"},
        "a time that is a float": {
            **good,
            "X-Slack-Request-Timestamp": f"{good['X-Slack-Request-Timestamp']}.0",
        },
    }
    for why, headers in refused.items():
        answer = await _post(office, body, headers)
        assert answer.status_code == 401, why
        assert answer.json()["code"] == "unauthenticated", why
        assert answer.json()["detail"] == "this is not signed by Slack", why
    for other in (body + b"\n", body.replace(b"+", b"%20"), body.lower(), b"", b"\xff" + body):
        assert (await _post(office, other, good)).status_code == 401, other[:40]
    assert await attacker.nothing_said()
    assert await attacker.count(SlackDeliveryRow) == 0
    assert await attacker.answers() == []

    assert (await _post(office, body, good)).status_code == 200
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_a_delivery_with_two_readings_is_refused_though_it_is_signed(
    office: Office, attacker: Attacker, asked: Json
) -> None:
    press, now = attacker.press("U0DANA", asked), office.world.clock().timestamp()
    body, good = signed("interactive", press, SECRET, now)
    for headers in (
        good | {"Content-Type": f"{FORM}; charset=utf-16"},
        [*good.items(), ("Content-Type", JSON)],
        [*good.items(), ("Host", "evil.example"), ("Host", "evil.example")],
    ):
        assert (await _post(office, body, headers)).status_code == 400
    assert await attacker.nothing_said()


@pytest.mark.parametrize("reset", [False, True])
async def test_hanging_up_in_mid_delivery_is_no_fault(office: Office, reset: bool) -> None:
    with capture_logs() as lines:
        _, writer = await asyncio.open_connection("127.0.0.1", office.world.settings.port)
        writer.write(b"POST /slack/events HTTP/1.1\r\nHost: slack.test\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort() if reset else writer.close()
        await asyncio.sleep(0.1)
    assert [one for one in lines if one["log_level"] in {"error", "critical"}] == []


async def test_a_signature_ages_by_the_clock_of_the_service(
    office: Office, attacker: Attacker, asked: Json
) -> None:
    start = office.world.clock()
    press = attacker.press("U0DANA", asked)
    body, headers = signed("interactive", press, SECRET, start.timestamp())
    made = int(headers["X-Slack-Request-Timestamp"])
    office.world.clock.stop_at(start + timedelta(seconds=made + 301 - start.timestamp()))
    try:
        assert (await _post(office, body, headers)).status_code == 401
    finally:
        office.world.clock.go_on()
    assert await attacker.nothing_said()


OTHERS: Final[dict[str, dict[str, Any]]] = {
    "another workspace": {"team__id": "T0PARTNER"},
    "another app": {"api_app_id": "A0RIVAL"},
    "no app": {"api_app_id": ""},
    "an enterprise and no workspace": {"team": None, "enterprise": {"id": "E0NORTH"}},
    "its workspace left out": {"team": GONE},
    "its app left out": {"api_app_id": GONE},
    "nobody": {"user": GONE},
    "a workspace that is a list": {"team__id": ["T0NORTHWIND"]},
    "a workspace with a space": {"team__id": "T0NORTHWIND "},
    "a workspace in lower case": {"team__id": "t0northwind"},
}


async def test_what_is_of_another_workspace_or_app_is_refused_though_it_is_signed(
    office: Office, attacker: Attacker, asked: Json
) -> None:
    for why, changes in OTHERS.items():
        answer = await attacker.deliver(attacker.press("U0DANA", asked, **changes))
        assert answer.status in (400, 401), why
        form = attacker.form("U0DANA", "deny", "cs1:x:" + "0" * 64, "because", **changes)
        assert (await attacker.deliver(form)).status in (400, 401), why
    for more in ({"team_id": "T0PARTNER"}, {"api_app_id": "A0RIVAL"}, {"team_id": GONE}, {"user_id": GONE}):
        answer = await attacker.say("U0DANA", "link", **more)
        assert answer.status in (400, 401), more
        assert b"invitation" not in answer.body
    assert await attacker.nothing_said()
    assert await attacker.answers() == []


@pytest.mark.parametrize("kind", ["tokens_revoked", "app_uninstalled"])
async def test_only_our_own_app_can_be_said_to_be_gone(office: Office, attacker: Attacker, kind: str) -> None:
    for changes in ({"api_app_id": "A0RIVAL"}, {"team_id": "T0PARTNER"}):
        answer = await attacker.deliver(attacker.event(kind, **changes), "events_api")
        assert answer.status == 401
    answer = await attacker.deliver(attacker.event(kind), "events_api", secret="9" * 32)
    assert answer.status == 401
    assert await _failures(office) == 0

    assert (await attacker.deliver(attacker.event(kind), "events_api")).status == 200
    assert await _failures(office) > 0


NOT_LOST: dict[str, Any] = {
    "a person's token": {"oauth": ["U0DANA"], "bot": []},
    "nobody's token": {},
    "no tokens": None,
    "tokens that are text": "bot",
    "a bot that is text": {"bot": "U0COUNTERSIGN"},
    "a bot that is nobody": {"bot": [None, "", 5]},
}


async def test_a_revoked_token_that_is_not_the_apps_own_leaves_the_app_as_it_is(
    office: Office, attacker: Attacker
) -> None:
    for why, tokens in NOT_LOST.items():
        event = attacker.event("tokens_revoked", event__tokens=tokens)
        assert (await attacker.deliver(event, "events_api")).status == 200
        assert await _failures(office) == 0, why


async def _failures(office: Office) -> int:
    row = await office.world.service.db.read(
        lambda conn: find_one(conn, SlackStandingRow, team_id=office.app.team_id)
    )
    return 0 if row is None else row.failures


DEEP: Final = 50_000
NO_DELIVERIES: Final[dict[str, tuple[bytes, str]]] = {
    "nothing": (b"", FORM),
    "nothing, as JSON": (b"", JSON),
    "no JSON": (b"{", JSON),
    "a list": (b"[]", JSON),
    "a number": (b"1", JSON),
    "a payload that is none": (b"payload=", FORM),
    "a payload that is a list": (b"payload=[]", FORM),
    "deep JSON": (b"[" * DEEP + b"]" * DEEP, JSON),
    "a deep payload": (b"payload=" + b'{"a":' * DEEP + b"1" + b"}" * DEEP, FORM),
    "a form of JSON's type": (b"payload=%7B%7D", JSON),
    "JSON of a form's type": (b'{"type":"block_actions"}', FORM),
    "a form that is no text": (b"payload=%ff%fe", FORM),
    "a hundred and one fields": (b"&".join(b"f%d=1" % n for n in range(101)), FORM),
    "a type that is a list": (b'{"type": ["block_actions"]}', JSON),
    "a type that is a lone surrogate": (b'{"type": "\\ud800"}', JSON),
    "a number of 5,000 digits": (b'{"type": ' + b"9" * 5_000 + b"}", JSON),
    "half a press": (b'{"type": "block_actions"}', JSON),
    "a command that is an object": (b'{"command": {}}', JSON),
    "a question without a word": (b'{"type": "url_verification"}', JSON),
    "a question of a thousand and one": (b'{"type":"url_verification","challenge":"' + b"x" * 1_001 + b'"}', JSON),
    "no type of contents": (b"{}", ""),
    "another type of contents": (b"<a/>", "text/xml"),
    "a type of contents without end": (b"{}", "application/json;" + "a" * 1_000),
}  # fmt: skip


async def test_what_is_signed_and_no_delivery_is_no_error_of_ours(office: Office, attacker: Attacker) -> None:
    for why, (body, form) in NO_DELIVERIES.items():
        headers = {"Content-Type": form, **signature(body, SECRET, office.world.clock().timestamp())}
        answer = await _post(office, body, headers)
        assert answer.status_code in (200, 400), why
        bare = await _post(office, body, {"Content-Type": form})
        assert bare.status_code == 401, why


async def test_what_is_too_large_is_refused_before_it_is_looked_at(office: Office) -> None:
    body = b"x" * (512 * 1024 + 1)
    answer = await _post(
        office, body, {"Content-Type": JSON, **signature(body, SECRET, office.world.clock().timestamp())}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_only_a_post_is_a_delivery(office: Office) -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        answer = await office.world.http.request(method, URL, headers=signature(b"", SECRET))
        assert answer.status_code in (404, 405), method


async def test_a_question_of_another_is_not_answered(office: Office, attacker: Attacker) -> None:
    asks: Json = {"type": "url_verification", "challenge": "c0ffee"}
    kind: Kind = "events_api"
    assert (await attacker.deliver(asks, kind, secret="9" * 32)).status == 401
    answer = await attacker.deliver(asks, kind)
    assert (answer.status, answer.json) == (200, {"challenge": "c0ffee"})
    assert (await attacker.deliver(asks | {"challenge": "x" * 1_001}, kind)).status == 400


async def test_many_forgeries_write_nothing(office: Office, attacker: Attacker) -> None:
    body, headers = signed("slash_commands", attacker.command("U0SAM", "link"), "9" * 32)
    for _ in range(4):
        await asyncio.gather(*(_post(office, body, headers) for _ in range(50)))
    assert await attacker.count(SlackDeliveryRow) == 0
    assert await attacker.count(OutboxRow) == 0
