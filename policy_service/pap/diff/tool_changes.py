"""Findings about one tool: each difference with an example call and the policies that cause it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract import Verdict
from policy_service.domain.gates import DEFAULT_VALID_FOR, Gate
from policy_service.domain.policy_request import Decision, PolicyRequest, Reason
from policy_service.pap.diff.exploration import (
    AnswerState,
    Exploration,
    SideAnswer,
    SidePair,
    explore_tool,
    policies_of,
    policy_meaning,
)
from policy_service.pap.diff.findings import (
    Direction,
    Finding,
    Relaxation,
    describe_review,
    find_relaxations,
    find_restrictions,
)
from policy_service.pap.diff.tool_side import ABSENT, Path, ToolSide, path_text, sample_value
from policy_service.pap.parts import schema_node
from policy_service.pdp.rules import UNSEEN, UNSEEN_GATE, evaluate_policies

_SHOWN_PER_KEY: Final = 6
"""Example calls considered for one difference."""

_WHY_DENIED: Final = (Reason("made-up", "denied"),)


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """One call that shows a difference, with both bundles' decisions."""

    pair: SidePair
    base: dict[str, Any]
    values: Mapping[Path, Any]
    decisions: tuple[Decision, Decision]


def tool_findings(tool: str, pair: SidePair) -> tuple[list[Finding], list[Exploration]]:
    """All differences for one tool, and the explorations that found them."""
    found: dict[Any, Finding] = {}
    rounds: list[Exploration] = []
    for base in _bases(pair):
        tried = explore_tool(pair, base)
        rounds.append(tried)
        for way, one, shown in _differences(tried, pair):
            finding = _finding(way, one, shown, tool)
            found.setdefault((finding.way, finding.kind, finding.policies), finding)
    return list(found.values()), rounds


def _bases(pair: SidePair) -> list[dict[str, Any]]:
    """Base calls to start from: one if both manifests accept it, else one of each."""
    sides = [side for side in pair if side is not None]
    made = [base for side in sides if side.encoded(base := side.base_args()) is not None]
    for base in made:
        if all(side.encoded(base) is not None for side in sides):
            return [base]
    return made


def _differences(tried: Exploration, pair: SidePair) -> Iterator[tuple[Direction, Relaxation, ExampleCall]]:
    looked: dict[Any, int] = {}
    for state in tried.states:
        reported: set[Direction] = set()  # without unseen fields: with them it is the same difference
        for unseen in _unseen_to_try(pair):
            before, after = (
                _decision(side, half, unseen)
                for side, half in zip(pair, (state.before, state.after), strict=True)
            )
            for way, changes in (
                (Direction.LOOSENING, find_relaxations(before, after)),
                (Direction.TIGHTENING, find_restrictions(before, after)),
            ):
                if way in reported:
                    continue
                if changes and not unseen:
                    reported.add(way)
                for one in changes:
                    key = (way, one.kind, state.before.gates, state.after.gates, bool(unseen))
                    looked[key] = looked.get(key, 0) + 1
                    if looked[key] <= _SHOWN_PER_KEY:
                        yield way, one, _shown(tried, pair, state, unseen, (before, after))


def _unseen_to_try(pair: SidePair) -> list[frozenset[str]]:
    known: set[str] = set()
    named: set[frozenset[str]] = {frozenset()}
    for side in pair:
        if side is None:
            continue
        known |= side.rules.codec.possible_unseen
        named |= {side.bundle.policies[name].unseen for name in side.rules.permits}
    named |= {frozenset({name}) for name in known}
    return sorted({each & known for each in (*named, frozenset(known))}, key=sorted)


def _decision(side: ToolSide | None, half: SideAnswer, unseen: frozenset[str]) -> Decision:
    """The decision that the table of design section 4 derives from these answers."""
    if side is None or half.denies or not half.permits:
        return Decision(Verdict.DENY, "", "", reasons=_WHY_DENIED)
    mine = unseen & side.rules.codec.possible_unseen
    known = side.bundle.policies
    gates: list[Gate] = [gate for name in sorted(half.gates) if (gate := known[name].gate) is not None]
    if mine and not any(permit >= mine for permit in half.permits):
        gates.append(UNSEEN_GATE)
    valid_for = min((gate.valid_for for gate in gates), default=DEFAULT_VALID_FOR)
    outcome = Verdict.REVIEW if gates else Verdict.RELEASE
    return Decision(outcome, "", "", gates=tuple(gates), valid_for=valid_for)


