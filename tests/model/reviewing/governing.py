"""What operators, policy authors, time and trouble do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from hypothesis import strategies as st

from countersign.contract import EffectState, TxnState
from tests.fakes.payments import person
from tests.model.machine import PICK, may
from tests.model.real import losing
from tests.model.reviewing import people
from tests.model.reviewing.book import Revision
from tests.model.reviewing.deciding import PeopleDecide
from tests.model.reviewing.laws import PEOPLE, RULES, STAFF, Laws

E, T = EffectState, TxnState
CHANGES = [
    "rules",
    "rules",
    "somebody leaves",
    "somebody leaves",
    "somebody joins",
    "barred",
    "glass",
    "as before",
]
GROUPS = sorted(STAFF)
BETWEEN = [
    "a voter leaves", "a voter is revoked", "a voter is barred", "the rules change", "the time is over",
    "the token is old", "another list", "nothing",
]  # fmt: skip


class EverybodyDecides(PeopleDecide):
    """Laws change, people come and go, time passes, the service dies."""

    # -- laws ------------------------------------------------------------------------------------------------

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
        return replace(self.book.laws, staff=_with(staff, group, [n for n in staff[group] if n != who]))

    @may(
        when=lambda self: self.calm > 2, what=st.sampled_from(CHANGES), pick=PICK, rules=st.sampled_from(sorted(RULES)),
        group=st.sampled_from(GROUPS), who=st.sampled_from(PEOPLE), asked=st.integers(0, 2),
    )  # fmt: skip
    def the_laws_change(self, what: str, pick: int, rules: str, group: str, who: str, asked: int) -> None:
        """Other gates, other people in the groups, somebody barred, no more break-glass; or all as at first."""
        self.disturbed()
        laws = self.book.laws
        if what == "rules":
            laws = replace(laws, rules=rules)
        elif what == "somebody leaves":
            members = laws.staff[group]
            laws = self.without(members[pick % len(members)], group) if members else laws
        elif what == "somebody joins":
            laws = replace(laws, staff=_with(laws.staff, group, {*laws.staff[group], who}))
        elif what == "barred":
            laws = replace(laws, barred=laws.barred ^ {who})
        elif what == "glass":
            laws = replace(laws, glass=not laws.glass)
        else:
            laws = Laws()
        self.note("laws", what)
        self.put_in_force(laws, asked=asked > 0)

    @may(when=lambda self: self.unasked)
    def what_is_open_is_asked_about(self) -> None:
        """The second half of an activation, a while after the first."""
        self.ask_about_open()

    # -- operators -------------------------------------------------------------------------------------------

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

    @may(when=lambda self: self.calm > 3 or self.book.revoked, who=st.sampled_from(PEOPLE))
    def revoked_or_reinstated(self, who: str) -> None:
        """Whoever is out comes back first."""
        self.disturbed()
        self.note("operator", "reinstates" if self.book.revoked else "revokes")
        self.revoke(min(self.book.revoked, default=who))

    # -- between a release and its redemption ----------------------------------------------------------------

    def reviewed(self) -> list[Revision]:
        """What is ready because people said so."""
        return [r for r in self.heads(T.READY) if any(effect.gates for effect in r.effects)]

    @may(often=4, when=lambda self: self.reviewed(), what=st.sampled_from(BETWEEN), pick=PICK)
    def something_happens_before_it_is_spent(self, what: str, pick: int) -> None:
        """What was true when people let it go need not be true when it is spent."""
        revision = (found := self.reviewed())[pick % len(found)]
        if not self._release(revision):
            return
        batch = self.batches[-1]
        self.between(what, pick, revision)
        self.note("before it is spent", what)
        self._redeem(batch, self.fresh("attempt"))

    def between(self, what: str, pick: int, revision: Revision) -> None:
        """Something that a redemption has to see."""
        laws = self.book.laws
        cast = [v.person for e in revision.effects if e.review for v in e.review.votes if v.stands]
        voter = cast[pick % len(cast)] if cast else PEOPLE[pick % len(PEOPLE)]
        groups = sorted(laws.groups_of(voter))
        if what == "a voter leaves" and groups:
            self.put_in_force(self.without(voter, groups[pick % len(groups)]), asked=False)
        elif what == "a voter is revoked" and voter not in self.book.revoked:
            self.revoke(voter)
        elif what == "a voter is barred":
            self.put_in_force(replace(laws, barred=laws.barred | {voter}), asked=False)
        elif what == "the rules change":
            self.put_in_force(replace(laws, rules=sorted(RULES)[pick % len(RULES)]), asked=False)
        elif what == "the time is over" and revision.valid_until is not None:
            self._stand_at(max(self.real.clock(), revision.valid_until))
        elif what == "the token is old":
            self.real.clock.pass_(seconds=121)
        elif what == "another list":
            self.submit(int(revision.run[-1]), pick % 6)

    # -- time and trouble ------------------------------------------------------------------------------------

    def deadlines(self) -> list[datetime]:
        """Moments to come at which something happens by itself."""
        times = {r.valid_until for r in self.heads(T.READY) if r.valid_until is not None}
        for _, _, review in self.questions(open_ones=True):
            times |= {review.answer_by, *review.escalates.values()}
        return sorted(moment for moment in times if moment > self.real.clock())

    @may()
    def the_timers_run(self) -> None:
        """Whatever is due."""
        self.tick()
        self.sweep()

    @may(when=lambda self: self.calm > 7)
    def crash(self) -> None:
        """Whatever was acknowledged is there (I-7): the next comparison says so. A start asks about what is open."""
        self.disturbed()
        self.tick()
        self.real.crash()
        people.ask_about_open(self.book)
        self.unasked = False
        self.note("crash", "done")

    @may(
        when=lambda self: self.calm > 5,
        how=st.sampled_from(["before", "after"]),
        pick=PICK,
        verb=st.integers(0, 7),
    )
    def crash_in(self, how: str, pick: int, verb: int) -> None:
        """The service dies in a request: it is absent or complete, and the next comparison says which (I-7)."""
        self.dying = True
        who = PEOPLE[pick % len(PEOPLE)]
        with losing(how):
            if verb == 0 and self.batches:
                self.redeem(pick, True, 7)
            elif verb == 1 and self.proposals("open"):
                self.answer_a_proposal(pick, 1, "accept", "robot")
            elif verb == 2 and self.proposals("open"):
                self.answer_a_proposal(pick, 1, "decline", "robot")
            elif verb == 3 and self.questions(open_ones=True):
                self.propose(pick, who, 1, (10, 60, 500, 5_000)[pick % 4], 9)
            elif verb == 4 and self.questions(open_ones=True):
                self.write(pick, who, bool(pick % 2), same=False)
            elif verb < 7 and self.questions(open_ones=True):
                self.vote(pick, who, 1, "approve" if pick % 3 else "deny", "because")
            else:
                self.submit(pick % 3, pick % 6)
        self.dying = False
        self.crash()


def _with(staff: Mapping[str, tuple[str, ...]], group: str, members: Any) -> dict[str, tuple[str, ...]]:
    return {**staff, group: tuple(sorted(members))}
