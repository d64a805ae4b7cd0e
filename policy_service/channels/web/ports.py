"""What the web channel needs from the rest of the house, as small protocols.

The channel translates: it never decides, never reads a table and never mints anything. `app.py` hands it
objects of these shapes. Every refusal arrives as a `ServiceError` with a stable code and leaves as a page.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from countersign.contract import JSON, TaskAnswer
from policy_service.identity.oidc import Departure
from policy_service.identity.sessions import Notice
from policy_service.workflow.oversight.stopping import StopPage, Target
from policy_service.workflow.pages.agents import AgentList, AgentPage
from policy_service.workflow.pages.alarms import Alarms
from policy_service.workflow.pages.edit_views import EditForm, Preview
from policy_service.workflow.pages.searching import Found, LogLine, LogSearch
from policy_service.workflow.passkeys.managing import Ceremony, PasskeyPage
from policy_service.workflow.passkeys.stepping_up import Proof
from policy_service.workflow.reading.policies import PoliciesPage, TriedEffect
from policy_service.workflow.reading.queue import AlikePage, Count, QueuePage, Wanted, WholePage
from policy_service.workflow.reading.reviews import Ballot, ReviewPage, VoteResult
from policy_service.workflow.reading.tasks import OpenTasks, TaskList, TaskPage
from policy_service.workflow.slack.inviting import Invitation
from policy_service.workflow.slack.linking import Link

Clock: TypeAlias = Callable[[], datetime]


class Person(Protocol):
    """Who is signed in, as far as a page shows it and the workflow asks for it."""

    @property
    def iss(self) -> str: ...
    @property
    def sub(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def groups(self) -> frozenset[str]: ...
    @property
    def assurance(self) -> str: ...  # "oidc" or "dev"
    @property
    def groups_problem(self) -> str | None: ...  # why groups of their provider are missing


class Session(Protocol):
    """A live server-side session; `csrf` is this session's form token."""

    @property
    def person(self) -> Person: ...
    @property
    def csrf(self) -> str: ...
    @property
    def notices(self) -> Sequence[Notice]: ...


@dataclass(frozen=True, slots=True)
class NewSession:
    """The answer to a spent sign-in link: the cookie's value, once, and how long the browser may keep it."""

    cookie: str
    max_age_seconds: int


class Sessions(Protocol):
    """Server-side sessions. A cookie value is opaque here and is never logged."""

    async def find(self, cookie: str, *, touch: bool = True) -> Session | None:
        """The live session of this cookie value, or None when unknown, ended or expired.

        `touch` says that the person is there; without it the session goes on idling.
        """

    def providers(self) -> Sequence[tuple[str, str]]:
        """Where people may sign in: name and title of each."""

    async def begin(self, name: str, next_path: str, *, fresh: bool = False) -> Departure:
        """Send somebody to a provider; ``fresh`` asks it to make sure of them anew.

        Raises ServiceError: `not_found`, `issuer_unavailable`.
        """

    async def finish(
        self, name: str, answer: Mapping[str, str], note: str | None, old_cookie: str | None
    ) -> tuple[NewSession, str]:
        """Take a provider's answer and open a session with a fresh id; also the page they wanted.

        The session this browser had ends. Raises ServiceError: `not_found`, `bad_token`, `forbidden`,
        `issuer_unavailable`.
        """

    async def sign_in(self, token: str, old_cookie: str | None) -> NewSession:
        """Spend a one-time link and open a session with a fresh id; the one this browser had ends.

        Raises ServiceError: `forbidden` when the development sign-in is off, `bad_token` or `expired_token`
        when the link is unknown, spent or too old.
        """

    async def sign_out(self, cookie: str, *, everywhere: bool) -> None:
        """End this session or every session of its person. Unknown values are ignored."""


