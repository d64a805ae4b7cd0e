"""The machine of reviews: what people, the agent, operators and time do to them, in the service and in the model.

After every step the answer is the one the model gives, and the tables hold what the model holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from countersign.contract import EffectState, TxnState
from tests.fakes.world import Visitor
from tests.model.machine import Machine
from tests.model.reviewing import agents, people
from tests.model.reviewing.agents import AGENT, Said, Token
from tests.model.reviewing.book import Book, Call, Comment, Effect, Proposal, Revision
from tests.model.reviewing.comparing import held_in, remembered_in
from tests.model.reviewing.laws import VERSIONS, Laws
from tests.model.reviewing.real import Everything, RealReviews
from tests.model.state import Refused

E, T = EffectState, TxnState
Batch = tuple[tuple[Token, ...], list[str]]


class Reviews(Machine):
    """Reviews on one engine."""

    def __init__(self) -> None:
        super().__init__(RealReviews)
        self.book: Book = Book(self.real.clock(), Laws())
        self.unasked = False  # other laws are in force, and what is open was not asked about yet
        self.found: Everything = self.real.do(self.real.everything)

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

    # -- submitting ------------------------------------------------------------------------------------------

    def _submit(self, run: str, calls: tuple[Call, ...]) -> None:
        body = [
            {"tool": c.tool, "tool_digest": VERSIONS[c.tool], "args": agents.args_of(c.tool, c.amount)}
            for c in calls
        ]

        async def actual() -> Any:
            return await self.speaker.submit(*body, run_key=run)

        def expected() -> Said:
            said = agents.submit(self.book, run, calls)
            if said.status == 201:
                self.weigh_at_once(said.revision)
            return said

        self.ask("submit", expected, actual)

    def weigh_at_once(self, revision: Revision) -> None:
        """Whether what was just asked can be answered at all is known with the answer."""
        for effect in revision.effects:
            waits = effect.review is not None and effect.review.is_open
            if waits and self.book.short(revision, effect):
                self.book.weigh(revision, effect)

    # -- answering people ------------------------------------------------------------------------------------

    def _answer_proposal(
        self, verb: str, who: str, revision: Revision, effect: Effect, proposal: Proposal
    ) -> None:
        name = self.id_of(proposal)

        async def actual() -> Any:
            if who != AGENT:
                return await self.real.form(who, f"/proposals/{name}/{verb}", {})
            return await (self.speaker.accept(name) if verb == "accept" else self.speaker.decline(name))

        def expected() -> Said:
            if verb == "accept":
                return agents.accept(self.book, who, revision, effect, proposal)
            return agents.decline(self.book, who, revision, proposal)

        by = "agent" if who == AGENT else "person"
        self.ask(f"{verb} by {by}", expected, actual, page=who != AGENT)

    def _answer(self, revision: Revision, effect: Effect, question: Comment, words: str) -> None:
        name = self.id_of(question)
        review_id, _ = self.row_of(revision, effect)

        async def actual() -> Any:
            body = {"question_id": name, "text": words}
            return await self.speaker.send("POST", f"/v1/reviews/{review_id}/answers", body)

        self.ask("answer", lambda: agents.answer(self.book, revision, effect, question, words), actual)

    # -- spending --------------------------------------------------------------------------------------------

    def _release(self, revision: Revision) -> bool:
        async def actual() -> Any:
            return await self.speaker.release({"txn": revision.id, "rev": revision.rev})

        both = self.ask("release", lambda: agents.release(self.book, revision), actual)
        return both is not None and bool(both[0].tokens)

    def _redeem(self, batch: Batch, attempt: str) -> None:
        tokens, sent = batch

        async def actual() -> Any:
            return await self.speaker.redeem(sent, attempt)

        self.ask("redeem", lambda: agents.redeem(self.book, tokens, attempt), actual)

    def _post(self, who: str, path: str, body: dict[str, Any]) -> Any:
        async def ask(visitor: Visitor) -> httpx2.Response:
            return await visitor.http.post(path, json=body, headers=visitor.headers())

        async def actual() -> Any:
            return await self.real.by(who, ask, revoked=who in self.book.revoked)

        return actual

    # -- voting ----------------------------------------------------------------------------------------------

    def _vote(self, who: str, revision: Revision, effect: Effect, verdict: str, reason: str | None) -> None:
        review_id, read = self.row_of(revision, effect)
        ballot = {"verdict": verdict, **read, **({} if reason is None else {"reason": reason})}

        def expected() -> tuple[str, bool]:
            return people.vote(self.book, who, revision, effect, verdict, reason)

        both = self.ask(
            f"vote {verdict}", expected, self._post(who, f"/v1/reviews/{review_id}/votes", ballot)
        )
        if both is not None:
            assert both[1].json()["state"] == both[0][0], both[1].text

    # -- break-glass -----------------------------------------------------------------------------------------

    def _read(self, who: str, review_id: str) -> dict[str, str]:
        return self.real.do(self.real.shown, who, review_id)

    def _sign(self, who: str, revision: Revision, effect: Effect, reason: str, read: dict[str, str]) -> None:
        review_id, named = self.row_of(revision, effect)
        fields = {"verdict": "break_glass", "reason": reason, **{k: str(v) for k, v in named.items()}, **read}

        async def actual() -> Any:
            return await self.real.form(who, f"/reviews/{review_id}/votes", fields)

        def expected() -> tuple[str, bool]:
            state, in_time = people.sign(self.book, who, revision, effect, reason)
            signed = effect.review is not None and effect.review.holds(who, "break_glass")
            if not in_time and not signed:  # on record; the page says it changed nothing
                raise Refused(409, "review_closed")
            return state, in_time

        self.ask("break the glass", expected, actual, page=True)

    # -- proposing -------------------------------------------------------------------------------------------

    def _propose(self, who: str, revision: Revision, effect: Effect, amount: int, words: str | None) -> None:
        review_id, read = self.row_of(revision, effect)
        wish = {**read, "args": agents.args_of(effect.call.tool, amount)}
        wish |= {} if words is None else {"reason": words}

        async def ask(visitor: Visitor) -> httpx2.Response:
            answer = await visitor.http.post(
                f"/v1/reviews/{review_id}/proposals", json=wish, headers=visitor.headers()
            )
            answer.status_code = 200 if answer.status_code == 201 else answer.status_code
            return answer

        async def actual() -> Any:
            return await self.real.by(who, ask, revoked=who in self.book.revoked)

        self.ask("propose", lambda: people.propose(self.book, who, revision, effect, amount, words), actual)

    # -- words -----------------------------------------------------------------------------------------------

    def _write(self, who: str, revision: Revision, effect: Effect, words: str, *, question: bool) -> None:
        review_id, _ = self.row_of(revision, effect)
        body = {"text": words, "question": question}

        def expected() -> None:
            people.comment(self.book, who, revision, effect, words, question=question)

        self.ask("write", expected, self._post(who, f"/v1/reviews/{review_id}/comments", body))

    # -- after each step -------------------------------------------------------------------------------------

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the tables hold, and the same of the model."""
        self.found = self.real.do(self.real.everything)
        return held_in(self.found), remembered_in(self.book)

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
