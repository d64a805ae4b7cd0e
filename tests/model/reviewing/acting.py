"""What the agent does next with what people decide: the rules of its side."""

from __future__ import annotations

import httpx2
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from countersign.contract import TxnState
from tests.model.machine import PICK, may
from tests.model.reviewing import agents, invariants
from tests.model.reviewing.agents import AGENT, Said
from tests.model.reviewing.base import Batch, Reviews
from tests.model.reviewing.book import Call, Comment, Effect, Proposal, Revision
from tests.model.reviewing.laws import VERSIONS

T = TxnState
AMOUNTS = (10, 60, 500, 5_000)
LISTS: tuple[tuple[Call, ...], ...] = (
    (Call("pay", 500),),
    (Call("pay", 5_000),),
    (Call("pay", 5_000), Call("mail", 1)),
    (Call("pay", 500), Call("pay", 10)),
    (Call("mail", 2),),
    (Call("pay", 60),),
)


class AgentActs(Reviews):
    """Submit, answer people, withdraw, spend."""

    @initialize()
    def something_waits(self) -> None:
        """A list that one person may let go, and one that takes two."""
        self._submit("run-0", LISTS[0])
        self._submit("run-1", LISTS[1])

    # -- submitting ------------------------------------------------------------------------------------------

    def _submit(self, run: str, calls: tuple[Call, ...]) -> None:
        self.lists.append((run, calls))
        body = [
            {"tool": c.tool, "tool_digest": VERSIONS[c.tool], "args": agents.args_of(c.tool, c.amount)}
            for c in calls
        ]

        async def actual() -> httpx2.Response:
            answer: httpx2.Response = await self.speaker.submit(*body, run_key=run)
            return answer

        def expected() -> Said:
            said = agents.submit(self.book, run, calls)
            if said.status == 201 and not self.dying:  # a service that died has not come to it
                self.weigh_at_once(said.revision)
            return said

        self.ask("submit", expected, actual)

    def weigh_at_once(self, revision: Revision) -> None:
        """Whether what was just asked can be answered at all is known with the answer."""
        for effect in revision.effects:
            waits = effect.review is not None and effect.review.is_open
            if waits and self.book.short(revision, effect):
                self.book.weigh(revision, effect)

    @may(run=st.integers(0, 2), which=st.integers(0, len(LISTS) - 1))
    def submit(self, run: int, which: int) -> None:
        """A list of calls under one of a few run keys: often one that was used before."""
        self._submit(f"run-{run}", LISTS[which])

    @may(when=lambda self: self.lists, pick=PICK)
    def submit_again(self, pick: int) -> None:
        """What was sent before, once more."""
        self._submit(*self.lists[-1 - pick % min(len(self.lists), 4)])

    # -- answering people ------------------------------------------------------------------------------------

    def proposals(self, *states: str) -> list[tuple[Revision, Effect, Proposal]]:
        """Everything that was ever proposed, or what is in one of these states."""
        return [
            (r, e, p)
            for r, e, review in self.book.everything()
            for p in review.proposals
            if not states or p.state in states
        ]

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

    @may(
        often=2, when=lambda self: self.proposals(), pick=PICK, any_state=st.integers(0, 3),
        verb=st.sampled_from(["accept", "accept", "decline"]), who=st.sampled_from([AGENT, AGENT, "jonas", "maya"]),
    )  # fmt: skip
    def answer_a_proposal(self, pick: int, any_state: int, verb: str, who: str) -> None:
        """The agent, its owner, or somebody who may only take back what is theirs."""
        found = (self.proposals("open") if any_state else []) or self.proposals()
        revision, effect, proposal = found[pick % len(found)]
        if who not in self.book.revoked:
            self._answer_proposal(verb, who, revision, effect, proposal)

    def open_questions(self) -> list[tuple[Revision, Effect, Comment]]:
        """What the agent was ever asked."""
        return [(r, e, c) for r, e, review in self.book.everything() for c in review.comments if c.question]

    @may(when=lambda self: self.open_questions(), pick=PICK, words=st.sampled_from(["it broke", "I am sure"]))
    def answer_a_question(self, pick: int, words: str) -> None:
        """What the agent says; the first answer stands."""
        revision, effect, question = (found := self.open_questions())[-1 - pick % len(found)]
        self._answer(revision, effect, question, words)

    def _answer(self, revision: Revision, effect: Effect, question: Comment, words: str) -> None:
        name = self.id_of(question)
        review_id, _ = self.row_of(revision, effect)

        async def actual() -> httpx2.Response:
            body = {"question_id": name, "text": words}
            sent: httpx2.Response = await self.speaker.send("POST", f"/v1/reviews/{review_id}/answers", body)
            return sent

        self.ask("answer", lambda: agents.answer(self.book, revision, effect, question, words), actual)

    @may(when=lambda self: self.calm > 3, pick=PICK)
    def withdraw(self, pick: int) -> None:
        """The agent takes it back."""
        self.disturbed()
        revision = (found := self.heads(T.REVIEW, T.READY) or self.heads())[pick % len(found)]

        async def actual() -> httpx2.Response:
            sent: httpx2.Response = await self.speaker.send(
                "POST", f"/v1/transactions/{revision.id}/withdraw", {}
            )
            return sent

        self.ask("withdraw", lambda: agents.withdraw(self.book, revision), actual)

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

    @may(often=2, when=lambda self: self.heads(T.READY), pick=PICK, old=st.integers(0, 5))
    def release(self, pick: int, old: int) -> None:
        """Releases of what is ready, or of a revision that was."""
        found = self.heads(T.READY) if old else list(self.book.all_revisions())
        self._release(found[pick % len(found)])

    @may(when=lambda self: self.batches, pick=PICK, recent=st.booleans(), again=st.integers(0, 7))
    def redeem(self, pick: int, recent: bool, again: int) -> None:
        """Releases that were ever minted come back, also those of a revision that is dead."""
        batch = self.batches[-1] if recent else self.batches[pick % len(self.batches)]
        known = sorted(self.book.attempts)
        self._redeem(batch, known[pick % len(known)] if known and not again else self.fresh("attempt"))

    @may(when=lambda self: self.heads(T.READY) and self.calm > 4, pick=PICK)
    def spend(self, pick: int) -> None:
        """Released and spent at once; mostly, something else comes in between."""
        if self._release((found := self.heads(T.READY))[pick % len(found)]):
            self._redeem(self.batches[-1], self.fresh("attempt"))
