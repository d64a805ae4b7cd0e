"""What both machines play under, as data: gates, who is in which group, and the folder the service reads, which is
written from the same data the model reads.

How gates merge and when they are met is said once more here, from the design, by trying every seat: short, slow, and
nothing to get wrong.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from countersign.contract import ToolManifest
from tests.fakes.payments import person

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
    reason: bool = False
    escalate: frozenset[str] = frozenset()

    @property
    def annotations(self) -> str:
        """As its author writes them."""
        more = " @shared" if self.shared else ""
        more += " @reason" if self.reason else ""
        more += f' @escalate("{"|".join(sorted(self.escalate))}")' if self.escalate else ""
        return (
            f'@approval("{"|".join(sorted(self.groups))}") @quorum("{self.quorum}") '
            f'@answer_within("{self.answer_within}s") @valid_for("{self.valid_for}s"){more}'
        )


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


def asks(name: str, tool: str, groups: str, over: int = -1, *, escalate: str = "", **more: Any) -> Rule:
    """A rule that asks these people."""
    further = frozenset(escalate.split("|")) if escalate else frozenset[str]()
    return Rule(name, tool, over, Gate(name, frozenset(groups.split("|")), escalate=further, **more))


def version(manifest: dict[str, Any]) -> str:
    """The digest of a reviewed manifest."""
    return ToolManifest.model_validate(manifest).digest


class InForce:
    """Everything in force at one time: the policies, the manifests of the tools, and who is in which group."""

    staff: Mapping[str, tuple[str, ...]]
    people: tuple[str, ...]

    def holds(self) -> tuple[tuple[Rule, ...], Mapping[str, dict[str, Any]]]:
        """The gates and the plain forbids; the manifests of the tools, by their names."""
        raise NotImplementedError

    def permits(self) -> str:
        """Who may do anything at all."""
        return '@id("anybody-may") permit (principal, action, resource);\n'

    @cached_property
    def files(self) -> dict[str, str]:
        """The folder of these."""
        people = [
            f'[people.{name}]\nid = "{person(name)}"\nname = "{name.title()}"\n' for name in self.people
        ]
        groups = [f"[groups.{group}]\nmembers = {list(names)}\n" for group, names in self.staff.items()]
        policies, manifests = self.holds()
        return {
            "groups.toml": "".join(people + groups),
            "rules.cedar": self.permits() + "".join(rule.cedar for rule in policies),
            **{f"tools/{tool}.json": json.dumps(manifest) for tool, manifest in manifests.items()},
        }

    def lay(self, folder: Path) -> None:
        """Make the folder hold exactly these."""
        for file in [file for file in folder.rglob("*") if file.is_file()]:
            file.unlink()
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def gates_of(self, tool: str, amount: int) -> tuple[Gate, ...] | None:
        """The gates that fire on a call: none of them is a release; None is a deny."""
        fired = [rule for rule in self.holds()[0] if rule.tool == tool and amount > rule.over]
        if any(rule.gate is None for rule in fired):
            return None
        return tuple(rule.gate for rule in fired if rule.gate is not None)

    def groups_of(self, name: str) -> frozenset[str]:
        """The groups somebody is in."""
        return frozenset(group for group, names in self.staff.items() if name in names)


# -- what gates ask for together ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """Fired gates of one group set: the stricter of each, and who is asked by now."""

    key: str
    quorum: int
    answer_within: int
    shared: bool
    escalate: frozenset[str]
    voters: frozenset[str]


def merged(gates: Iterable[Gate], escalated: Collection[str] = ()) -> list[Asked]:
    """What these gates ask for; ``escalated`` are the keys of those that ask their further groups by now."""
    together: dict[frozenset[str], list[Gate]] = {}
    for gate in gates:
        together.setdefault(gate.groups, []).append(gate)
    found = []
    for groups, same in together.items():
        key = "|".join(sorted(groups))
        further = frozenset[str].intersection(*(gate.escalate for gate in same))
        found.append(
            Asked(
                key,
                max(gate.quorum for gate in same),
                min(gate.answer_within for gate in same),
                all(gate.shared for gate in same),
                further,
                groups | further if key in escalated else groups,
            )
        )
    return found


def met(asked: Collection[Asked], people: Mapping[str, frozenset[str]]) -> bool:
    """Whether these people, each in these groups, are enough: every unshared place has a person of its own."""
    places = [one.voters for one in asked if not one.shared for _ in range(one.quorum)]
    return bool(asked) and not short_shared(asked, people) and seated(places, people) == len(places)


def short_shared(asked: Collection[Asked], people: Mapping[str, frozenset[str]]) -> set[str]:
    """The shared gates that these people do not meet."""
    return {
        one.key
        for one in asked
        if one.shared and sum(1 for groups in people.values() if groups & one.voters) < one.quorum
    }


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


def short_of(asked: Collection[Asked], people: Mapping[str, frozenset[str]]) -> set[str]:
    """The gates these people leave short: those to which one more person of theirs alone would help."""
    open_ones = [one for one in asked if not one.shared]
    places = [one.voters for one in open_ones for _ in range(one.quorum)]
    have = seated(places, people)
    found = short_shared(asked, people)
    for one in open_ones:
        without = list(places)
        without.remove(one.voters)  # one more of its own takes one of its places
        if seated(without, people) == have and have < len(places):
            found.add(one.key)
    return found
