"""What the model holds: transactions, effects, reviews and votes in memory, and the rules that join them.

Every move passes through the contract's table of states. Nothing here is the product's code: what a transaction is,
given its effects, and what one that ends takes along, is said again in the words of the design.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from countersign.contract import EffectState, TxnState, require_transition
from tests.model.gates import OWNER, Gate, met
from tests.model.rules import Bundle

E, T = EffectState, TxnState
OPEN = {E.REVIEW, E.RELEASED}
UNSPENT_ENDINGS = {E.DENIED, E.EXPIRED, E.WITHDRAWN, E.REVOKED}
_counter = itertools.count(1)


class Refused(Exception):
    """The service is expected to say no, with this status and code."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(status, code)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Call:
    """One call as it is staged."""

    tool: str
    digest: str
    amount: int
    n: int = 0


@dataclass
class Vote:
    """One person's answer."""

    person: str
    verdict: str
    late: bool
    revoked: bool = False


@dataclass
class Review:
    """The question about one effect at one revision."""

    state: str
    answer_by: datetime
    votes: list[Vote] = field(default_factory=list)


@dataclass(eq=False)
class Effect:
    """One effect at one revision, or what takes one back."""

    id: str
    call: Call
    state: E
    gates: tuple[Gate, ...]
    valid_for: int
    asked_under: str  # the bundle of its newest decision
    decided_by: str  # the bundle of the decision in force
    changed_at: datetime
    decision: int = field(default_factory=lambda: next(_counter))
    compensates: Effect | None = None
    undo: Effect | None = None
    review: Review | None = None
    attempt: str | None = None
    fire_by: datetime | None = None
    unknown_at: datetime | None = None
    lapses_at: datetime | None = None
    has_result: bool = False

    @property
    def can_be_undone(self) -> bool:
        """Whether its manifest, as it was staged, names a compensation."""
        return self.compensates is None and self.call.tool in {"pay", "book"}


@dataclass(eq=False)
class Transaction:
    """One revision of a transaction."""

    id: str
    rev: int
    agent: str
    aud: str
    effects: list[Effect]
    state: T
    valid_until: datetime | None = None
    ready_at: datetime | None = None

    @property
    def everything(self) -> list[Effect]:
        """Its effects, and what takes them back."""
        return [*self.effects, *(e.undo for e in self.effects if e.undo is not None)]

    @property
    def calls(self) -> list[Call]:
        """What lists are compared by."""
        return [effect.call for effect in self.effects]


@dataclass(frozen=True)
class Attempt:
    """One recorded redemption."""

    party: str
    name: str
    txn: Transaction
    effects: tuple[Effect, ...]

    @property
    def undoes(self) -> bool:
        """Whether it takes something back."""
        return self.effects[0].compensates is not None


@dataclass(frozen=True)
class Token:
    """One minted release."""

    txn: str
    rev: int
    effect: Effect
    decision: int
    aud: str
    key: str
    exp: int


