"""What the model holds: revisions, effects, reviews with everything people said, and the rules that join them.

It is plain Python from the words of the design. Of the product it takes the contract's table of moves and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from countersign.contract import EffectState, TxnState, require_move
from tests.model.gates import OWNER, Asked, Gate, merged, met, short_of
from tests.model.reviewing.laws import PEOPLE, Laws
from tests.model.state import OPEN, UNSPENT_ENDINGS, Refused

E, T = EffectState, TxnState
VALID_FOR = 3_600  # where nothing says less
EMERGENCY = 900  # of what was opened without its people
IMPOSSIBLE, AFTERWARDS = "impossible_quorum", "break_glass_review"
_counter = itertools.count(1)

__all__ = ["Book", "Call", "Comment", "Effect", "Proposal", "Refused", "Review", "Revision", "Task", "Vote"]


@dataclass(frozen=True)
class Call:
    """One call as the agent staged it; a mail has an amount too, to tell mails apart."""

    tool: str
    amount: int


@dataclass
class Vote:
    """One person's answer, or their signature for break-glass."""

    person: str
    verdict: str
    late: bool
    revoked: bool = False

    @property
    def stands(self) -> bool:
        """In time, and not revoked with its person."""
        return not self.late and not self.revoked


@dataclass
class Proposal:
    """Another amount, as somebody who may vote would have it. Its words tell it apart."""

    words: str
    person: str
    amount: int
    state: str = "open"
    became: int | None = None


@dataclass
class Comment:
    """Somebody's words, or a question with the agent's answer. Its words tell it apart."""

    words: str
    person: str
    question: bool
    own_side: bool
    answer: str | None = None


@dataclass
class Review:
    """The question about one effect at one revision."""

    state: str
    answer_by: datetime
    escalates: dict[str, datetime]
    escalated: set[str] = field(default_factory=set)
    votes: list[Vote] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    opened: bool = False  # ever, without its people

    @property
    def is_open(self) -> bool:
        """Whether anything can still decide it."""
        return self.state == "open"

    def holds(self, who: str, verdict: str) -> bool:
        """Whether this vote of theirs stands."""
        return any((v.person, v.verdict, v.stands) == (who, verdict, True) for v in self.votes)


@dataclass(eq=False)
class Effect:
    """One effect at one revision."""

    id: str
    call: Call
    amount: int  # what would be done: the staged one, or what was accepted in its place
    state: E
    gates: tuple[Gate, ...]
    valid_for: int
    asked_under: Laws
    decision: int = field(default_factory=lambda: next(_counter))
    review: Review | None = None
    attempt: str | None = None


@dataclass(eq=False)
class Revision:
    """One revision of a transaction."""

    id: str
    rev: int
    run: str
    effects: list[Effect]
    editors: frozenset[str]
    state: T
    valid_until: datetime | None = None
    ready_at: datetime | None = None

    @property
    def calls(self) -> list[Call]:
        """What lists are compared by: the calls, whatever was made of their arguments."""
        return [effect.call for effect in self.effects]

    @property
    def side(self) -> frozenset[str]:
        """Who never decides this: the agent's owner, and whoever changed any of it."""
        return self.editors | {OWNER}


@dataclass
class Task:
    """Something a person must know."""

    effect: str
    rev: int
    kind: str
    state: str = "open"


@dataclass(frozen=True)
class Count:
    """What the votes on an effect come to."""

    met: bool
    denied: bool
    openers: frozenset[str]  # whose signatures open it, all of them; empty where they do not

    @property
    def opened(self) -> bool:
        """Whether it goes without the people its gates ask."""
        return bool(self.openers) and not self.met and not self.denied

    @property
    def lets_go(self) -> bool:
        """Whether people let it go, one way or the other."""
        return self.met or self.opened


