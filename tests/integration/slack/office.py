"""An office: the real service on a socket, the third-party Slack, and the proxy that fails on demand between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from sqlalchemy import Connection, delete, select

from policy_service.audit.log import highest_index
from policy_service.storage.core import Row, change, find, find_one, table
from policy_service.storage.database import Tx
from policy_service.storage.plumbing import AuditRow, OutboxRow
from policy_service.storage.slack_tables import (
    SlackCardRow,
    SlackDeliveryRow,
    SlackInvitationRow,
    SlackLinkRow,
    SlackPlaceRow,
    SlackStandingRow,
)
from policy_service.storage.tables import CommentRow, VoteRow
from policy_service.workflow.slack.accounts import Account
from policy_service.workflow.slack.following import follow
from policy_service.workflow.slack.inviting import invite
from policy_service.workflow.slack.linking import link
from policy_service.workflow.slack.standing import Standing, standing_of
from tests.counterparts.slack import SlackServer
from tests.fakes.log_check import faults_of_log
from tests.fakes.operated import free_port
from tests.fakes.slack_faults import SlackFaults
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import pay

T = TypeVar("T")
_OF_SLACK = (SlackCardRow, SlackDeliveryRow, SlackInvitationRow, SlackLinkRow, SlackPlaceRow)
_STAYING = (CommentRow, VoteRow)
_line = table(AuditRow).c
PATIENCE_S = 15.0
APPROVALS, PAYMENTS = "C0APPROVALS", "C0PAYMENTS"
# Who is who: the names of the bundle's people, by the accounts of the Slack of the tests.
ACCOUNTS = {"maya": "dana", "tomas": "felix", "ingrid": "olivia"}


@dataclass
class Office:
    """Everybody who takes part, and the ways to wait for them."""

    world: World
    slack: SlackServer
    faults: SlackFaults
    robot: Agent
    before: dict[type[Row], int] = field(default_factory=dict)  # rows of the tests before, which have to stay

    async def link(self, sub: str, user_id: str | None = None) -> str:
        """Join a Slack account to somebody, their own unless another is named; its id."""
        who = await self.world.person(sub)
        user_id = user_id or self.slack.users[ACCOUNTS[sub]]
        ctx, app = self.world.service.ctx, self.app
        invited = Account(
            app.team_id, user_id, sub, None, deleted=False, bot=False, guest=False, stranger=False
        )
        url = await invite(ctx, app, invited)
        session = await self.world.service.sessions.find(who.cookie)
        assert session is not None
        await link(ctx, app, url.partition("invitation=")[2], session)
        return user_id

    async def clear(self) -> None:
        """Have nothing in Slack and nothing about it in the database."""
        self.faults.forget()
        await until(self._has_followed)

        def clear(tx: Tx) -> None:
            for model in (*_OF_SLACK, OutboxRow):
                tx.conn.execute(delete(table(model)))
            well = {"not_before": None, "failures": 0, "last_error": None, "since": None}
            change(tx.conn, SlackStandingRow, {"team_id": self.app.team_id}, well)

        db = self.world.service.db
        await db.write(clear)
        await until(self._is_idle)
        if self.world.service.slack is not None:
            self.world.service.slack._slack._accounts.clear()
        await self.slack.reset()
        self.faults.forget()
        self.faults.keep_time_with(lambda: self.world.clock().timestamp())
        self.faults.deliveries.to(f"{self.world.settings.public_url}/slack/events")
        self.before = {one: len(await db.read(lambda conn, one=one: find(conn, one))) for one in _STAYING}

    async def _has_followed(self) -> bool | None:
        service = self.world.service
        await service.sequencer.number()
        await follow(service.ctx, self.app)
        return await self.followed() or None

    async def _is_idle(self) -> bool | None:
        channel = self.world.service.slack
        return (channel is not None and not channel._sending) or None

    @property
    def app(self) -> Any:
        """The settings' app."""
        app = self.world.settings.slack
        assert app is not None
        return app

    async def met(self) -> bool | None:
        """Whether the service knows whose token it has."""
        channel = self.world.service.slack
        assert channel is not None
        return channel._is_ours or None

    async def pay(self, amount: int, run_key: str, account: str = "acct-1") -> dict[str, Any]:
        """Ask for one payment."""
        answer = await self.robot.submit(await pay(self.world, amount, account), run_key=run_key)
        assert answer.is_success, answer.text
        view: dict[str, Any] = answer.json()
        return view

    async def card(self, channel: str = APPROVALS, nth: int = -1) -> dict[str, Any]:
        """The newest message of a channel, once there is one."""

        async def there() -> dict[str, Any] | None:
            messages = await self.slack.messages(channel)
            return messages[nth] if len(messages) >= abs(nth) else None

        return await until(there)

    async def shows(self, text: str, channel: str = APPROVALS, nth: int = -1) -> dict[str, Any]:
        """The card, once it says this."""

        async def there() -> dict[str, Any] | None:
            messages = await self.slack.messages(channel)
            found = messages[nth] if len(messages) >= abs(nth) else None
            return found if found is not None and text in words(found) else None

        return await until(there)

    async def told(self, user: str, text: str, channel: str = APPROVALS) -> dict[str, Any]:
        """What only this person was told, once it says this."""

        async def there() -> dict[str, Any] | None:
            found = await self.slack.ephemerals(channel, user)
            return next((one for one in found if text in words(one)), None)

        return await until(there)

    async def comment(self, person: Visitor, view: dict[str, Any], text: str) -> None:
        """Somebody writes on the page of the only effect's review."""
        path = f"/v1/reviews/{view['effects'][0]['review']['review_id']}/comments"
        answer = await person.http.post(path, content=json.dumps({"text": text}), headers=person.headers())
        assert answer.status_code == 200, answer.text

    async def standing(self) -> Standing:
        """How it stands with Slack."""
        found = await self.world.service.db.read(lambda conn: standing_of(conn, self.app, self.world.clock()))
        assert found is not None
        return found

    async def quiet(self, *, step_s: float = 2.0, patience_s: float = PATIENCE_S) -> None:
        """Let time pass in steps until Slack was told all that it is owed."""

        async def nothing_waits() -> bool | None:
            followed = await self.followed()
            if followed and (await self.standing()).waiting == 0:
                return True
            self.world.clock.pass_(seconds=step_s)
            return None

        await until(nothing_waits, patience_s)

    async def followed(self) -> bool:
        """Whether every line of the log was looked at."""

        def looked(conn: Connection) -> bool:
            standing = find_one(conn, SlackStandingRow, team_id=self.app.team_id)
            unnumbered = conn.execute(select(_line.audit_id).where(_line.idx.is_(None)).limit(1)).first()
            return unnumbered is None and standing is not None and standing.upto == highest_index(conn)

        return await self.world.service.db.read(looked)

    async def thread(self, channel: str = APPROVALS, nth: int = -1) -> list[str]:
        """What is said in the thread of a message, in order."""
        card = await self.card(channel, nth)
        return [words(one["blocks"]) for one in await self.slack.replies(channel, card["ts"])]

    async def state(self, view: dict[str, Any]) -> str:
        """How the only effect of a transaction stands."""
        now = await self.robot.see(view["txn"])
        state: str = now["effects"][0]["state"]
        return state