@dataclass(frozen=True, slots=True)
class Said:
    """A person's word on a task, and on what they read."""

    answer: TaskAnswer
    effect_digest: str
    effect_state: str
    reason: str
    result: bytes | None = None  # canonical JSON


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page said it showed, as its form carries it."""

    digest: str | None
    parts: str = ""


@dataclass(frozen=True, slots=True)
class BallotForm:
    """What a person pressed, on exactly which bytes, shown how, and what their passkey answered."""

    verdict: Ballot
    rev: int
    effect_digest: str
    txn_digest: str
    reason: str
    shown: Shown
    nonce: str = ""
    credential: str = ""


class Passkeys(Protocol):
    """A person's passkeys; every refusal of a ceremony is `step_up_required`."""

    async def page(self, session: Session) -> PasskeyPage:
        """What this person has."""

    def fresh_ways(self) -> Sequence[tuple[str, str]]:
        """Where a fresh sign-in can be had: name and title of each provider."""

    async def begin_adding(self, session: Session, name: str) -> Ceremony:
        """Begin to add one. Raises ServiceError: `step_up_required`, `invalid_request`, `illegal_state`."""

    async def begin_removing(self, session: Session, passkey_id: str) -> Ceremony | None:
        """Begin to remove one; None when it is done. Raises ServiceError: `step_up_required`, `not_found`."""

    async def answer(self, session: Session, nonce: str, credential: str) -> Ceremony | NewSession | None:
        """Take an answer; the next question, or None; or the cookie the session goes by from now on.

        Raises ServiceError: `step_up_required`, `illegal_state`, `unauthenticated`.
        """

    async def dismiss(self, session: Session) -> None:
        """This session has read what changed."""

    async def ask_step_up(self, session: Session, review_id: str, ballot: BallotForm) -> Ceremony:
        """Ask for a passkey's word on this vote. Raises ServiceError: `step_up_required`."""

    def proof(self, session: Session, ballot: BallotForm) -> Proof | None:
        """What came with a vote."""


class SlackAccounts(Protocol):
    """A person's Slack accounts."""

    @property
    def command(self) -> str: ...  # what to write in Slack to be invited

    async def mine(self, session: Session) -> Sequence[Link]:
        """Those that are linked, oldest in front."""

    async def invitation(self, secret: str) -> Invitation | None:
        """What an invitation is for; None where it is unknown, used or too old. Changes nothing."""

    async def link(self, session: Session, secret: str) -> NewSession:
        """Use it; the cookie the session goes by from now on.

        Raises ServiceError: `bad_token`, `expired_token`, `not_eligible`, `illegal_state`, `unauthenticated`.
        """

    async def unlink(self, session: Session, team_id: str, user_id: str) -> bool:
        """Unlink one of this person's; whether it was one."""

    async def set_direct(self, session: Session, team_id: str, user_id: str, wanted: bool) -> None:
        """Ask in direct messages too, or not. Raises ServiceError: `not_found`."""


@dataclass(frozen=True, slots=True)
class Edited:
    """Other arguments a person proposes, and in place of what they read."""

    review_id: str
    rev: int
    effect_digest: str
    txn_digest: str
    args: Mapping[str, JSON]
    reason: str


class QueueSource(Protocol):
    """The reviews and tasks as one person sees them, and what a person does here: vote, write, propose and settle."""

    async def queue_page(self, person: Person, wanted: Wanted, cursor: str | None, limit: int) -> QueuePage:
        """A page of a tab of the queue.

        Raises ServiceError: `invalid_request` when the cursor is not one of ours.
        """

    async def count_waiting(self, person: Person) -> Count:
        """How many reviews wait for this person, for the title."""

    async def alike(self, person: Person, review_id: str) -> AlikePage:
        """Those of this one's kind that wait for them. Raises `not_found`; `invalid_request`, where it stands alone."""

    async def whole(self, person: Person, review_id: str) -> WholePage:
        """The transaction of a review. Raises `not_found`; `invalid_request`, where it stands alone or was revised."""

    def group_to_ask(self, person: Person) -> str | None:
        """A group that a first gate may ask: one of this person's, or any other of the bundle; None without one."""

    async def review_page(self, review_id: str, person: Person) -> ReviewPage | None:
        """One review as this person may see it, open or settled; None when there is none for them."""

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
        """Record a vote on exactly these digests at this revision.

        Raises ServiceError: `stale_review` (with `extras["rev"]`, `extras["review_id"]` of what stands now,
        `extras["changed"]`, a list of {"name", "read", "now"}, and `extras["moved"]`, a list of words), `not_eligible`,
        `review_closed`, `reason_required`, `step_up_required`, `view_incomplete`, `not_found`.
        """

    async def edit_form(self, person: Person, review_id: str) -> EditForm:
        """What this person may change of an effect.

        Raises ServiceError: `not_found`, `not_eligible`.
        """

    async def preview_edit(self, person: Person, review_id: str, args: Mapping[str, JSON]) -> Preview:
        """A proposal as it would be sent; nothing is written.

        Raises ServiceError: as proposing it.
        """

    async def propose_edit(self, person: Person, edited: Edited) -> None:
        """Propose other arguments.

        Raises ServiceError: `not_found`, `not_eligible`, `stale_review`, `review_closed`, `reason_required`,
        and what is wrong with the arguments.
        """

    async def accept_edit(self, person: Person, proposal_id: str) -> str:
        """Accept a proposal for one's own agent; where it is asked about now.

        Raises ServiceError: `not_found`, `not_eligible`, `proposal_closed`, `frozen`.
        """

    async def decline_edit(self, person: Person, proposal_id: str, reason: str) -> str:
        """Decline a proposal, or take one's own back; the review it was made on.

        Raises ServiceError: `not_found`, `not_eligible`, `proposal_closed`.
        """

    async def write_comment(self, person: Person, review_id: str, text: str, *, question: bool) -> None:
        """Write a comment on an open review, or ask its agent something.

        Raises ServiceError: `review_closed`, `not_eligible`, `rate_limited`, `invalid_request`, `not_found`.
        """

    async def count_tasks(self) -> OpenTasks:
        """How many tasks are open, for the tab."""

    async def task_list(self, person: Person, state: str, cursor: str | None, limit: int) -> TaskList:
        """Tasks in a state, the oldest in front."""

    async def task_page(self, task_id: str, person: Person) -> TaskPage | None:
        """One task as this person may see it, open or settled; None when there is none for them."""

    async def settle_task(self, person: Person, task_id: str, said: Said) -> None:
        """Settle a task by exactly this word.

        Raises ServiceError: `task_settled`, `stale_task` (with `extras["effect_state"]`), `not_eligible`,
        `wrong_answer`, `reason_required`, `not_found`.
        """


