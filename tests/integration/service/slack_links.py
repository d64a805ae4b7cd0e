"""People with Slack accounts before the real verbs: who is invited, who links, who decides through it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from sqlalchemy import func, select

from policy_service.errors import ServiceError
from policy_service.identity.people import delete_all_slack_links, list_slack_links, record_sign_in
from policy_service.identity.sessions import Session, open_session
from policy_service.queries.review_context import read_review_context
from policy_service.queries.review_models import VoteResult
from policy_service.queries.reviews import review_content
from policy_service.queries.view_digest import SLACK_RENDERER, view_of
from policy_service.slack import SlackApp
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackLinkRow
from policy_service.storage.system_tables import AuditRow
from policy_service.workflow.reviews.vote import VoteInput, vote
from policy_service.workflow.slack.account_links import Account, invite, link
from policy_service.workflow.slack.interactions import LinkedVoter, require_still_linked, voter_for_account
from tests.fakes.identity_provider import CLIENT, ISSUER, SECRET
from tests.fakes.log_check import faults_of_log
from tests.fakes.slack_accounts import TEAM, account, app_settings
from tests.fakes.world import Agent, Visitor, World, running, stamp
from tests.integration.service.effects import pay

ACME = {"name": "acme", "title": "Acme", "issuer": ISSUER, "client_id": CLIENT, "client_secret": SECRET}
MAYA, MALLORY = account("U0MAYA", "maya"), account("U0MALLORY", "mallory", email="mallory@acme.example")


@dataclass
class Workspace:
    """The workspace of a running service."""

    world: World
    since: str = ""  # the newest line of the log that is not looked at

    async def emptied(self) -> Workspace:
        """The same with no account linked, no one revoked, and a log that begins here."""
        await self.world.service.db.write(delete_all_slack_links)
        for one in await self.world.operator("people-list", {}):
            if one["revoked"]:
                await self.world.operator("reinstate-approver", {"person": one["person"]})
        newest = select(func.max(table(AuditRow).c.audit_id))
        self.since = await self.world.service.db.read(lambda conn: conn.execute(newest).scalar_one() or "")
        return self

    async def asking(self, amount: int = 500) -> tuple[Agent, dict[str, Any]]:
        """An agent of its own, and a payment of its that people are asked about."""
        robot = await self.world.agent(f"robot-{uuid4().hex}")
        view: dict[str, Any] = (await robot.submit(await pay(self.world, amount))).json()
        return robot, view

    def under(self, **changes: Any) -> Workspace:
        """The same deployment under other settings."""
        settings, service = self.world.settings.model_copy(update=changes), self.world.service
        ctx = replace(service.ctx, settings=settings)
        world = SimpleNamespace(settings=settings, service=SimpleNamespace(ctx=ctx, db=service.db))
        return Workspace(world)  # type: ignore[arg-type]

    @property
    def app(self) -> SlackApp:
        """Its settings."""
        app = self.world.settings.slack
        assert app is not None
        return app

    async def invited(self, who: Account) -> str:
        """The secret of an account's invitation."""
        url = urlsplit(await invite(self.world.service.ctx, self.app, who))
        assert f"{url.scheme}://{url.netloc}{url.path}" == f"{self.world.settings.public_url}/slack/link"
        (secret,) = parse_qs(url.query)["invitation"]
        return secret

    async def by_link(self, sub: str) -> Session:
        """Somebody signed in by the development sign-in."""
        return await self._found((await self.world.person(sub)).cookie)

    async def by_provider(
        self, sub: str, email: str | None = None, groups: list[str] | None = None
    ) -> Session:
        """Somebody signed in at the deployment's provider."""
        return await self._found(await self._cookie(sub, email, groups))

    async def browser(self, sub: str, email: str | None = None) -> Visitor:
        """The same person in a browser."""
        cookie = await self._cookie(sub, email, None)
        csrf = (await self._found(cookie)).csrf
        return Visitor(sub, self.world.http, cookie, csrf, self.world.settings.public_url)

    async def _cookie(self, sub: str, email: str | None, groups: list[str] | None) -> str:
        trust = self.world.settings.providers[0].trust

        def begin(tx: Tx) -> str:
            record_sign_in(tx, ISSUER, sub, sub.title(), email=email, groups=groups)
            return open_session(tx, ISSUER, sub, "oidc", max_s=86_400, trust=trust, sid=f"s-{sub}")

        return await self.world.service.db.write(begin)

    async def _found(self, cookie: str) -> Session:
        session = await self.world.service.sessions.find(cookie)
        assert session is not None
        return session

    async def take(self, secret: str, session: Session) -> SlackLinkRow:
        """Answer an invitation."""
        return (await link(self.world.service.ctx, self.app, secret, session)).link

    async def linked(self, who: Account, session: Session) -> SlackLinkRow:
        """Be invited and answer."""
        return await self.take(await self.invited(who), session)

    async def voter(self, user_id: str, team_id: str = TEAM) -> LinkedVoter:
        """Who decides through an account."""
        ctx = self.world.service.ctx
        return await ctx.db.read(
            lambda conn: voter_for_account(conn, ctx, self.app, team_id, user_id, ctx.clock())
        )

    async def vote(self, user_id: str, view: dict[str, Any], by: LinkedVoter | None = None) -> VoteResult:
        """An approval through an account, by the person the channel found for it."""
        linked = by or await self.voter(user_id)
        review_id = view["effects"][0]["review"]["review_id"]
        shown = await self._shown(review_id)
        ballot = VoteInput(
            review_id, "approve", **stamp(view), reason=None, channel="slack", view_digest=shown
        )
        ctx = self.world.service.ctx

        def recheck(tx: Tx) -> None:
            require_still_linked(tx.conn, ctx, self.app, TEAM, user_id, linked.voter, tx.now)

        return await vote(ctx, linked.voter, ballot, recheck=recheck)

    async def _shown(self, review_id: str) -> str:
        """What a message of that review shows now."""
        ctx = self.world.service.ctx
        case = await ctx.db.read(lambda conn: read_review_context(conn, review_id))
        return view_of(review_content(ctx.active.current, case), SLACK_RENDERER).digest

    async def log(self, kinds: str = "slack%") -> list[tuple[str, str, dict[str, Any]]]:
        """What the log says, of accounts unless it is of other kinds: kind, actor, body."""
        rows = table(AuditRow).c
        about = (rows.kind.like(kinds), rows.audit_id > self.since)
        query = select(rows.kind, rows.actor, rows.body).where(*about).order_by(rows.audit_id)
        found = await self.world.service.db.read(lambda conn: conn.execute(query).all())
        return [(kind, actor, json.loads(body)) for kind, actor, body in found]

    async def rows(self) -> list[SlackLinkRow]:
        """Every account that is linked."""
        return await self.world.service.db.read(list_slack_links)


@asynccontextmanager
async def with_slack(folder: Path, bundle: Path, database: dict[str, str]) -> AsyncIterator[World]:
    """A service with a Slack app and a provider; when it is over, its log must tell exactly what happened (I-8)."""
    more: dict[str, Any] = {"slack": app_settings(folder), "providers": [ACME], **database}
    async with running(folder / "data", bundle, **more) as world:
        yield world
        assert await world.service.db.read(faults_of_log) == []


async def refused(doing: Awaitable[Any], kind: type[ServiceError], code: str, *words: str) -> ServiceError:
    """That it is refused so, in these words."""
    with pytest.raises(kind) as raised:
        await doing
    assert raised.value.code == code
    for word in words:
        assert word in raised.value.detail
    return raised.value