async def until(found: Callable[[], Awaitable[T | None]], patience_s: float = PATIENCE_S) -> T:
    """What this finds, as soon as it finds something."""
    try:
        async with asyncio.timeout(patience_s):
            while (one := await found()) is None:  # noqa: ASYNC110  what it looks at is in other programs
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


_NO_WORDS = frozenset(
    {"type", "style", "block_id", "action_id", "value", "url", "ts", "user", "channel", "app_id"}
)


def secrets_in(folder: Path, slack: SlackServer) -> dict[str, Any]:
    """The app's secrets in files, and the settings that name them."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in (
        ("bot", slack.bot_token),
        ("signing", slack.signing_secret),
        ("app", slack.app_token),
    ):
        file = folder / name
        file.write_text(text)
        file.chmod(0o600)
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
    if "signing" in ways:
        app["signing_secret_file"] = tmp_path / "slack" / "signing"
    if "app" in ways:
        app["app_token_file"] = tmp_path / "slack" / "app"
    app |= more.pop("app", {})
    async with running(tmp_path / "data", bundle, public_url=url, port=port, slack=app, **more) as world:
        world.clock.go_on()
        faults.keep_time_with(lambda: world.clock().timestamp())
        faults.deliveries.to(f"{url}/slack/events")
        config = uvicorn.Config(world.app, port=port, log_config=None, lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve())
        while not server.started:  # noqa: ASYNC110  uvicorn tells it by nothing else
            await asyncio.sleep(0.01)
        try:
            office = Office(world, slack, faults, await world.agent(robot))
            if met:
                await until(office.met)
            yield office
        finally:
            server.should_exit = True
            await serving
        assert await world.service.db.read(faults_of_log) == []
