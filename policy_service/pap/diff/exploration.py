"""Explore what a tool's rules answer before and after a change, by trying the literals of both bundles.

Each tool is explored alone and reports whether everything was tried ("exhaustive") or a part ("sampled", with the
reason). Policies without a common path answer independently. So they are partitioned into groups by the paths they
read, each group is explored with its own values alone, and the product of values stays small.

A state is the part of the policies' answers on which the outcome depends. A state that a plain forbid denies on both
sides cannot show a difference and is dropped. Of states that differ only in unchanged gates, those with fewer gates are
kept, because an unchanged gate that fires on both sides can only hide a difference.

Each difference is shown by one example call. One example shows one difference, so next to a rule that loosens another
changed rule counts as stricter only if it was enumerated alone and completely.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, product
from math import prod
from typing import Any, Final

from cedarpy import PolicySet, policies_to_pst

from policy_service.pap.diff.candidate_values import (
    candidate_values,
    cedar_type_at,
    covers_all_sets,
    literals_for,
)
from policy_service.pap.diff.policy_inputs import PolicyInputs, policies_inputs, policy_inputs
from policy_service.pap.diff.tool_side import ABSENT, Path, ToolSide
from policy_service.pdp.rules import PolicySource, evaluate_policies, policy_set

MAX_ASSIGNMENTS: Final = 20_000
"""Assignments tried for one policy group of one tool; a larger product is sampled."""

MAX_SAMPLED: Final = 1_000
"""The same for inexact inputs, where trying everything would prove nothing."""

MAX_EVALUATIONS: Final = 400_000
"""The same times the policies of the group: keeps a thousand rules about one tool within a minute."""

MAX_POLICY_ASSIGNMENTS: Final = 500
"""Assignments tried for one rule alone; this runs for each changed rule."""

MAX_STATES: Final = 4_000
"""States that are followed; with more the result is sampled."""

SidePair = tuple[ToolSide | None, ToolSide | None]


def policies_of(pair: SidePair, policy_id: str) -> tuple[PolicySource | None, PolicySource | None]:
    before, after = (None if side is None else side.bundle.policies.get(policy_id) for side in pair)
    return before, after


def policy_meaning(policy: PolicySource | None) -> Any:
    """The parts of a policy that affect decisions; no comments, layout or texts for people."""
    if policy is None:
        return None
    gate = None if policy.gate is None else replace(policy.gate, title="", channel=None, remind=None)
    return (policy.effect, gate, policy.unseen, _body(policy.text))


@lru_cache(maxsize=16_384)
def _body(text: str) -> Any:
    parsed: Any = next(iter(policies_to_pst(text).static_policies.values()))
    return (parsed.principal, parsed.action, parsed.resource, parsed.clauses)


def only_restricts(old: PolicySource | None, new: PolicySource | None) -> bool:
    """Whether this kind of change can only restrict, for any content of the rule."""
    if old is None:
        return new is None or new.effect == "forbid"
    return new is None and old.effect == "permit"


def same_policy(pair: SidePair, policy_id: str) -> bool:
    """Whether both sides have a policy with the same meaning."""
    old, new = policies_of(pair, policy_id)
    return old is not None and bool(policy_meaning(old) == policy_meaning(new))


def same_context(before: ToolSide, after: ToolSide) -> bool:
    """Whether manifest, types of facts and group memberships are equal."""
    return bool(_context(before) == _context(after))


def _context(side: ToolSide) -> Any:
    config, directory = side.config, side.bundle.directory
    types = {
        entity: {name: (kind.name, kind.optional) for name, kind in config.attribute_types(entity).items()}
        for entity in config.entities
    }
    members = {group: directory.members(group) for group in directory.groups}
    return side.manifest.digest, side.rules.resource_attributes, types, members


@dataclass(frozen=True, slots=True)
class SideAnswer:
    """One bundle's answers: unseen fields of satisfied permits, plain forbid, fired gates, error or refused call."""

    permits: frozenset[frozenset[str]] = frozenset()
    forbidden: bool = False
    gates: frozenset[str] = frozenset()
    refused: bool = False

    def __or__(self, other: SideAnswer) -> SideAnswer:
        return SideAnswer(
            self.permits | other.permits,
            self.forbidden or other.forbidden,
            self.gates | other.gates,
            self.refused or other.refused,
        )

    @property
    def denies(self) -> bool:
        """Whether this is a deny for any answer of the other groups."""
        return self.forbidden or self.refused


@dataclass(frozen=True, slots=True)
class AnswerState:
    """Both bundles' answers, and an assignment that produces them."""

    before: SideAnswer
    after: SideAnswer
    witness: Mapping[Path, Any] = field(compare=False, hash=False)

    def __or__(self, other: AnswerState) -> AnswerState:
        witness = {**self.witness, **other.witness}
        return AnswerState(self.before | other.before, self.after | other.after, witness)


