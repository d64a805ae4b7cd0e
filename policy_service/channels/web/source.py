"""The workflow as the pages' ports: translation and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from countersign.contract import JSON
from policy_service.audit.feed import PEOPLE, Event, Feed
from policy_service.channels.web.ports import Edited, EventBatch, NewSession, Person, QueueEvent, Said, Shown
from policy_service.channels.web.ports import Session as WebSession
from policy_service.identity import dev_signin
from policy_service.identity.oidc import Departure, Identity, SignIn
from policy_service.identity.people import Person as SignedIn
from policy_service.identity.people import remember
from policy_service.identity.sessions import Notice, Session, Sessions, end_session, open_session
from policy_service.pdp.rules import UNSEEN
from policy_service.storage.database import Tx
from policy_service.workflow.context import Context
from policy_service.workflow.edits.accept import accept
from policy_service.workflow.edits.decline import decline
from policy_service.workflow.edits.propose import Proposed, propose
from policy_service.workflow.effects.ballots import groups_now
from policy_service.workflow.pages import edit_views, queue, reviews, tasks
from policy_service.workflow.pages.alike import alike
from policy_service.workflow.pages.edit_views import EditForm, Preview
from policy_service.workflow.pages.policies import Policies
from policy_service.workflow.pages.trying import try_effect
from policy_service.workflow.pages.whole import whole
from policy_service.workflow.passkeys.stepping_up import Proof
from policy_service.workflow.reading.policies import PoliciesPage, TriedEffect
from policy_service.workflow.reading.queue import AlikePage, Count, QueuePage, Wanted, WholePage
from policy_service.workflow.reading.reviews import Ballot as Verdict
from policy_service.workflow.reading.reviews import ReviewPage, VoteResult
from policy_service.workflow.reading.tasks import OpenTasks, TaskList, TaskPage
from policy_service.workflow.reviews.comment import Remark, comment
from policy_service.workflow.reviews.vote import Ballot, vote
from policy_service.workflow.reviews.voter import Voter, voter_for
from policy_service.workflow.tasks.settle import Word, settle

_ABOUT_TASKS = frozenset({"task_opened", "task_settled"})
_OPENED = frozenset({"review_opened", "review_reopened"})


@dataclass(frozen=True, slots=True)
class SeenPerson:
    """A signed-in person as a page shows them: in the groups that stand now, by their titles.

    What a vote carries are the groups of their token; the others are asked anew at every count.
    """

    signed_in: SignedIn
    groups: frozenset[str]

    @property
    def iss(self) -> str:
        """Who vouches for them."""
        return self.signed_in.iss

    @property
    def sub(self) -> str:
        """Who they are there."""
        return self.signed_in.sub

    @property
    def name(self) -> str:
        """What people call them."""
        return self.signed_in.name

    @property
    def assurance(self) -> str:
        """How sure we are."""
        return self.signed_in.assurance

    @property
    def groups_problem(self) -> str | None:
        """Why groups of their provider are missing."""
        return self.signed_in.groups_problem


@dataclass(frozen=True, slots=True)
class SeenSession:
    """A session whose person is as a page shows them."""

    signed_in: Session
    person: SeenPerson

    @property
    def csrf(self) -> str:
        """Its form token."""
        return self.signed_in.csrf

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What changed of its person's passkeys, elsewhere."""
        return self.signed_in.notices


def live_session(session: WebSession) -> Session:
    """The session behind the one a page was given."""
    if not isinstance(session, SeenSession):
        raise TypeError("sessions come from our own source")
    return session.signed_in


def voter_of(person: Person) -> Voter:
    """Who acts, as their session knows them."""
    if not isinstance(person, SeenPerson):
        raise TypeError("people come from our own sessions")
    return voter_for(person.signed_in)


