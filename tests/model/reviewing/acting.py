"""What the agent does next with what people decide: the rules of its side."""

from __future__ import annotations

import httpx2

from tests.model.reviewing import agents, invariants
from tests.model.reviewing.agents import AGENT, Said
from tests.model.reviewing.base import Batch, Reviews
from tests.model.reviewing.book import Call, Comment, Effect, Proposal, Revision
from tests.model.reviewing.laws import VERSIONS


class AgentActs(Reviews):
    """Submit, answer people, spend."""

    # -- submitting ------------------------------------------------------------------------------------------

    def _submit(self, run: str, calls: tuple[Call, ...]) -> None:
        body = [
            {"tool": c.tool, "tool_digest": VERSIONS[c.tool], "args": agents.args_of(c.tool, c.amount)}
            for c in calls
        ]

        async def actual() -> httpx2.Response:
            answer: httpx2.Response = await self.speaker.submit(*body, run_key=run)
            return answer

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

        async def actual() -> httpx2.Response:
            if who != AGENT:
                return await self.real.form(who, f"/proposals/{name}/{verb}", {})
            sent: httpx2.Response = await (
                self.speaker.accept(name) if verb == "accept" else self.speaker.decline(name)
            )
            return sent

        def expected() -> Said:
            if verb == "accept":
                return agents.accept(self.book, who, revision, effect, proposal)
            return agents.decline(self.book, who, revision, proposal)

        by = "agent" if who == AGENT else "person"
        self.ask(f"{verb} by {by}", expected, actual, page=who != AGENT)

    def _answer(self, revision: Revision, effect: Effect, question: Comment, words: str) -> None:
        name = self.id_of(question)
        review_id, _ = self.row_of(revision, effect)

        async def actual() -> httpx2.Response:
            body = {"question_id": name, "text": words}
            sent: httpx2.Response = await self.speaker.send("POST", f"/v1/reviews/{review_id}/answers", body)
            return sent

        self.ask("answer", lambda: agents.answer(self.book, revision, effect, question, words), actual)

    # -- spending --------------------------------------------------------------------------------------------

    def _release(self, revision: Revision) -> bool:
        async def actual() -> httpx2.Response:
            sent: httpx2.Response = await self.speaker.release({"txn": revision.id, "rev": revision.rev})
            return sent

        both = self.ask("release", lambda: agents.release(self.book, revision), actual)
        return both is not None and bool(both[0].tokens)

    def _redeem(self, batch: Batch, attempt: str) -> None:
        tokens, sent = batch
        known = attempt in self.book.attempts

        async def actual() -> httpx2.Response:
            answer: httpx2.Response = await self.speaker.redeem(sent, attempt)
            return answer

        both = self.ask("redeem", lambda: agents.redeem(self.book, tokens, attempt), actual)
        if both is None:
            return
        self.note("redeem", "spent" if both[0].spent else "nothing")
        if both[0].spent and not known:
            claims = [self.real.world.release_of(token) for token in sent]
            now, found = self.real.clock().timestamp(), self.real.do(self.real.everything)
            invariants.i4_at_redemption(found, claims, now, self.book.laws)
