"""What people, operators, time and trouble do next: the rules of the machine for everybody else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import httpx2
import pytest
from hypothesis import strategies as st

from countersign.contract import EffectState, TxnState
from policy_service.errors import ServiceError
from tests.fakes.payments import person
from tests.model import peoples_side as people
from tests.model.acting import AgentsAct
from tests.model.base import PICK, may
from tests.model.real import losing
from tests.model.rules import BUNDLES, PEOPLE
from tests.model.state import OPEN, Effect, Refused, Transaction

E, T = EffectState, TxnState
OPERATORS = [
    *["go on"] * 3, "freeze an agent", "freeze a tool", "revoke an approver", "revoke a commit", "revoke a key",
    "revoke an agent", "set the clock back", "break the bundle",
]  # fmt: skip
BETWEEN = [
    "the agent is frozen", "its tool is frozen", "an approver is revoked", "the time is over", "the token is old",
    "the rules change", "another key has it", "it was spent",
]  # fmt: skip


class EverybodyActs(AgentsAct):
    """Vote, revoke, freeze, activate, let time pass, crash."""

    # -- people ----------------------------------------------------------------------------------------------

    def reviews(self, *, open_ones: bool) -> list[tuple[Transaction, Effect]]:
        """Questions that people can see."""
        every = [
            (txn, effect, effect.review) for txn in self.book.all_revisions() for effect in txn.everything
        ]
        found = [(txn, effect, review) for txn, effect, review in every if review is not None]
        return [(txn, effect) for txn, effect, review in found if not open_ones or review.state == "open"]

    def _vote(self, who: str, txn: Transaction, effect: Effect, verdict: str, reason: str | None) -> None:
        row = next(r for r in self.tables.reviews if (r.effect_id, r.rev) == (effect.id, txn.rev))
        seen = next(r for r in self.tables.effects if (r.effect_id, r.rev) == (effect.id, txn.rev))
        whole = next(r for r in self.tables.transactions if (r.txn, r.rev) == (txn.id, txn.rev))
        ballot: dict[str, Any] = {
            "verdict": verdict, "rev": txn.rev, "effect_digest": seen.effect_digest, "txn_digest": whole.txn_digest,
        }  # fmt: skip
        if reason is not None:
            ballot["reason"] = reason

        async def actual() -> httpx2.Response:
            return await self.real.vote(who, row.review_id, ballot, revoked=who in self.book.revoked_people)

        expected = partial(people.vote, self.book, who, txn, effect, verdict, reason)
        both = self.ask(f"vote {verdict}", expected, actual)
        if both is not None:
            assert both[1]["state"] == both[0][0], both[1]

    @may(often=2, when=lambda self: self.reviews(open_ones=False),
        pick=PICK, who=st.sampled_from(PEOPLE), any_review=st.integers(0, 4), reason=st.sampled_from(["no", None]),
        verdict=st.sampled_from(["approve", "approve", "approve", "deny"]),
    )  # fmt: skip
    def vote(self, pick: int, who: str, any_review: int, reason: str | None, verdict: str) -> None:
        """Somebody answers, whether asked or not: mostly a question that is open, and mostly somebody who may."""
        found = self.reviews(open_ones=any_review > 0) or self.reviews(open_ones=False)
        txn, effect = found[pick % len(found)]
        if pick % 4:
            asked = frozenset[str]().union(*(gate.groups for gate in effect.gates))
            may = [name for name in PEOPLE if self.book.bundle.groups_of(name) & asked]
            who = may[pick % len(may)] if may else who
        self._vote(who, txn, effect, verdict, reason)

    @may(when=lambda self: self.reviews(open_ones=True), pick=PICK)
    def a_person_denies_and_the_agent_asks_again(self, pick: int) -> None:
        """The very list a person has said no to, or another one."""
        txn, effect = (found := self.reviews(open_ones=True))[pick % len(found)]
        asked = frozenset[str]().union(*(gate.groups for gate in effect.gates))
        may = [name for name in PEOPLE if self.book.bundle.groups_of(name) & asked]
        self._vote(may[pick % len(may)] if may else PEOPLE[0], txn, effect, "deny", "no")
        same = [sent for sent in self.submissions if sent["calls"] == tuple(txn.calls)]
        if same and effect.compensates is None:
            self._submit(same[-1] | {"idem": self.fresh("key"), "attempt": None})

    @may(often=2, when=lambda self: self.reviews(open_ones=True), pick=PICK)
    def everybody_approves(self, pick: int) -> None:
        """All who may approve one transaction's open questions, one after the other."""
        txn, _ = (found := self.reviews(open_ones=True))[pick % len(found)]
        for effect in txn.everything:
            for who in PEOPLE:
                if effect.state is E.REVIEW and who not in self.book.revoked_people:
                    self._vote(who, txn, effect, "approve", "fine")
                    self.tables = self.real.do(self.real.tables)

    # -- operators -------------------------------------------------------------------------------------------

    def operate(self, verb: str, args: dict[str, Any], expected: Callable[[], Any]) -> Any:
        """An operator's verb, as the socket of a running service takes it; both sides' answer."""
        self.tick()
        try:
            done = self.real.do(self.real.world.operator, verb, args | {"reason": "because"})
        except ServiceError as refusal:
            said = (refusal.status, refusal.code.value)
            self.note(verb, f"{said[0]} {said[1]}")
            with pytest.raises(Refused, match=said[1]):
                expected()
            return None
        self.note(verb, "done")
        return done, expected()

    def revoke_each(self, txns: list[str]) -> None:
        """One transaction after the other, as the command does."""
        for txn in txns:
            args = {"txn": txn, "reason": "because"}
            done = self.real.do(self.real.world.operator, "revoke-transaction-if-open", args)
            assert done["ended"] is people.revoke_if_open(self.book, txn)

    @may(
        when=lambda self: self.calm > 2 and self.heads(),
        pick=PICK,
        which=PICK,
        whole=st.booleans(),
        any_state=st.integers(0, 3),
    )
    def revoke(self, pick: int, which: int, whole: bool, any_state: int) -> None:
        """One effect, one compensation, or one transaction is called off."""
        self.disturbed()
        found = (self.heads(T.REVIEW, T.READY) if any_state else []) or list(self.book.all_revisions())
        txn = found[pick % len(found)]
        effect = txn.everything[which % len(txn.everything)]
        if whole:
            expected = partial(people.revoke_if_open, self.book, txn.id)
            self.operate("revoke-transaction-if-open", {"txn": txn.id}, expected)
        else:
            revoked = partial(people.revoke_effect, self.book, txn, effect)
            self.operate("revoke-effect", {"effect_id": effect.id}, revoked)

    @may(
        when=lambda self: any(e.undo and e.undo.state in OPEN for t in self.heads() for e in t.effects),
        pick=PICK,
    )
    def revoke_a_compensation(self, pick: int) -> None:
        """What would take something back is called off: it stays fired."""
        found = [(t, e.undo) for t in self.heads() for e in t.effects if e.undo and e.undo.state in OPEN]
        txn, undo = found[pick % len(found)]
        expected = partial(people.revoke_effect, self.book, txn, undo)
        self.operate("revoke-effect", {"effect_id": undo.id}, expected)

    def revoke_a_commit(self, bundle: str) -> None:
        """What a commit decided is not to stand."""
        commit = self.commits.get(bundle)
        decided = {row.commit for row in self.tables.decisions.values()}
        if commit is None or commit not in decided:
            return
        expected = partial(people.open_under, self.book, BUNDLES[bundle])
        both = self.operate("revoke-commit", {"commit": commit}, expected)
        assert both[0]["open"] == both[1]
        for effect_id in both[1]:  # one after the other, as the command does
            args = {"effect_id": effect_id, "reason": "because"}
            done = self.real.do(self.real.world.operator, "revoke-effect-if-open", args)
            assert done["ended"] is people.revoke_effect_if_open(self.book, effect_id)

    def revoke_the_cart(self) -> None:
        """An agent is ended for good."""
        keys = [key for key in self.real.agents if key.startswith("cart/")]
        expected = partial(people.revoke_agent, self.book, "cart", keys)
        both = self.operate("revoke-agent", {"agent": "cart"}, expected)
        assert both[0]["open"] == both[1]
        self.revoke_each(both[1])

    def revoke_a_key(self, pick: int) -> None:
        """A key ends; its agent takes another one into use."""
        key = self.key_of("robot", pick)
        kid = self.real.agents[key].key.public.kid
        self.operate("agent-key-revoke", {"kid": kid}, lambda: self.book.revoked_keys.add(key))
        self.real.do(self.real.another_key, key, self.fresh("robot/new"))

    def revoke_an_approver(self, who: str) -> None:
        """Somebody decides nothing any more; or does again, with the old votes gone."""
        key = {"person": person(who)}
        if who in self.book.revoked_people:
            self.operate("reinstate-approver", key, lambda: self.book.revoked_people.discard(who))
            return
        self.real.do(self.real.visitor, who)
        both = self.operate("revoke-approver", key, lambda: people.revoke_approver(self.book, who))
        assert both[0]["votes"] == both[1]

    def freeze_an_agent(self, what: str) -> None:
        """Stopped, or going again."""
        if what in self.book.frozen:
            self.operate("unfreeze", {"agent": what}, lambda: self.book.frozen.discard(what))
        else:
            self.operate("freeze", {"agent": what}, lambda: self.book.frozen.add(what))

    def freeze_a_tool(self, what: str | None) -> None:
        """A tool, or everything: stopped, or going again."""
        name = what or "everything"
        if name in self.book.stops:
            self.operate("go-on", {"tool": what}, lambda: self.book.stops.discard(name))
        else:
            self.operate("stop", {"tool": what}, lambda: self.book.stops.add(name))

    def everything_goes_on(self) -> None:
        """So that a run does not stay frozen to its end."""
        for what in sorted(self.book.frozen):
            self.freeze_an_agent(what)
        for what in sorted(self.book.stops):
            self.freeze_a_tool(None if what == "everything" else what)

    @may(when=lambda self: self.calm > 2, what=st.sampled_from(OPERATORS), pick=PICK)
    def an_operator_acts(self, what: str, pick: int) -> None:
        """Something is stopped or ended; mostly it goes on again soon, so that a run is not frozen to its end."""
        self.disturbed()
        if what == "freeze an agent":
            self.freeze_an_agent(("robot", "cart", "warehouse")[pick % 3])
        elif what == "freeze a tool":
            self.freeze_a_tool(("pay", "unpay", "mail", "ship", None)[pick % 5])
        elif what == "revoke an approver":
            self.revoke_an_approver(PEOPLE[pick % len(PEOPLE)])
        elif what == "revoke a commit":
            self.revoke_a_commit(sorted(BUNDLES)[pick % len(BUNDLES)])
        elif what == "revoke a key":
            self.revoke_a_key(pick)
        elif what == "revoke an agent":
            self.revoke_the_cart()
        elif what == "set the clock back":
            self.the_clock_is_set_back((1, 5, 20)[pick % 3])
        elif what == "break the bundle":
            self.a_bundle_that_does_not_load()
        else:
            self.everything_goes_on()

    @may(often=2, when=lambda self: self.heads(T.READY), what=st.sampled_from(BETWEEN), pick=PICK, key=PICK)
    def something_happens_between_release_and_redemption(self, what: str, pick: int, key: int) -> None:
        """What was true when the tokens were minted need not be true when they come back."""
        reviewed = [txn for txn in self.heads(T.READY) if any(effect.gates for effect in txn.effects)]
        txn = (found := (reviewed if pick % 2 else []) or self.heads(T.READY))[pick % len(found)]
        whose = self.key_of(txn.aud, key)
        if not self._release(txn, whose, txn.rev):
            return
        batch, spender = self.batches[-1], whose
        voters = [v.person for e in txn.effects if e.review for v in e.review.votes if v.verdict == "approve"]
        if what == "the agent is frozen":
            self.freeze_an_agent(txn.agent)
        elif what == "its tool is frozen":
            self.freeze_a_tool(txn.effects[pick % len(txn.effects)].call.tool)
        elif what == "an approver is revoked" and voters:
            self.revoke_an_approver(voters[pick % len(voters)])
        elif what == "the time is over" and txn.valid_until is not None:
            self.real.clock.stop_at(max(self.real.clock(), txn.valid_until))
        elif what == "the token is old":
            self.real.clock.pass_(seconds=121)
        elif what == "the rules change":
            self.another_bundle(sorted(BUNDLES)[pick % len(BUNDLES)])
        elif what == "another key has it" and txn.aud == "robot":
            self.real.do(self.real.another_key, whose, spender := self.fresh("robot/new"))
        elif what == "it was spent":
            self._redeem(batch, whose, self.fresh("attempt"))
        self._redeem(batch, spender, self.fresh("attempt"))
        if self.book.frozen | self.book.stops and pick % 3:
            self.everything_goes_on()

    # -- time, bundles, trouble ------------------------------------------------------------------------------

    def deadlines(self) -> list[datetime]:
        """Moments to come at which something ends."""
        times: set[datetime | None] = set()
        for txn in self.book.all_revisions():
            times.add(txn.valid_until if txn.state is T.READY else None)
            for effect in txn.everything:
                asked = effect.review is not None and effect.review.state == "open"
                times.add(effect.review.answer_by if asked and effect.review else None)
                times |= {effect.fire_by, effect.unknown_at} if effect.state is E.REDEEMED else set()
                times.add(effect.lapses_at if effect.state is E.RELEASED else None)
        return sorted(moment for moment in times if moment is not None and moment > self.real.clock())

    def the_clock_is_set_back(self, stretch: int) -> None:
        """As a time server does it; what has ended stays so."""
        self.real.set_back(stretch)
        self.note("time", "set back")

    @may(when=lambda self: self.calm > 2, name=st.sampled_from([*sorted(BUNDLES), "usual", "lax"]))
    def another_bundle(self, name: str) -> None:
        """Stricter, laxer, a tool fewer, other people, another manifest: everything open is asked about again."""
        self.disturbed()
        self.real.catch_up()
        self.tick()
        self.real.do(self.real.activate, BUNDLES[name])
        people.activate(self.book, BUNDLES[name])
        self.commits[name] = self.real.world.service.active.current.commit
        self.note("bundle", name)

    def a_bundle_that_does_not_load(self) -> None:
        """The last good one stays (I-13)."""
        self.tick()
        self.real.do(self.real.activate, None)
        assert self.real.world.service.active.status().error is not None
        self.note("bundle", "broken")

    @may(when=lambda self: self.alive > 7)
    def crash(self) -> None:
        """Everything acknowledged is there (I-7): the next comparison checks it."""
        self.disturbed()
        self.real.catch_up()
        self.tick()
        self.book.bundle.lay(self.real.bundle)  # one that does not load would keep a service from starting
        self.real.crash()
        self.alive = 0
        people.activate(self.book, self.book.bundle)
        self.note("crash", "between requests")

    @may(
        when=lambda self: self.alive > 7,
        how=st.sampled_from(["before", "after"]),
        pick=PICK,
        verb=st.integers(0, 5),
    )
    def crash_in(self, how: str, pick: int, verb: int) -> None:
        """The service dies in a request: it is absent or complete, and repeating it says which (I-7)."""
        self.disturbed()
        with losing(how):
            if verb == 0 and self.submissions:
                self.submit_again(pick, "new key")
            elif verb == 1 and self.batches:
                self.redeem(pick, pick, 9)
            elif verb == 2 and self.book.attempts:
                self.renew(pick, [pick], 0)
            elif verb == 3 and self.book.attempts:
                self.report_anything(pick, pick, E.FIRED, 0)
            elif verb == 4 and self.reviews(open_ones=True):
                self.vote(pick, PEOPLE[pick % len(PEOPLE)], 1, "no", "approve" if pick % 3 else "deny")
            elif self.heads():
                self.withdraw(pick, 0, 1)
        self.crash()
