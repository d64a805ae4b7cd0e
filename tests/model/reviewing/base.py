"""The machine of reviews: what people, the agent, operators and time do to them, in the service and in the model.

After every step the answer is the one the model gives, the tables hold what the model holds, and I-4, I-5 and I-6 hold
by the tables alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
from hypothesis.stateful import invariant

from countersign.contract import EffectState, TxnState
from tests.model import invariants as of_everything
from tests.model.machine import Machine
from tests.model.reviewing import invariants, people
from tests.model.reviewing.agents import AGENT, Said, Token
from tests.model.reviewing.book import Book, Comment, Effect, Proposal, Revision
from tests.model.reviewing.comparing import held_in, remembered_in
from tests.model.reviewing.laws import Laws
from tests.model.reviewing.real import Everything, RealReviews

E, T = EffectState, TxnState
Batch = tuple[tuple[Token, ...], list[str]]


class Reviews(Machine):
    """Reviews on one engine."""

    def __init__(self) -> None:
        super().__init__(RealReviews)
        self.book: Book = Book(self.real.clock(), Laws())
        self.unasked = False  # other laws are in force, and what is open was not asked about yet
        self.found: Everything = self.real.do(self.real.everything)
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
        """Do it on both sides and compare what both answered."""
        both = self.exchange(verb, expected, actual, page=page)
        if both is not None and isinstance(both[0], Said) and not page:
            self._told(both[0], both[1].json())
        return both

    def tick(self) -> None:
        """A moment passes before each request, unless it is to come in the very moment of a deadline."""
        if not self.on_edge:
            self.real.catch_up()
        self.on_edge = False
        super().tick()

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

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the tables hold, and the same of the model."""
        self.found = self.real.do(self.real.everything)
        return held_in(self.found), remembered_in(self.book)

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

    # -- what there is ---------------------------------------------------------------------------------------

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
