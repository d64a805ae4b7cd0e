"""How a machine is played: what may happen next is drawn by one rule from everything that is possible then.

With a Hypothesis rule for each verb most verbs would be left out of most runs, and little would ever be both approved
and spent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.counterparts import postgres

F = TypeVar("F", bound=Callable[..., None])
Databases = Callable[[], AbstractContextManager[dict[str, str]]]
PICK = st.integers(0, 1_000)
LONG = settings().max_examples > 1_000  # HYPOTHESIS_PROFILE=long


@dataclass(frozen=True)
class Move:
    """Something somebody may do: when, how often as against the others, and with what drawn."""

    when: Callable[[Any], Any]
    often: int
    drawn: Mapping[str, st.SearchStrategy[Any]]


class Moves:
    """Everything that may happen in one machine."""

    def __init__(self) -> None:
        self._moves: dict[str, Move] = {}

    def may(
        self, *, when: Callable[[Any], Any] = lambda _: True, often: int = 1, **drawn: st.SearchStrategy[Any]
    ) -> Callable[[F], F]:
        """Mark a method as something that may happen next."""

        def mark(method: F) -> F:
            self._moves[method.__name__] = Move(when, often, drawn)
            return method

        return mark

    def make_one(self, machine: RuleBasedStateMachine, data: st.DataObject) -> None:
        """Draw what happens, and with what, and let it happen."""
        possible = [
            name for name, move in self._moves.items() for _ in range(move.often) if move.when(machine)
        ]
        name = data.draw(st.sampled_from(possible), label="what happens")
        drawn = data.draw(st.fixed_dictionaries(dict(self._moves[name].drawn)), label="with")
        getattr(machine, name)(**drawn)


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
        print(f"seed {number}")  # told when it fails
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
