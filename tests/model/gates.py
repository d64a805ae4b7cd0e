"""What the machine plays under, as data: gates and how they merge.

How gates merge and when they are met is said once more here, from the design, by trying every seat: short, slow, and
nothing to get wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from countersign.contract import ToolManifest

HOUR = 3_600
OWNER = "jonas"


@dataclass(frozen=True)
class Gate:
    """Forbidden until these people agree."""

    name: str
    groups: frozenset[str]
    quorum: int = 1
    answer_within: int = 24 * HOUR
    valid_for: int = HOUR
    shared: bool = False

    @property
    def annotations(self) -> str:
        """As its author writes them."""
        more = " @shared" if self.shared else ""
        until = f'@answer_within("{self.answer_within}s") @valid_for("{self.valid_for}s"){more}'
        return f'@approval("{"|".join(sorted(self.groups))}") @quorum("{self.quorum}") {until}'


@dataclass(frozen=True)
class Rule:
    """A gate, or a plain forbid where there is none, on a tool's calls above an amount."""

    name: str
    tool: str
    over: int = -1
    gate: Gate | None = None

    @property
    def cedar(self) -> str:
        """As its author writes it."""
        notes = "" if self.gate is None else self.gate.annotations
        when = "true" if self.over < 0 else f"context.input.amount > {self.over}"
        head = f'forbid (principal, action == Action::"{self.tool}", resource)'
        return f'@id("{self.name}") {notes}\n{head} when {{ {when} }};\n'


def asks(name: str, tool: str, groups: str, over: int = -1, **more: Any) -> Rule:
    """A rule that asks these people."""
    return Rule(name, tool, over, Gate(name, frozenset(groups.split("|")), **more))


def version(manifest: dict[str, Any]) -> str:
    """The digest of a reviewed manifest."""
    return ToolManifest.model_validate(manifest).digest


# -- what gates ask for together ---------------------------------------------------------------------------------


def met(gates: Iterable[Gate], people: Mapping[str, frozenset[str]]) -> bool:
    """Whether these people, each in these groups, are enough: every unshared place has a person of its own. Gates of
    the same groups are one, the stricter of each.
    """
    together: dict[frozenset[str], list[Gate]] = {}
    for gate in gates:
        together.setdefault(gate.groups, []).append(gate)
    places = list[frozenset[str]]()
    for groups, same in together.items():
        quorum = max(gate.quorum for gate in same)
        if not all(gate.shared for gate in same):
            places += [groups] * quorum
        elif sum(1 for theirs in people.values() if theirs & groups) < quorum:
            return False
    return bool(together) and seated(places, people) == len(places)


def seated(places: list[frozenset[str]], people: Mapping[str, frozenset[str]]) -> int:
    """How many places can be filled at most, no person twice."""
    if not places or not people:
        return 0
    best = 0
    for name, groups in people.items():
        if groups & places[0]:
            rest = {other: theirs for other, theirs in people.items() if other != name}
            best = max(best, 1 + seated(places[1:], rest))
        if best == len(places):
            return best
    return max(best, seated(places[1:], people))