def _combined(groups: Iterable[Iterable[AnswerState]], unchanged: set[str]) -> tuple[list[AnswerState], bool]:
    """The combined states of all groups, and whether all were followed."""
    whole, complete = [AnswerState(SideAnswer(), SideAnswer(), {})], True
    for group in groups:
        kept: dict[AnswerState, AnswerState] = {}
        for state in group:
            for one in whole:
                both = one | state
                if not (both.before.denies and both.after.denies):
                    kept.setdefault(both, both)
        whole = _minimal(kept, unchanged)
        if len(whole) > MAX_STATES:
            whole, complete = whole[:MAX_STATES], False
    return whole, complete


def _minimal(states: Iterable[AnswerState], unchanged: set[str]) -> list[AnswerState]:
    """Of states that differ only in unchanged gates, those with minimal gates."""
    alike: dict[Any, list[AnswerState]] = {}
    for state in states:
        key = tuple(
            (half.permits, half.denies, half.gates - unchanged) for half in (state.before, state.after)
        )
        alike.setdefault(key, []).append(state)
    kept: list[AnswerState] = []
    for same in alike.values():
        smallest: list[AnswerState] = []
        for state in sorted(same, key=lambda each: len(each.before.gates) + len(each.after.gates)):
            if not any(
                one.before.gates <= state.before.gates and one.after.gates <= state.after.gates
                for one in smallest
            ):
                smallest.append(state)
        kept += smallest
    return kept


