"""How a machine is played: how often, how long, and on which database."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.counterparts import postgres

Databases = Callable[[], AbstractContextManager[dict[str, str]]]
LONG = settings().max_examples > 1_000  # HYPOTHESIS_PROFILE=long


def play(machine: type[RuleBasedStateMachine], seeds: int, steps: int) -> None:
    """Let it play. Eight runs for each seed: in more, Hypothesis would play variations of what it has played. In the
    short suite it is four: what shows that the machine still fits the service.
    """
    first = random.getrandbits(32) if LONG else 0
    played = settings(
        max_examples=8 if LONG else 4,  # the simplest, the empty one, and those that are drawn
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        deadline=None,
        derandomize=False,
        database=None,
    )
    for number in range(first, first + seeds):
        print(f"seed {number}")  # printed when it fails
        run_state_machine_as_test(seed(number)(machine), settings=played)


def databases_on(request: pytest.FixtureRequest, engine: str) -> Databases:
    """The settings of a fresh database for each run of a machine."""

    @contextmanager
    def sqlite() -> Iterator[dict[str, str]]:
        yield {}

    @contextmanager
    def postgresql() -> Iterator[dict[str, str]]:
        server = request.getfixturevalue("postgres_server")
        with postgres.database(server, request.getfixturevalue("migrated_template")) as url:
            yield {"database_url": url}

    return sqlite if engine == "sqlite" else postgresql
