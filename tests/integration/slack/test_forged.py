"""Deliveries that Slack never sent, or sent for another: what is not signed, is old, or is of another app is 401.

Nothing is said of why, and nothing is done. What is signed and is no delivery is refused without an error of ours.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from policy_service.storage.slack_tables import SlackDeliveryRow
from tests.counterparts.slack import SECRET
from tests.fakes.slack_deliveries import FORM, JSON, Json, signature, signed
from tests.integration.slack.attacking import GONE, value_of
from tests.integration.slack.office import Office

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_press_is_answered")]

URL: Final = "/slack/events"
EVENTS: Final = "events_api"


@pytest.fixture
async def card(office: Office) -> Json:
    """A card whose payment dana may approve."""
    await office.link("maya")
    return (await office.asked())[1]


async def post(office: Office, body: bytes, headers: Any) -> int:
    """What the service says to this."""
    answer = await office.world.http.post(URL, content=body, headers=headers)
    if answer.status_code == 401:
        output = answer.json()
        assert (output["code"], output["detail"]) == ("unauthenticated", "this is not signed by Slack")
    return answer.status_code


async def test_an_approval_that_is_not_signed_is_401_and_says_no_more(office: Office, card: Json) -> None:
    """Every form of a wrong signature is in `tests/unit/channels/slack/test_slack_signature.py`."""
    press, now = office.press("U0DANA", card), office.world.clock().timestamp()
    body, good = signed("interactive", press, SECRET, now)
    wrong = {"X-Slack-Signature": "v0=" + "0" * 64}
    refused: dict[str, Any] = {
        "no header at all": {"Content-Type": FORM},
        "another secret's": signed("interactive", press, "9" * 32, now)[1],
        "no ASCII": [*good.items(), ("X-Slack-Signature", "é".encode("latin-1"))],
        "two": [*good.items(), *wrong.items()],
        "an old one": signed("interactive", press, SECRET, now - 302)[1],
    }
    for why, headers in refused.items():
        assert await post(office, body, headers) == 401, why
    for other in (body + b"\n", body.replace(b"+", b"%20"), b"", b"\xff" + body):
        assert await post(office, other, good) == 401, other[:40]
    assert await office.nothing_said()
    assert await office.count(SlackDeliveryRow) == 0
    assert await office.answers() == []
    for headers in (
        good | {"Content-Type": f"{FORM}; charset=utf-16"},
        [*good.items(), ("Content-Type", JSON)],
        [*good.items(), ("Host", "evil.example"), ("Host", "evil.example")],
    ):
        assert await post(office, body, headers) == 400, "it can be read in two ways"
    assert await office.nothing_said()
    assert await post(office, body, good) == 200
    assert await office.votes() == [("maya", "approve", False)]


async def test_text_that_databases_cannot_store_is_refused_without_an_error(office: Office) -> None:
    dana = await office.link("maya")
    _, card = await office.asked(5_000)
    for words in ("\0", "a\0b", "\ud800", "x\udfff", "\x1b[2J", "\u202e"):
        for kind in ("ask", "deny"):
            await office.sent(dana, kind, value_of(card), words)
        for path in ("user__id", "container__channel_id", "container__message_ts"):
            answer = await office.deliver(office.press("U0SAM", card, **{path: words}))
            assert answer.status in (200, 400), (path, words)


async def test_hanging_up_in_mid_delivery_is_no_fault(office: Office) -> None:
    with capture_logs() as lines:
        _, writer = await asyncio.open_connection("127.0.0.1", office.world.settings.port)
        writer.write(b"POST /slack/events HTTP/1.1\r\nHost: slack.test\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await asyncio.sleep(0.1)
    assert [one for one in lines if one["log_level"] in {"error", "critical"}] == []


async def test_a_signature_ages_by_the_clock_of_the_service(office: Office, card: Json) -> None:
    start = office.world.clock()
    body, headers = signed("interactive", office.press("U0DANA", card), SECRET, start.timestamp())
    made = int(headers["X-Slack-Request-Timestamp"])
    office.world.clock.stop_at(start + timedelta(seconds=made + 301 - start.timestamp()))
    assert await post(office, body, headers) == 401
    assert await office.nothing_said()


OTHERS: Final[list[dict[str, Any]]] = [
    {"team__id": "T0PARTNER"}, {"api_app_id": "A0RIVAL"}, {"team": None, "enterprise": {"id": "E0NORTH"}},
    {"api_app_id": GONE}, {"user": GONE}, {"team__id": ["T0NORTHWIND"]}, {"team__id": "t0northwind"},
]  # fmt: skip


async def test_what_is_of_another_workspace_or_app_is_refused(office: Office, card: Json) -> None:
    for changes in OTHERS:
        form = office.form("U0DANA", "deny", "cs1:x:" + "0" * 64, "because", **changes)
        for payload in (office.press("U0DANA", card, **changes), form):
            assert (await office.deliver(payload)).status in (400, 401), changes
    for more in ({"team_id": "T0PARTNER"}, {"api_app_id": "A0RIVAL"}, {"team_id": GONE}, {"user_id": GONE}):
        answer = await office.say("U0DANA", "link", **more)
        assert answer.status in (400, 401), more
        assert b"invitation" not in answer.body
    assert await office.nothing_said()
    assert await office.answers() == []


async def test_only_the_own_app_can_be_reported_as_removed(office: Office) -> None:
    ours: list[Any] = [{"oauth": ["U0DANA"], "bot": []}, {"bot": "U0COUNTERSIGN"}, {"bot": [None, "", 5]}]
    for tokens in (*ours, {}, None, "bot"):
        event = office.event("tokens_revoked", event__tokens=tokens)
        assert (await office.deliver(event, EVENTS)).status == 200
        assert (await office.slack_status()).failures == 0, tokens
    for kind in ("tokens_revoked", "app_uninstalled"):
        for changes in ({"api_app_id": "A0RIVAL"}, {"team_id": "T0PARTNER"}):
            assert (await office.deliver(office.event(kind, **changes), EVENTS)).status == 401
        assert (await office.deliver(office.event(kind), EVENTS, secret="9" * 32)).status == 401
        before = (await office.slack_status()).failures
        assert (before == 0) is (kind == "tokens_revoked")
        assert (await office.deliver(office.event(kind), EVENTS)).status == 200
        assert (await office.slack_status()).failures > before


DEEP: Final = 50_000
NO_DELIVERIES: Final[dict[str, tuple[bytes, str]]] = {
    "a deep payload": (b"payload=" + b'{"a":' * DEEP + b"1" + b"}" * DEEP, FORM),
    "a form that is no text": (b"payload=%ff%fe", FORM),
    "a hundred and one fields": (b"&".join(b"f%d=1" % n for n in range(101)), FORM),
    "a type that is a lone surrogate": (b'{"type": "\\ud800"}', JSON),
    "a number of 5,000 digits": (b'{"type": ' + b"9" * 5_000 + b"}", JSON),
    "no type of contents": (b"{}", ""),
    "another type of contents": (b"<a/>", "text/xml"),
}  # fmt: skip


async def test_a_signed_invalid_payload_is_a_client_error(office: Office) -> None:
    """Any payload is read or refused in `tests/unit/channels/slack/test_slack_payloads.py`."""
    now = office.world.clock().timestamp()
    for why, (body, form) in NO_DELIVERIES.items():
        headers = {"Content-Type": form, **signature(body, SECRET, now)}
        assert await post(office, body, headers) in (200, 400), why
        assert await post(office, body, {"Content-Type": form}) == 401, why
    large = b"x" * (512 * 1024 + 1)
    assert await post(office, large, {"Content-Type": JSON, **signature(large, SECRET, now)}) == 413
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        answer = await office.world.http.request(method, URL, headers=signature(b"", SECRET, now))
        assert answer.status_code in (404, 405), method


async def test_a_url_verification_without_a_signature_is_refused(office: Office) -> None:
    asks: Json = {"type": "url_verification", "challenge": "c0ffee"}
    assert (await office.deliver(asks, EVENTS, secret="9" * 32)).status == 401
    answer = await office.deliver(asks, EVENTS)
    assert (answer.status, answer.json) == (200, {"challenge": "c0ffee"})
    assert (await office.deliver(asks | {"challenge": "x" * 1_001}, EVENTS)).status == 400
