"""What agents and executors may do next: the rules of the machine for their side of the wire."""

from __future__ import annotations

from typing import Any

import httpx2
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from countersign.contract import EffectState, TxnState
from tests.model import agents_side as agents
from tests.model import invariants, taking_back
from tests.model.agents_side import Answer
from tests.model.base import PICK, Batch, Protocol, may
from tests.model.rules import USUAL
from tests.model.state import Attempt, Call, Effect, Transaction

E, T = EffectState, TxnState
AMOUNTS = st.sampled_from([10, 60, 500, 5_000])
MINE = st.sampled_from(["pay", "pay", "book", "mail"])
TOOLS = st.one_of(*[st.lists(MINE, min_size=1, max_size=3)] * 6, st.just(["ship"]), st.just(["ship", "pay"]))
OUTCOMES = st.sampled_from([E.FIRED, E.FIRED, E.FIRED, E.FAILED, E.UNUSED, E.UNKNOWN])


def _attempts(machine: Any) -> Any:
    return machine.book.attempts


class AgentsAct(Protocol):
    """Submit, release, redeem, renew, fire, report, compensate, withdraw."""

    # -- submitting ------------------------------------------------------------------------------------------

    def _submit(self, sent: dict[str, Any]) -> None:
        key, calls = sent["key"], sent["calls"]
        speaker = self.real.agents[key]
        body = [{"tool": c.tool, "tool_digest": c.digest, "args": agents.args_of(c), "n": c.n} for c in calls]
        more = {} if sent["attempt"] is None else {"attempt_id": sent["attempt"]}

        async def actual() -> httpx2.Response:
            return await speaker.submit(*body, run_key=sent["run"], idempotency_key=sent["idem"], **more)

        def expected() -> Answer:
            self.require_key(key)
            run, idem, attempt = sent["run"], sent["idem"], sent["attempt"]
            return agents.submit(self.book, speaker.name, key, run, calls, idem, attempt)

        both = self.ask("submit", expected, actual)
        if both is not None:
            self.check_transaction(both[0], both[1])
            self.check_tokens(both[0].tokens, both[1]["releases"], key)
            self.check_receipt(both[0].attempt, both[1])

    @initialize()
    def there_is_something_to_go_on_with(self) -> None:
        """One that waits, one that was spent at once, one that is ready: every rule has something."""
        self.submit("robot", 0, 0, ["pay"], [500], False, 0)
        self.submit("cart", 0, 0, ["pay", "mail"], [10, 10], True, 0)
        self.submit("robot", 1, 0, ["ship"], [10], False, 0)

    @may(
        often=2,
        agent=st.sampled_from(["robot", "robot", "cart"]), run=st.integers(0, 3), pick=PICK, tools=TOOLS,
        amounts=st.lists(AMOUNTS, min_size=3, max_size=3), at_once=st.booleans(), stale=st.integers(0, 9),
    )  # fmt: skip
    def submit(
        self, agent: str, run: int, pick: int, tools: list[str], amounts: list[int], at_once: bool, stale: int
    ) -> None:
        """A new list of calls under one of a few run keys: often one that was used before."""
        versions = USUAL.versions if stale == 9 else {**USUAL.versions, **self.book.bundle.versions}
        calls: list[Call] = []
        for tool, amount in zip(tools, amounts, strict=False):
            same = sum((c.tool, c.amount) == (tool, amount) for c in calls)
            calls.append(Call(tool, versions[tool], amount, same))
        attempt = self.fresh("attempt") if at_once else None
        self.submissions.append(
            {
                "key": self.key_of(agent, pick), "run": f"run-{run}", "calls": tuple(calls),
                "idem": self.fresh("key"), "attempt": attempt,
            }
        )  # fmt: skip
        self._submit(self.submissions[-1])

    @may(pick=PICK, how=st.sampled_from(["same request", *["new key"] * 2, "other body", "other attempt"]))
    def submit_again(self, pick: int, how: str) -> None:
        """What was sent before, once more."""
        if not self.submissions:
            return
        sent = dict(self.submissions[-1 - pick % min(len(self.submissions), 4)])
        if how == "new key":
            sent["idem"] = self.fresh("key")
        elif how == "other body":
            sent["attempt"] = self.fresh("attempt")
        elif how == "other attempt":
            sent |= {"idem": self.fresh("key"), "attempt": self.fresh("attempt")}
        self._submit(sent)

    # -- spending --------------------------------------------------------------------------------------------

    def _release(self, txn: Transaction, key: str, rev: int) -> bool:
        speaker = self.real.agents[key]

        async def actual() -> httpx2.Response:
            return await speaker.release({"txn": txn.id, "rev": rev})

        def expected() -> Answer:
            self.require_key(key)
            return agents.release(self.book, speaker.name, key, txn.id, rev)

        both = self.ask("release", expected, actual)
        if both is None:
            return False
        self.check_transaction(both[0], both[1])
        self.check_tokens(both[0].tokens, both[1]["releases"], key)
        return bool(both[0].tokens)

    def _redeem(self, batch: Batch, key: str, name: str) -> None:
        tokens, sent = batch
        speaker, known = self.real.agents[key], (self.real.agents[key].name, name) in self.book.attempts

        async def actual() -> httpx2.Response:
            return await speaker.redeem(sent, name)

        def expected() -> Answer:
            self.require_key(key)
            return agents.redeem(self.book, speaker.name, key, tokens, name)

        both = self.ask("redeem", expected, actual)
        if both is None:
            return
        wanted, view = both
        assert view["redeemed"] is (wanted.attempt is not None), view
        self.check_transaction(wanted, view["transaction"])
        self.check_receipt(wanted.attempt, view)
        if wanted.attempt is not None and not known:
            self.note("redeem", "spent an undo" if wanted.attempt.undoes else "spent")
            self.i4_at_redemption(sent, speaker.name, key, wanted.attempt)

    def i4_at_redemption(self, sent: list[str], party: str, key: str, attempt: Attempt) -> None:
        """What was spent a moment ago was to be spent."""
        tools = {effect.call.tool for effect in attempt.effects}
        stopped = {party, attempt.txn.agent} & self.book.frozen or ({"everything"} | tools) & self.book.stops
        releases = [self.real.world.release_of(token) for token in sent]
        who = {"party": party, "jkt": self.real.agents[key].key.public.kid, "stopped": stopped}
        now, epoch = self.real.clock().timestamp(), self.real.world.service.mark.current_epoch()
        invariants.i4_at_redemption(self.real.do(self.real.tables), releases, now, epoch, who)
        assert key not in self.book.revoked_keys
        for effect in attempt.effects:
            call = effect.call
            assert self.book.bundle.decide(call.tool, call.digest, call.amount) is not None

    @may(when=lambda self: self.heads(), pick=PICK, key=PICK, other=st.integers(0, 11))
    def release(self, pick: int, key: int, other: int) -> None:
        """Somebody asks for releases: mostly who may, of what is ready, at the revision in force."""
        found = (self.heads(T.READY) if other else []) or self.heads()
        txn = found[pick % len(found)]
        party = {1: "warehouse", 2: "cart", 3: "robot"}.get(other, txn.aud)
        self._release(txn, self.key_of(party, key), txn.rev + (1 if other == 4 else 0))

    @may(when=lambda self: self.batches, pick=PICK, key=PICK, how=st.integers(0, 15))
    def redeem(self, pick: int, key: int, how: int) -> None:
        """Tokens that were ever minted come back: mostly the newest, with the key they are for, whole."""
        recent = self.batches[-4:] if how > 3 else self.batches
        tokens, sent = recent[pick % len(recent)]
        if how == 15:
            tokens, sent = tokens[:-1] or tokens, sent[:-1] or sent
        owner = tokens[0].key
        if how in {4, 5}:
            owner = self.key_of(["robot", "cart", "warehouse"][key % 3], key)
        names = [name for _, name in self.book.attempts]
        name = names[pick % len(names)] if names and how in {6, 7, 8} else self.fresh("attempt")
        self._redeem((tokens, sent), owner, name)

    @may(when=lambda self: self.heads(T.READY), pick=PICK, key=PICK)
    def spend(self, pick: int, key: int) -> None:
        """Who may asks for the releases and spends them at once."""
        txn = (found := self.heads(T.READY))[pick % len(found)]
        whose = self.key_of(txn.aud, key)
        if self._release(txn, whose, txn.rev):
            self._redeem(self.batches[-1], whose, self.fresh("attempt"))

    @may(when=_attempts, pick=PICK, some=st.lists(PICK, min_size=1, max_size=3), other=st.integers(0, 9))
    def renew(self, pick: int, some: list[int], other: int) -> None:
        """More time to fire."""
        attempt = self._attempt(pick)
        effects = list({e.id: e for e in (attempt.effects[n % len(attempt.effects)] for n in some)}.values())
        party, name = ("cart" if other == 9 else attempt.party), attempt.name
        if other == 8:
            effects = [next(iter(self._attempt(pick + 1).effects))]
        speaker = self.real.agents[key := self.key_of(party, pick)]

        async def actual() -> httpx2.Response:
            body = {"effect_ids": [effect.id for effect in effects]}
            return await speaker.send("POST", f"/v1/redemptions/{name}/renew", body)

        def expected() -> Answer:
            self.require_key(key)
            return agents.renew(self.book, party, name, effects)

        both = self.ask("renew", expected, actual)
        if both is not None:
            self.note("renew", "refused" if both[0].attempt is None else "granted")
            if both[0].attempt is not None:
                receipt = self.real.world.receipt_of(both[1])
                assert [one.effect_id for one in receipt.effects] == [effect.id for effect in effects]
                assert receipt.fire_by == min(int(e.fire_by.timestamp()) for e in effects if e.fire_by)
                self.receipts.append(receipt)
            assert both[1]["redeemed"] is (both[0].attempt is not None)

    def _attempt(self, pick: int) -> Attempt:
        found = list(self.book.attempts.values())
        return found[-1 - pick % len(found)]

    # -- firing ----------------------------------------------------------------------------------------------

    def _report(self, attempt: Attempt, reported: list[tuple[Effect, E, bool]], party: str) -> None:
        speaker = self.real.agents[key := self.key_of(party)]
        results = [{"result": {"id": "p1"}} if result else {} for *_, result in reported]
        outcomes = [{"effect_id": e.id, "outcome": to.value} for e, to, _ in reported]
        outcomes = [one | more for one, more in zip(outcomes, results, strict=True)]

        async def actual() -> httpx2.Response:
            return await speaker.report(attempt.name, *outcomes)

        def expected() -> Answer:
            self.require_key(key)
            return agents.report(self.book, party, attempt.name, reported)

        both = self.ask("report", expected, actual)
        if both is not None:
            self.check_transaction(both[0], both[1])

    @may(
        often=3,
        when=lambda self: any(e.state is E.REDEEMED for a in self.book.attempts.values() for e in a.effects),
        pick=PICK,
        outcomes=st.lists(OUTCOMES, min_size=3, max_size=3),
        result=st.integers(0, 4),
    )
    def fire(self, pick: int, outcomes: list[E], result: int) -> None:
        """An honest executor: it fires what it holds a receipt for, before ``fire_by``, in order, and reports."""
        due = [a for a in self.book.attempts.values() if any(e.state is E.REDEEMED for e in a.effects)]
        attempt, reported = due[pick % len(due)], []
        for effect, outcome in zip(attempt.effects, outcomes, strict=False):
            if effect.state is not E.REDEEMED:
                continue
            late = effect.fire_by is None or self.real.clock() >= effect.fire_by
            to = E.UNUSED if late and outcome is E.FIRED else outcome
            if effect.id in self.shop.fired:  # reported already and refused: its journal has it
                to = E.FIRED
            elif to is E.FIRED:
                self.shop.fire(effect.id)
            reported.append((effect, to, result > 0 and to is E.FIRED))
        self._report(attempt, reported, attempt.party)

    @may(when=_attempts, pick=PICK, which=PICK, outcome=OUTCOMES, other=st.integers(0, 9))
    def report_anything(self, pick: int, which: int, outcome: E, other: int) -> None:
        """Reports come late, again, in contradiction, and from those they are not expected of."""
        attempt = self._attempt(pick)
        effect = (self._attempt(which) if other == 9 else attempt).effects[
            which % len(attempt.effects) if other < 9 else 0
        ]
        party = "cart" if other == 8 else attempt.party
        self._report(attempt, [(effect, outcome, outcome is E.FIRED)], party)

    @may(
        often=2,
        when=lambda self: any(e.state in {E.FIRED, E.COMPENSATING} for t in self.heads() for e in t.effects),
        pick=PICK,
        other=st.integers(0, 9),
        redeem=st.booleans(),
    )
    def compensate(self, pick: int, other: int, redeem: bool) -> None:
        """Somebody wants what fired taken back; and often takes it back at once."""
        fired = [(t, e) for t in self.heads() for e in t.effects if e.state in {E.FIRED, E.COMPENSATING}]
        txn, effect = fired[pick % len(fired)]
        if other == 8:
            effect = txn.effects[pick % len(txn.effects)]
        party = "cart" if other == 9 else txn.aud
        speaker = self.real.agents[key := self.key_of(party, pick)]

        async def actual() -> httpx2.Response:
            body = {"effect_id": effect.id}
            return await speaker.send("POST", f"/v1/transactions/{txn.id}/compensate", body)

        def expected() -> Answer:
            self.require_key(key)
            return taking_back.compensate(self.book, party, key, txn.id, effect)

        both = self.ask("compensate", expected, actual)
        if both is None:
            return
        assert both[1]["effect"]["effect_id"] == both[0].undo.id
        assert both[1]["effect"]["state"] == both[0].undo.state.value
        release = both[1].get("release")
        self.check_tokens(both[0].tokens, [] if release is None else [release], key)
        if both[0].tokens and redeem:
            self._redeem(self.batches[-1], key, self.fresh("attempt"))

    @may(
        when=lambda self: self.calm > 2 and self.heads(),
        pick=PICK,
        other=st.integers(0, 9),
        any_state=st.integers(0, 3),
    )
    def withdraw(self, pick: int, other: int, any_state: int) -> None:
        """The agent takes it back; or somebody else tries."""
        self.disturbed()
        found = (self.heads(T.REVIEW, T.READY) if any_state else []) or self.heads()
        txn = found[pick % len(found)]
        party = {8: "warehouse", 9: "cart"}.get(other, txn.agent)
        speaker = self.real.agents[key := self.key_of(party)]

        async def actual() -> httpx2.Response:
            return await speaker.send("POST", f"/v1/transactions/{txn.id}/withdraw", {})

        def expected() -> Answer:
            self.require_key(key)
            return agents.withdraw(self.book, party, txn.id)

        both = self.ask("withdraw", expected, actual)
        if both is not None:
            self.check_transaction(both[0], both[1])
