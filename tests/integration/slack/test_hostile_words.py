"""Words that are markup to Slack, in every place somebody else writes: what is really posted parses none of them.

What is looked at is what the API was called with, and what Slack kept: blocks, the notification's text, answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.slack_deliveries import Json
from tests.integration.service.effects import pay
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import APPROVALS, Office, until, words

pytestmark = pytest.mark.anyio

HOSTILE: Final = {
    "a broadcast": "<!channel> <!here> <!everyone> @channel @here",
    "a mention": "<@U0DANA> <#C0APPROVALS> <!subteam^S012345>",
    "a link with another name": "<http://evil.example|https://bank.example>",
    "a date that lies": "<!date^0^{date}|tomorrow>",
    "escapes": "&lt;!channel&gt; &amp;lt; & < >",
    "emphasis": "*bold* _italic_ ~gone~ `code` > quote",
    "a fence": "``` ```\n```<!channel>```",
    "emoji": ":rotating_light: :white_check_mark: :a:",
    "right to left": "acct-\u202e1\u202c \u2066x\u2069",
    "what cannot be seen": "a\u200bb\u2060c\ufeffd\u00ade\U000e0041",
    "line ends": "one\u2028two\u2029three\r\nfour\x0bfive",
    "block JSON": '"}],"type":"mrkdwn","text":"<!channel>"',
}
EVERYTHING: Final = "\n".join(HOSTILE.values())
PARSED: Final = ("<!", "<@", "<#", "<http", "<mailto")
HIDDEN: Final = "\u202e\u202c\u2066\u2069\u200b\u2060\ufeff\u00ad\U000e0041\u2028\u2029"


def everything(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a message, at any depth."""
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from everything(one)
    elif isinstance(value, list):
        for one in value:
            yield from everything(one)


def faults_of(said: Json) -> list[str]:
    """What Slack would make of a message that is more than its characters."""
    found = []
    text = said.get("text", "")
    if any(mark in text for mark in PARSED):
        found.append(f"its notification is parsed: {text!r}")
    if (
        said.get("link_names")
        or said.get("parse", "none") != "none"
        or said.get("attachments")
        or said.get("mrkdwn")
    ):
        found.append("it is parsed as a whole")
    for one in everything({name: said.get(name) for name in ("blocks", "view", "text")}):
        kind = one.get("type")
        if kind in (
            "mrkdwn",
            "markdown",
            "user",
            "usergroup",
            "broadcast",
            "channel",
            "emoji",
            "image",
            "color",
        ):
            found.append(f"an element that is more than text: {json.dumps(one)}")
        if kind == "plain_text" and one.get("emoji") is not False:
            found.append(f"its emoji are drawn: {json.dumps(one)}")
        if kind in ("link", "button") and "evil" in str(one.get("url", "")):
            found.append(f"a link of theirs: {json.dumps(one)}")
    shown = json.dumps(
        {"text": text, "blocks": said.get("blocks"), "view": said.get("view")}, ensure_ascii=False
    )
    found += [f"U+{ord(char):04X} is there and cannot be seen" for char in HIDDEN if char in shown]
    return found


def said_by(office: Office) -> list[Json]:
    """Everything that was posted, changed, shown to one, opened or published."""
    methods = ("chat.postMessage", "chat.update", "chat.postEphemeral", "views.open", "views.publish")
    return [call.args for call in office.faults.calls if call.method in methods]


async def test_nothing_that_somebody_else_wrote_is_parsed_in_any_message(
    office: Office, attacker: Attacker
) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    view = (
        await office.robot.submit(
            await pay(office.world, 5_000, account=EVERYTHING, items=list(HOSTILE.values())),
            run_key="hostile",
        )
    ).json()
    card = await office.card()
    plain = await _paid(office, "acct-1", "plain")
    await office.card(nth=-2)
    second = await office.card()
    press = attacker.press(dana, second, "ask")
    assert (await attacker.deliver(press)).status == 200
    await _called(office, "views.open")
    asked = attacker.form(dana, "ask", value_of(second, "ask"), EVERYTHING)
    assert (await attacker.deliver(asked)).body == b""
    tomas = await office.world.person("tomas")
    assert (await tomas.vote(view, "deny", reason=EVERYTHING[:1_500])).status_code == 200
    deny = attacker.form(felix, "deny", value_of(second, "deny"), EVERYTHING)
    assert (await attacker.deliver(deny)).body == b""
    assert await office.state(plain) == "denied"
    await office.shows("Denied", nth=0)
    await office.shows("Denied", nth=1)

    async def replied() -> bool | None:
        return bool(await office.slack.replies(APPROVALS, second["ts"])) or None

    await until(replied)
    await attacker.deliver(attacker.press("U0SAM", card, "open"))
    everything_said = said_by(office)
    assert len(everything_said) > 4
    assert any("channel" in json.dumps(one) for one in everything_said), "none of it was said"
    assert [fault for one in everything_said for fault in faults_of(one)] == []


