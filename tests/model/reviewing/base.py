"""The machine: what people, the agent, operators and time do to reviews, in the service and in the model, compared.

After every step the answer is the one the model gives, the tables hold what the model holds, and I-4, I-5 and I-6 hold
by the tables alone.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import httpx2
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from countersign.contract import EffectState, TxnState
from tests.model import invariants as of_everything
from tests.model.playing import Databases, Moves
from tests.model.real import LOST
from tests.model.reviewing import invariants, people
from tests.model.reviewing.agents import AGENT, Said, Token
from tests.model.reviewing.book import Book, Comment, Effect, Proposal, Refused, Review, Revision
from tests.model.reviewing.comparing import held_in, remembered_in
from tests.model.reviewing.laws import Laws
from tests.model.reviewing.real import Everything, RealReviews

E, T = EffectState, TxnState
Batch = tuple[tuple[Token, ...], list[str]]
Question = tuple[Revision, Effect, Review]

MOVES = Moves()
may = MOVES.may


class Reviews(RuleBasedStateMachine):
    """Reviews on one engine."""

    databases: ClassVar[Databases]
    steps: ClassVar[Counter[str]]  # what was ever answered, by verb

    def __init__(self) -> None:
        super().__init__()
        self._life = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="countersign-reviews-"))
        self._life.callback(shutil.rmtree, folder, ignore_errors=True)
        self.real = RealReviews(folder, self._life.enter_context(type(self).databases()))
        self._life.callback(self.real.close)
        self.book = Book(self.real.clock(), Laws())
        self.batches: list[Batch] = []
        self.lists: list[tuple[str, tuple[Any, ...]]] = []  # what was submitted: run key and calls
        self.names = 0
        self.calm = 0  # requests since the last disturbance
        self.on_edge = False  # the clock stands on a deadline, and the next request comes in that moment
        self.unasked = False  # other laws are in force, and what is open was not asked about yet
        self.dying = False  # the service dies in this request
        self.found: Everything = self.real.do(self.real.everything)
        self.before: of_everything.Seen = {}
        self.before_reviews: dict[str, str] = {}

    # -- one step --------------------------------------------------------------------------------------------

    def ask(
        self,
        verb: str,
        expected: Callable[[], Any],
        actual: Callable[[], Awaitable[httpx2.Response]],
        *,
        page: bool = False,
    ) -> tuple[Any, httpx2.Response] | None:
        """Do it on both sides and compare; what both answered, or None where both refused or the answer was lost.

        ``page``: it is a form, answered with a page or the way to one: a refusal's code does not stand on it.
        """
        self.tick()
        self.calm += 1
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
            coded = bool(wanted.code) and not page
            told = (answer.status_code, answer.json().get("code") if coded else "")
            assert told == (wanted.status, wanted.code if coded else ""), (
                f"{verb}: {wanted.args}, but {answer.text}"
            )
            return None
        status = 303 if page else wanted.status if isinstance(wanted, Said) else 200
        assert answer.status_code == status, f"{verb}: {status} was expected, but {answer.text}"
        self.note(verb, "done")
        if isinstance(wanted, Said) and not page:
            self._told(wanted, answer.json())
        return wanted, answer

    def tick(self) -> None:
        """A moment passes before each request, unless it is to come in the very moment of a deadline."""
        if not self.on_edge:
            self.real.catch_up()
        self.on_edge = False
        self.book.now = self.real.clock()

    def note(self, verb: str, what: str) -> None:
        """One thing that happened, for the statistics."""
        event(f"{verb}: {what}")
        type(self).steps[f"{verb}: {what}"] += 1

    def _told(self, wanted: Said, view: dict[str, Any]) -> None:
        shown, revision = view.get("transaction", view), wanted.revision
        assert (shown["txn"], shown["rev"], shown["state"]) == (
            revision.id,
            revision.rev,
            revision.state.value,
        )
        assert [e["state"] for e in shown["effects"]] == [e.state.value for e in revision.effects]
        if "redeemed" in view:
            assert view["redeemed"] is wanted.spent
        if wanted.mode:
            claims = [self.real.world.release_of(token) for token in view["releases"]]
            assert [claim.decision.mode.value for claim in claims] == list(wanted.mode)
            assert [claim.exp for claim in claims] == [token.exp for token in wanted.tokens]
        if wanted.tokens:
            self.batches.append((wanted.tokens, list(view["releases"])))

    # -- after each step -------------------------------------------------------------------------------------

    def check_invariants(self, *args: Any) -> None:
        """One look after each step, for the comparison and for every invariant."""
        self.look()
        super().check_invariants(*args)

    def look(self) -> None:
        """What the tables hold is what the model holds."""
        self.found = self.real.do(self.real.everything)
        held, wanted = held_in(self.found), remembered_in(self.book)
        differ = {
            what: [(key, rows.get(key), wanted[what].get(key)) for key in rows.keys() | wanted[what].keys()]
            for what, rows in held.items()
        }
        wrong = {what: [row for row in rows if row[1] != row[2]] for what, rows in differ.items()}
        assert held == wanted, {what: rows for what, rows in wrong.items() if rows}

    @invariant()
    def i5_what_goes_was_let_go_by_people_who_may(self) -> None:
        invariants.i5_reviewed_by_people(self.found, self.before, self.book.laws)

    @invariant()
    def i6_terminal_states_absorb(self) -> None:
        now = of_everything.states(self.found.tables)
        of_everything.i6_terminal_absorbs(self.before, now)
        reviews = {row.review_id: row.state for row in self.found.tables.reviews}
        invariants.i6_what_settled_stays(self.before_reviews, reviews)
        self.before, self.before_reviews = now, reviews

    @invariant()
    def i8_every_transition_has_exactly_one_audit_row_and_the_reverse(self) -> None:
        faults = self.real.do(self.real.faults)
        assert not faults, faults

    def teardown(self) -> None:
        """Every deadline passes: nothing waits any more, and nothing is told of that nobody asks."""
        try:
            for _ in range(2):
                self.real.clock.pass_(hours=25)
                self.sweep()
                self.look()
            assert not [row for row in self.found.tables.effects if row.state in {"review", "released"}]
            assert not [row for row in self.found.tables.reviews if row.state == "open"]
            assert not [row for row in self.found.proposals if row.state == "open"]
        finally:
            self._life.close()

    @rule(data=st.data())
    def somebody_acts(self, data: st.DataObject) -> None:
        """One rule and not one for each verb: `playing.py` says why."""
        MOVES.make_one(self, data)

    # -- what there is ---------------------------------------------------------------------------------------

    def fresh(self, what: str) -> str:
        """A name nobody has."""
        self.names += 1
        return f"{what}-{self.names}"

    def disturbed(self) -> None:
        """Something got in the way; most of what happens is people and agents who go on."""
        self.calm = 0

    def questions(self, *, open_ones: bool) -> list[Question]:
        """Reviews that people can see."""
        found = self.book.everything()
        return [(r, e, review) for r, e, review in found if review.is_open] if open_ones else found

    def any_question(self, pick: int, *, open_ones: bool = True) -> Question:
        """One of them, an open one where there is one."""
        found = (self.questions(open_ones=True) if open_ones else []) or self.questions(open_ones=False)
        return found[pick % len(found)]

    def heads(self, *states: T) -> list[Revision]:
        """Revisions in force, in one of these states where some are given."""
        found = [known[-1] for known in self.book.revisions.values() if known]
        return [revision for revision in found if not states or revision.state in states]

    def somebody_for(self, pick: int, revision: Revision, effect: Effect, who: str) -> str:
        """Mostly somebody who may decide it, sometimes whoever was drawn."""
        able = sorted(self.book.voters(revision, effect))
        return able[pick % len(able)] if able and pick % 5 else who

    def row_of(self, revision: Revision, effect: Effect) -> tuple[str, dict[str, Any]]:
        """The id of a review, and what a vote on it must name."""
        tables, key = self.found.tables, (effect.id, revision.rev)
        review = next(r for r in tables.reviews if (r.effect_id, r.rev) == key)
        seen = next(r for r in tables.effects if (r.effect_id, r.rev) == key)
        whole = next(r for r in tables.transactions if (r.txn, r.rev) == (revision.id, revision.rev))
        return review.review_id, {
            "rev": revision.rev, "effect_digest": seen.effect_digest, "txn_digest": whole.txn_digest,
        }  # fmt: skip

    def id_of(self, said: Proposal | Comment) -> str:
        """What the service calls a proposal or a question: its words tell it apart."""
        self.found = self.real.do(self.real.everything)
        if isinstance(said, Proposal):
            found: str = next(row.proposal_id for row in self.found.proposals if row.reason == said.words)
            return found
        found = next(row.comment_id for row in self.found.comments if row.text == said.words)
        return found

    def sweep(self) -> None:
        """What the timers do, on both sides."""
        self.book.now = self.real.clock()
        self.real.do(self.real.sweep)
        people.sweep(self.book)

    @property
    def speaker(self) -> Any:
        """The agent."""
        return self.real.agents[AGENT]


def _or_refused(expected: Callable[[], Any]) -> Any:
    try:
        return expected()
    except Refused as refusal:
        return refusal