@dataclass
class _Group:
    """Policies of both sides that share paths, by side."""

    read: PolicyInputs = field(default_factory=PolicyInputs)
    ids: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    values: dict[Path, list[Any]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return prod(len(values) for values in self.values.values())

    @property
    def budget(self) -> int:
        most = MAX_SAMPLED if self.read.inexact else MAX_ASSIGNMENTS
        return max(200, min(most, MAX_EVALUATIONS // max(1, len(self.ids[0]) + len(self.ids[1]))))

    def add(self, other: _Group) -> None:
        self.read.add(other.read)
        for mine, theirs in zip(self.ids, other.ids, strict=True):
            mine.update(theirs)


def _groups(pair: SidePair) -> list[_Group]:
    """Partition the policies of both sides by shared paths."""
    sides = [side for side in pair if side is not None]
    groups: list[_Group] = []
    for index, side in enumerate(pair):
        for policy_id, tree in () if side is None else side.trees.items():
            read = policy_inputs(tree)
            keys = _keys(read, sides)
            meeting = [
                one for one in groups if keys & _keys(one.read, sides) or policy_id in one.ids[1 - index]
            ]
            home = meeting[0] if meeting else _Group()
            for other in meeting[1:]:
                home.add(other)
                groups.remove(other)
            if not meeting:
                groups.append(home)
            home.read.add(read)
            home.ids[index].add(policy_id)
    return groups


def _keys(read: PolicyInputs, sides: Sequence[ToolSide]) -> set[Path]:
    """The paths that connect policies: args by their first name, because one may contain another."""
    keys = {path[:2] if path[0] in ("input", "fact", "agentfact") else path for path in read.literals}
    if ("resource",) in keys:
        keys |= {path[:2] for side in sides if (path := side.resource_path()) is not None}
    return keys


@dataclass
class Exploration:
    """The exploration of one tool from one base call. ``why_not`` lists why it was not exhaustive."""

    pair: SidePair
    base: dict[str, Any]
    states: list[AnswerState] = field(default_factory=list)
    count: int = 0
    why_not: list[str] = field(default_factory=list)
    inexact_ids: set[str] = field(default_factory=set)
    _dice: random.Random = field(default_factory=lambda: random.Random(0))  # the same calls every time  # noqa: S311

    @property
    def sides(self) -> list[ToolSide]:
        return [side for side in self.pair if side is not None]

    def explore(self, group: _Group) -> Iterator[AnswerState]:
        """Every pair of answers that was found for the policies of a group, with a witness."""
        before, after = self.pair
        sets = [
            policy_set({} if side is None else side.as_forbids(ids))
            for side, ids in zip(self.pair, group.ids, strict=True)
        ]
        # If both sides must answer alike, one evaluation is enough.
        alike = (
            before is not None
            and after is not None
            and same_context(before, after)
            and group.ids[0] == group.ids[1]
            and all(same_policy(self.pair, name) for name in group.ids[0])
        )
        found: set[AnswerState] = set()
        for values in self._assignments(group):
            self.count += 1
            old = self._answer(before, sets[0], values)
            state = AnswerState(old, old if alike else self._answer(after, sets[1], values), values)
            if state not in found:
                found.add(state)
                yield state

    def note_doubts(self, group: _Group) -> None:
        """Record why trying the values of this group does not cover every answer."""
        doubts = list(group.read.inexact)
        for path, values in group.values.items():
            literals = literals_for(group.read, path, self.sides)
            if not covers_all_sets(path, literals, self.sides):
                doubts.append("a set compared with many members")
            if cedar_type_at(path, self.sides) == "String" and not self._has_other(values, literals, path):
                doubts.append(f"{'.'.join(path)}: the manifest accepts no text other than the named ones")
        if group.size > group.budget:
            doubts.append(f"{group.size} combinations, {group.budget} of them tried")
        if doubts:
            self.inexact_ids |= group.ids[0] | group.ids[1]
        self.why_not += [doubt for doubt in doubts if doubt not in self.why_not]

    def _has_other(self, values: Sequence[Any], literals: set[Any], path: Path) -> bool:
        """Whether the values include a text that no rule names, where such a text exists."""
        if path[0] in ("env", "proof"):
            return True
        if path[0] == "input" and all(_is_enumerated(side, path) for side in self.sides):
            return True
        return any(isinstance(one, str) and one not in {"", ABSENT, *literals} for one in values)

    def _assignments(self, group: _Group) -> Iterator[dict[Path, Any]]:
        paths = sorted(group.values)
        columns = [group.values[path] or [None] for path in paths]

        def assignment(row: Sequence[Any]) -> dict[Path, Any]:
            return {path: value for path, value in zip(paths, row, strict=True) if value is not None}

        if prod(len(column) for column in columns) <= group.budget:
            yield from (assignment(row) for row in product(*columns))
            return
        seen = 0
        focused = self._focused_values(group)
        for focus in focused:
            share = max(1, group.budget // (2 * len(focused)))
            for row in islice(product(*(focus[path] or [None] for path in sorted(focus))), share):
                seen += 1
                chosen = dict(zip(sorted(focus), row, strict=True))
                chance = zip(paths, self._roll(columns), strict=True)
                yield assignment([chosen.get(path, value) for path, value in chance])
        for index, column in enumerate(columns):  # each value once, the others at random
            for value in column:
                others = self._roll(columns)
                others[index] = value
                seen += 1
                yield assignment(others)
        for _ in range(max(0, group.budget - seen)):
            yield assignment(self._roll(columns))

    def _roll(self, columns: Iterable[Sequence[Any]]) -> list[Any]:
        return [self._dice.choice(column) for column in columns]

    def _focused_values(self, group: _Group) -> list[dict[Path, list[Any]]]:
        """The values of each changed policy alone, for a group whose values are too many to combine."""
        return [
            candidate_values(policy_inputs(side.trees[name]), self.sides, self.base)
            for side, ids in zip(self.pair, group.ids, strict=True)
            if side is not None
            for name in sorted(ids)
            if not same_policy(self.pair, name)
        ]

    def _answer(self, side: ToolSide | None, policies: PolicySet, values: dict[Path, Any]) -> SideAnswer:
        asked = None if side is None else side.engine_input(self.base, values)
        if side is None or asked is None:
            return SideAnswer(refused=True)
        if not len(policies):
            return SideAnswer()
        # All policies are forbids here: a deny of the engine names every one that holds.
        answer = evaluate_policies(policies, *asked, side.rules.schema)
        if answer.errors:
            return SideAnswer(refused=True)
        known = side.bundle.policies
        permits = frozenset(known[name].unseen for name in answer.reasons if known[name].effect == "permit")
        gates = answer.reasons & side.rules.gates
        plain = any(known[name].effect == "forbid" for name in answer.reasons - gates)
        return SideAnswer(permits, plain, gates)


def _is_enumerated(side: ToolSide, path: Path) -> bool:
    node: Any = side.manifest.args
    for step in path[1:]:
        node = node.get("properties", {}).get(step, {}) if isinstance(node, dict) else {}
    return isinstance(node, dict) and ("enum" in node or "const" in node)


def explore_tool(pair: SidePair, base: dict[str, Any]) -> Exploration:
    """Explore one tool in both bundles, starting from one base call."""
    tried = Exploration(pair, base)
    groups, followed = _groups(pair), []
    for group in groups:
        group.values = candidate_values(group.read, tried.sides, base)
        tried.note_doubts(group)
        followed.append(list(tried.explore(group)))
    shared = {name for group in groups for name in group.ids[0] & group.ids[1]}
    tried.states, complete = _combined(followed, {name for name in shared if same_policy(pair, name)})
    if not complete:
        tried.inexact_ids |= {name for group in groups for ids in group.ids for name in ids}
        tried.why_not.append("too many combinations of answers to follow all")
    return tried


def never_relaxes(name: str, pair: SidePair, bases: list[dict[str, Any]]) -> bool:
    """Whether a rule of both sides restricts at least as much as before; False if not proved."""
    before, after = pair
    if before is None or after is None or name not in before.trees or name not in after.trees or not bases:
        return False
    old, new = before.bundle.policies[name], after.bundle.policies[name]
    if (old.effect, old.gate, old.unseen) != (new.effect, new.gate, new.unseen):
        return False
    group = _Group(policies_inputs(side.trees[name] for side in (before, after)), ({name}, {name}))
    for base in bases:
        tried = Exploration(pair, base)
        group.values = candidate_values(group.read, tried.sides, base)
        tried.note_doubts(group)
        if tried.why_not or group.size > MAX_POLICY_ASSIGNMENTS:
            return False
        if any(_is_laxer(old.effect, state) for state in tried.explore(group)):
            return False
    return True


def _is_laxer(effect: str, state: AnswerState) -> bool:
    before, after = state.before, state.after
    if after.refused:
        return False
    if before.refused:
        return True
    if effect == "permit":
        return bool(after.permits) and not before.permits
    return bool(before.forbidden or before.gates) and not (after.forbidden or after.gates)
