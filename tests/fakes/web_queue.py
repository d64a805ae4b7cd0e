"""A small working world behind the web channel: reviews, sessions, one-time links and an event feed, in memory.

It keeps the rules a page can meet (stale, closed, not eligible, a link works once), so that tests read like stories.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Never

from fastapi import FastAPI
from policy_service.channels.web.ports import (
    BallotForm,
    EventBatch,
    NewSession,
    Person,
    QueueEvent,
    Said,
    Session,
    Shown,
)

from countersign.contract import JSON
from policy_service.channels.web.routes import install
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.sessions import Notice
from policy_service.workflow.passkeys.managing import PasskeyPage
from policy_service.workflow.passkeys.stepping_up import Proof
from policy_service.workflow.reading.policies import PoliciesPage, TriedEffect
from policy_service.workflow.reading.queue import (
    AlikePage,
    Count,
    QueuePage,
    QueueRow,
    Tab,
    TabCounts,
    Wanted,
)
from policy_service.workflow.reading.reviews import Ballot, CommentView, ReviewPage, VoteResult, VoteView
from policy_service.workflow.reading.tasks import OpenTasks, TaskList, TaskPage
from policy_service.workflow.reviews.shown import BATCH, WEB, folded_args, view_of
from tests.fakes import policies, reviews, tasks
from tests.fakes.oversight import FakeOversight


@dataclass(frozen=True)
class Somebody:
    iss: str = "https://dev.invalid"
    sub: str = "maya"
    name: str = "Maya Okafor"
    groups: frozenset[str] = frozenset({"finance", "release-captains"})
    assurance: str = "dev"
    groups_problem: str | None = None


@dataclass(frozen=True)
class LiveSession:
    person: Person
    csrf: str
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class Settings:
    public_url: str
    dev_signin: bool = True


@dataclass
class World:
    """Everything the router asks for, in one object."""

    clock: Callable[[], datetime] = lambda: reviews.NOW
    pages: dict[str, ReviewPage] = field(default_factory=dict)
    changed: list[dict[str, str]] = field(default_factory=list)
    sessions: dict[str, LiveSession] = field(default_factory=dict)
    links: dict[str, Person] = field(default_factory=dict)
    events: list[QueueEvent] = field(default_factory=list)
    closing: bool = False
    page_size: int = 50
    group: str | None = "support-lead"
    wanted: Wanted | None = None  # what the queue was last asked for
    tasks: dict[str, TaskPage] = field(default_factory=dict)
    said: list[tuple[str, Said]] = field(default_factory=list)
    cast: list[tuple[str, Ballot, int, str, str, str]] = field(default_factory=list)
    policies: PoliciesPage = field(default_factory=policies.page)
    tried: list[tuple[str, str, JSON]] = field(default_factory=list)
    oversight: FakeOversight = field(default_factory=FakeOversight)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _left: bool = False

    # -- what happens -------------------------------------------------------------------------------------------

    def sign_everybody_out(self) -> None:
        """Every session is over, and the log says so."""
        self.sessions.clear()
        self._left = True
        self._news.set()

    def put(self, page: ReviewPage, kind: str = "review_opened") -> ReviewPage:
        self.pages[page.review_id] = page
        self.tell(kind, page.review_id)
        return page

    def put_task(self, page: TaskPage) -> TaskPage:
        self.tasks[page.task_id] = page
        self.tell("task_opened", task_id=page.task_id)
        return page

    def tell(self, kind: str, review_id: str = "", task_id: str = "") -> None:
        self.events.append(QueueEvent(len(self.events) + 1, kind, review_id, task_id))
        self._news.set()

    def signed_in(self, person: Person | None = None) -> tuple[str, LiveSession]:
        cookie = secrets.token_urlsafe(24)
        self.sessions[cookie] = LiveSession(person or Somebody(), secrets.token_urlsafe(24))
        return cookie, self.sessions[cookie]

    def link(self, person: Person | None = None) -> str:
        token = secrets.token_urlsafe(24)
        self.links[token] = person or Somebody()
        return token

    # -- PolicySource -------------------------------------------------------------------------------------------

    def in_force(self) -> str:
        return self.policies.in_force.commit

    async def policies_page(self, chosen: str | None) -> PoliciesPage:
        page = self.policies
        return replace(page, chosen=next((row for row in page.policies if row.policy_id == chosen), None))

    async def try_effect(self, agent: str, tool: str, args: JSON) -> TriedEffect:
        self.tried.append((agent, tool, args))
        if agent != "desk-agent":
            raise NotFoundError(f"no agent {agent!r} is enrolled here")
        return policies.tried()

    # -- QueueSource --------------------------------------------------------------------------------------------

    async def queue_page(self, person: Person, wanted: Wanted, cursor: str | None, limit: int) -> QueuePage:
        rows = {tab: self._rows(tab) for tab in Tab}
        if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
            raise InvalidRequestError(f"the cursor {cursor!r} is not one of ours")
        self.wanted = wanted
        asked = {"agent": wanted.agent, "tool": wanted.tool, "risk": wanted.risk}
        kept = [
            row for row in rows[wanted.tab]
            if all(getattr(row, name) == value for name, value in asked.items() if value)
            and wanted.text.casefold() in "".join(piece.text for piece in row.sentence).casefold()
        ]  # fmt: skip
        start, size = int(cursor or 0), min(limit, self.page_size)
        following = str(start + size) if start + size < len(kept) else None
        counts = TabCounts(*(Count(len(rows[tab])) for tab in Tab))
        return QueuePage(tuple(kept[start : start + size]), following, counts)

    def _rows(self, tab: Tab) -> list[QueueRow]:
        pages = [page for page in self.pages.values() if page.superseded_by is None]
        rows = [reviews.row_of(page) for page in sorted(pages, key=lambda p: (p.answer_by, p.review_id))]
        keeps = {
            Tab.ME: lambda row: row.state == "open" and row.can_vote,
            Tab.OPEN: lambda row: row.state == "open",
            Tab.MINE: lambda row: row.state == "open" and row.review_id == "rev_owner",
            Tab.DECIDED: lambda row: row.state != "open",
        }
        return [row for row in rows if keeps[tab](row)]

    async def count_waiting(self, person: Person) -> Count:
        return Count(len(self._rows(Tab.ME)))

    async def alike(self, person: Person, review_id: str) -> AlikePage:
        first = self._page(review_id)
        kind = reviews.row_of(first).alike
        if not kind:
            raise InvalidRequestError("this review is to be decided on its own")
        same = {row.review_id for row in self._rows(Tab.ME) if row.alike == kind}
        lines = tuple(reviews.line_of(self.pages[name]) for name in sorted(same))
        gates = tuple(gate.title for gate in first.gates)
        return AlikePage(
            kind, first.agent, first.agent_owner, first.tool, first.tool_title, gates, first.finality, lines
        )

    def _page(self, review_id: str) -> ReviewPage:
        if review_id not in self.pages:
            raise NotFoundError(f"there is no review {review_id!r}")
        return self.pages[review_id]

    def group_to_ask(self, person: Person) -> str | None:
        return self.group

    async def review_page(self, review_id: str, person: Person) -> ReviewPage | None:
        return self.pages.get(review_id)

    async def cast_vote(
        self,
        person: Person,
        review_id: str,
        verdict: Ballot,
        rev: int,
        effect_digest: str,
        txn_digest: str,
        reason: str,
        *,
        shown: Shown,
        proof: Proof | None = None,
    ) -> VoteResult:
        page = self._page(review_id)
        seen = (rev, effect_digest, txn_digest)
        if page.superseded_by is not None or seen != (page.rev, page.effect_digest, page.txn_digest):
            raise ConflictError(
                "you read another revision",
                code="stale_review",
                read_rev=rev,
                rev=page.superseded_by or page.rev,
                review_id=review_id,
                changed=self.changed,
            )
        self._require_read(page, verdict, shown)
        if page.why_not:
            raise ForbiddenError(page.why_not, code="not_eligible")
        if page.state != "open":
            raise ConflictError("this review has settled", code="review_closed")
        self.cast.append((review_id, verdict, rev, effect_digest, txn_digest, reason))
        self.put(_after_vote(page, person, verdict, reason, self.clock()), "vote_recorded")
        state = self.pages[review_id].state
        if state != "open":
            self.tell("review_settled", review_id)
        return VoteResult(review_id, state, verdict, True)

    async def _nothing(self, *_: Any, **__: Any) -> Never:
        raise NotFoundError("there is none in this world")

    edit_form = preview_edit = propose_edit = accept_edit = decline_edit = _nothing

    async def write_comment(self, person: Person, review_id: str, text: str, *, question: bool) -> None:
        page = self._page(review_id)
        if page.state != "open":
            raise ConflictError("this review has settled", code="review_closed")
        if not (page.may_ask if question else page.may_comment):
            raise ForbiddenError("this waits for others", code="not_eligible")
        mine = page.may_comment and not page.may_ask
        said = CommentView(person.name, text, self.clock(), "web", person.assurance, question, mine)
        self.put(replace(page, comments=(*page.comments, said)), "comment_written")

    def _require_read(self, page: ReviewPage, verdict: Ballot, shown: Shown) -> None:
        whole, first, batch = view_of(page, WEB, full=True), view_of(page, WEB), view_of(page, BATCH)
        if verdict == "approve" and shown.digest not in (whole.digest, first.digest, batch.digest):
            raise ConflictError("the page has changed", code="stale_review", moved=whole.moved(shown.parts))
        if verdict == "approve" and folded_args(first) and shown.digest == first.digest:
            raise InvalidRequestError("open it in full and read it first", code="view_incomplete")

    async def count_tasks(self) -> OpenTasks:
        return OpenTasks(sum(page.state == "open" for page in self.tasks.values()))

    async def task_list(self, person: Person, state: str, cursor: str | None, limit: int) -> TaskList:
        found = [
            page for page in self.tasks.values() if page.state == state and page.task_id > (cursor or "")
        ]
        shown = sorted(found, key=lambda page: page.task_id)[: min(limit, self.page_size)]
        following = shown[-1].task_id if len(found) > len(shown) else None
        return TaskList(tuple(tasks.line_of(page) for page in shown), following)

    async def task_page(self, task_id: str, person: Person) -> TaskPage | None:
        return self.tasks.get(task_id)

    async def settle_task(self, person: Person, task_id: str, said: Said) -> None:
        page = self.tasks.get(task_id)
        if page is None:
            raise NotFoundError(f"there is no task {task_id!r}")
        if page.state != "open":
            raise ConflictError("somebody has settled it; the first word stands", code="task_settled")
        if page.why_not:
            raise ForbiddenError(page.why_not, code="not_eligible")
        if said.answer.value not in {choice.answer for choice in page.choices}:
            raise InvalidRequestError("it takes other answers", code="wrong_answer")
        if (said.effect_digest, said.effect_state) != (page.effect_digest, page.effect_state):
            raise ConflictError("what you read is not what stands now", code="stale_task")
        if not said.reason:
            raise InvalidRequestError("say how you know", code="reason_required")
        self.said.append((task_id, said))
        self.tasks[task_id] = tasks.settled(page, person.name, said.answer.value, said.reason, self.clock())
        self.tell("task_settled", task_id=task_id)

    # -- Sessions -----------------------------------------------------------------------------------------------

    async def find(self, cookie: str, *, touch: bool = True) -> LiveSession | None:
        return self.sessions.get(cookie)

    def providers(self) -> Sequence[tuple[str, str]]:
        return []

    begin = finish = _nothing

    async def sign_in(self, token: str, old_cookie: str | None) -> NewSession:
        person = self.links.pop(token, None)
        if person is None:
            raise InvalidRequestError("this sign-in link was used before, or never was one", code="bad_token")
        return NewSession(self.signed_in(person)[0], 3600)

    async def sign_out(self, cookie: str, *, everywhere: bool) -> None:
        self.sessions.pop(cookie, None)

    # -- Passkeys: this world is at an address, and has none ------------------------------------------------------

    async def page(self, session: Session) -> PasskeyPage:
        return PasskeyPage((), fresh=False, vouchable=False, cannot="passkeys are bound to a name")

    def fresh_ways(self) -> Sequence[tuple[str, str]]:
        return []

    async def _cannot(self, *_: Any) -> Never:
        raise ForbiddenError("passkeys are bound to a name", code="step_up_required")

    begin_adding = answer = ask_step_up = _cannot
    begin_removing = _nothing

    async def dismiss(self, session: Session) -> None:
        """There is nothing to forget."""

    def proof(self, session: Session, ballot: BallotForm) -> Proof | None:
        return None

    # -- EventFeed ----------------------------------------------------------------------------------------------

    async def latest(self) -> int:
        return len(self.events)

    async def events_after(self, person: Person, index: int, limit: int) -> EventBatch:
        found = tuple(self.events[index : index + limit])
        return EventBatch(found, index + len(found), somebody_left=self._left)

    async def wait_after(self, index: int, timeout_seconds: float) -> int:
        if len(self.events) > index:
            return index
        self._news.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), min(timeout_seconds, 0.5))
        return index


def _after_vote(page: ReviewPage, person: Person, verdict: Ballot, reason: str, at: datetime) -> ReviewPage:
    votes = (*page.votes, VoteView(person.name, verdict, reason, at, True, person.assurance))
    if verdict == "deny":
        return replace(page, votes=votes, state="denied", effect_state="denied", my_verdict=verdict)
    gates = tuple(replace(gate, have=min(gate.quorum, gate.have + 1)) for gate in page.gates)
    met = all(gate.have >= gate.quorum for gate in gates)
    state, effect_state = ("met", "released") if met else (page.state, page.effect_state)
    return replace(page, votes=votes, gates=gates, state=state, effect_state=effect_state, my_verdict=verdict)


def create_app(world: World, settings: Settings) -> FastAPI:
    """The web channel over a world, as `app.py` composes it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        world.closing = True

    app = FastAPI(lifespan=lifespan)
    install(app, world, world, world.oversight, world, world, settings, world, clock=world.clock)
    return app


def sample_world(clock: Callable[[], datetime] = lambda: reviews.NOW) -> World:
    """A queue with a bit of everything."""
    world = World(clock=clock)
    for page in (
        reviews.deploy(), reviews.hostile(), reviews.refund(), reviews.fired(), reviews.denied(),
        reviews.refund("rev_owner", risk="low", why_not="refund-desk works for you; nobody approves their own side."),
    ):  # fmt: skip
        world.put(page)
    return world
