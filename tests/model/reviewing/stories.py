"""One short story for each rule of a review, played by the machine's own moves: what luck would have to find else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from tests.fakes.payments import person
from tests.model.real import losing
from tests.model.reviewing import people
from tests.model.reviewing.agents import AGENT
from tests.model.reviewing.base import Reviews
from tests.model.reviewing.book import Call, Effect, Revision
from tests.model.reviewing.laws import STAFF, Laws

ONE, TWO, LETTER = Call("pay", 500), Call("pay", 5_000), Call("mail", 1)


class Teller(Reviews):
    """The machine, told what to do; every step is compared and checked."""

    def note(self, verb: str, what: str) -> None:
        """There are no statistics of one play."""

    def put_in_force(self, laws: Laws, *, asked: bool) -> None:
        """Other laws; what is open is asked about at once, or a while later."""
        if self.unasked:
            self.ask_about_open()
        self.tick()
        self.real.do(self.real.put_in_force, laws)
        self.book.laws, self.unasked = laws, True
        if asked:
            self.ask_about_open()

    def ask_about_open(self) -> None:
        """The laws in force are asked about everything that is open."""
        self.book.now = self.real.clock()
        self.real.do(self.real.ask_about_open)
        people.ask_about_open(self.book)
        self.unasked = False

    def without(self, who: str, group: str) -> Laws:
        """These laws, with somebody gone from a group."""
        staff = self.book.laws.staff
        rest = tuple(name for name in staff[group] if name != who)
        return replace(self.book.laws, staff={**staff, group: rest})

    def revoke(self, who: str) -> None:
        """Somebody decides nothing any more; or does again, with the old votes gone."""
        self.tick()
        key = {"person": person(who), "reason": "because"}
        if who in self.book.revoked:
            self.real.do(self.real.world.operator, "reinstate-approver", key)
            self.book.revoked.discard(who)
            return
        told = self.real.do(self.real.world.operator, "revoke-approver", key)
        assert told["votes"] == people.revoke(self.book, who)

    def crash(self) -> None:
        """Whatever was acknowledged is there (I-7). A start asks about what is open."""
        self.tick()
        self.real.crash()
        people.ask_about_open(self.book)
        self.unasked = False

    def begin(self) -> None:
        """Everything as at first."""
        for who in sorted(self.book.revoked):
            self.revoke(who)
        self.put_in_force(Laws(), asked=True)

    def check(self) -> None:
        """What is checked after every step of a game."""
        self.look()
        self.i8_every_transition_has_exactly_one_audit_row_and_the_reverse()

    def asked(self, *calls: Call) -> tuple[Revision, Effect]:
        """Something new waits."""
        run = self.fresh("run")
        self._submit(run, calls)
        self.check()
        revision = next(known[-1] for known in self.book.revisions.values() if known[-1].run == run)
        return revision, revision.effects[0]

    def votes(self, revision: Revision, effect: Effect, *names: str, verdict: str = "approve") -> None:
        """They answer, one after the other."""
        for who in names:
            self._vote(who, revision, effect, verdict, "because")
            self.check()

    def signs(self, revision: Revision, effect: Effect, *names: str) -> None:
        """They break the glass."""
        for who in names:
            read = self._read(who, self.row_of(revision, effect)[0])
            self._sign(who, revision, effect, "it burns", read)
            self.check()

    def edited(self, revision: Revision, effect: Effect, who: str, amount: int, by: str = AGENT) -> Revision:
        """Other arguments are proposed and accepted; the revision in force."""
        self._propose(who, revision, effect, amount, words := self.fresh("rather"))
        self.check()
        assert effect.review is not None
        proposal = next(p for p in effect.review.proposals if p.words == words)
        self._answer_proposal("accept", by, revision, effect, proposal)
        self.check()
        return self.book.head(revision.id)

    def let_go(self) -> Revision:
        """People have said yes, and the releases are out."""
        revision, effect = self.asked(ONE)
        self.votes(revision, effect, "maya")
        assert self._release(revision)
        return revision

    def spent(self) -> None:
        """The newest releases come back."""
        self._redeem(self.batches[-1], self.fresh("attempt"))
        self.check()


def whoever_edits_does_not_vote(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    head = m.edited(revision, effect, "maya", 5_000)
    m.votes(head, head.effects[0], "maya", "tomas")


def a_vote_on_the_old_revision_is_dead(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    m.votes(revision, effect, "maya")
    head = m.edited(revision, effect, "tomas", 500, by="jonas")
    m.votes(revision, effect, "maya")
    m.votes(head, head.effects[0], "maya")


def a_release_of_the_old_revision_is_dead(m: Teller) -> None:
    revision = m.let_go()
    m._submit(revision.run, (Call("pay", 10),))
    m.check()
    m.spent()


def nobody_serves_two_gates(m: Teller) -> None:
    m.put_in_force(Laws("wide"), asked=True)
    m.votes(*m.asked(ONE), "tomas", "maya")


def a_revoked_vote_is_gone(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    m.votes(revision, effect, "maya")
    m.revoke("maya")
    m.votes(revision, effect, "tomas")
    m.revoke("maya")
    m.let_go()
    m.revoke("maya")
    m.spent()


def who_left_the_group_is_gone(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    m.votes(revision, effect, "maya")
    m.let_go()
    m.put_in_force(m.without("maya", "finance"), asked=False)
    m.votes(revision, effect, "tomas")
    m.spent()


def whom_policy_bars_is_gone(m: Teller) -> None:
    m.let_go()
    m.put_in_force(replace(m.book.laws, barred=frozenset({"maya"})), asked=False)
    m.spent()


def what_is_over_is_not_approved(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    assert effect.review is not None
    m._stand_at(effect.review.answer_by)
    m.votes(revision, effect, "maya")


def escalation_lowers_nothing(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    assert effect.review is not None
    m._stand_at(min(effect.review.escalates.values()))
    m.sweep()
    m.check()
    m.votes(revision, effect, "ingrid", "wim")


def a_gate_that_fires_late_is_asked_too(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    m.put_in_force(Laws("legal too"), asked=True)
    m.check()
    m.votes(revision, effect, "tomas", "ingrid")


def other_gates_take_none_back(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    m.put_in_force(Laws("lax"), asked=True)
    m.check()
    m.votes(revision, effect, "maya")
    m.put_in_force(Laws("more of them"), asked=True)
    m.check()
    m.votes(revision, effect, "tomas")


def policy_is_asked_again_when_it_is_spent(m: Teller) -> None:
    m.let_go()
    m.put_in_force(Laws("closed"), asked=False)
    m.spent()


def two_break_the_glass(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    m.signs(revision, effect, "ingrid", "maya")
    assert m._release(revision)
    m.spent()


def one_breaks_it_alone(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    m.signs(revision, effect, "jonas", "wim")
    assert m._release(revision)
    m.real.clock.pass_(seconds=901)
    m.sweep()
    m.check()


def a_no_is_final(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    m.votes(revision, effect, "maya", verdict="deny")
    m.votes(revision, effect, "tomas")
    m._submit(revision.run, tuple(revision.calls))
    m.check()


def the_owner_does_not_vote(m: Teller) -> None:
    m.votes(*m.asked(ONE), "jonas")


def what_is_proposed_lapses(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    m._propose("maya", revision, effect, 10, words := m.fresh("rather"))
    m.votes(revision, effect, "tomas")
    assert effect.review is not None
    proposal = next(p for p in effect.review.proposals if p.words == words)
    m._answer_proposal("accept", AGENT, revision, effect, proposal)
    m.check()
    revision, effect = m.asked(ONE)
    m._propose("maya", revision, effect, 10, m.fresh("rather"))
    m.revoke("maya")
    assert effect.review is not None
    m._answer_proposal("accept", AGENT, revision, effect, effect.review.proposals[0])
    m.check()
    m.revoke("maya")


def what_is_declined_is_closed(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    assert effect.review is not None
    for who in (AGENT, "jonas", "maya", "tomas"):
        m._propose("maya", revision, effect, 10, m.fresh("rather"))
        proposal = effect.review.proposals[-1]
        for verb in ("decline", "decline", "accept"):
            m._answer_proposal(verb, who, revision, effect, proposal)
            m.check()


def what_nobody_can_meet_is_escalated_at_once(m: Teller) -> None:
    m.put_in_force(Laws("wide", {**STAFF, "finance": ("maya",), "cfo": ()}), asked=True)
    m.votes(*m.asked(ONE), "maya", "ingrid")
    m.put_in_force(Laws(staff={**STAFF, "finance": ("maya",), "board": ()}), asked=True)
    m.asked(TWO)
    m.put_in_force(Laws(), asked=True)
    m.tick()
    m.sweep()
    m.check()


def the_service_dies(m: Teller) -> None:
    revision, effect = m.asked(TWO)
    for how, who in (("after", "maya"), ("before", "tomas")):
        with losing(how):
            m._vote(who, revision, effect, "approve", "because")
        m.crash()
        m.check()
    m._propose("tomas", revision, effect, 500, m.fresh("rather"))
    assert effect.review is not None
    for how in ("before", "after"):
        with losing(how):
            m._answer_proposal("accept", AGENT, revision, effect, effect.review.proposals[0])
        m.crash()
        m.check()
    head = m.book.head(revision.id)
    m.votes(head, head.effects[0], "tomas", "maya")


def the_other_effect_still_waits(m: Teller) -> None:
    revision, effect = m.asked(ONE, LETTER)
    m.votes(revision, effect, "maya")
    m._release(revision)
    m.votes(revision, revision.effects[1], "ingrid")
    m._release(revision)
    m.real.clock.pass_(seconds=timedelta(hours=1).total_seconds())
    m.spent()


def words_decide_nothing(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    assert effect.review is not None
    for who, question in (("maya", True), ("jonas", False), ("jonas", True), ("wim", True)):
        m._write(who, revision, effect, m.fresh("words"), question=question)
        m.check()
    for words in ("it broke", "it broke", "it did not"):
        m._answer(revision, effect, effect.review.comments[0], words)
        m.check()


def what_is_said_again_changes_nothing(m: Teller) -> None:
    revision = m.let_go()
    for attempt in ("first", "first", "second"):
        m._submit(revision.run, tuple(revision.calls))
        m._redeem(m.batches[-1], attempt)
        m.check()
    m._submit(revision.run, (TWO,))
    m._release(revision)
    m.check()


def what_may_not_be_proposed_or_written_is_refused(m: Teller) -> None:
    revision, effect = m.asked(ONE)
    wishes = (("wim", 10, "no"), ("maya", 10, None), ("maya", 500, "same"), *[("maya", 10, "less")] * 2)
    for who, amount, words in (*wishes, ("maya", 60, "more")):
        m._propose(who, revision, effect, amount, words)
        m.check()
    m.revoke("tomas")
    m._propose("tomas", revision, effect, 10, "revoked")
    m._write("tomas", revision, effect, "revoked", question=True)
    m.votes(revision, effect, "maya", "maya")
    m._propose("maya", revision, effect, 10, "late")
    m._write("maya", revision, effect, "late", question=True)
    m.check()


STORIES: tuple[Callable[[Teller], None], ...] = (
    whoever_edits_does_not_vote, a_vote_on_the_old_revision_is_dead, a_release_of_the_old_revision_is_dead,
    nobody_serves_two_gates, a_revoked_vote_is_gone, who_left_the_group_is_gone, whom_policy_bars_is_gone,
    what_is_over_is_not_approved, escalation_lowers_nothing, a_gate_that_fires_late_is_asked_too,
    other_gates_take_none_back, policy_is_asked_again_when_it_is_spent, two_break_the_glass, one_breaks_it_alone,
    a_no_is_final, the_owner_does_not_vote, what_is_proposed_lapses, what_is_declined_is_closed,
    what_nobody_can_meet_is_escalated_at_once, the_service_dies, the_other_effect_still_waits, words_decide_nothing,
    what_is_said_again_changes_nothing, what_may_not_be_proposed_or_written_is_refused,
)  # fmt: skip