class WorkflowQueue:
    """The reviews of the workflow, for one page at a time."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def queue_page(self, person: Person, wanted: Wanted, cursor: str | None, limit: int) -> QueuePage:
        """A page of a tab of the queue."""
        return await queue.queue_page(self._ctx, voter_of(person), wanted, cursor, limit)

    async def count_waiting(self, person: Person) -> Count:
        """How many reviews wait for this person."""
        return await queue.count_waiting(self._ctx, voter_of(person))

    async def alike(self, person: Person, review_id: str) -> AlikePage:
        """The reviews of this one's kind that wait for this person."""
        return await alike(self._ctx, voter_of(person), review_id)

    async def whole(self, person: Person, review_id: str) -> WholePage:
        """The transaction of this review, as this person may decide it."""
        return await whole(self._ctx, voter_of(person), review_id)

    def group_to_ask(self, person: Person) -> str | None:
        """A group that a first gate may ask."""
        bundle, voter = self._ctx.active.current, voter_of(person)
        known = bundle.directory.groups - {UNSEEN}  # those look at what policy cannot weigh
        return min(known & groups_now(bundle, voter.key, voter.groups) or known, default=None)

    async def review_page(self, review_id: str, person: Person) -> ReviewPage | None:
        """One review, or None."""
        return await reviews.review_page(self._ctx, voter_of(person), review_id)

    async def cast_vote(
        self,
        person: Person,
        review_id: str,
        verdict: Verdict,
        rev: int,
        effect_digest: str,
        txn_digest: str,
        reason: str,
        *,
        shown: Shown,
        proof: Proof | None = None,
    ) -> VoteResult:
        """Cast a vote on exactly these digests."""
        ballot = Ballot(
            review_id,
            verdict,
            rev,
            effect_digest,
            txn_digest,
            reason or None,
            "web",
            view_digest=shown.digest,
            view_parts=shown.parts,
            proof=proof,
        )
        return await vote(self._ctx, voter_of(person), ballot, reviews.read_view)

    async def edit_form(self, person: Person, review_id: str) -> EditForm:
        """What this person may change."""
        return await edit_views.edit_form(self._ctx, voter_of(person), review_id)

    async def preview_edit(self, person: Person, review_id: str, args: Mapping[str, JSON]) -> Preview:
        """A proposal as it would be sent."""
        return await edit_views.preview(self._ctx, voter_of(person), review_id, args)

    async def propose_edit(self, person: Person, edited: Edited) -> None:
        """Propose other arguments."""
        proposed = Proposed(
            review_id=edited.review_id,
            rev=edited.rev,
            effect_digest=edited.effect_digest,
            txn_digest=edited.txn_digest,
            args=edited.args,
            reason=edited.reason,
            channel="web",
        )
        await propose(self._ctx, voter_of(person), proposed)

    async def accept_edit(self, person: Person, proposal_id: str) -> str:
        """Accept a proposal for one's own agent."""
        snapshot = await accept(self._ctx, voter_of(person), proposal_id)
        return await edit_views.review_after(self._ctx, snapshot, proposal_id)

    async def decline_edit(self, person: Person, proposal_id: str, reason: str) -> str:
        """Decline a proposal, or take one's own back."""
        await decline(self._ctx, voter_of(person), proposal_id, reason or None)
        return await edit_views.review_of(self._ctx, proposal_id)

    async def write_comment(self, person: Person, review_id: str, text: str, *, question: bool) -> None:
        """Write a comment, or ask the agent."""
        await comment(self._ctx, voter_of(person), Remark(review_id, text, question=question, channel="web"))

    async def count_tasks(self) -> OpenTasks:
        """How many tasks are open."""
        return await tasks.count_open(self._ctx)

    async def task_list(self, person: Person, state: str, cursor: str | None, limit: int) -> TaskList:
        """Tasks in a state, the oldest in front."""
        return await tasks.task_list(self._ctx, voter_of(person), state, cursor, limit)

    async def task_page(self, task_id: str, person: Person) -> TaskPage | None:
        """One task, or None."""
        return await tasks.task_page(self._ctx, voter_of(person), task_id)

    async def settle_task(self, person: Person, task_id: str, said: Said) -> None:
        """Settle a task by exactly this word."""
        word = Word(
            task_id=task_id,
            answer=said.answer,
            effect_digest=said.effect_digest,
            effect_state=said.effect_state,
            reason=said.reason,
            channel="web",
            result=said.result,
        )
        await settle(self._ctx, voter_of(person), word)


