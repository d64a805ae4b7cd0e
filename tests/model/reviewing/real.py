"""The real service as this machine drives it: the parent room's, with everything people may say on a review."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import Connection, select

from policy_service.storage.core import table
from policy_service.storage.proposals import ProposalRow
from policy_service.storage.tables import CommentRow
from policy_service.workflow.due import sweep
from policy_service.workflow.effects.activate import ask_about_open
from policy_service.workflow.looking import look
from policy_service.workflow.reviews.impossible import watch_quorums
from tests.fakes.payments import person
from tests.fakes.world import Visitor
from tests.model.gates import OWNER
from tests.model.real import LOST, Real, Tables, read_tables
from tests.model.reviewing.agents import AGENT
from tests.model.reviewing.laws import PEOPLE, Laws

Ask = Callable[[Visitor], Awaitable[httpx2.Response]]
TICKS = (
    sweep.expire_reviews, sweep.remind_people, sweep.escalate_reviews, sweep.expire_releases, watch_quorums,
)  # fmt: skip
"""The timers of reviews and releases; what follows a redemption is the other machine's."""


@dataclass
class Everything:
    """Every row that reviews are about."""

    tables: Tables
    proposals: Sequence[Any]
    comments: Sequence[Any]


class RealReviews(Real):
    """A service of the machine's own, with one agent and its owner."""

    def __init__(self, folder: Path, database: dict[str, str]) -> None:
        super().__init__(folder, database, Laws())

    async def _enroll(self) -> None:
        self.agents[AGENT] = await self.world.agent(AGENT, owner=person(OWNER))
        for who in PEOPLE:
            await self.visitor(who)

    async def everything(self) -> Everything:
        """All of it, in one snapshot."""

        def read(conn: Connection) -> Everything:
            rows = [conn.execute(select(*table(m).columns)).all() for m in (ProposalRow, CommentRow)]
            return Everything(read_tables(conn), *rows)

        return await self.world.service.db.read(read)

    # -- requests --------------------------------------------------------------------------------------------

    async def by(self, who: str, ask: Ask, *, revoked: bool = False) -> httpx2.Response:
        """Somebody asks; whose session has ended meanwhile signs in again."""
        if LOST.get() is not None and not revoked:
            await self.look_in(who)
        answer = await ask(await self.visitor(who))
        if not revoked and (answer.status_code == 401 or "/sign-in" in answer.headers.get("location", "")):
            del self._visitors[who]
            answer = await ask(await self.visitor(who))
        return answer

    async def shown(self, who: str, review_id: str) -> dict[str, str]:
        """What the form of a review's page says it showed; nothing where there is no form."""

        async def ask(visitor: Visitor) -> httpx2.Response:
            return await visitor.http.get(f"/reviews/{review_id}?full=1", headers=_of_a_page(visitor))

        page = await self.by(who, ask)
        assert page.status_code == 200, page.text
        return dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', page.text))

    async def form(self, who: str, path: str, fields: dict[str, str]) -> httpx2.Response:
        """A form of a page is sent."""

        async def ask(visitor: Visitor) -> httpx2.Response:
            sent = {"csrf_token": visitor.csrf, **fields}
            return await visitor.http.post(path, data=sent, headers=_of_a_page(visitor))

        return await self.by(who, ask)

    # -- what happens by itself ------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """What the timers do."""
        for tick in TICKS:
            await tick(self.world.service.ctx)

    async def put_in_force(self, laws: Laws) -> None:
        """Other laws are there, and nothing has been asked about yet."""
        laws.lay(self.bundle)
        await look(self.world.service.ctx)
        error = self.world.service.active.status().error
        assert error is None, error

    async def ask_about_open(self) -> None:
        """The second half of an activation."""
        await ask_about_open(self.world.service.ctx)


def _of_a_page(visitor: Visitor) -> dict[str, str]:
    return {name: value for name, value in visitor.headers().items() if name in {"Cookie", "Origin"}}
