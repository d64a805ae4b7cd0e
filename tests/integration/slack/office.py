"""An office: the real service on a socket, the third-party Slack, and the proxy that fails on demand between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from sqlalchemy import Connection, delete, select

from examples.local_service import free_port
from policy_service.audit.log import highest_index
from policy_service.channels.slack import client
from policy_service.channels.slack.blocks.block_kit import Pointer
from policy_service.identity.people import slack_link
from policy_service.queries.review_context import read_review_context
from policy_service.queries.reviews import review_content
from policy_service.queries.view_digest import SLACK_RENDERER, view_of
from policy_service.storage.core import Row, find, find_one, table, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import (
    SlackCardRow,
    SlackDeliveryRow,
    SlackInvitationRow,
    SlackLinkRow,
    SlackPlaceRow,
    SlackStatusRow,
)
from policy_service.storage.system_tables import AuditRow, OutboxRow
from policy_service.storage.tables import CommentRow, VoteRow
from policy_service.workflow.slack import admin
from policy_service.workflow.slack.account_links import invite, link
from policy_service.workflow.slack.admin import SlackHealth, slack_health
from tests.counterparts.slack import SlackServer
from tests.fakes.asgi_server import listening
from tests.fakes.log_check import faults_of_log
from tests.fakes.slack_accounts import account, secret_file
from tests.fakes.slack_deliveries import Json
from tests.fakes.slack_faults import CutBefore, SlackFaults
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import pay
from tests.integration.slack.attacking import APPROVALS, Attacks

T = TypeVar("T")
R = TypeVar("R", bound=Row)
_OF_SLACK = (SlackCardRow, SlackDeliveryRow, SlackInvitationRow, SlackLinkRow, SlackPlaceRow, OutboxRow)
_STAYING = (CommentRow, VoteRow)
_line = table(AuditRow).c
PATIENCE_S = 15.0
_WAYS = {"signing": "secret", "app": "token"}
PAYMENTS = "C0PAYMENTS"
POST, UPDATE = "chat.postMessage", "chat.update"
# Who is who: the names of the bundle's people, by the accounts of the Slack of the tests.
ACCOUNTS = {"maya": "dana", "tomas": "felix", "ingrid": "olivia"}


@dataclass
class Office(Attacks):
    """Everybody who takes part, and the ways to wait for them."""

    world: World
    slack: SlackServer
    faults: SlackFaults
    robot: Agent
    sends: bool = True  # it has met the app, and sends by itself
    people: dict[str, tuple[Visitor, datetime]] = field(default_factory=dict)  # who signed in, and when
    before: dict[type[Row], int] = field(default_factory=dict)  # rows of the tests before, which have to stay

    # -- what people and agents do -----------------------------------------------------------------------------------

    async def link(self, sub: str, user_id: str | None = None) -> str:
        """Join a Slack account to somebody, their own unless another is named; its id."""
        who = await self.world.person(sub)
        user_id = user_id or self.slack.users[ACCOUNTS[sub]]
        ctx, app = self.world.service.ctx, self.app
        url = await invite(ctx, app, account(user_id, sub, team_id=app.team_id))
        session = await self.world.service.sessions.find(who.cookie)
        assert session is not None
        await link(ctx, app, url.partition("invitation=")[2], session)
        self.people.pop(sub, None)  # linking ended their sessions
        return user_id

    async def person(self, sub: str) -> Visitor:
        """Somebody who has signed in lately."""
        now = self.world.clock()
        known, at = self.people.get(sub, (None, now))
        if known is None or now - at > timedelta(minutes=10):
            known = await self.world.person(sub)
            self.people[sub] = known, now
        return known

    async def pay(self, amount: int = 500, run_key: str = "a", account: str = "acct-1", **more: Any) -> Json:
        """Submit one payment. ``quiet``: wait until every message was sent."""
        quiet = more.pop("quiet", False)
        effect = await pay(self.world, amount, account, **more)
        answer = await self.robot.submit(effect, run_key=run_key)
        assert answer.is_success, answer.text
        if quiet:
            await self.quiet()
        view: Json = answer.json()
        return view

    async def backlog(self, payments: int) -> list[Json]:
        """Submit so many payments during an outage of Slack; their messages are sent afterwards."""
        self.faults.on.always("*", CutBefore())
        views = [await self.pay(500 + n, f"run-{n}", f"acct-{n}") for n in range(payments)]
        await self.tried("conversations.list")
        self.faults.on.lift()
        await self.quiet(step_s=20)
        return views

    async def asked(self, *payment: Any, **how: Any) -> tuple[Json, Json]:
        """Ask for one payment; its view and, as soon as it is there, its card."""
        view = await self.pay(*payment, **how)
        return view, await self.card_about(view)

    async def vote(self, view: Json, verdict: str = "approve", reason: str = "no", by: str = "maya") -> None:
        """Somebody votes on the web."""
        answer = await (await self.person(by)).vote(view, verdict, reason=reason)
        assert answer.status_code == 200, answer.text

    async def comment(self, view: Json, text: str) -> None:
        """Maya writes on the page of the only effect's review."""
        person, review = await self.person("maya"), view["effects"][0]["review"]["review_id"]
        content = json.dumps({"text": text})
        path = f"/v1/reviews/{review}/comments"
        answer = await person.http.post(path, content=content, headers=person.headers())
        assert answer.status_code == 200, answer.text

    @contextmanager
    def known_as(self, user: str, said: Json) -> Iterator[None]:
        """Slack returns this account for the duration of the block; the account cache is expired."""
        people = self.faults.truth.people
        people[user] = said
        self.world.clock.pass_(seconds=client.ACCOUNT_CACHE_S)
        try:
            yield
        finally:
            del people[user]
            self.world.clock.pass_(seconds=client.ACCOUNT_CACHE_S)

    # -- what the service knows --------------------------------------------------------------------------------------

    async def card_of(self, view: Json) -> SlackCardRow:
        """The stored card of a payment."""
        review = view["effects"][0]["review"]["review_id"]
        return (await until(lambda: self.find(SlackCardRow, review_id=review)))[0]

    async def pointer(self, view: Json) -> str:
        """The value of a button of its current card, even if the card has no buttons."""
        ctx, row = self.world.service.ctx, await self.card_of(view)
        assert row.review_id is not None
        case = await ctx.db.read(lambda conn: read_review_context(conn, row.review_id))
        view = view_of(review_content(ctx.active.current, case), SLACK_RENDERER)
        return Pointer(row.card_id, view.digest).value

    async def find(self, model: type[R], **where: Any) -> list[R]:
        """Rows of a table."""
        return await self.world.service.db.read(lambda conn: find(conn, model, **where))

    async def change(self, model: type[Row], where: Json, values: Json) -> None:
        """Have rows of a table say something else."""
        await self.world.service.db.write(lambda tx: update_rows(tx.conn, model, where, values))

    async def linked(self, user: str) -> bool:
        """Whether a Slack account is somebody's."""
        team = self.app.team_id
        return await self.world.service.db.read(lambda conn: slack_link(conn, team, user) is not None)

    async def state(self, view: Json) -> str:
        """The state of the only effect of a transaction."""
        now = await self.robot.see(view["txn"])
        state: str = now["effects"][0]["state"]
        return state

    async def slack_status(self) -> SlackHealth:
        """Slack's delivery status."""
        db, now = self.world.service.db, self.world.clock()
        found = await db.read(lambda conn: slack_health(conn, self.app, now))
        assert found is not None
        return found

    async def rests(self) -> None:
        """Wait until a place takes nothing."""

        async def resting() -> bool:
            return bool((await self.slack_status()).resting)

        await until(resting)

    async def retried(self) -> int:
        """What `slack retry` does; how many messages that were."""
        return await self.world.service.db.write(lambda tx: admin.retry(tx, self.app))

    async def finding(self) -> str:
        """What /readyz says is wrong with Slack as of now, and since when; nothing where all is well."""
        service = self.world.service
        assert service.slack is not None
        await service.slack.check_health()
        output = (await self.world.http.get("/readyz")).json()
        found = [f"{one['wrong']} {one['since']}" for one in output["findings"] if one["check"] == "slack"]
        return "".join(found[:1])

    async def followed(self) -> bool:
        """Whether every line of the log was looked at."""

        def looked(conn: Connection) -> bool:
            status = find_one(conn, SlackStatusRow, team_id=self.app.team_id)
            unnumbered = conn.execute(select(_line.audit_id).where(_line.idx.is_(None)).limit(1)).first()
            return unnumbered is None and status is not None and status.upto == highest_index(conn)

        return await self.world.service.db.read(looked)

    async def quiet(self, *, step_s: float = 2.0, patience_s: float = PATIENCE_S) -> None:
        """Advance the clock in steps until every message was sent."""

        async def nothing_waits() -> bool:
            if await self.followed() and (await self.slack_status()).waiting == 0:
                return True
            self.world.clock.pass_(seconds=step_s)
            return False

        await until(nothing_waits, patience_s)

    # -- what Slack was asked, and shows -----------------------------------------------------------------------------

    def calls(self, method: str) -> list[Any]:
        """The calls of a method, with any result."""
        return [call for call in self.faults.calls if call.method == method]

    async def called(self, method: str) -> None:
        """Wait until it was called."""

        async def there() -> bool:
            return bool(self.calls(method))

        await until(there)

    async def tried(self, method: str, times: int = 1) -> None:
        """Let time pass until it was called so often, and the log was followed to its end."""

        async def called() -> bool:
            self.world.clock.pass_(seconds=5)
            return len(self.calls(method)) >= times and await self.followed()

        await until(called)

    async def card(self, channel: str = APPROVALS, nth: int = -1) -> Json:
        """The newest message of a channel, once there is one."""
        return await self.shows("", channel, nth)

    async def card_about(self, view: Json) -> Json:
        """The message about a transaction's only effect, once there is one."""
        review = view["effects"][0]["review"]["review_id"]

        async def there() -> Json | None:
            messages = await self.slack.messages(APPROVALS)
            return next((one for one in messages if review in str(one["blocks"][0].get("block_id"))), None)

        return await until(there)

    async def cards(self, channel: str = APPROVALS) -> list[str]:
        """What the messages of a channel say."""
        return [words(card) for card in await self.slack.messages(channel)]

    async def shows(self, text: str, channel: str = APPROVALS, nth: int = -1) -> Json:
        """The card, once it says this."""

        async def there() -> Json | None:
            messages = await self.slack.messages(channel)
            found = messages[nth] if len(messages) >= abs(nth) else None
            return found if found is not None and text in words(found) else None

        return await until(there)

    async def private_message(self, user: str, text: str, channel: str = APPROVALS) -> Json:
        """The ephemeral message to this person, once it contains this."""

        async def there() -> Json | None:
            found = await self.slack.ephemerals(channel, user)
            return next((one for one in found if text in words(one)), None)

        return await until(there)

    async def thread(self, channel: str = APPROVALS, nth: int = -1) -> list[str]:
        """What is said in the thread of a message, in order."""
        card = await self.card(channel, nth)
        return [words(one["blocks"]) for one in await self.slack.replies(channel, card["ts"])]

    # -- between two tests -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Slack is as on its first day, and its clock is that of the office."""
        await self.slack.reset()
        self.faults.forget()
        self.people.clear()
        self.faults.keep_time_with(lambda: self.world.clock().timestamp())
        self.faults.deliveries.to(f"{self.world.settings.public_url}/slack/events")

    async def clear(self) -> None:
        """Say what is still owed, and then have nothing in Slack and nothing about it in the database."""
        self.faults.forget()
        if self.sends:
            await self.quiet(step_s=600)

        def clear(tx: Tx) -> None:
            for model in _OF_SLACK:
                tx.conn.execute(delete(table(model)))
            well = {"not_before": None, "failures": 0, "last_error": None, "since": None}
            update_rows(tx.conn, SlackStatusRow, {"team_id": self.app.team_id}, well)

        await self.world.service.db.write(clear)
        self.world.clock.pass_(seconds=client.ACCOUNT_CACHE_S)  # expires the account cache
        self.before = {one: len(await self.find(one)) for one in _STAYING}