class WorkflowPolicies:
    """What is in force, as the workflow reads it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._policies = Policies(ctx)

    def in_force(self) -> str:
        """The commit that decides now."""
        return self._ctx.active.status().active_commit or ""

    async def policies_page(self, chosen: str | None) -> PoliciesPage:
        """The bundle in force."""
        return await self._policies.page(chosen)

    async def try_effect(self, agent: str, tool: str, args: JSON) -> TriedEffect:
        """What would be decided about one call."""
        return await try_effect(self._ctx, agent, tool, args)


class SignedInSessions:
    """Sessions, and the ways to open one: a provider of the settings, or the development link."""

    def __init__(self, ctx: Context, sessions: Sessions, sign_in: SignIn) -> None:
        self._db = ctx.db
        self._active = ctx.active
        self._sessions = sessions
        self._settings = ctx.settings
        self._providers = sign_in

    async def find(self, cookie: str, *, touch: bool = True) -> SeenSession | None:
        """The live session of a cookie."""
        session = await self._sessions.find(cookie, touch=touch)
        return None if session is None else SeenSession(session, self._seen(session.person))

    def _seen(self, person: SignedIn) -> SeenPerson:
        directory = self._active.current.directory
        groups = groups_now(self._active.current, person.key, person.groups)
        return SeenPerson(person, frozenset(directory.title_of(group) for group in groups))

    def providers(self) -> Sequence[tuple[str, str]]:
        """Where people may sign in."""
        return self._providers.choices

    async def begin(self, name: str, next_path: str, *, fresh: bool = False) -> Departure:
        """Send somebody to a provider."""
        return await self._providers.begin(name, next_path, fresh=fresh)

    async def finish(
        self, name: str, answer: Mapping[str, str], note: str | None, old_cookie: str | None
    ) -> tuple[NewSession, str]:
        """Take a provider's answer."""
        who, next_path = await self._providers.finish(name, answer, note)
        cookie = await self._db.write(lambda tx: self._open(tx, who, old_cookie))
        return NewSession(cookie, self._settings.session_max_s), next_path

    def _open(self, tx: Tx, who: Identity, old_cookie: str | None) -> str:
        end_session(tx, old_cookie)
        remember(
            tx,
            who.iss,
            who.sub,
            who.name,
            email=who.email,
            groups=who.groups,
            groups_problem=who.groups_problem,
        )
        return open_session(
            tx,
            who.iss,
            who.sub,
            "oidc",
            max_s=self._settings.session_max_s,
            trust=who.trust,
            sid=who.sid,
            auth_at=who.auth_at,
        )

    async def sign_in(self, token: str, old_cookie: str | None) -> NewSession:
        """Spend a one-time link."""

        def spend(tx: Tx) -> dev_signin.SignedIn:
            signed_in = dev_signin.spend_link(tx, self._settings, token)
            end_session(tx, old_cookie)
            return signed_in

        signed_in = await self._db.write(spend)
        return NewSession(signed_in.cookie, signed_in.max_age_seconds)

    async def sign_out(self, cookie: str, *, everywhere: bool) -> None:
        """End a session, or every session of its person."""
        await self._sessions.sign_out(cookie, everywhere=everywhere)


class ReviewFeed:
    """The log's feed, narrowed to what the pages react to."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    @property
    def closing(self) -> bool:
        """Whether the service is stopping."""
        return self._feed.closing

    async def latest(self) -> int:
        """The newest index."""
        return self._feed.index

    async def events_after(self, person: Person, index: int, limit: int) -> EventBatch:
        """Events about reviews and tasks after an index, and how far was looked."""
        found = await self._feed.events_after(index, limit)
        events = tuple(told for event in found if (told := _told(event)) is not None)
        left = any(event.kind == "signed_out" for event in found)
        return EventBatch(events, found[-1].index if found else index, left)

    async def wait_after(self, index: int, timeout_seconds: float) -> int:
        """Return as soon as there may be something new, with the index after which that is."""
        found, reached = await self._feed.follow(index, timeout_seconds, PEOPLE)
        return found[0].index - 1 if found else reached


def _told(event: Event) -> QueueEvent | None:
    if event.kind in _ABOUT_TASKS and event.task_id is not None:
        return QueueEvent(event.index, event.kind, task_id=event.task_id)
    if event.review_id is None:
        return None
    return QueueEvent(event.index, "review_opened" if event.kind in _OPENED else event.kind, event.review_id)
