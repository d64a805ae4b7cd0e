"""How state machines are drawn: a few short ones every day, many long ones on both engines in `make test-long`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.counterparts import postgres

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
FAULTS = {"dies_after", "cancelled_after"}
JOURNALS = pytest.mark.parametrize(
    "journals",
    ["sqlite", pytest.param("postgresql", marks=[pytest.mark.long, pytest.mark.xdist_group("postgresql")])],
)

POINTS = st.one_of(st.none(), st.integers(1, 60))
ENDS = st.one_of(
    st.just({}), *[st.builds(lambda n, how=how: {how: n}, st.integers(1, 60)) for how in sorted(FAULTS)]
)
"""Of one process: its own, or at a point that it passes."""


def draw(
    machine: Callable[[str | None], RuleBasedStateMachine],
    journals: str,
    request: pytest.FixtureRequest,
    *,
    few: int,
    many: int,
) -> None:
    """Run a machine, which is given the database that its journal is to be in, if not in a file."""
    with ExitStack() as stack:
        database: str | None = None
        if journals == "postgresql":
            server = request.getfixturevalue("postgres_server")
            database = stack.enter_context(postgres.database(server)).replace("+psycopg", "")
        run_state_machine_as_test(
            functools.partial(machine, database),  # type: ignore[arg-type] # it is called, and no more
            settings=settings(
                max_examples=many if LONG else few,
                stateful_step_count=10 if LONG else 5,
                deadline=None,
                phases=(Phase.explicit, Phase.generate, Phase.target, *((Phase.shrink,) if LONG else ())),
                suppress_health_check=[*HealthCheck],
            ),
        )
