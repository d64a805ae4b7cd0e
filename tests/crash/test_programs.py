"""Random steps of an agent with failures, interrupts, cancellations, deaths and several processes at once, against a
model of the world: each resource ends all done, all undone, or exactly as reported.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from countersign.contract import EffectState, TxnState
from tests.crash.alone import PLAIN, Life, acts, ended, run
from tests.crash.drawing import CANCELLED, ENDS, FAULTS, JOURNALS, POINTS, draw
from tests.crash.forking import forked
from tests.crash.in_a_task import WAYS
from tests.crash.programs import FILE, PROGRAMS, Act, Meant, empty_books, meant, rows_in
from tests.crash.reckoning import (
    DONE,
    IN_FORCE,
    NOT_DONE,
    Account,
    account_of,
    act_of,
    done_forward,
    require_true,
    taken_back,
)
from tests.crash.test_agent_alone import DATABASE, OPEN_ENDS, Stage, staged

KEY = "t-1"
WAIT = 0.3  # seconds, for people who do not answer while a step waits
BUSY = "TransactionBusy"
_ways = st.sampled_from([PLAIN, *WAYS])
_runs = st.builds(lambda way, ends: {"way": way, "wait": WAIT} | ends, _ways, ENDS)


class Programs(RuleBasedStateMachine):
    """One step of one agent on one machine; its processes come and go."""

    def __init__(self, database: str | None = None) -> None:
        super().__init__()
        self._database = database  # where the journal is to be, if not in a file
        self._open = ExitStack()
        self.meant = Meant()
        self.stage: Stage | None = None
        self.begun: set[str] | None = None  # all that is begun of a stopped one before its program runs again

    @initialize(program=PROGRAMS, stopped=st.one_of(st.none(), st.tuples(st.sampled_from(WAYS), CANCELLED)))
    def begin(self, program: list[Act], stopped: tuple[str, dict[str, Any]] | None = None) -> None:
        """A machine, and what its agent is to do; its first run may be cancelled, before there is anything of it."""
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="programs-")))
        if self._database is not None:
            (folder / DATABASE).write_text(self._database)
        self.stage = self._open.enter_context(staged(folder, "program", "machine"))
        self.stage.folder.joinpath(FILE).write_text(json.dumps({KEY: program}))
        empty_books(self.stage.folder)
        self.meant = meant(program)
        if stopped is not None:
            self.runs_in_a_task(*stopped)

    def _run(self, *lives: dict[str, Any]) -> list[dict[str, Any]]:
        """Run the step, and believe what it says."""
        self.begun = None
        said = self._lives(*lives)
        now, world = self.journal(), self.world()
        for one in said:
            if one["raised"] is None:
                assert not self.meant.ends
                assert set(one["outcomes"]) <= {"fired"}, one
                self.all_done()
            told = now.of(one.get("told", {}))
            assert {name for name, how in told.items() if how in DONE} <= {*world}, (one, world)
            if len(said) == 1:
                assert not {name for name, how in told.items() if how in NOT_DONE} & {*world}, (one, world)
        return said

    def was_stopped(self) -> None:
        """A cancelled task leaves nothing under way, and nothing that others begin, unless people are asked already."""
        now = self.journal()
        assert "firing" not in now.states, now
        assert now.state not in {"frozen", "ready"}, now
        if now.state != "review":
            self.begun = done_forward(self.world())

    def _lives(self, *lives: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.stage is not None
        orders = [Life(self.stage.folder, self.stage.url, "program", **one) for one in lives]
        processes = [(one, forked(run, one)) for one in orders]
        return [ended(one, process) for one, process in processes]

    # ------------------------------------------------------------------------------------------- what happens

    @rule(dies_after=POINTS)
    def runs(self, dies_after: int | None) -> None:
        """The step is run, for the first time or again."""
        self._run({"dies_after": dies_after})

    @rule(way=st.sampled_from(WAYS), cancelled=st.one_of(st.just({}), CANCELLED, CANCELLED))
    def runs_in_a_task(self, way: str, cancelled: dict[str, Any]) -> None:
        """The same in asyncio, where its task is cancelled."""
        before, found = self.journal().state, (self.world(), [*self.rows()])
        (said,) = self._run({"way": way, "wait": WAIT} | cancelled)
        if said["raised"] == "CancelledError" and not said["was_whole"]:
            assert (self.world(), [*self.rows()]) == found, (
                "a body that was cancelled leaves nothing of itself"
            )
        if said["raised"] == "CancelledError" and before not in IN_FORCE:
            self.was_stopped()

    @rule(one=_runs, other=_runs)
    def two_runs_at_once(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        """Two processes under one key: one waits for the other, and finds what that did."""
        before = self.journal().state
        said = self._run(one, other | {"name": "other"})
        whole = [one for one in said if one["raised"] is None]
        if len(whole) == len(said) and self.meant.acts:
            assert [one["replayed"] for one in whole].count(False) <= 1, said
        if before == "none" and self.meant.goes_through and not {*one, *other} & FAULTS:
            assert whole and {one["raised"] for one in said} <= {None, BUSY}, said

    @rule(dies_after=POINTS)
    def resumes(self, dies_after: int | None) -> None:
        """`countersign resume`, in a process of its own."""
        self._lives({"resumes": True, "dies_after": dies_after})

    @rule(one=POINTS, other=POINTS)
    def two_at_once(self, one: int | None, other: int | None) -> None:
        """A run and a resume in two processes."""
        self.begun = None  # whoever runs it again means it
        self._lives({"dies_after": one}, {"resumes": True, "dies_after": other, "name": "other"})

    @precondition(lambda self: self.service_has(EffectState.REVIEW))
    @rule(approves=st.booleans())
    def people_answer(self, approves: bool) -> None:
        """Somebody decides what waits."""
        assert self.stage is not None
        service = self.stage.service
        for txn, revisions in service.revisions.items():
            if revisions[-1].state is TxnState.REVIEW:
                (service.approve if approves else service.deny)(txn)

    @precondition(lambda self: self.service_has(EffectState.UNKNOWN))
    @rule()
    def a_person_settles(self) -> None:
        """Somebody looks at the world and says what became of the unknown."""
        assert self.stage is not None
        done = self.world()
        for txn, revisions in self.stage.service.revisions.items():
            for held in revisions[-1].held:
                if held.state is EffectState.UNKNOWN:
                    happened = act_of(held.effect.tool, held.effect.args) in done
                    outcome = EffectState.FIRED if happened else EffectState.FAILED
                    self.stage.service.settle(txn, held.effect.effect_id, outcome)

    # ------------------------------------------------------------------------------------ what has to hold

    @invariant()
    def nothing_happens_twice_and_nothing_nobody_meant(self) -> None:
        """I-1, I-3."""
        if self.stage is None:
            return
        world = self.world()
        assert len(world) == len(set(world)), world
        forward = done_forward(world)
        assert forward <= self.meant.acts, (forward, self.meant)
        assert taken_back(world) <= forward, world
        if self.meant.ends or self.meant.is_denied:
            assert world == []
        assert self.runs_kept() in ({0}, {1})
        if self.begun is not None:
            assert forward <= self.begun, (forward, self.begun)

    @invariant()
    def the_journal_says_what_is_true(self) -> None:
        """Of each effect, and of the whole."""
        if self.stage is None:
            return
        now = self.journal()
        require_true(now, self.world(), [*self.rows()])
        if now.says_all_done:
            self.all_done()

    def all_done(self) -> None:
        """Everything that was meant has happened, once."""
        assert {*self.world()} == self.meant.acts
        if self.meant.rows:
            assert self.runs_kept() == {1}

    def runs_kept(self) -> set[int]:
        """How often the rows of the step stand: once or not at all, and never some of them."""
        meant, found = Counter(self.meant.rows), Counter(self.rows())
        assert found.keys() <= meant.keys(), (found, meant)
        times = {found[n] / meant[n] for n in meant} or {0}
        assert len(times) == 1, f"half of it stands: {found} of {meant}"
        return {int(one) for one in times}

    def teardown(self) -> None:
        """I-14: whatever happened, a resume ends it or leaves it to people, and another changes nothing."""
        try:
            if self.stage is not None:
                self._lives({"resumes": True})
                first = (self.journal(), self.world(), [*self.rows()])
                assert not first[0].states & OPEN_ENDS, first
                self._lives({"resumes": True})
                assert (self.journal(), self.world(), [*self.rows()]) == first
                self.nothing_happens_twice_and_nothing_nobody_meant()
                self.the_journal_says_what_is_true()
        finally:
            self._open.close()

    # -------------------------------------------------------------------------------------------- looking

    def service_has(self, state: EffectState) -> bool:
        """Whether there is something for people to do."""
        revisions = self.stage.service.revisions.values() if self.stage else ()
        return any(held.state is state for every in revisions for held in every[-1].held)

    def world(self) -> list[str]:
        assert self.stage is not None
        return acts(self.stage.folder)

    def rows(self) -> Iterator[int]:
        assert self.stage is not None
        return rows_in(self.stage.folder, KEY)

    def journal(self) -> Account:
        assert self.stage is not None
        return account_of(self.stage.folder, KEY)


@JOURNALS
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_whatever_happens_each_resource_ends_all_done_all_undone_or_exactly_as_reported(
    journals: str, request: pytest.FixtureRequest
) -> None:
    draw(Programs, journals, request, few=5, many=150)
