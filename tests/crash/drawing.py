"""How state machines are drawn: a few short ones every day, many long ones on both engines in `make test-long`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.counterparts import postgres

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
FAULTS = {"dies_after", "cancelled_after", "cancelled_at"}
JOURNALS = pytest.mark.parametrize(
    "journals",
    ["sqlite", pytest.param("postgresql", marks=[pytest.mark.long, pytest.mark.xdist_group("postgresql")])],
)

PLACES = {
    "in a live tool": " wrote",
    "as the submission is sent": "before POST /v1/transactions",
    "as the submission was answered": "after POST /v1/transactions",
    "as the redemption was answered": "after POST /v1/redemptions",
    "before a staged tool acts": " acts",
    "after a staged tool acted": " acted",
    "while people are asked": "before GET /v1/transactions",
    "as the live work is committed": "live commit",
}
"""Where a cancellation matters, by a part of the point's name."""

POINTS = st.one_of(st.none(), st.integers(1, 60))
_numbers = st.integers(1, 60)
CANCELLED = st.one_of(
    st.builds(lambda place: {"cancelled_at": PLACES[place]}, st.sampled_from([*PLACES])),
    st.builds(lambda n: {"cancelled_after": n}, st.integers(1, 12)),  # in most bodies
    st.builds(lambda n: {"cancelled_after": n}, _numbers),
)
ENDS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}), st.builds(lambda n: {"dies_after": n}, _numbers), CANCELLED
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
