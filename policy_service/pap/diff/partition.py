"""The policies of one tool on both sides, partitioned by the paths they read, and the answers of all parts combined.

Two policies that read no common path answer independently, so the answers of a part are found by trying its own
values alone, which keeps trying every value possible where one product over all would not be. A state is everything of
the policies' answers that the outcome depends on. Rules kept here: a state that is a deny by a plain forbid on both
sides can show no difference and is dropped; of states that differ only in unchanged gates the ones with fewer are kept,
because an unchanged gate that fires on both sides can hide a difference and never makes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from cedarpy import PolicySet, policies_to_pst, pst

from policy_service.pap.diff.paths import Path
from policy_service.pap.diff.policy_inputs import PolicyInputs, policy_inputs
from policy_service.pap.diff.tool_side import ToolSide
from policy_service.pdp.rules import PolicySource, policy_set

MAX_STATES: Final = 4_000
"""How many different states are followed; beyond it the result is sampled."""


@dataclass(frozen=True, slots=True)
class SideAnswer:
    """One bundle's answers: the unseen sets of satisfied permits, whether a plain forbid holds, which gates fired,
    whether something erred or the manifest refused the call.
    """

    permits: frozenset[frozenset[str]] = frozenset()
    forbidden: bool = False
    gates: frozenset[str] = frozenset()
    refused: bool = False

    def with_(self, other: SideAnswer) -> SideAnswer:
        """Both together."""
        return SideAnswer(
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
class AnswerState:
    """Both bundles' answers, and an assignment that gives them."""

    halves: tuple[SideAnswer, SideAnswer]
    witness: Mapping[Path, Any] = field(compare=False, hash=False)

    def with_(self, other: AnswerState) -> AnswerState:
        """Both parts' answers together, with a witness of both."""
        halves = (self.halves[0].with_(other.halves[0]), self.halves[1].with_(other.halves[1]))
        return AnswerState(halves, {**self.witness, **other.witness})


def combine_states(
    parts: Iterable[Iterable[AnswerState]], unchanged: frozenset[str]
) -> tuple[list[AnswerState], bool]:
    """The states of the whole from those of its parts, and whether all were followed."""
    whole, complete = [AnswerState((SideAnswer(), SideAnswer()), {})], True
    for part in parts:
        kept: dict[tuple[SideAnswer, SideAnswer], AnswerState] = {}
        for state in part:
            for one in whole:
                both = one.with_(state)
                if not (both.halves[0].denies and both.halves[1].denies):
                    kept.setdefault(both.halves, both)
        whole = _least(list(kept.values()), unchanged)
        if len(whole) > MAX_STATES:
            whole, complete = whole[:MAX_STATES], False
    return whole, complete


def _least(states: list[AnswerState], unchanged: frozenset[str]) -> list[AnswerState]:
    """Of states alike but for unchanged gates, those with no fewer beside them."""
    alike: dict[Any, list[AnswerState]] = {}
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
    kept: list[AnswerState] = []
    for group in alike.values():
        group.sort(key=lambda each: len(each.halves[0].gates) + len(each.halves[1].gates))
        smallest: list[AnswerState] = []
        for state in group:
            if not any(_within(each, state) for each in smallest):
                smallest.append(state)
        kept += smallest
    return kept


def _within(one: AnswerState, other: AnswerState) -> bool:
    return all(mine.gates <= theirs.gates for mine, theirs in zip(one.halves, other.halves, strict=True))


@dataclass
class PolicyGroup:
    """Policies of both sides that share paths. ``sets`` holds all of them as forbids, for each side: an engine that
    denies names every forbid that holds, so one question tells which policies are satisfied and which err.
    """

    read: PolicyInputs = field(default_factory=PolicyInputs)
    ids: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    sets: tuple[PolicySet, PolicySet] | None = None
    values: dict[Path, list[Any]] = field(default_factory=dict)
    focus: list[dict[Path, list[Any]]] = field(default_factory=list)  # what each changed policy looks at