@dataclass
class Book:
    """Everything the service is expected to remember."""

    now: datetime
    bundle: Bundle
    revisions: dict[str, list[Transaction]] = field(default_factory=dict)
    attempts: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    # effect, kind, state; in the order opened
    tasks: list[tuple[str, str, str]] = field(default_factory=list)
    keys: dict[tuple[str, str], tuple[object, str]] = field(default_factory=dict)  # idempotency
    frozen: set[str] = field(default_factory=set)
    stops: set[str] = field(default_factory=set)
    revoked_keys: set[str] = field(default_factory=set)
    revoked_people: set[str] = field(default_factory=set)
    owners: dict[str, str | None] = field(default_factory=dict)

    def all_revisions(self) -> Iterator[Transaction]:
        """Every revision of every transaction."""
        return itertools.chain.from_iterable(self.revisions.values())

    def head(self, txn: str) -> Transaction:
        """The revision in force."""
        if txn not in self.revisions:
            raise Refused(404, "not_found")
        return self.revisions[txn][-1]

    def spent(self, effect_id: str) -> bool:
        """Whether an effect was ever redeemed."""
        return any(effect_id == effect.id for a in self.attempts.values() for effect in a.effects)

    # -- moving ----------------------------------------------------------------------------------------------

    def move(self, effect: Effect, to: E) -> None:
        """One move, by the table."""
        require_transition(effect.state, to)
        effect.state, effect.changed_at = to, self.now

    def close(self, effect: Effect, to: str) -> None:
        """Settle an open question."""
        if effect.review is not None and effect.review.state == "open":
            effect.review.state = to

    def end(self, txn: Transaction, effect: Effect, to: E) -> None:
        """An open effect ends unfired and takes its siblings along; a compensation ends alone."""
        self.move(effect, to)
        self.close(effect, to.value)
        if effect.compensates is not None:
            self.compensation_failed(txn, effect.compensates)
            return
        for sibling in txn.effects:
            if sibling.state in OPEN:
                self.move(sibling, E.WITHDRAWN)
                self.close(sibling, "withdrawn")
        self.follow(txn)

    def compensation_failed(self, txn: Transaction, forward: Effect) -> None:
        """The compensation will not happen: it is a task."""
        if forward.state is E.FIRED:
            self.move(forward, E.COMPENSATING)
        if forward.state is E.COMPENSATING:
            self.move(forward, E.COMPENSATION_FAILED)
            self.open_task(forward, "compensation_failed")
            self.follow(txn)

    def follow(self, txn: Transaction) -> None:
        """The transaction is what its effects make it."""
        to = self.implied(txn)
        if to is not txn.state and (to is not T.REDEEMED or txn.state is T.READY):
            require_transition(txn.state, to)
            if to is T.READY:
                txn.ready_at = self.now
                txn.valid_until = self.now + timedelta(seconds=min(e.valid_for for e in txn.effects))
            txn.state = to
        if _torn(txn):
            for effect in txn.effects:
                if effect.state is E.FIRED and not effect.can_be_undone:
                    self.open_task(effect, "standing")

    def implied(self, txn: Transaction) -> T:
        """Design section 7, the table of transactions."""
        states = {effect.state for effect in txn.effects}
        if states & (OPEN | UNSPENT_ENDINGS):
            if states & UNSPENT_ENDINGS:
                return T.ENDED
            return T.REVIEW if E.REVIEW in states else T.READY
        undos = {e.undo.state for e in txn.effects if e.undo is not None}
        if states & {E.UNKNOWN, E.COMPENSATION_FAILED} or E.UNKNOWN in undos:
            return T.UNSETTLED
        if states & {E.REDEEMED, E.COMPENSATING}:
            return T.REDEEMED
        if E.FIRED not in states:
            return T.SETTLED if E.COMPENSATED in states else T.ENDED
        if states == {E.FIRED}:
            return T.SETTLED
        return T.UNSETTLED if _torn(txn) else T.REDEEMED

    def open_task(self, effect: Effect, kind: str) -> None:
        """Tell people; the same open trouble once."""
        if (effect.id, kind, "open") not in self.tasks:
            self.tasks.append((effect.id, kind, "open"))

    def settle_task(self, effect: Effect, kind: str) -> None:
        """It has settled itself."""
        self.tasks = [(i, k, "settled" if (i, k) == (effect.id, kind) else s) for i, k, s in self.tasks]

    # -- time ------------------------------------------------------------------------------------------------

    def expire_if_over(self, txn: Transaction) -> bool:
        """Releases that were not used in time."""
        over = txn.state is T.READY and txn.valid_until is not None and self.now >= txn.valid_until
        if over:
            self.end(txn, txn.effects[0], E.EXPIRED)
        return over

    def expire_if_lapsed(self, txn: Transaction, effect: Effect) -> bool:
        """A compensation's release that was not used in time."""
        over = effect.state is E.RELEASED and effect.lapses_at is not None and self.now >= effect.lapses_at
        if over:
            self.end(txn, effect, E.EXPIRED)
        return over

    def expire_if_unanswered(self, txn: Transaction) -> bool:
        """A review without an answer in time."""
        for effect in txn.effects:
            if effect.state is E.REVIEW and effect.review is not None and self.now >= effect.review.answer_by:
                self.end(txn, effect, E.EXPIRED)
                return True
        return False

    # -- asking the policy again, and people --------------------------------------------------------------------

    def counted(self, txn: Transaction, effect: Effect, gates: tuple[Gate, ...]) -> bool:
        """Whether the votes on this revision, as they stand now, meet the gates (I-5)."""
        every = [] if effect.review is None else effect.review.votes
        votes = [v for v in every if not v.late and not v.revoked]
        groups = {v.person: self.bundle.groups_of(v.person) for v in votes}
        side = {self.owners[txn.agent]}
        voters = frozenset[str]().union(*(gate.groups for gate in gates))
        against = {v.person for v in votes if v.verdict == "deny"}
        if any(groups[name] & voters for name in against - side):
            return False
        approving = {v.person for v in votes if v.verdict == "approve"} - against - side
        return met(gates, {name: groups[name] for name in sorted(approving)})

    def ask_again(self, txn: Transaction, effect: Effect) -> tuple[bool, bool, list[Gate]]:
        """Ask the active bundle: denied, may be released, and the gates that fired late. Nothing gets laxer."""
        fired = self.bundle.decide(effect.call.tool, effect.call.digest, effect.call.amount)
        effect.asked_under = self.bundle.name
        gates: tuple[Gate, ...] = ()
        if not self.approved_before(effect):
            gates = tuple(dict.fromkeys([*effect.gates, *(fired or ())]))
        late = [gate for gate in gates if gate not in effect.gates]
        effect.gates = gates
        shortest = min([3_600, *(gate.valid_for for gate in [*gates, *(fired or ())])])
        if shortest < effect.valid_for:
            if effect.lapses_at is not None:
                effect.lapses_at -= timedelta(seconds=effect.valid_for - shortest)
            effect.valid_for = shortest
        return fired is None, fired is not None and (not gates or self.counted(txn, effect, gates)), late

    def approved_before(self, effect: Effect) -> bool:
        """People approved the forward effect and saw this: only where nothing of it comes from the result."""
        forward = effect.compensates
        if forward is None or forward.review is None or forward.call.tool != "book":
            return False
        return any(v.verdict == "approve" and not v.late and not v.revoked for v in forward.review.votes)

    def settle(self, txn: Transaction, effect: Effect) -> bool:
        """Ask again about an open effect and move it where the answer puts it; whether it may be released."""
        denied, releases, late = self.ask_again(txn, effect)
        if denied:
            effect.decision, effect.decided_by = next(_counter), self.bundle.name
            self.end(txn, effect, E.DENIED)
            return False
        if releases and effect.state is E.REVIEW:
            self.move(effect, E.RELEASED)
            effect.decision, effect.decided_by = next(_counter), self.bundle.name
            self.close(effect, "met")
            if effect.compensates is not None:
                effect.lapses_at = self.now + timedelta(seconds=effect.valid_for)
        elif not releases and effect.state is E.RELEASED:
            self.move(effect, E.REVIEW)
            effect.decision, effect.decided_by = next(_counter), self.bundle.name
            self.ask_people(effect, list(effect.gates))
        elif not releases and late and effect.review is not None:
            effect.review.answer_by = min(effect.review.answer_by, self._answer_by(late))
        self.bring_along(txn, effect)
        return releases

    def bring_along(self, txn: Transaction, effect: Effect) -> None:
        """The transaction follows; one that is ready already only ever ends earlier."""
        if effect.compensates is not None:
            return
        if txn.state is T.READY and self.implied(txn) is T.READY and txn.ready_at and txn.valid_until:
            until = txn.ready_at + timedelta(seconds=min(e.valid_for for e in txn.effects))
            txn.valid_until = min(txn.valid_until, until)
        self.follow(txn)

    def ask_people(self, effect: Effect, gates: list[Gate]) -> None:
        """Open the question, or open it again; its votes stay."""
        votes = [] if effect.review is None else effect.review.votes
        effect.review = Review("open", self._answer_by(gates), votes)

    def _answer_by(self, gates: list[Gate]) -> datetime:
        return self.now + timedelta(seconds=min(g.answer_within for g in gates))


def _torn(txn: Transaction) -> bool:
    """One effect fired, another did not, and the first cannot be taken back."""
    states = {effect.state for effect in txn.effects}
    not_fired = states & {E.UNUSED, E.FAILED, E.COMPENSATED}
    return bool(not_fired) and any(e.state is E.FIRED and not e.can_be_undone for e in txn.effects)


def new_book(now: datetime, bundle: Bundle) -> Book:
    """A fresh service: a robot with an owner, one without, and the warehouse."""
    return Book(now, bundle, owners={"robot": OWNER, "cart": None, "warehouse": None})
