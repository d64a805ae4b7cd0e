"""Chapters of operators: every verb they have, through a running service and by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from countersign.contract import PrivateKey
from countersign.contract import digests as names
from policy_service.channels.admin.commands import COMMANDS
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.storage.core import find
from policy_service.storage.slack_tables import SlackLinkRow, SlackPlaceRow
from policy_service.storage.system_tables import OutboxRow, PasskeyRow
from policy_service.storage.tables import AgentRow, DecisionRow, EffectRow
from tests.crash.agent import AGENT
from tests.crash.pressers import CHANNEL, knows_the_app, slack_of
from tests.crash.story import Story
from tests.crash.visitors import HOOK, knows_receiver, pending, receiver_of
from tests.fakes.slack_faults import NotOk


def _operated(story: Story, say: Callable[[str, dict[str, Any]], Any]) -> None:
    """Every verb an operator has, twice where the second must find the first."""
    other = PrivateKey.generate().public
    effect = names.txn_id(agent=AGENT, run_key="large")
    with story.reading() as conn:
        (effect_id,) = [row.effect_id for row in find(conn, EffectRow, txn=effect)]
        commit = find(conn, DecisionRow)[0].commit
    person = f"{DEV_ISSUER}|tomas"
    stolen, lost = _enrolled(story, "stolen"), _enrolled(story, "lost")
    assert stolen != lost
    words: dict[str, dict[str, Any]] = {
        "agent-list": {},
        "people-list": {},
        "passkey-list": {},
        "passkey-revoke": {"passkey_id": stolen, "reason": "stolen"},
        "passkeys-reset": {"person": person, "reason": "lost"},
        "policies-accept": {"commit": "a" * 40, "reason": "we rewrote it"},
        "sign-in-link": {"sub": "tomas", "name": "Tomas"},
        "agent-enroll": {"name": "second", "roles": [], "owner": person},
        "agent-key-add": {"name": "second", "jwk": other.jwk()},
        "agent-key-revoke": {"kid": other.kid},
        "api-key": {"name": "second"},
        "api-key-revoke": {"name": "second"},
        "slack-drop": {"place": _abandoned(story), "reason": "the team moved"},
        "slack-links": {},
        "slack-status": {},
        "slack-retry": {},
        "slack-unlink": {"team": "T0ACME", "user": _linked(story), "reason": "a stolen phone"},
        "stop": {"tool": "refund", "reason": "look first"},
        "stop-list": {},
        "go-on": {"tool": "refund"},
        "freeze": {"agent": "second"},
        "unfreeze": {"agent": "second"},
        "revoke-effect": {"effect_id": effect_id, "reason": "wrong customer"},
        "revoke-transaction": {"txn": names.txn_id(agent=AGENT, run_key="other"), "reason": "wrong customer"},
        "revoke-transaction-if-open": {"txn": effect, "reason": "wrong customer"},
        "revoke-effect-if-open": {"effect_id": effect_id, "reason": "wrong customer"},
        "revoke-agent": {"agent": "second", "reason": "lost"},
        "revoke-commit": {"commit": commit, "reason": "a bad rule"},
        "revoke-approver": {"person": person, "reason": "left"},
        "reinstate-approver": {"person": person},
        "webhooks-list": {},
        "webhooks-retry": {"webhook": HOOK},
        "recorded-call": {"effect_id": effect_id},
        "recorded-calls": {"days": 1, "with_secrets": False},
    }
    assert words.keys() == COMMANDS.keys()
    for verb, args in words.items():
        say(verb, args)
    with story.reading() as conn:
        assert find(conn, AgentRow, name="second")


def _abandoned(story: Story) -> str:
    """A place that was written to once."""
    story.insert(SlackPlaceRow(place="#old", not_before=datetime.now(UTC), since=datetime.now(UTC)))
    return "#old"


def _linked(story: Story) -> str:
    """A Slack account as its person left it."""
    row = SlackLinkRow(
        team_id="T0ACME", user_id="U0TOMAS", iss=DEV_ISSUER, sub="tomas", assurance="dev", account="tomas",
        linked_at=datetime.now(UTC), linked_by="",
    )  # fmt: skip
    story.insert(row)
    return row.user_id


def _enrolled(story: Story, name: str) -> str:
    """A passkey as its person left it; how they enrol is a chapter of its own."""
    now = datetime.now(UTC)
    row = PasskeyRow(
        passkey_id=f"pk_{name}", credential_id=name, key_digest=name, public_key=b"", iss=DEV_ISSUER, sub="tomas",
        name=name, sign_count=0, created_by="", created_at=now, counts_from=now,
    )  # fmt: skip
    story.insert(row)
    return row.passkey_id


def operated(story: Story) -> None:
    """Verbs through the socket of a running service."""
    with _at_work(story):
        _operated(story, lambda verb, args: _said_once(story, verb, args))
        story.finish()


def operated_alone(story: Story) -> None:
    """Verbs by the command line itself, while the service is down."""
    with _at_work(story):
        story.stop()
        _operated(story, story.alone)
        story.finish()


@contextmanager
def _at_work(story: Story) -> Iterator[None]:
    """A service with something for each verb: two reviews that are asked about in Slack, where the message of one was
    set aside, an answer, and a receiver. In the end Slack shows both reviews, each once."""
    story.more["API_KEYS"] = "true"
    with receiver_of(story), slack_of(story) as (slack, faults):
        # a card, and the bare one in its place
        faults.on.next("chat.postMessage", *[NotOk("invalid_blocks")] * 2)
        story.begin()
        story.until("the app is known", knows_the_app)
        story.live("large", "large")
        story.until("a message was set aside", _was_set_aside)
        story.live("large", "other")
        story.answer("tomas", pending(story))
        story.until("the receiver is known", knows_receiver)
        yield
        shown = asyncio.run(slack.messages(CHANNEL))
    assert len(shown) == len({one["blocks"][0]["block_id"] for one in shown}) == 2
    with story.reading() as conn:
        assert not _was_set_aside(conn), "an operator had it tried again"


def _was_set_aside(conn: Connection) -> bool:
    return bool(find(conn, OutboxRow, state="dead"))


def _said_once(story: Story, verb: str, args: dict[str, Any]) -> None:
    """A verb whose answer was lost may find on its repeat that it was done, and is refused then."""
    died = story.died
    try:
        story.operator(verb, args)
    except AssertionError:
        if died == story.died:
            raise
