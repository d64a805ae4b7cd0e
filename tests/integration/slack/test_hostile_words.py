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
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import APPROVALS, Office, until, words

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_press_is_answered")]

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
MORE_THAN_TEXT: Final = "mrkdwn markdown user usergroup broadcast channel emoji image color".split()
HIDDEN: Final = "\u202e\u202c\u2066\u2069\u200b\u2060\ufeff\u00ad\U000e0041\u2028\u2029"
SAYING: Final = ("chat.postMessage", "chat.update", "chat.postEphemeral", "views.open", "views.publish")


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a message, at any depth."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(one)


def faults_of(said: Json) -> list[str]:
    """What Slack would make of a message that is more than its characters."""
    shown = {name: said.get(name) for name in ("blocks", "view", "text")}
    others = (said.get(name) for name in ("link_names", "attachments", "mrkdwn"))
    whole = (said.get("parse", "none") != "none", *others)
    found = ["it is parsed as a whole"] if any(whole) else []
    found += [f"its notification is parsed: {mark}" for mark in PARSED if mark in said.get("text", "")]
    for one in objects(shown):
        kind = one.get("type")
        if kind in MORE_THAN_TEXT:
            found.append(f"an element that is more than text: {json.dumps(one)}")
        if kind == "plain_text" and one.get("emoji") is not False:
            found.append(f"its emoji are drawn: {json.dumps(one)}")
        if kind in ("link", "button") and "evil" in str(one.get("url", "")):
            found.append(f"a link of theirs: {json.dumps(one)}")
    text = json.dumps(shown, ensure_ascii=False)
    return found + [f"U+{ord(char):04X} is there and cannot be seen" for char in HIDDEN if char in text]


def said_by(office: Office) -> list[Json]:
    """Everything that was posted, changed, shown to one, opened or published; none of it is parsed."""
    said = [call.args for call in office.faults.calls if call.method in SAYING]
    assert [fault for one in said for fault in faults_of(one)] == []
    return said


async def test_untrusted_text_is_never_parsed_in_a_message(office: Office) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    view, card = await office.asked(5_000, "hostile", EVERYTHING, items=list(HOSTILE.values()))
    plain, second = await office.asked(500, "plain")
    await office.pressed(dana, second, "ask")
    await office.called("views.open")
    assert await office.sent(dana, "ask", value_of(second, "ask"), EVERYTHING) == ""
    await office.vote(view, "deny", reason=EVERYTHING[:1_500], by="tomas")
    assert await office.sent(felix, "deny", value_of(second, "deny"), EVERYTHING) == ""
    assert await office.state(plain) == "denied"
    await office.shows("Denied", nth=0)
    await office.shows("Denied", nth=1)
    await until(lambda: office.slack.replies(APPROVALS, second["ts"]))
    await office.forged("U0SAM", card, action_id="open")
    said = said_by(office)
    assert len(said) > 4
    assert any("channel" in json.dumps(one) for one in said), "none of it was said"


async def test_a_value_is_shown_verbatim_and_is_only_text(office: Office) -> None:
    for name, text in HOSTILE.items():
        _, message = await office.asked(500, name, text)
        assert faults_of(message) == [], name
        if not any(char in text for char in HIDDEN + "\r\n\x0b"):
            assert text in words(message["blocks"]), "it is not shown as it was sent"


async def test_names_and_reasons_of_rules_and_agents_are_text_too(office: Office, bundle: Payments) -> None:
    bundle.policies(ANYBODY + gate("look", "finance", doc="<!channel> *now* :fire:"))
    groups = (bundle.path / "groups.toml").read_text()
    bundle.write("groups.toml", groups.replace('name = "Maya"', 'name = "<!here> *M*"'))
    assert await office.world.activate()
    office.robot = await office.world.agent("robot-two", owner=person("ingrid"))
    _, message = await office.asked()
    assert faults_of(message) == []
    await office.pressed(await office.link("ingrid"), message)
    await office.called("chat.postEphemeral")
    assert said_by(office)


COMMANDS: Final = [
    "simulate", "simulate robot", "simulate robot pay", "simulate robot pay {", "simulate robot pay []",
    'simulate robot pay {"account": "<!channel>", "amount": 500}',
    'simulate robot pay {"account": "&lt;!channel&gt;", "amount": 500}',
    'simulate robot pay {"account": "a", "account": "b", "amount": 500}',
    'simulate robot pay {"account": "a", "amount": 1e400}', 'simulate robot pay {"account": "\\ud800", "amount": 5}',
    'simulate robot pay {"__entity": {"type": "Group", "id": "finance"}}', "simulate robot pay " + "[" * 10_000,
    "simulate <!channel> <@U0DANA> {}", "simulate robot ../../etc/passwd {}", "simulate '; DROP TABLE x;-- pay {}",
    "simulate robot pay {\u201caccount\u201d: \u201cacct\u201d, \u201camount\u201d: 500}",
    'simulate robot pay {"account": "\\u0000", "amount": 500}',
    "direct", "direct maybe", "direct on <!channel>", "unlink <@U0FELIX>", "reviews " + "a" * 4_000,
    "<!channel>", "help", "\ud800".encode("utf-8", "replace").decode(), "link link", "LINK",
]  # fmt: skip


async def test_a_hostile_command_is_answered_in_text_to_its_writer_alone(office: Office) -> None:
    dana = await office.link("maya")
    for n, text in enumerate(COMMANDS):
        for user in (dana, "U0SAM") if n % 6 == 0 else (dana,):
            answer = await office.say(user, text)
            assert (answer.status, answer.json["response_type"]) == (200, "ephemeral"), text
            assert faults_of(answer.json) == [], text
        if text.startswith("unlink"):
            await office.link("maya")
    for text in ("simulate robot\0 pay {}", "\0"):
        assert (await office.say(dana, text)).status == 400
    assert await office.nothing_said()
    assert await office.cards() == []


async def test_an_unlinked_account_gets_only_the_help(office: Office) -> None:
    await office.pay()
    call = 'simulate robot pay {"account": "acct-1", "amount": 500}'
    answer = await office.say("U0SAM", call)
    assert "is not linked yet" in words(answer.json["blocks"])
    assert "It would require a review" not in answer.body.decode()
    for user in ("U0SAM", "U0GRACE", "U0XIMENA"):
        answer = await office.say(user, "help")
        assert "Commands of /countersign" in answer.json["text"]
        assert "acct-1" not in answer.body.decode()
    await office.link("maya")
    assert "It would require a review" in (await office.say("U0DANA", call)).body.decode()
