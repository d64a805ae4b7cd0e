"""What people do next with a review: vote, sign, propose, write, ask."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.fakes.world import Visitor
from tests.model.reviewing import agents, people
from tests.model.reviewing.acting import AgentActs
from tests.model.reviewing.book import Effect, Revision
from tests.model.state import Refused


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

    # -- words -----------------------------------------------------------------------------------------------

    def _write(self, who: str, revision: Revision, effect: Effect, words: str, *, question: bool) -> None:
        review_id, _ = self.row_of(revision, effect)
        body = {"text": words, "question": question}

        def expected() -> None:
            people.comment(self.book, who, revision, effect, words, question=question)

        self.ask("write", expected, self._post(who, f"/v1/reviews/{review_id}/comments", body))
