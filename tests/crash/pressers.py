"""Chapters of people who decide in Slack: each message is posted once, wherever a process is killed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.storage.core import find, insert_row, table
from policy_service.storage.slack_tables import SlackCardRow, SlackDeliveryRow, SlackLinkRow, SlackStatusRow
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.tables import VoteRow
from tests.counterparts.slack import SlackServer
from tests.crash.chapters import happened
from tests.crash.story import Story
from tests.fakes.slack_faults import SlackFaults, failing_slack

T = TypeVar("T")
CHANNEL = "C0APPROVALS"


@contextmanager
def slack_of(story: Story) -> Iterator[tuple[SlackServer, SlackFaults]]:
    """A workspace of this story's own, whose app the service is."""
    folder = story.folder / "slack"
    folder.mkdir()
    with failing_slack(folder) as (slack, faults):
        for name, text in (("bot", slack.bot_token), ("signing", slack.signing_secret)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        faults.deliveries.to(f"{story.url}/slack/events")
        story.more["WATCH_S"] = "1"
        story.more["SLACK"] = json.dumps(
            {
                "team_id": slack.team_id,
                "app_id": slack.app_id,
                "bot_token_file": str(folder / "bot"),
                "signing_secret_file": str(folder / "signing"),
                "default_channel": "#approvals",
                "api_url": faults.api_url,
            }
        )
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
        _until_noted(story, lambda: _in(slack.click(CHANNEL, card["ts"], sam, "approve")), _presses)
        _until_noted(story, lambda: _in(slack.command(sam, CHANNEL, "link")), lambda conn: _presses(conn) > 1)
        _until_noted(story, lambda: _in(slack.click(CHANNEL, card["ts"], dana, "approve")), _votes)
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
        _until_noted(
            story,
            lambda: _in(faults.deliveries.forge("events_api", event)),
            lambda conn: _times_asked(faults) > before,
        )
        story.until("it is well again", lambda conn: _standing(conn).failures == 0)
        story.live("small", "small")
        story.finish()
    happened(story, refund=1)


def _until_noted(story: Story, act: Callable[[], object], noted: Callable[[Connection], object]) -> None:
    """Do it, and again where the service died under it: a person presses again, and Slack repeats an event."""
    for _ in range(3):
        story.serve()
        act()
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
    with story.reading() as conn:
        insert_row(conn, row)
        conn.commit()


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


def _standing(conn: Connection) -> SlackStatusRow:
    (row,) = find(conn, SlackStatusRow)
    return row


def _times_asked(faults: SlackFaults) -> int:
    return sum(call.method == "auth.test" for call in faults.calls)


def _has_card(conn: Connection) -> bool:
    return any(card.ts is not None for card in find(conn, SlackCardRow))


def _presses(conn: Connection) -> int:
    return len(conn.execute(select(table(SlackDeliveryRow).c.delivery)).all())


def _votes(conn: Connection) -> bool:
    return bool(find(conn, VoteRow))


def _in(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