class PolicySource(Protocol):
    """What is in force, and what it would say."""

    def in_force(self) -> str:
        """The commit of the policies that decide now."""

    async def policies_page(self, chosen: str | None) -> PoliciesPage:
        """The bundle in force, with one policy in full when it is there."""

    async def try_effect(self, agent: str, tool: str, args: JSON) -> TriedEffect:
        """What would be decided about one call; nothing is stored.

        Raises ServiceError: `invalid_request` and the codes of admission, `not_found` for an agent nobody enrolled.
        """


class Oversight(Protocol):
    """What people watch and stop: agents, the log, the emergency stop."""

    async def alarms(self) -> Alarms:
        """What every page says aloud."""

    async def stop_page(self, person: Person) -> StopPage:
        """What can be stopped, and what this person may."""

    async def stop(self, person: Person, target: Target, reason: str) -> None:
        """Stop it.

        Raises ServiceError: `not_eligible`, `reason_required`, `invalid_request`, `not_found`.
        """

    async def start_again(self, person: Person, target: Target, reason: str) -> None:
        """End a stop.

        Raises ServiceError: as above.
        """

    async def agent_list(self, cursor: str | None, limit: int) -> AgentList:
        """Agents by name."""

    async def agent_page(self, name: str, person: Person) -> tuple[AgentPage, StopPage] | None:
        """One agent, and whether this person may stop it; None when nobody enrolled it."""

    async def search(self, wanted: LogSearch, cursor: str | None, limit: int) -> Found:
        """Lines of the log, the newest first.

        Raises ServiceError: `invalid_request` when the cursor is not one of ours.
        """

    def export(self, wanted: LogSearch) -> AsyncIterator[LogLine]:
        """Every line that fits, the newest first."""


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """Something happened: an id and a kind, never HTML. `index` is the dense index of the audit row."""

    index: int
    kind: str  # "review_opened", "vote_recorded", "review_settled", "task_opened", "task_settled", ...
    review_id: str = ""
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in order, and how far was looked: rows about other things are passed over for good."""

    events: tuple[QueueEvent, ...]
    index: int
    somebody_left: bool = False  # a session has ended among what was passed over


class EventFeed(Protocol):
    """The audit sequence, as a page follows it."""

    @property
    def closing(self) -> bool: ...  # True once the service is stopping: open streams then end by themselves

    async def latest(self) -> int:
        """The highest index so far, 0 when there is none."""

    async def events_after(self, person: Person, index: int, limit: int) -> EventBatch:
        """At most `limit` events about reviews and tasks this person may see, after `index`."""

    async def wait_after(self, index: int, timeout_seconds: float) -> int:
        """Return as soon as there may be something after `index`, at the latest after the timeout: the index after
        which to look."""


class WebSettings(Protocol):
    """The settings the pages depend on."""

    @property
    def public_url(self) -> str: ...
    @property
    def dev_signin(self) -> bool: ...