async def until(found: Callable[[], Awaitable[T | None]], patience_s: float = PATIENCE_S) -> T:
    """What this finds, as soon as it finds something."""
    try:
        async with asyncio.timeout(patience_s):
            while not (one := await found()):  # noqa: ASYNC110  what it looks at is in other programs
                await asyncio.sleep(0.05)
            return one
    except TimeoutError:
        raise AssertionError("it did not come") from None


def words(value: Any) -> str:
    """Every text in a message, in order."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return " ".join(words(one) for name, one in value.items() if name not in _NO_WORDS)
    return " ".join(map(words, value)) if isinstance(value, list) else ""


_NO_WORDS = frozenset("type style block_id action_id value url ts user channel app_id".split())


def secrets_in(folder: Path, slack: SlackServer) -> dict[str, Any]:
    """The app's secrets in files, and the settings that name them."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in (("bot", slack.bot_token), ("signing", slack.signing_secret), ("app", slack.app_token)):
        secret_file(folder / name, text)
    return {
        "team_id": slack.team_id,
        "app_id": slack.app_id,
        "bot_token_file": folder / "bot",
        "default_channel": "#approvals",
    }


@asynccontextmanager
async def opened(
    tmp_path: Path,
    slack: SlackServer,
    faults: SlackFaults,
    bundle: Path,
    *,
    ways: tuple[str, ...] = ("signing",),
    robot: str = "robot",
    met: bool = True,
    **more: Any,
) -> AsyncIterator[Office]:
    """The office, with deliveries by these ways: `signing` (HTTP), `app` (Socket Mode); open when the service has
    `met` the app, so that what a test makes fail is what comes after that."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    app = secrets_in(tmp_path / "slack", slack) | {"api_url": faults.api_url, "timeout_s": 2}
    app |= {f"{name}_{kind}_file": tmp_path / "slack" / name for name, kind in _WAYS.items() if name in ways}
    app |= more.pop("app", {})
    async with running(tmp_path / "data", bundle, public_url=url, port=port, slack=app, **more) as world:
        world.clock.go_on()
        faults.keep_time_with(lambda: world.clock().timestamp())
        faults.deliveries.to(f"{url}/slack/events")
        config = uvicorn.Config(world.app, port=port, log_config=None, lifespan="off", access_log=False)
        async with listening(config):
            office = Office(world, slack, faults, await world.agent(robot), sends=met)

            async def has_met() -> bool:
                return not met or bool(faults.accepted("auth.test"))

            await until(has_met)
            yield office
        assert await world.service.db.read(faults_of_log) == []
