"""What people do next with a review: vote, sign, propose, write, ask."""

from __future__ import annotations

from typing import Any

import httpx2
from hypothesis import strategies as st

from countersign.contract import EffectState, TxnState
from tests.fakes.world import Visitor
from tests.model.gates import OWNER
from tests.model.machine import PICK, may
from tests.model.reviewing import agents, people
from tests.model.reviewing.acting import AMOUNTS, AgentActs
from tests.model.reviewing.agents import AGENT
from tests.model.reviewing.book import Effect, Revision
from tests.model.reviewing.laws import PEOPLE
from tests.model.state import Refused

E, T = EffectState, TxnState
WHO = st.sampled_from(PEOPLE)
REASON = st.sampled_from(["because", "because", None])


class PeopleDecide(AgentActs):
    """Everybody who is asked, and some who are not."""

    def _post(self, who: str, path: str, body: dict[str, Any]) -> Any:
        async def ask(visitor: Visitor) -> httpx2.Response:
            return await visitor.http.post(path, json=body, headers=visitor.headers())

        async def actual() -> httpx2.Response:
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

    @may(
        often=4, when=lambda self: self.questions(open_ones=False), pick=PICK, who=WHO, open_ones=st.integers(0, 5),
        verdict=st.sampled_from(["approve"] * 5 + ["deny"]), reason=REASON,
    )  # fmt: skip
    def vote(self, pick: int, who: str, open_ones: int, verdict: str, reason: str | None) -> None:
        """Somebody answers, whether asked or not: mostly a question that is open, and mostly somebody who may."""
        revision, effect, _ = self.any_question(pick, open_ones=open_ones > 0)
        self._vote(self.somebody_for(pick, revision, effect, who), revision, effect, verdict, reason)

    @may(often=2, when=lambda self: self.questions(open_ones=True), pick=PICK)
    def everybody_approves(self, pick: int) -> None:
        """All who may approve one transaction's questions, one after the other, the owner too."""
        revision, _, _ = self.any_question(pick)
        for effect in revision.effects:
            for who in PEOPLE:
                if effect.state is E.REVIEW and who not in self.book.revoked:
                    self._vote(who, revision, effect, "approve", "fine")

    @may(when=lambda self: self.questions(open_ones=True) and self.calm > 3, pick=PICK, who=WHO)
    def denied_and_asked_again(self, pick: int, who: str) -> None:
        """Somebody says no; somebody else votes on it, and the agent submits the same list."""
        self.disturbed()
        revision, effect, _ = self.any_question(pick)
        self._vote(self.somebody_for(pick | 1, revision, effect, who), revision, effect, "deny", "no")
        self._vote(self.somebody_for(pick + 2, revision, effect, who), revision, effect, "approve", "yes")
        self._submit(revision.run, tuple(revision.calls))

    # -- break-glass -----------------------------------------------------------------------------------------

    def _read(self, who: str, review_id: str) -> dict[str, str]:
        return self.real.do(self.real.shown, who, review_id)

    def _sign(self, who: str, revision: Revision, effect: Effect, reason: str, read: dict[str, str]) -> None:
        review_id, named = self.row_of(revision, effect)
        fields = {"verdict": "break_glass", "reason": reason, **{k: str(v) for k, v in named.items()}, **read}

        async def actual() -> httpx2.Response:
            return await self.real.form(who, f"/reviews/{review_id}/votes", fields)

        def expected() -> tuple[str, bool]:
            state, in_time = people.sign(self.book, who, revision, effect, reason)
            signed = effect.review is not None and effect.review.holds(who, "break_glass")
            if not in_time and not signed:  # on record; the page says it changed nothing
                raise Refused(409, "review_closed")
            return state, in_time

        self.ask("break the glass", expected, actual, page=True)

    def openers(self, revision: Revision) -> list[str]:
        """Who may sign now."""
        laws = self.book.laws
        able = [name for name in PEOPLE if name not in revision.side | self.book.revoked]
        return [name for name in able if laws.opens(name) or laws.opens_alone(name)]

    @may(when=lambda self: self.questions(open_ones=True), pick=PICK, who=WHO, then=st.integers(0, 3))
    def break_the_glass(self, pick: int, who: str, then: int) -> None:
        """An emergency: mostly by somebody who may, sometimes on what was read a while ago."""
        revision, effect, review = self.any_question(pick)
        # The page is read now, and has a form only while there is an answer to give.
        self.book.now = self.real.clock()
        able = self.openers(revision)
        who = able[pick % len(able)] if able and pick % 4 else who
        if who in self.book.revoked or self.book.over(review):
            return
        read = self._read(who, self.row_of(revision, effect)[0])
        if "view_digest" not in read and review.holds(who, "break_glass"):
            return  # the page asks nobody for a second signature
        if then == 0 and "view_digest" in read:
            self._stand_at(review.answer_by)
        self._sign(who, revision, effect, "it burns", read)

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

        async def actual() -> httpx2.Response:
            return await self.real.by(who, ask, revoked=who in self.book.revoked)

        self.ask("propose", lambda: people.propose(self.book, who, revision, effect, amount, words), actual)

    @may(
        often=2, when=lambda self: self.questions(open_ones=False), pick=PICK, who=WHO, open_ones=st.integers(0, 5),
        amount=st.sampled_from(AMOUNTS), how=st.integers(0, 9),
    )  # fmt: skip
    def propose(self, pick: int, who: str, open_ones: int, amount: int, how: int) -> None:
        """Somebody would have it otherwise; sometimes the same once more, or without a word."""
        revision, effect, review = self.any_question(pick, open_ones=open_ones > 0)
        who = self.somebody_for(pick, revision, effect, who)
        mine = [p for p in review.proposals if p.person == who]
        if how == 0 and mine:
            self._propose(who, revision, effect, mine[-1].amount, mine[-1].words)
            return
        self._propose(who, revision, effect, amount, None if how == 1 else self.fresh("rather"))

    @may(
        often=2, when=lambda self: self.questions(open_ones=True), pick=PICK, amount=st.sampled_from(AMOUNTS)
    )
    def edit_and_go_on(self, pick: int, amount: int) -> None:
        """Proposed, voted on meanwhile, accepted; then whoever edited tries to vote on what they wrote."""
        revision, effect, review = self.any_question(pick)
        able = sorted(self.book.voters(revision, effect))
        if not able or effect.amount == amount:
            return
        editor, words = able[pick % len(able)], self.fresh("rather")
        if pick % 2:
            self._vote(able[-1], revision, effect, "approve", "fine")
        self._propose(editor, revision, effect, amount, words)
        made = next((p for p in review.proposals if p.words == words), None)
        if made is None:
            return
        by_owner = pick % 3 == 0 and OWNER not in self.book.revoked
        self._answer_proposal("accept", OWNER if by_owner else AGENT, revision, effect, made)
        self.look()
        if (head := self.book.head(revision.id)) is not revision:
            for one in head.effects:
                if one.review is not None and one.review.is_open:
                    self._vote(editor, head, one, "approve" if pick % 5 else "deny", "mine")

    # -- words -----------------------------------------------------------------------------------------------

    @may(
        when=lambda self: self.questions(open_ones=False),
        pick=PICK,
        who=WHO,
        question=st.booleans(),
        same=st.booleans(),
    )
    def write(self, pick: int, who: str, question: bool, same: bool) -> None:
        """A comment for the others, or a question for the agent."""
        revision, effect, review = self.any_question(pick, open_ones=pick % 4 > 0)
        who = self.somebody_for(pick, revision, effect, who)
        mine = [c for c in review.comments if (c.person, c.question) == (who, question)]
        words = mine[-1].words if mine and same else self.fresh("words")
        self._write(who, revision, effect, words, question=question)

    def _write(self, who: str, revision: Revision, effect: Effect, words: str, *, question: bool) -> None:
        review_id, _ = self.row_of(revision, effect)
        body = {"text": words, "question": question}

        def expected() -> None:
            people.comment(self.book, who, revision, effect, words, question=question)

        self.ask("write", expected, self._post(who, f"/v1/reviews/{review_id}/comments", body))
