"""Random steps of an agent with failures, interrupts, deaths and several processes at once, against a model of the
world: each resource ends all done, all undone, or exactly as reported.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from countersign.contract import EffectState, TxnState
from countersign.journal import Journal
from tests.crash.alone import Life, acts, ended, run
from tests.crash.forking import forked
from tests.crash.programs import BOOKS, FILE, PROGRAMS, Act, Meant, meant, rows_in
from tests.crash.test_agent_alone import OPEN_ENDS, Stage, staged

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
_points = st.one_of(st.none(), st.integers(1, 60))

DONE = {"fired", "compensating", "compensation_failed"}
NOT_DONE = {
    "staged",
    "review",
    "released",
    "denied",
    "expired",
    "withdrawn",
    "revoked",
    "redeemed",
    "failed",
    "unused",
}


class Programs(RuleBasedStateMachine):
    """One step of one agent on one machine; its processes come and go."""

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self.meant = Meant()
        self.stage: Stage | None = None

    @initialize(program=PROGRAMS)
    def begin(self, program: list[Act]) -> None:
        """A machine, and what its agent is to do."""
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="programs-")))
        self.stage = self._open.enter_context(staged(folder, "program", "machine"))
        self.stage.folder.joinpath(FILE).write_text(json.dumps(program))
        with closing(sqlite3.connect(self.stage.folder / BOOKS)) as books:
            books.execute("DROP TABLE IF EXISTS books")
            books.execute("CREATE TABLE books (step TEXT, order_id TEXT)")
            books.commit()
        self.meant = meant(program)

    def _lives(self, *lives: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.stage is not None
        orders = [Life(self.stage.folder, self.stage.url, "program", **one) for one in lives]
        processes = [(one, forked(run, one)) for one in orders]
        return [ended(one, process) for one, process in processes]

    # ------------------------------------------------------------------------------------------- what happens

    @rule(dies_after=_points)
    def runs(self, dies_after: int | None) -> None:
        """The step is run, for the first time or again."""
        (said,) = self._lives({"dies_after": dies_after})
        if said["raised"] is None:
            assert not self.meant.ends
            assert set(said["outcomes"]) <= {"fired"}, said
            self.all_done()

    @rule(dies_after=_points)
    def resumes(self, dies_after: int | None) -> None:
        """`countersign resume`, in a process of its own."""
        self._lives({"resumes": True, "dies_after": dies_after})

    @rule(one=_points, other=_points)
    def two_at_once(self, one: int | None, other: int | None) -> None:
        """A run and a resume in two processes."""
        self._lives({"dies_after": one}, {"resumes": True, "dies_after": other, "name": "other"})

    @rule(approves=st.booleans())
    def people_answer(self, approves: bool) -> None:
        """Somebody decides what waits."""
        assert self.stage is not None
        service = self.stage.service
        for txn, revisions in service.revisions.items():
            if revisions[-1].state is TxnState.REVIEW:
                (service.approve if approves else service.deny)(txn)

    @rule()
    def a_person_settles(self) -> None:
        """Somebody looks at the world and says what became of the unknown."""
        assert self.stage is not None
        done = acts(self.stage.folder)
        for txn, revisions in self.stage.service.revisions.items():
            for held in revisions[-1].held:
                if held.state is EffectState.UNKNOWN:
                    happened = _act_of(held.effect.tool, held.effect.args) in done
                    outcome = EffectState.FIRED if happened else EffectState.FAILED
                    self.stage.service.settle(txn, held.effect.effect_id, outcome)

    # ------------------------------------------------------------------------------------ what has to hold

    @invariant()
    def nothing_happens_twice_and_nothing_nobody_meant(self) -> None:
        """I-1, I-3."""
        if self.stage is None:
            return
        world = acts(self.stage.folder)
        assert len(world) == len(set(world)), world
        forward = {one for one in world if not one.startswith("void")}
        assert forward <= self.meant.acts, (forward, self.meant)
        assert {one.replace("void", "charge") for one in world if one.startswith("void")} <= forward, world
        if self.meant.ends or self.meant.is_denied:
            assert world == []
        assert self.runs_kept() in ({0}, {1})

    @invariant()
    def the_journal_says_what_is_true(self) -> None:
        """Of each effect, and of the whole."""
        if self.stage is None:
            return
        world, rows = acts(self.stage.folder), [*self.rows()]
        state, effects = self.journal()
        told = f"{state}, {effects}, {world}, {rows} rows"
        for name, one in effects:
            if one in DONE:
                assert name in world, told
            if one == "compensated":
                assert {name, name.replace("charge", "void")} <= {*world}, told
            if one in NOT_DONE:
                assert name not in world, told
        if state == "settled" and {one for _, one in effects} <= {"fired"}:
            self.all_done()
        elif state in {"settled", "ended"}:
            taken_back = {one.replace("void", "charge") for one in world if one.startswith("void")}
            assert {one for one in world if not one.startswith("void")} == taken_back, told
            assert rows == [], told

    def all_done(self) -> None:
        """Everything that was meant has happened, once."""
        assert self.stage is not None
        assert {*acts(self.stage.folder)} == self.meant.acts
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
                first = (self.journal(), acts(self.stage.folder), [*self.rows()])
                assert not {state for _, state in first[0][1]} & OPEN_ENDS, first
                self._lives({"resumes": True})
                assert (self.journal(), acts(self.stage.folder), [*self.rows()]) == first
                self.nothing_happens_twice_and_nothing_nobody_meant()
                self.the_journal_says_what_is_true()
        finally:
            self._open.close()

    # -------------------------------------------------------------------------------------------- looking

    def rows(self) -> Iterator[int]:
        assert self.stage is not None
        return rows_in(self.stage.folder, "t-1")

    def journal(self) -> tuple[str, list[tuple[str, str]]]:
        """The state of the step, and of each of its effects by the name the world has for it."""
        assert self.stage is not None
        opened = Journal(self.stage.folder / "journal.db")
        try:
            found = opened.transactions.find("t-1")
            if not found:
                return "none", []
            rows = opened.transactions.effects(found[0]) if found[0].staging else ()
            effects = [(_act_of(one.tool, one.frozen().args), one.state.value) for one in rows]
            return found[0].state.value, effects
        finally:
            opened.close()


def _act_of(name: str, args: dict[str, Any]) -> str:
    """What the world's log says of an effect."""
    amount = f"/{args['amount_cents']}" if "amount_cents" in args else ""
    return f"{name}{amount}:{args['order_id']}"


@pytest.mark.deep
@pytest.mark.timeout(3_600)
def test_whatever_happens_each_resource_ends_all_done_all_undone_or_exactly_as_reported() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Programs,
        settings=settings(
            max_examples=150 if LONG else 5,
            stateful_step_count=10 if LONG else 5,
            deadline=None,
            phases=(Phase.explicit, Phase.generate, Phase.target, *((Phase.shrink,) if LONG else ())),
            suppress_health_check=[*HealthCheck],
        ),
    )
