"""The machine of the whole protocol: Hypothesis draws what everybody does next, the real service and the model do it,
and they are compared, each answer and the invariants after every step.

What may happen next is drawn by one rule from everything that is possible then. With a Hypothesis rule for each verb
most verbs would be left out of most runs, and little would ever be both approved and spent. At the end time passes
until nothing is due, and everything is finished or is a task.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx2
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from countersign.contract import EffectState, ReceiptClaims, ReleaseClaims, TxnState
from tests.model import invariants
from tests.model import peoples_side as people
from tests.model.agents_side import Answer
from tests.model.playing import Databases
from tests.model.real import LOST, Real, Shop, Tables
from tests.model.rules import USUAL
from tests.model.state import Attempt, Book, Refused, Token, new_book

E, T = EffectState, TxnState
Batch = tuple[tuple[Token, ...], list[str]]
F = TypeVar("F", bound=Callable[..., None])
M = TypeVar("M", bound="Protocol")
PICK = st.integers(0, 1_000)
STRETCHES = [1, 29, 31, 119, 121, 300, 700, 1_000, 1_300, 3_700, 45_000, 90_000]


@dataclass(frozen=True)
class Move:
    """Something somebody may do: when, how often as against the others, and with what drawn."""

    when: Callable[[Any], Any]
    often: int
    drawn: Mapping[str, st.SearchStrategy[Any]]


def may(
    *, when: Callable[[Any], Any] = lambda _: True, often: int = 1, **drawn: st.SearchStrategy[Any]
) -> Callable[[F], F]:
    """Mark a method of a machine as something that may happen next."""

    def mark(method: F) -> F:
        vars(method)["move"] = Move(when, often, drawn)
        return method

    return mark


class Protocol(RuleBasedStateMachine):
    """One service on one engine, and the book of what it is expected to remember."""

    databases: ClassVar[Databases]
    moves: ClassVar[Counter[tuple[Any, Any]]]  # what was ever seen to move, over all runs

    def __init__(self) -> None:
        super().__init__()
        self._life = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="countersign-model-"))
        self._life.callback(shutil.rmtree, folder, ignore_errors=True)
        self.real = Real(folder, self._life.enter_context(type(self).databases()))
        self._life.callback(self.real.close)
        self.batches: list[Batch] = []  # releases that were ever minted, with what was sent
        self.names = 0
        self.calm, self.alive = 0, 0  # requests since the last disturbance, and since the last start
        self.book: Book = new_book(self.real.clock(), USUAL)
        self.shop = Shop()
        self.submissions: list[dict[str, Any]] = []
        self.releases: list[ReleaseClaims] = []
        self.receipts: list[ReceiptClaims] = []
        self.tables: Tables = self.real.do(self.real.tables)
        self.before: dict[Any, Any] = {}  # states
        self.commits = {"usual": self.real.world.service.active.current.commit}

    @rule(data=st.data())
    def somebody_acts(self, data: st.DataObject) -> None:
        """Draw what happens, and with what, and let it happen."""
        every = {name: method.move for one in reversed(type(self).mro()) for name, method in vars(one).items()
                 if hasattr(method, "move")}  # fmt: skip
        possible = [name for name, move in every.items() for _ in range(move.often) if move.when(self)]
        name = data.draw(st.sampled_from(possible), label="what happens")
        getattr(self, name)(**data.draw(st.fixed_dictionaries(dict(every[name].drawn)), label="with"))

    # -- one step --------------------------------------------------------------------------------------------

    def ask(
        self, verb: str, expected: Callable[[], Any], actual: Callable[..., Awaitable[httpx2.Response]]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Do it on both sides and compare; the model's answer and the body of the service's, or None where both
        refused or the answer was lost.
        """
        self.tick()
        self.calm, self.alive = self.calm + 1, self.alive + 1
        lost = LOST.get()
        answer = self.real.do(actual)
        if lost is not None and answer.status_code == 503:
            self.note(verb, f"lost {lost} the commit")
            if lost == "after":
                _or_refused(expected)
            return None
        wanted = _or_refused(expected)
        if isinstance(wanted, Refused):
            self.note(verb, f"{wanted.status} {wanted.code}".strip())
            refused = (answer.status_code, answer.json().get("code") if wanted.code else "")
            assert refused == (wanted.status, wanted.code), f"{verb}: {wanted.args}, but {answer.text}"
            return None
        status = getattr(wanted, "status", 200)
        assert answer.status_code == status, f"{verb}: {status} was expected, but {answer.text}"
        self.note(verb, "done")
        return wanted, answer.json()

    def tick(self) -> None:
        """The model looks at the clock."""
        self.book.now = self.real.clock()

    def note(self, verb: str, what: str) -> None:
        """One thing that happened, for the statistics."""
        event(f"{verb}: {what}")

    def fresh(self, what: str) -> str:
        """A fresh name."""
        self.names += 1
        return f"{what}-{self.names}"

    def disturbed(self) -> None:
        """Something got in the way; most of what happens is people and agents who go on."""
        self.calm = 0

    def heads(self, *states: TxnState) -> list[Any]:
        """Revisions in force, in one of these states where some are given."""
        found = [revisions[-1] for revisions in self.book.revisions.values() if revisions]
        return [one for one in found if not states or one.state in states]

    # -- after each step -------------------------------------------------------------------------------------

    def check_invariants(self, *args: Any) -> None:
        """One look after each step, for the comparison and for every invariant."""
        self.look()
        super().check_invariants(*args)

    def look(self) -> None:
        """What the tables hold is what the model holds."""
        held, remembered = self.both()
        differ = {
            what: [(key, rows.get(key), remembered[what].get(key)) for key in rows.keys() | remembered[what].keys()]
            for what, rows in held.items()
        }  # fmt: skip
        wrong = {what: [row for row in rows if row[1] != row[2]] for what, rows in differ.items()}
        assert held == remembered, {what: rows for what, rows in wrong.items() if rows}

    @invariant()
    def i8_every_transition_has_exactly_one_audit_row_and_the_reverse(self) -> None:
        """Replayed, the log ends where the tables are."""
        faults = self.real.do(self.real.faults)
        assert not faults, faults

    # -- time ------------------------------------------------------------------------------------------------

    def _stand_at(self, moment: datetime) -> None:
        self.real.clock.stop_at(moment)

    @may(when=lambda self: self.calm > 1, stretch=st.sampled_from(STRETCHES), sweeping=st.booleans())
    def time_passes(self, stretch: int, sweeping: bool) -> None:
        """Timers may be late."""
        self.disturbed()
        self.real.clock.pass_(seconds=stretch)
        if sweeping:
            self.sweep()

    @may(
        when=lambda self: self.calm > 1 and self.deadlines(), pick=PICK, early=st.booleans(), sweeping=st.booleans()
    )  # fmt: skip
    def a_deadline_comes(self, pick: int, early: bool, sweeping: bool) -> None:
        """Exactly the moment something ends or others are asked, or the last before it."""
        self.disturbed()
        found = self.deadlines()
        self._stand_at(found[pick % len(found)] - timedelta(milliseconds=1 if early else 0))
        self.note("time", "just before a deadline" if early else "a deadline")
        if sweeping:
            self.sweep()

    # -- what an answer holds -------------------------------------------------------------------------------

    def check_transaction(self, wanted: Answer, view: dict[str, Any]) -> None:
        """The transaction as the answer shows it."""
        txn = wanted.txn
        assert txn is not None
        assert (view["txn"], view["rev"], view["state"]) == (txn.id, txn.rev, txn.state.value)
        assert [effect["state"] for effect in view["effects"]] == [e.state.value for e in txn.effects]
        assert [effect["effect_id"] for effect in view["effects"]] == [e.id for e in txn.effects]

    def check_tokens(self, tokens: Sequence[Token], sent: Sequence[str], key: str) -> None:
        """The releases that came along."""
        assert len(sent) == len(tokens)
        claims = [self.real.world.release_of(token) for token in sent]
        for token, claim in zip(tokens, claims, strict=True):
            found = (claim.txn, claim.decision.rev, claim.detail.effect_id)
            assert found == (token.txn, token.rev, token.effect.id)
            assert (claim.aud, claim.exp) == (token.aud, token.exp)
            assert claim.cnf_jkt == self.real.agents[key].key.public.kid
        self.releases.extend(claims)
        if tokens:
            self.batches.append((tuple(tokens), list(sent)))

    def check_receipt(self, attempt: Attempt | None, view: dict[str, Any]) -> None:
        """The receipt that came along, or none."""
        assert (view.get("receipt") is not None) is (attempt is not None)
        if attempt is None:
            return
        receipt = self.real.world.receipt_of(view)
        assert (receipt.attempt, receipt.txn) == (attempt.name, attempt.txn.id)
        assert [one.effect_id for one in receipt.effects] == [e.id for e in attempt.effects]
        assert receipt.fire_by == min(int(e.fire_by.timestamp()) for e in attempt.effects if e.fire_by)
        self.receipts.append(receipt)

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the tables hold, and the same of the model."""
        self.tables = self.real.do(self.real.tables)
        now: dict[Any, Any] = {(row.effect_id, row.rev): E(row.state) for row in self.tables.effects}
        now |= {(row.txn, row.rev): T(row.state) for row in self.tables.transactions}
        moved = [(was, now[key]) for key, was in self.before.items() if now[key] is not was]
        type(self).moves.update(moved)
        self.before = now
        return _held(self.tables), _remembered(self.book)

    @invariant()
    def i1_no_fire_without_a_redemption_no_redemption_without_a_release(self) -> None:
        invariants.i1_no_fire_without_redemption(self.tables, self.shop)

    @invariant()
    def i2_what_is_released_and_receipted_is_what_the_votes_saw(self) -> None:
        invariants.i2_same_bytes(self.tables, self.releases, self.receipts)

    @invariant()
    def i13_the_active_bundle_is_a_validated_one(self) -> None:
        active = self.real.world.service.active.current
        digests = {tool: manifest.digest for tool, manifest in active.manifests.items()}
        assert digests == self.book.bundle.versions

    def teardown(self) -> None:
        """Let everything that is due happen: what can be finished is finished, or is a task (I-14)."""
        try:
            for _ in range(3):
                self.real.clock.pass_(hours=25)
                self.sweep()
                self.look()
            invariants.i14_open_ends_are_tasks(self.tables)
            self.i8_every_transition_has_exactly_one_audit_row_and_the_reverse()
        finally:
            self._life.close()

    # -- what there is ---------------------------------------------------------------------------------------

    def key_of(self, agent: str, pick: int = 0) -> str:
        """A live key of an agent where there is one."""
        keys = [key for key in self.real.agents if key.startswith(f"{agent}/")]
        live = [key for key in keys if key not in self.book.revoked_keys]
        return (live or keys)[pick % len(live or keys)]

    def require_key(self, key: str) -> None:
        """A revoked key proves nothing."""
        if key in self.book.revoked_keys:
            raise Refused(401)

    def sweep(self) -> None:
        """What the timers do, on both sides."""
        self.tick()
        self.real.do(self.real.world.sweep)
        people.sweep(self.book)


def _or_refused(expected: Callable[[], Any]) -> Any:
    try:
        return expected()
    except Refused as refusal:
        return refusal


def machine_on(machine: type[M], databases: Databases) -> type[M]:
    """A machine of its own, with its own statistics."""
    mine = type(f"{machine.__name__}OnAnEngine", (machine,), {"databases": staticmethod(databases)})
    mine.moves = Counter()
    return mine


LEFT_OUT = frozenset({"impossible_quorum"})
"""Tasks the model has not: who could ever serve a gate is weighed in together/test_quorum_watch.py."""


def _held(tables: Tables) -> dict[str, Any]:
    """What the service holds, in the words of the model."""
    votes = {row.review_id: (row.effect_id, row.rev) for row in tables.reviews}
    return {
        "effects": {
            (e.effect_id, e.rev): (
                e.state, e.redeemed_by, e.fire_by, e.lapses_at, sorted(gate["policy_id"] for gate in e.gates)
            )
            for e in tables.effects
        },
        "transactions": {(t.txn, t.rev): (t.state, t.valid_until) for t in tables.transactions},
        "reviews": {(r.effect_id, r.rev): (r.state, r.answer_by) for r in tables.reviews},
        "votes": Counter(
            (*votes[v.review_id], v.sub, v.verdict, v.late, v.revoked_at is not None) for v in tables.votes
        ),
        "tasks": Counter((t.effect_id, t.kind, t.state) for t in tables.tasks if t.kind not in LEFT_OUT),
        "attempts": {(a.redeemer, a.attempt_id): (a.txn, a.rev, a.kind) for a in tables.attempts},
    }  # fmt: skip


def _remembered(book: Book) -> dict[str, Any]:
    """The same of the model."""
    effects = [(txn, effect) for txn in book.all_revisions() for effect in txn.everything]
    asked = [(txn, effect, effect.review) for txn, effect in effects if effect.review is not None]
    return {
        "effects": {
            (e.id, t.rev): (e.state.value, e.attempt, e.fire_by, e.lapses_at, sorted(gate.name for gate in e.gates))
            for t, e in effects
        },
        "transactions": {(t.id, t.rev): (t.state.value, t.valid_until) for t in book.all_revisions()},
        "reviews": {(e.id, t.rev): (review.state, review.answer_by) for t, e, review in asked},
        "votes": Counter(
            (e.id, t.rev, v.person, v.verdict, v.late, v.revoked) for t, e, review in asked for v in review.votes
        ),
        "tasks": Counter(book.tasks),
        "attempts": {
            key: (a.txn.id, a.txn.rev, "compensate" if a.undoes else "effect") for key, a in book.attempts.items()
        },
    }  # fmt: skip