async def _paid(office: Office, account: str, run_key: str) -> Json:
    answer = await office.robot.submit(await pay(office.world, 500, account=account), run_key=run_key)
    assert answer.is_success, answer.text
    view: Json = answer.json()
    return view


async def _called(office: Office, method: str) -> None:
    async def there() -> bool | None:
        return any(call.method == method for call in office.faults.calls) or None

    await until(there)


async def test_a_value_stands_in_the_card_as_it_is_and_is_nothing_else(office: Office) -> None:
    for name, text in HOSTILE.items():
        await _paid(office, text, name)
        await office.quiet()
        message = await office.card()
        assert faults_of(message) == [], name
        if not any(char in text for char in HIDDEN + "\r\n\x0b"):
            assert text in words(message["blocks"]), "it is not shown as it was sent"


async def test_names_and_reasons_of_rules_and_agents_are_text_too(
    office: Office, bundle: Payments, attacker: Attacker
) -> None:
    bundle.policies(ANYBODY + gate("look", "finance", doc="<!channel> *now* :fire:"))
    bundle.write(
        "groups.toml",
        (bundle.path / "groups.toml").read_text().replace('name = "Maya"', 'name = "<!here> *M*"'),
    )
    assert await office.world.activate()
    office.robot = await office.world.agent("robot-two", owner=person("ingrid"))
    await _paid(office, "acct-1", "one")
    message = await office.card()
    assert faults_of(message) == []
    refused = attacker.press(await office.link("ingrid"), message)
    assert (await attacker.deliver(refused)).status == 200
    await _called(office, "chat.postEphemeral")
    assert [fault for one in said_by(office) for fault in faults_of(one)] == []


COMMANDS: Final = [
    "simulate", "simulate robot", "simulate robot pay", "simulate robot pay {", "simulate robot pay []",
    'simulate robot pay {"account": "<!channel>", "amount": 500}',
    'simulate robot pay {"account": "&lt;!channel&gt;", "amount": 500}',
    'simulate robot pay {"account": "a", "account": "b", "amount": 500}',
    'simulate robot pay {"account": "a", "amount": 1e400}', 'simulate robot pay {"account": "\\ud800", "amount": 5}',
    'simulate robot pay {"__entity": {"type": "Group", "id": "finance"}}', "simulate robot pay " + "[" * 10_000,
    "simulate <!channel> <@U0DANA> {}", "simulate robot ../../etc/passwd {}", "simulate '; DROP TABLE x;-- pay {}",
    "simulate robot pay {\u201caccount\u201d: \u201cacct\u201d, \u201camount\u201d: 500}",
    "simulate robot pay {\"account\": \"\\u0000\", \"amount\": 500}",
    "direct", "direct maybe", "direct on <!channel>", "unlink <@U0FELIX>", "reviews " + "a" * 4_000,
    "<!channel>", "help", "\ud800".encode("utf-8", "replace").decode(), "link link", "LINK",
]  # fmt: skip


async def test_a_hostile_command_is_answered_in_text_to_its_writer_alone(
    office: Office, attacker: Attacker
) -> None:
    dana = await office.link("maya")
    for text in COMMANDS:
        for user in ("U0SAM", dana):
            answer = await attacker.say(user, text)
            assert answer.status == 200, text
            assert answer.json["response_type"] == "ephemeral", text
            assert faults_of(answer.json) == [], text
        if text.startswith("unlink"):
            await office.link("maya")
    for text in ("simulate robot\0 pay {}", "\0"):
        assert (await attacker.say(dana, text)).status == 400
    assert await attacker.nothing_said()
    assert await office.slack.messages(APPROVALS) == []


async def test_nobody_who_is_not_linked_learns_what_would_be_decided(
    office: Office, attacker: Attacker
) -> None:
    call = 'simulate robot pay {"account": "acct-1", "amount": 500}'
    answer = await attacker.say("U0SAM", call)
    assert "nobody's yet" in words(answer.json["blocks"])
    assert "People would be asked" not in answer.body.decode()
    await office.link("maya")
    assert "People would be asked" in (await attacker.say("U0DANA", call)).body.decode()


async def test_help_is_for_everybody_and_says_nothing_of_anybody(office: Office, attacker: Attacker) -> None:
    await office.pay(500, "a")
    for user in ("U0SAM", "U0GRACE", "U0XIMENA"):
        answer = await attacker.say(user, "help")
        assert "What /countersign understands" in answer.json["text"]
        assert "acct-1" not in answer.body.decode()