@dataclass
class Book:
    """Everything the service is expected to remember."""

    now: datetime
    laws: Laws
    revisions: dict[str, list[Revision]] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    attempts: dict[str, Revision] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)  # people

    def all_revisions(self) -> Iterator[Revision]:
        """Every revision of every transaction."""
        return itertools.chain.from_iterable(self.revisions.values())

    def everything(self) -> list[tuple[Revision, Effect, Review]]:
        """Every question there ever was."""
        return [(r, e, e.review) for r in self.all_revisions() for e in r.effects if e.review is not None]

    def head(self, txn: str) -> Revision:
        """The revision in force."""
        return self.revisions[txn][-1]

    def is_head(self, revision: Revision) -> bool:
        """Whether it is in force."""
        return self.head(revision.id) is revision

    # -- who counts ------------------------------------------------------------------------------------------

    def may_decide(self, revision: Revision, effect: Effect, who: str) -> bool:
        """Whether somebody's vote on this counts now: asked, permitted, and not of the agent's side."""
        return bool(self.voters(revision, effect).get(who))

    def voters(self, revision: Revision, effect: Effect) -> dict[str, frozenset[str]]:
        """Everybody who may decide this, with their groups."""
        asked = frozenset[str]().union(*(one.voters for one in self.asked(effect)))
        able = (p for p in PEOPLE if p not in revision.side | self.laws.barred | self.revoked)
        return {name: groups for name in able if (groups := self.laws.groups_of(name)) & asked}

    def asked(self, effect: Effect, gates: Iterable[Gate] | None = None) -> list[Asked]:
        """What its gates ask for together, of everybody they ask by now."""
        escalated = effect.review.escalated if effect.review is not None else ()
        return merged(effect.gates if gates is None else gates, escalated)

    def count(self, revision: Revision, effect: Effect, gates: tuple[Gate, ...]) -> Count:
        """I-5: distinct eligible people on this revision, nobody denying; or those who open it in an emergency."""
        asked = self.asked(effect, gates)
        cast = [v for v in effect.review.votes if v.stands] if effect.review is not None else []
        said = {
            verdict: {v.person for v in cast if v.verdict == verdict} - revision.side
            for verdict in ("approve", "deny", "break_glass")
        }
        groups = {name: self.laws.groups_of(name) for name in PEOPLE if name not in self.laws.barred}
        everybody = frozenset[str]().union(*(one.voters for one in asked))
        denied = any(groups.get(name, frozenset()) & everybody for name in said["deny"])
        approving = {name: groups[name] for name in said["approve"] - said["deny"] if name in groups}
        signed = {
            name for name in said["break_glass"] if self.laws.opens(name) or self.laws.opens_alone(name)
        }
        enough = len(signed) > 1 or any(map(self.laws.opens_alone, signed))
        openers = frozenset(signed) if gates and enough else frozenset[str]()
        return Count(met(asked, approving) and not denied, denied, openers)

    # -- moving ----------------------------------------------------------------------------------------------

    def close(self, effect: Effect, to: str) -> None:
        """Settle an open question; what was proposed and not answered lapses with it."""
        if effect.review is not None and effect.review.is_open:
            effect.review.state = to
            for proposal in effect.review.proposals:
                if proposal.state == "open":
                    proposal.state = "lapsed"

    def end(self, revision: Revision, effect: Effect, to: E) -> None:
        """An open effect ends unfired and takes its siblings along."""
        self._move(effect, to)
        self.close(effect, to.value)
        self.withdraw_open(revision)
        self.follow(revision)

    def withdraw_open(self, revision: Revision) -> None:
        """What is still open of it goes with the rest."""
        for sibling in revision.effects:
            if sibling.state in OPEN:
                self._move(sibling, E.WITHDRAWN)
                self.close(sibling, "withdrawn")

    def redeem(self, revision: Revision, attempt: str) -> None:
        """Every effect of it is spent."""
        self.attempts[attempt] = revision
        for effect in revision.effects:
            self._move(effect, E.REDEEMED)
            effect.attempt = attempt
        self.follow(revision)

    def _move(self, effect: Effect, to: E) -> None:
        require_move(effect.state, to)
        effect.state = to

    def follow(self, revision: Revision) -> None:
        """The transaction is what its effects make it; becoming ready starts the clock of its releases."""
        states = {effect.state for effect in revision.effects}
        to = T.REDEEMED
        if states & UNSPENT_ENDINGS:
            to = T.ENDED
        elif states & OPEN:
            to = T.REVIEW if E.REVIEW in states else T.READY
        if to is revision.state:
            return
        require_move(revision.state, to)
        revision.state = to
        if to is T.READY:
            self.start_clock(revision)

    def start_clock(self, revision: Revision) -> None:
        """From now on its releases may be used, for the shortest time any effect gives."""
        revision.ready_at = self.now
        revision.valid_until = self.now + timedelta(seconds=min(e.valid_for for e in revision.effects))

    # -- time ------------------------------------------------------------------------------------------------

    def over(self, review: Review) -> bool:
        """Whether nobody can answer it any more, swept or not."""
        return review.is_open and self.now >= review.answer_by

    def expire_if_over(self, revision: Revision) -> bool:
        """Releases nobody used in time."""
        over = revision.state is T.READY and revision.valid_until and self.now >= revision.valid_until
        if over:
            self.end(revision, revision.effects[0], E.EXPIRED)
        return bool(over)

    def expire_if_unanswered(self, revision: Revision) -> None:
        """A question nobody answered in time."""
        for effect in revision.effects:
            if effect.review is not None and self.over(effect.review):
                self.end(revision, effect, E.EXPIRED)
                return

    # -- asking the policy again, and people ------------------------------------------------------------------

    def settle(self, revision: Revision, effect: Effect) -> bool:
        """Ask the laws in force about an open effect and put it where the answer says; whether it may go now."""
        fired = self.laws.gates_of(effect.call.tool, effect.amount)
        gates = tuple(dict.fromkeys([*effect.gates, *(fired or ())]))
        late = [gate for gate in gates if gate not in effect.gates]
        count = self.count(revision, effect, gates)
        shortest = [VALID_FOR, *(gate.valid_for for gate in gates), *([EMERGENCY] if count.opened else [])]
        effect.asked_under, effect.gates = self.laws, gates
        effect.valid_for = min([effect.valid_for, *shortest])
        if fired is None:
            effect.decision = next(_counter)
            self.end(revision, effect, E.DENIED)
            return False
        lets_go = not gates or count.lets_go
        if lets_go and effect.state is E.REVIEW:
            self._let_go(revision, effect, count)
        elif not lets_go and effect.state is E.RELEASED:
            self._move(effect, E.REVIEW)
            effect.decision = next(_counter)
            self.ask_people(effect)
        elif not lets_go and late and effect.review is not None:
            self._hasten(effect, effect.review, late)
        ready = all(one.state is E.RELEASED for one in revision.effects) and revision.state is T.READY
        if ready and revision.ready_at and revision.valid_until:
            until = revision.ready_at + timedelta(seconds=min(e.valid_for for e in revision.effects))
            revision.valid_until = min(revision.valid_until, until)
        self.follow(revision)
        return lets_go

    def _let_go(self, revision: Revision, effect: Effect, count: Count) -> None:
        self._move(effect, E.RELEASED)
        effect.decision = next(_counter)
        if effect.review is not None and effect.review.is_open:
            if count.opened:
                effect.review.opened = True
                if len(count.openers) == 1:
                    self.open_task(effect, revision.rev, AFTERWARDS)
            self.close(effect, "met")

    def ask_people(self, effect: Effect) -> None:
        """Open the question, or open it again: its votes stay, and who was asked by then still is."""
        asked = merged(effect.gates)
        answer_by = self.now + timedelta(seconds=min(one.answer_within for one in asked))
        if effect.review is None:
            effect.review = Review("open", answer_by, {})
        review = effect.review
        review.state, review.answer_by, review.escalates = "open", answer_by, {}
        self._plan_escalation(effect, review)

    def _hasten(self, effect: Effect, review: Review, late: list[Gate]) -> None:
        """A late gate's time runs from now; the question closes at the earliest of all."""
        until = self.now + timedelta(seconds=min(gate.answer_within for gate in late))
        review.answer_by = min(review.answer_by, until)
        self._plan_escalation(effect, review)

    def _plan_escalation(self, effect: Effect, review: Review) -> None:
        """A gate asks its further groups when half of the time that is left has passed; nothing puts it off."""
        half = self.now + (review.answer_by - self.now) / 2
        waiting = [
            one.key for one in merged(effect.gates) if one.escalate and one.key not in review.escalated
        ]
        review.escalates = {key: min(review.escalates.get(key, half), half) for key in waiting}

    def escalate(self, effect: Effect, keys: Iterable[str]) -> bool:
        """Ask further groups as well, each gate once; nothing else about a gate changes. Whether any did."""
        review = effect.review
        assert review is not None
        able = {one.key for one in merged(effect.gates) if one.escalate} - review.escalated
        asking = set(keys) & able
        review.escalated |= asking
        review.escalates = {key: at for key, at in review.escalates.items() if key not in set(keys)}
        return bool(asking)

    # -- questions nobody can answer -----------------------------------------------------------------------------

    def short(self, revision: Revision, effect: Effect) -> set[str]:
        """The gates that all the people known here could not meet together."""
        return short_of(self.asked(effect), self.voters(revision, effect))

    def weigh(self, revision: Revision, effect: Effect) -> None:
        """Escalate what cannot be answered; where that does not help, somebody is told. Nothing is lowered."""
        short = self.short(revision, effect) if effect.review is not None and effect.review.is_open else set()
        if short and self.escalate(effect, short):
            short = self.short(revision, effect)
        if short:
            self.open_task(effect, revision.rev, IMPOSSIBLE)
        else:
            for task in self.tasks:
                if (task.effect, task.kind) == (effect.id, IMPOSSIBLE):
                    task.state = "settled"

    def is_told(self, revision: Revision, effect: Effect) -> bool:
        """Whether an open task says that nobody can answer this."""
        return Task(effect.id, revision.rev, IMPOSSIBLE) in self.tasks

    def open_task(self, effect: Effect, rev: int, kind: str) -> None:
        """Tell people; the same open trouble of the same call once."""
        if not any((t.effect, t.kind, t.state) == (effect.id, kind, "open") for t in self.tasks):
            self.tasks.append(Task(effect.id, rev, kind))
