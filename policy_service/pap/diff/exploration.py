"""What a tool's rules permit after a change that they did not permit before, by trying the literals of both bundles.

Rules kept here: each tool is tried by itself and says whether everything was tried ("exhaustive") or a part
("sampled", with why); each difference is shown by one call, decided by both bundles as live calls are decided. One call
shows one difference, so beside a rule that was shown to loosen, another changed rule counts as stricter only when it
was tried alone and in full; a rule that asks or permits otherwise does not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import prod
from typing import Any, Final

from cedarpy import PolicySet

from policy_service.pap.diff.candidate_values import (
    candidate_values,
    cedar_type_at,
    covers_all_sets,
    literals_for,
)
from policy_service.pap.diff.partition import (
    AnswerState,
    PolicyGroup,
    SideAnswer,
    combine_states,
    group_policies,
    same_context,
    same_policy,
    single_policy_group,
)
from policy_service.pap.diff.paths import Path
from policy_service.pap.diff.policy_inputs import PolicyInputs, policy_inputs
from policy_service.pap.diff.tool_side import ABSENT, ToolSide
from policy_service.pdp.cedar import evaluate_policies

MAX_ASSIGNMENTS: Final = 20_000
"""Assignments tried for one part of one tool's rules; a larger product is sampled."""

MAX_SAMPLED: Final = 1_000
"""The same where the rules cannot be read exactly, so that trying everything would prove nothing."""

MAX_EVALUATIONS: Final = 400_000
"""The same times the policies of the part: what keeps a thousand rules about one tool within a minute."""

MAX_POLICY_ASSIGNMENTS: Final = 500
"""Assignments tried for one rule by itself: there may be as many of these as rules that changed."""

SidePair = tuple[ToolSide | None, ToolSide | None]


@dataclass
class Exploration:
    """What trying one tool came to. ``exhaustive`` says that every region was tried; ``why_not`` why it was not."""

    tool: str
    base: dict[str, Any]
    states: list[AnswerState] = field(default_factory=list)
    count: int = 0
    why_not: list[str] = field(default_factory=list)
    inexact_ids: set[str] = field(default_factory=set)

    @property
    def exhaustive(self) -> bool:
        """Whether nothing was left to chance."""
        return not self.why_not


def explore_tool(tool: str, pair: SidePair, base: dict[str, Any]) -> Exploration:
    """Try one tool in both bundles, starting from one plain call."""
    sides = [side for side in pair if side is not None]
    tried = Exploration(tool, base)
    dice = random.Random(0)  # the same calls every time  # noqa: S311
    parts, followed = group_policies(pair), []
    for part in parts:
        part.values = candidate_values(part.read, sides, base)
        part.focus = _focus(part, pair, sides, base)
        _doubts(tried, part, sides, base)
        followed.append(_states(tried, part, pair, base, dice))
    unchanged = frozenset(
        name for part in parts for name in part.ids[0] & part.ids[1] if same_policy(pair[0], pair[1], name)
    )
    tried.states, complete = combine_states(followed, unchanged)
    if not complete:
        tried.inexact_ids |= {name for part in parts for name in part.ids[0] | part.ids[1]}
        tried.why_not.append("too many combinations of answers to follow them all")
    return tried


def enumerate_policy(
    name: str, pair: SidePair, read: PolicyInputs, base: dict[str, Any]
) -> list[tuple[SideAnswer, SideAnswer]] | None:
    """Every pair of answers one rule alone can give; None where not everything can be tried."""
    sides = [side for side in pair if side is not None]
    part = single_policy_group(name, pair, read)
    part.values = candidate_values(read, sides, base)
    tried = Exploration("", base)
    _doubts(tried, part, sides, base)
    if tried.why_not or prod(len(values) for values in part.values.values()) > MAX_POLICY_ASSIGNMENTS:
        return None
    dice = random.Random(0)  # never rolled: everything is tried  # noqa: S311
    return [state.halves for state in _states(tried, part, pair, base, dice)]


def _focus(
    part: PolicyGroup, pair: SidePair, sides: Sequence[ToolSide], base: dict[str, Any]
) -> list[dict[Path, list[Any]]]:
    """The values of each changed policy by itself, for when all of the part's are too many to combine."""
    return [
        candidate_values(policy_inputs(side.trees[name]), sides, base)
        for index, side in enumerate(pair)
        if side is not None
        for name in sorted(part.ids[index])
        if not same_policy(pair[0], pair[1], name)
    ]


def _doubts(tried: Exploration, part: PolicyGroup, sides: Sequence[ToolSide], base: dict[str, Any]) -> None:
    doubts = list(part.read.inexact)
    for path, values in part.values.items():
        literals = literals_for(part.read, path, sides)
        if not covers_all_sets(path, literals, sides):
            doubts.append("a set compared with many members")
        if cedar_type_at(path, sides) == "String" and not _has_fresh(values, literals, path, sides):
            doubts.append(
                f"{'.'.join(path)}: no text beside the named ones was found that the manifest takes"
            )
    size = prod(len(values) for values in part.values.values())
    if size > _budget(part):
        doubts.append(f"{size} combinations, {_budget(part)} of them tried")
    if doubts:
        tried.inexact_ids |= part.ids[0] | part.ids[1]
    tried.why_not += [doubt for doubt in doubts if doubt not in tried.why_not]


