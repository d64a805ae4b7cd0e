"""Several transactions at once that write into the same database and the same file, in tasks of one process and in two
processes, which are cancelled and killed: none overwrites what another has done, and each ends as it was reported.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.counterparts import postgres
from tests.crash.alone import Life, acts, ended, run
from tests.crash.forking import forked
from tests.crash.in_a_task import ISOLATIONS, Run
from tests.crash.programs import FAILING, FILE, Act, Meant, booking, empty_books, lines_in, rows_in
from tests.crash.reckoning import IN_FORCE, Account, account_of, done_forward, require_true
from tests.crash.test_agent_alone import DATABASE, OPEN_ENDS, POSTGRES, Stage, staged

NUMBERS = {"t-1": 1, "t-2": 2, "t-3": 3}
TURNED_AWAY = {"IsolationConflict", "ResourceBusy"}  # nothing of it remains, because another one was first
_runs = st.builds(Run, key=st.sampled_from([*NUMBERS]), isolation=st.sampled_from([*ISOLATIONS]))
SOME_RUNS = st.lists(_runs, max_size=2)
Json = dict[str, Any]
Said = list[Json]
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"

PLACES = [
    " wrote", "before POST /v1/transactions", "after POST /v1/transactions", "after POST /v1/redemptions",
    " acts", " acted", "before GET /v1/transactions", "live commit",
]  # fmt: skip
"""Where a cancellation matters, by a part of the point's name: in a live tool, around the submission and the
redemption, before and after a staged tool acts, while people are asked, as the live work is committed."""
_numbers = st.integers(1, 60)
POINTS = st.one_of(st.none(), _numbers)
CANCELLED = st.one_of(
    st.builds(lambda place: {"cancelled_at": place}, st.sampled_from(PLACES)),
    st.builds(lambda n: {"cancelled_after": n}, st.integers(1, 12)),  # in most bodies
    st.builds(lambda n: {"cancelled_after": n}, _numbers),
)
ENDS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}), st.builds(lambda n: {"dies_after": n}, _numbers), CANCELLED
)
"""Of one process: its own, or at a point that it passes."""


class Rivals(RuleBasedStateMachine):
    """The steps of one agent on one machine; its processes come and go."""

    def __init__(self, database: str | None = None) -> None:
        super().__init__()
        self._database = database  # where the journal is to be, if not in a file
        self._open = ExitStack()
        self.stage: Stage | None = None
        self.meant: dict[str, Meant] = {}
        self.done: set[str] = set()  # those that were reported as done
        self.begun: dict[str, set[str]] = {}  # all that is begun of those that were stopped

    @initialize(programs=st.tuples(*map(booking, NUMBERS.values())))
    def begin(self, programs: tuple[list[Act], ...]) -> None:
        """A machine, and the program of each key of its agent."""
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="rivals-")))
        if self._database is not None:
            (folder / DATABASE).write_text(self._database)
        self.stage = self._open.enter_context(staged(folder, "program", "machine"))
        written = dict(zip(NUMBERS, programs, strict=True))
        (self.stage.folder / FILE).write_text(json.dumps(written))
        empty_books(self.stage.folder)
        self.meant = {key: Meant(program) for key, program in written.items()}

    # ------------------------------------------------------------------------------------------- what happens

    @rule(here=st.lists(_runs, min_size=1, max_size=3), ends=ENDS, there=SOME_RUNS, others=ENDS)
    def compete(self, here: list[Run], ends: Json, there: list[Run], others: Json) -> None:
        """Some in tasks of one process, some in those of another."""
        runs = [*here, *there]
        before = {key: self.account(key).state for key in NUMBERS}
        self.begun = {key: begun for key, begun in self.begun.items() if key not in {one.key for one in runs}}
        lives = [{"rivals": tuple(here)} | ends] + [
            {"rivals": tuple(there), "name": "other"} | others for _ in there[:1]
        ]
        for one in self._results(lives):
            alone = [run.key for run in runs].count(one["key"]) == 1
            if alone and before[one["key"]] not in IN_FORCE:
                self._believe(one)

    @rule(keys=st.permutations([*NUMBERS]))
    def queue(self, keys: list[str]) -> None:
        """Two in tasks and one in another process, each of which waits until the others are through."""
        self._lives({"resumes": True})
        before = {key: self.account(key).state for key in keys}
        fresh = {
            key for key in keys if before[key] == "none" and not self.meant[key].of(*FAILING)
        } | self.done
        self.begun.clear()
        runs = [Run(key, isolation="Serialize") for key in keys]
        said = self._results([{"rivals": tuple(runs[:2])}, {"rivals": tuple(runs[2:]), "name": "other"}])
        if not {*before.values()} & IN_FORCE:
            assert {one["raised"] for one in said if one["key"] in fresh} <= {None}, (said, before)

    def _results(self, lives: list[dict[str, Any]]) -> Said:
        """What those said that were not killed."""
        said: Said = [one for result in self._lives(*lives) for one in result.get("rivals", ())]
        self.done |= {one["key"] for one in said if one["raised"] is None}
        return said

    def _believe(self, one: dict[str, Any]) -> None:
        """The result of a run whose key no other process ran, and of which nothing was under way before."""
        key, now = one["key"], self.account(one["key"])
        if one["raised"] in TURNED_AWAY and key not in self.done:
            assert (self.world(key), self.live(key)) == ([], []), (one, now)
        if one["raised"] == "CancelledError":
            assert "firing" not in now.states and now.state not in {"frozen", "ready"}, now
            self.begun[key] = done_forward(self.world(key))

    @rule(dies_after=POINTS)
    def resumes(self, dies_after: int | None) -> None:
        """`countersign resume`, in a process of its own."""
        self._lives({"resumes": True, "dies_after": dies_after})

    # ------------------------------------------------------------------------------------ what has to hold

    @invariant()
    def nothing_happens_twice_and_nothing_that_was_done_is_lost(self) -> None:
        """I-1, I-3; a writer appends to what it has read."""
        if self.stage is None:
            return
        world, lines = acts(self.stage.folder), lines_in(self.stage.folder)
        assert len(world) == len({*world}), world
        assert len(lines) == len({*lines}), lines
        for key, meant in self.meant.items():
            rows = rows_in(self.stage.folder, key)
            assert rows in ([], meant.of("note")), (key, rows)
            assert NUMBERS[key] not in lines or meant.of("line"), (key, lines)
            forward = done_forward(self.world(key))
            assert forward <= self.begun.get(key, meant.acts), (key, world)
        for key in self.done:
            self.all_done(key)

    @invariant()
    def the_journal_says_what_is_true(self) -> None:
        """Of each effect, and of the whole."""
        for key in self.meant:
            now = self.account(key)
            require_true(now, self.world(key), self.live(key))
            if now.says_all_done:
                self.all_done(key)

    def all_done(self, key: str) -> None:
        """All effects of the program are there."""
        meant = self.meant[key]
        context = f"{key}: {self.account(key)}, {self.world(key)}, {self.live(key)} of {meant}"
        assert {*self.world(key)} == meant.acts and not meant.of(*FAILING), context
        assert self.live(key) == ["row"] * len(meant.of("note")) + ["line"] * len(meant.of("line")), context

    def teardown(self) -> None:
        """I-14: a resume ends all of them or leaves them to people, and another changes nothing."""
        try:
            if self.stage is not None:
                first = self._resumed()
                for key in NUMBERS:
                    now = self.account(key)
                    assert not now.states & OPEN_ENDS and now.state not in {"staging", "frozen", "ready"}, now
                assert self._resumed() == first
                self.nothing_happens_twice_and_nothing_that_was_done_is_lost()
                self.the_journal_says_what_is_true()
        finally:
            self._open.close()

    # -------------------------------------------------------------------------------------------- looking

    def _lives(self, *lives: dict[str, Any]) -> Said:
        assert self.stage is not None
        orders = [Life(self.stage.folder, self.stage.url, "program", **one) for one in lives]
        processes = [(one, forked(run, one)) for one in orders]
        return [ended(one, process) for one, process in processes]

    def _resumed(self) -> list[object]:
        self._lives({"resumes": True})
        return [(self.account(key), self.world(key), self.live(key)) for key in NUMBERS]

    def account(self, key: str) -> Account:
        assert self.stage is not None
        return account_of(self.stage.folder, key)

    def world(self, key: str) -> list[str]:
        """What happened of one step."""
        assert self.stage is not None
        return [one for one in acts(self.stage.folder) if one.endswith(f":{NUMBERS[key]}")]

    def live(self, key: str) -> list[str]:
        """What remains of its live work."""
        assert self.stage is not None
        rows, lines = rows_in(self.stage.folder, key), lines_in(self.stage.folder)
        return ["row"] * len(rows) + ["line"] * lines.count(NUMBERS[key])


@pytest.mark.parametrize("journals", ["sqlite", POSTGRES])
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_rivals_lose_nothing_and_end_as_reported(journals: str, request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        database: str | None = None
        if journals == "postgresql":
            server = request.getfixturevalue("postgres_server")
            database = stack.enter_context(postgres.database(server)).replace("+psycopg", "")
        stateful.run_state_machine_as_test(
            functools.partial(Rivals, database),  # type: ignore[arg-type] # it is called, and no more
            settings=settings(
                max_examples=100 if LONG else 3,
                stateful_step_count=10 if LONG else 5,
                deadline=None,
                phases=(Phase.explicit, Phase.generate, Phase.target, *((Phase.shrink,) if LONG else ())),
                suppress_health_check=[*HealthCheck],
            ),
        )
