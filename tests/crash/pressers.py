"""Chapters of people who decide in Slack: each message is posted once, wherever a process is killed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.storage.core import find
from policy_service.storage.slack_tables import SlackCardRow, SlackDeliveryRow, SlackLinkRow, SlackStatusRow
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.tables import VoteRow
from tests.counterparts.slack import SlackServer
from tests.crash.chapters import happened
from tests.crash.story import Story
from tests.fakes.slack_accounts import secret_file
from tests.fakes.slack_faults import SlackFaults, failing_slack

T = TypeVar("T")
CHANNEL = "C0APPROVALS"


@contextmanager
def slack_of(story: Story) -> Iterator[tuple[SlackServer, SlackFaults]]:
    """A workspace of this story's own, whose app the service is."""
    folder = story.folder / "slack"
    folder.mkdir()
    with failing_slack(folder) as (slack, faults):
        secret_file(folder / "bot", slack.bot_token)
        secret_file(folder / "signing", slack.signing_secret)
        faults.deliveries.to(f"{story.url}/slack/events")
        app = {"team_id": slack.team_id, "app_id": slack.app_id, "api_url": faults.api_url}
        app |= {"bot_token_file": str(folder / "bot"), "signing_secret_file": str(folder / "signing")}
        story.more |= {"WATCH_S": "1", "SLACK": json.dumps(app | {"default_channel": "#approvals"})}
        yield slack, faults


def asks_in_slack(story: Story) -> None:
    """A refund is asked about in Slack, refused to a stranger, and approved there by a reviewer."""
    with slack_of(story) as (slack, faults):
        story.begin()
        story.until("the app is known", knows_the_app)
        _link(story, slack)
        story.live("large", "large")
        story.until("the card is in the channel", _has_card)
        (card,) = _in(slack.messages(CHANNEL))
        sam, dana = slack.users["sam"], slack.users["dana"]
        _until_noted(story, lambda: slack.click(CHANNEL, card["ts"], sam, "approve"), _presses)
        _until_noted(story, lambda: slack.command(sam, CHANNEL, "link"), lambda conn: _presses(conn) > 1)
        _until_noted(
            story, lambda: slack.click(CHANNEL, card["ts"], dana, "approve"), lambda conn: find(conn, VoteRow)
        )
        story.live("resume")
        story.finish()
        _require_posted_once(slack, faults)
    happened(story, refund=1)
    with story.reading() as conn:
        assert [row.sub for row in find(conn, VoteRow)] == ["maya"]
        assert not find(conn, OutboxRow, state="dead")


def is_let_in_no_more(story: Story) -> None:
    """Slack says that the app is removed; asked again, it is not."""
    with slack_of(story) as (slack, faults):
        story.begin()
        story.until("the app is known", knows_the_app)
        event = {
            "type": "event_callback", "token": "t", "team_id": slack.team_id, "api_app_id": slack.app_id,
            "event_id": "Ev1", "event_time": 1, "event": {"type": "app_uninstalled"},
        }  # fmt: skip
        before = _times_asked(faults)  # every start asks, too
        removed = partial(faults.deliveries.forge, "events_api", event)
        _until_noted(story, removed, lambda conn: _times_asked(faults) > before)
        story.until("it is well", lambda conn: [one.failures for one in find(conn, SlackStatusRow)] == [0])
        story.live("small", "small")
        story.finish()
    happened(story, refund=1)


def _until_noted(story: Story, act: Callable[[], Any], noted: Callable[[Connection], object]) -> None:
    """Do it, and again where the service died under it: a person presses again, and Slack repeats an event."""
    for _ in range(3):
        story.serve()
        _in(act())
        assert story.service is not None
        if not story.service.wait_if_dying():
            break
    story.until("it was taken", lambda conn: bool(noted(conn)))


def _link(story: Story, slack: SlackServer) -> None:
    """Somebody who has signed in, and whose account is theirs."""
    story.as_person(lambda _: None)
    row = SlackLinkRow(
        team_id=slack.team_id, user_id=slack.users["dana"], iss=DEV_ISSUER, sub="maya", assurance="dev",
        account="dana", linked_at=datetime.now(UTC), linked_by="",
    )  # fmt: skip
    story.insert(row)


def _require_posted_once(slack: SlackServer, faults: SlackFaults) -> None:
    (card,) = _in(slack.messages(CHANNEL))
    said = Counter(one["blocks"][0]["block_id"] for one in _in(slack.replies(CHANNEL, card["ts"])))
    assert said, "the thread names the approver"
    assert set(said.values()) == {1}
    shown = json.dumps(card["blocks"])
    assert "Approved" in shown
    assert len(faults.accepted("chat.postMessage")) == 1 + len(said)


def knows_the_app(conn: Connection) -> bool:
    """Whether the log is projected to Slack from now on."""
    return bool(find(conn, SlackStatusRow))


def _times_asked(faults: SlackFaults) -> int:
    return sum(call.method == "auth.test" for call in faults.calls)


def _has_card(conn: Connection) -> bool:
    return any(card.ts is not None for card in find(conn, SlackCardRow))


def _presses(conn: Connection) -> int:
    return len(find(conn, SlackDeliveryRow))


def _in(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