def _has_fresh(values: Sequence[Any], literals: set[Any], path: Path, sides: Sequence[ToolSide]) -> bool:
    if path in (("env",), ("proof",)) or (path[0] == "input" and all(_is_closed(s, path) for s in sides)):
        return True
    return any(
        value not in literals for value in values if isinstance(value, str) and value not in ("", ABSENT)
    )


def _is_closed(side: ToolSide, path: Path) -> bool:
    node: Any = side.manifest.args
    for step in path[1:]:
        node = node.get("properties", {}).get(step, {}) if isinstance(node, dict) else {}
    return isinstance(node, dict) and ("enum" in node or "const" in node)


def _budget(part: PolicyGroup) -> int:
    most = MAX_SAMPLED if part.read.inexact else MAX_ASSIGNMENTS
    return max(200, min(most, MAX_EVALUATIONS // max(1, len(part.ids[0]) + len(part.ids[1]))))


def _states(
    tried: Exploration, part: PolicyGroup, pair: SidePair, base: dict[str, Any], dice: random.Random
) -> list[AnswerState]:
    assert part.sets is not None  # noqa: S101
    found: dict[tuple[SideAnswer, SideAnswer], AnswerState] = {}
    alike = _answers_alike(pair, part)
    for values in _assignments(part, dice):
        tried.count += 1
        before = _half(pair[0], part.sets[0], base, values)
        after = before if alike else _half(pair[1], part.sets[1], base, values)
        found.setdefault((before, after), AnswerState((before, after), values))
    return list(found.values())


def _answers_alike(pair: SidePair, part: PolicyGroup) -> bool:
    """Whether both sides must answer this part alike, so that one of them need not be asked."""
    before, after = pair
    if before is None or after is None or not same_context(before, after):
        return False
    return part.ids[0] == part.ids[1] and all(same_policy(before, after, name) for name in part.ids[0])


def _assignments(part: PolicyGroup, dice: random.Random) -> Iterator[dict[Path, Any]]:
    paths, budget = sorted(part.values), _budget(part)
    columns = [part.values[path] or [None] for path in paths]
    if prod(len(column) for column in columns) <= budget:
        for combination in product(*columns):
            yield _clean(paths, combination)
        return
    seen = 0
    for focus in part.focus:
        share = max(1, budget // (2 * len(part.focus)))
        for row in islice(product(*(focus[path] or [None] for path in sorted(focus))), share):
            seen += 1
            chance = {path: dice.choice(column) for path, column in zip(paths, columns, strict=True)}
            chosen = chance | dict(zip(sorted(focus), row, strict=True))
            yield {path: value for path, value in chosen.items() if value is not None}
    for index, column in enumerate(columns):  # each value once, the others as they come
        for value in column:
            others = [dice.choice(other) for other in columns]
            others[index] = value
            seen += 1
            yield _clean(paths, others)
    for _ in range(max(0, budget - seen)):
        yield _clean(paths, [dice.choice(column) for column in columns])


def _clean(paths: Sequence[Path], row: Sequence[Any]) -> dict[Path, Any]:
    return {path: value for path, value in zip(paths, row, strict=True) if value is not None}


def _half(
    side: ToolSide | None, policies: PolicySet, base: dict[str, Any], values: dict[Path, Any]
) -> SideAnswer:
    if side is None:
        return SideAnswer(refused=True)
    asked = side.asked(base, values)
    if asked is None:
        return SideAnswer(refused=True)
    if not len(policies):
        return SideAnswer()
    answer = evaluate_policies(policies, asked[0], asked[1], side.rules.schema)
    if answer.errors:
        return SideAnswer(refused=True)
    known = side.bundle.policies
    permits = frozenset(known[name].unseen for name in answer.reasons if known[name].effect == "permit")
    gates = answer.reasons & side.rules.gates
    plain = any(known[name].effect == "forbid" for name in answer.reasons - gates)
    return SideAnswer(permits, plain, gates)


def never_relaxes(name: str, pair: SidePair, bases: list[dict[str, Any]]) -> bool:
    """Whether a rule of both sides holds back all that it held back, or permits nothing more; False in doubt."""
    before, after = pair
    if before is None or after is None or name not in before.trees or name not in after.trees or not bases:
        return False
    old, new = before.bundle.policies[name], after.bundle.policies[name]
    if (old.effect, old.gate, old.unseen) != (new.effect, new.gate, new.unseen):
        return False
    read = PolicyInputs()
    for side in (before, after):
        read.add(policy_inputs(side.trees[name]))
    for base in bases:
        answers = enumerate_policy(name, pair, read, base)
        if answers is None or any(_is_laxer(old.effect, one, other) for one, other in answers):
            return False
    return True


def _is_laxer(effect: str, before: SideAnswer, after: SideAnswer) -> bool:
    if after.refused:
        return False
    if before.refused:
        return True
    if effect == "permit":
        return bool(after.permits) and not before.permits
    return bool(before.forbidden or before.gates) and not (after.forbidden or after.gates)