def same_policy(before: ToolSide | None, after: ToolSide | None, policy_id: str) -> bool:
    """Whether a policy decides the same on both sides: text and annotations that only people read may differ."""
    if before is None or after is None:
        return False
    old, new = before.bundle.policies.get(policy_id), after.bundle.policies.get(policy_id)
    return old is not None and new is not None and policy_meaning(old) == policy_meaning(new)


def same_context(before: ToolSide, after: ToolSide) -> bool:
    """Whether everything but the policies is the same: manifest, types of facts, who is in which group."""
    return (
        before.manifest.digest == after.manifest.digest
        and before.rules.resource_attributes == after.rules.resource_attributes
        and _types(before) == _types(after)
        and _memberships(before) == _memberships(after)
    )


def _types(side: ToolSide) -> Any:
    entities = side.config.entities
    return {e: {n: (t.name, t.optional) for n, t in side.config.attribute_types(e).items()} for e in entities}


def _memberships(side: ToolSide) -> Any:
    return {group: side.bundle.directory.members(group) for group in side.bundle.directory.groups}


def policy_meaning(policy: PolicySource) -> Any:
    """What of a policy the service obeys."""
    gate = None if policy.gate is None else replace(policy.gate, title="", channel=None, remind=None)
    return (policy.effect, gate, policy.unseen, policy_body(policy))


def only_restricts(old: PolicySource | None, new: PolicySource | None) -> bool:
    """Whether a change of this kind can let nothing more through, whatever the rule says."""
    if old is None:
        return new is None or new.effect == "forbid"
    return new is None and old.effect == "permit"


def policy_body(policy: PolicySource) -> Any:
    """Scope and conditions as the engine reads them: no comments, no layout, no annotations."""
    return _body(policy.text)


@lru_cache(maxsize=16_384)
def _body(text: str) -> Any:
    parsed: Any = next(iter(policies_to_pst(text).static_policies.values()))
    return (parsed.principal, parsed.action, parsed.resource, parsed.clauses)


def group_policies(sides: Sequence[ToolSide | None]) -> list[PolicyGroup]:
    """The parts of one tool's policies."""
    trees = [side.trees if side is not None else {} for side in sides]
    parts: list[PolicyGroup] = []
    for index, of_side in enumerate(trees):
        for policy_id, tree in of_side.items():
            _take(parts, index, policy_id, tree, [side for side in sides if side is not None])
    for part in parts:
        chosen = [_as_forbids(trees[index], part.ids[index]) for index in (0, 1)]
        part.sets = (chosen[0], chosen[1])
    return parts


def single_policy_group(policy_id: str, sides: Sequence[ToolSide | None], read: PolicyInputs) -> PolicyGroup:
    """One policy by itself."""
    chosen = [
        _as_forbids({} if side is None else side.trees, {policy_id} if side is not None else set())
        for side in sides
    ]
    return PolicyGroup(read, ({policy_id}, {policy_id}), (chosen[0], chosen[1]))


def _take(
    parts: list[PolicyGroup], index: int, policy_id: str, tree: pst.Template, sides: Sequence[ToolSide]
) -> None:
    read = policy_inputs(tree)
    keys = _keys(read, sides)
    meeting = [part for part in parts if keys & _keys(part.read, sides) or policy_id in part.ids[1 - index]]
    home = meeting[0] if meeting else PolicyGroup()
    for other in meeting[1:]:
        home.read.add(other.read)
        for each in (0, 1):
            home.ids[each].update(other.ids[each])
        parts.remove(other)
    if not meeting:
        parts.append(home)
    home.read.add(read)
    home.ids[index].add(policy_id)


def _keys(read: PolicyInputs, sides: Sequence[ToolSide]) -> set[Path]:
    """What a policy's answers hang on together: args by their first name, since one may be inside another."""
    keys = {path[:2] if path[0] in ("input", "fact", "agentfact") else path for path in read.literals}
    if ("resource",) in keys:
        keys |= {path[:2] for side in sides if (path := side.resource_path()) is not None}
    return keys


def _as_forbids(trees: Mapping[str, pst.Template], ids: set[str]) -> PolicySet:
    return policy_set({name: replace(trees[name], effect="forbid", annotations={}) for name in sorted(ids)})
