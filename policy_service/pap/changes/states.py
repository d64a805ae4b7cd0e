"""What a set of answers amounts to for both bundles, and how the answers of several parts go together.

A state is everything of the policies' answers that the outcome depends on. Rules kept here: a state that is a deny by a
plain forbid on both sides can show no difference and is dropped; of states that differ only in unchanged gates the
ones with fewer are kept, because an unchanged gate that fires on both sides can hide a difference and never makes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from policy_service.pap.changes.paths import Path

MAX_STATES: Final = 4_000
"""How many different states are followed; beyond it the result is sampled."""


@dataclass(frozen=True, slots=True)
class Half:
    """One bundle's answers: the unseen sets of satisfied permits, whether a plain forbid holds, which gates fired,
    whether something erred or the manifest refused the call.
    """

    permits: frozenset[frozenset[str]] = frozenset()
    forbidden: bool = False
    gates: frozenset[str] = frozenset()
    refused: bool = False

    def with_(self, other: Half) -> Half:
        """Both together."""
        return Half(
            self.permits | other.permits,
            self.forbidden or other.forbidden,
            self.gates | other.gates,
            self.refused or other.refused,
        )

    @property
    def denies(self) -> bool:
        """Whether nothing could make this anything but a deny."""
        return self.forbidden or self.refused


@dataclass(frozen=True, slots=True)
class State:
    """Both bundles' answers, and an assignment that gives them."""

    halves: tuple[Half, Half]
    witness: Mapping[Path, Any] = field(compare=False, hash=False)

    def with_(self, other: State) -> State:
        """Both parts' answers together, with a witness of both."""
        halves = (self.halves[0].with_(other.halves[0]), self.halves[1].with_(other.halves[1]))
        return State(halves, {**self.witness, **other.witness})


def together(parts: Iterable[Iterable[State]], unchanged: frozenset[str]) -> tuple[list[State], bool]:
    """The states of the whole from those of its parts, and whether all were followed."""
    whole, complete = [State((Half(), Half()), {})], True
    for part in parts:
        kept: dict[tuple[Half, Half], State] = {}
        for state in part:
            for one in whole:
                both = one.with_(state)
                if not (both.halves[0].denies and both.halves[1].denies):
                    kept.setdefault(both.halves, both)
        whole = _least(list(kept.values()), unchanged)
        if len(whole) > MAX_STATES:
            whole, complete = whole[:MAX_STATES], False
    return whole, complete


def _least(states: list[State], unchanged: frozenset[str]) -> list[State]:
    """Of states alike but for unchanged gates, those with no fewer beside them."""
    alike: dict[Any, list[State]] = {}
    for state in states:
        before, after = state.halves
        key = (
            before.permits,
            before.denies,
            before.gates - unchanged,
            after.permits,
            after.denies,
            after.gates - unchanged,
        )
        alike.setdefault(key, []).append(state)
    kept: list[State] = []
    for group in alike.values():
        group.sort(key=lambda each: len(each.halves[0].gates) + len(each.halves[1].gates))
        smallest: list[State] = []
        for state in group:
            if not any(_within(each, state) for each in smallest):
                smallest.append(state)
        kept += smallest
    return kept


def _within(one: State, other: State) -> bool:
    return all(mine.gates <= theirs.gates for mine, theirs in zip(one.halves, other.halves, strict=True))