def _shown(
    tried: Exploration,
    pair: SidePair,
    state: AnswerState,
    unseen: frozenset[str],
    decisions: tuple[Decision, Decision],
) -> ExampleCall:
    values = dict(state.witness)
    for name in sorted(unseen):
        path = ("input", *(part.replace("~1", "/").replace("~0", "~") for part in name.split("/")))
        values[path] = _unseen_value(pair, path)
    return ExampleCall(pair, tried.base, values, decisions)


def _unseen_value(pair: SidePair, path: Path) -> Any:
    for side in (side for side in pair if side is not None):
        node: Any = side.manifest.args
        for step in path[1:]:
            node = schema_node(node, side.manifest.args).get("properties", {}).get(step)
        if node is not None:
            return sample_value(node, side.manifest.args)
    return "x"


def _fired(side: ToolSide | None, shown: ExampleCall) -> frozenset[str]:
    """The policies that hold for this call, including permits hidden by a gate."""
    asked = None if side is None else side.engine_input(shown.base, shown.values)
    if side is None or asked is None:
        return frozenset()
    holding = evaluate_policies(side.policies_as_forbids, *asked, side.rules.schema).reasons
    unseen = {UNSEEN} if UNSEEN in side.decided(shown.base, shown.values).policies else set()
    return holding | unseen


def _finding(way: Direction, one: Relaxation, shown: ExampleCall, tool: str) -> Finding:
    before, after = shown.pair
    old, new = _fired(before, shown), _fired(after, shown)
    # Behind the difference are the policies that fire on one side only, and those that changed.
    names = sorted(name for name in old | new if name in old ^ new or not _is_same(name, shown.pair))
    policies = [policies_of(shown.pair, name) for name in names]
    lines = [f"call: {describe_call(shown)}", *_outcome_lines(shown)]
    lines += [line for name in names for line in _places(name, shown.pair)]
    return Finding(
        way,
        one.kind,
        tool,
        one.words,
        tuple(lines),
        tuple(names),
        content=[[policy_meaning(policy) for policy in pair] for pair in policies],
        files=frozenset(policy.file for pair in policies for policy in pair if policy is not None),
        example=_example(shown),
    )


def _is_same(name: str, pair: SidePair) -> bool:
    old, new = policies_of(pair, name)
    return bool(policy_meaning(old) == policy_meaning(new))


def _places(name: str, pair: SidePair) -> Iterator[str]:
    if name == UNSEEN:
        yield "policy unseen: the built-in gate for fields that policy cannot evaluate"
        return
    for word, policy in zip(("before", "after"), policies_of(pair, name), strict=True):
        if policy is None:
            yield f"{word}: no policy {name}"
        else:
            yield f"{word}: {policy.place} {policy.effect} {name}{'' if policy.gate is None else ' (gate)'}"


def _outcome_lines(shown: ExampleCall) -> Iterator[str]:
    for word, side, made in zip(("before", "after"), shown.pair, shown.decisions, strict=True):
        if side is None:
            yield f"{word}: deny, the bundle does not hold the tool"
            continue
        decision = side.decided(shown.base, shown.values)
        if decision.outcome is not made.outcome:
            yield f"{word}: {made.outcome} by the rules, although this example call is a {decision.outcome}"
        elif decision.outcome is Verdict.REVIEW:
            yield f"{word}: review by {describe_review(decision)}"
        elif decision.outcome is Verdict.DENY:
            yield f"{word}: deny by {', '.join(decision.policies) or decision.code}"
        else:
            yield f"{word}: release by {', '.join(decision.policies)}"


def describe_call(shown: ExampleCall) -> str:
    """The call in one line: args, then the other inputs of the rules."""
    question = _question(shown)
    others = [f"{path_text(path)} = {_value_text(value)}" for path, value in _other_inputs(shown)]
    return "; ".join([f"{question.tool} {json.dumps(question.args, sort_keys=True)}", *others])


def _question(shown: ExampleCall) -> PolicyRequest:
    side = next(side for side in reversed(shown.pair) if side is not None)
    return side.question(shown.base, shown.values)


def _other_inputs(shown: ExampleCall) -> list[tuple[Path, Any]]:
    """The inputs of the rules other than args."""
    return [(path, value) for path, value in sorted(shown.values.items()) if path[0] != "input"]


def _value_text(value: Any) -> str:
    return "(absent)" if value == ABSENT else json.dumps(value, default=str)


def _example(shown: ExampleCall) -> dict[str, Any]:
    question = _question(shown)
    others: dict[str, Any] = {}
    for path, value in _other_inputs(shown):
        plain = value if isinstance(value, bool | int) else str(value)
        others[path_text(path)] = "(absent)" if value == ABSENT else plain
    return {"tool": question.tool, "args": question.args, "with": others}
