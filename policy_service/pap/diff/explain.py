"""Explain one decision: which policies held, why the others did not, their inputs, and the smallest releasing change.

The engine itself evaluates the conditions one by one; there is no second implementation. Values of secret arguments are
never shown. Changes the agent can make itself come before others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, product
from typing import Any, Final

from cedarpy import Entities, pst

from countersign.contract import Verdict, pointer_to
from policy_service.domain.gates import merge
from policy_service.domain.policy_request import Decision, PolicyRequest
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.candidate_values import candidate_values
from policy_service.pap.diff.policy_inputs import PolicyInputs, policies_inputs
from policy_service.pap.diff.tool_side import ABSENT, Path, ToolSide, path_text
from policy_service.pap.parts import read_parts
from policy_service.pap.policy_tests.mutants import expression_text
from policy_service.pdp.engine import decide
from policy_service.pdp.rules import CedarRequest, evaluate_policies, policy_set

MAX_TRIED: Final = 3_000
"""Changed calls that are decided in the search for one that is released."""

HIDDEN_VALUE: Final = "(hidden)"
IsHidden = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class PolicyExplanation:
    """One policy of the call's tool: whether it held, else its first failing condition."""

    id: str
    effect: str
    place: str
    text: str
    held: bool
    failed: str | None = None


@dataclass(frozen=True)
class Explanation:
    """The explanation of one decision. ``release``: changes of args that would release it; ``other_facts``: those of
    facts or persons that the agent cannot change. ``read`` are the inputs of the rules, by name.
    """

    decision: Decision
    policies: tuple[PolicyExplanation, ...] = ()
    read: Mapping[str, str] = field(default_factory=dict)
    asks: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    other_facts: tuple[str, ...] = ()
    searched: int = 0

    def to_json(self) -> dict[str, Any]:
        decision = self.decision
        return {
            "outcome": decision.outcome.value,
            "decided_by": list(decision.policies),
            "bundle": decision.bundle,
            "commit": decision.commit,
            "policies": [asdict(one) for one in self.policies],
            "reasons": [reason.to_json() for reason in decision.reasons],
            "unseen": list(decision.unseen),
            "read": dict(self.read),
            "asks": list(self.asks),
            "would_release": list(self.release),
            "would_release_if_the_world_were_other": list(self.other_facts),
        }


def explain(bundle: Bundle, question: PolicyRequest, hides: IsHidden) -> Explanation:
    """Explain what this bundle decides on a question. ``hides`` returns whether a pointer is secret."""
    decision = decide(bundle.rules, question)
    version = bundle.version(question.tool, question.tool_digest)
    if version is None:  # denied for that; no rule was evaluated
        return Explanation(decision)
    side = ToolSide(bundle, read_parts(bundle.source.files)[0], version)
    asked = side.engine_input_for(question)
    read = policies_inputs(side.trees.values())
    explained = Explanation(
        decision,
        tuple(_policies(side, asked)) if asked is not None else (),
        dict(_looked_at(side, question, read, hides)),
        tuple(_gate_words(bundle, gate) for gate in merge(decision.gates)),
    )
    if decision.outcome is Verdict.RELEASE:
        return explained
    search = _Search(side, question, read, hides)
    release, others = search.releasing_changes()
    return replace(explained, release=tuple(release), other_facts=tuple(others), searched=search.count)


def _gate_words(bundle: Bundle, gate: Any) -> str:
    members = {person for group in gate.groups for person in bundle.directory.members(group)}
    people = sorted(bundle.directory.name_of(person) or person for person in members)
    extras = [f"step up by {gate.step_up}"] if gate.step_up else []
    extras += ["with a reason"] if gate.reason else []
    asks = ", ".join([f"{gate.quorum} of {gate.key}", *extras])
    return f"{asks} (asked by {', '.join(gate.gates)}; in groups.toml: {', '.join(people) or 'no members'})"


def _policies(side: ToolSide, asked: tuple[CedarRequest, Entities]) -> Iterator[PolicyExplanation]:
    holding = evaluate_policies(side.policies_as_forbids, *asked, side.rules.schema).reasons
    for policy_id, tree in side.trees.items():
        source = side.bundle.policies[policy_id]
        failed = None if policy_id in holding else _first_failing(side, tree, asked)
        yield PolicyExplanation(
            policy_id, source.kind, source.place, source.text, policy_id in holding, failed
        )


def _first_failing(side: ToolSide, tree: pst.Template, asked: tuple[CedarRequest, Entities]) -> str:
    """The first condition that is not true, in the engine's order of evaluation."""
    scopes = ("principal", "action", "resource")
    open_scopes: dict[str, Any] = dict.fromkeys(scopes, pst.ScopeAny())
    bare = replace(tree, id="one", effect="forbid", annotations={}, clauses=(), **open_scopes)
    steps = [(f"the scope's {name}", replace(bare, **{name: getattr(tree, name)})) for name in scopes]
    steps += [(_text_of(each), replace(bare, clauses=(each,))) for each in _conjuncts(tree.clauses)]
    for words, one in steps:
        answer = evaluate_policies(policy_set({"one": one}), *asked, side.rules.schema)
        if answer.errors:
            return f"{words}: it cannot be evaluated"
        if "one" not in answer.reasons:
            return f"{words} does not match" if words.startswith("the scope") else words
    return "nothing by itself"


def _conjuncts(clauses: Sequence[pst.Clause]) -> Iterator[pst.Clause]:
    for clause in clauses:
        if isinstance(clause, pst.When):
            for expr in _split(clause.expr):
                yield pst.When(expr=expr)
        else:
            yield clause


def _split(expr: pst.Expr) -> Iterator[pst.Expr]:
    if isinstance(expr, pst.BinaryOp) and expr.op == "and":
        yield from _split(expr.left)
        yield from _split(expr.right)
    else:
        yield expr


def _text_of(clause: pst.Clause) -> str:
    return f"{'when' if isinstance(clause, pst.When) else 'unless'} {{ {expression_text(clause.expr)} }}"


def _looked_at(
    side: ToolSide, question: PolicyRequest, read: PolicyInputs, hides: IsHidden
) -> Iterator[tuple[str, str]]:
    for path in sorted(read.literals):
        if path[0] in ("role", "team"):
            names = question.agent.roles if path[0] == "role" else question.agent.teams
            yield path_text(path), str(path[1] in names).lower()
            continue
        value = _value(side, question, path)
        text = "(absent)" if value is None else repr(value)
        yield path_text(path), HIDDEN_VALUE if _is_hidden(path, hides) else text


def _is_hidden(path: Path, hides: IsHidden) -> bool:
    return path[0] == "input" and hides("".join(pointer_to(step) for step in path[1:]))


def _value(side: ToolSide, question: PolicyRequest, path: Path) -> Any:
    head, rest = path[0], path[1:]
    tables: dict[str, Any] = {
        "input": question.args, "fact": question.facts.resource, "agentfact": question.facts.agent,
        "claimed": {"purpose": question.claimed.purpose, "reasoning": question.claimed.reasoning},
        "history": question.history,
    }  # fmt: skip
    if head in tables:
        value = tables[head]
        for step in rest:
            value = value.get(step) if isinstance(value, Mapping) else None
        return value
    plain = {
        "agent": question.agent.name, "owner": question.agent.owner, "proof": question.method, "env": question.env,
        "now": question.now.isoformat(), "txn": question.txn_size, "on_behalf_of": question.on_behalf_of,
    }  # fmt: skip
    if head == "resource":
        target = side.resource_path()
        return side.manifest.resource.id if target is None else _value(side, question, target)
    return plain.get(head)


class _Search:
    """Searches for the fewest changed values with which the call would be released."""

    def __init__(self, side: ToolSide, question: PolicyRequest, read: PolicyInputs, hides: IsHidden) -> None:
        self._side, self._question, self._hides = side, question, hides
        self.count = 0
        args = question.args if isinstance(question.args, dict) else {}
        base = args if side.encoded(args) is not None else side.base_args()
        self._values = candidate_values(read, [side], base)
        self._add_related_values(read)
        for path in list(self._values):
            if path[0] == "input" and _value(side, question, path) is not None:
                self._values[path] = [v for v in self._values[path] if v != _value(side, question, path)]

    def _add_related_values(self, read: PolicyInputs) -> None:
        """Add values that match other values of this call, where rules compare two paths. Secret values are left out,
        because the suggested change would reveal them."""
        for related in read.related:
            current = [value for path in sorted(related) if isinstance(value := self._now(path), str | int)]
            for path in related & self._values.keys():
                self._values[path] += [value for value in current if value not in self._values[path]]
        for relation in read.relations:
            now = {path: value for path in relation.factors if type(value := self._now(path)) is int}
            if len(now) == len(relation.factors):
                for path in relation.factors.keys() & self._values.keys():
                    solved = relation.solve_for(path, now)
                    self._values[path] += [] if solved is None else [solved - 1, solved, solved + 1]

    def _now(self, path: Path) -> Any:
        return None if _is_hidden(path, self._hides) else _value(self._side, self._question, path)

    def releasing_changes(self) -> tuple[list[str], list[str]]:
        """The smallest changes of args, and of facts, history, time and roles. If neither is enough, one of each."""
        args = sorted(path for path in self._values if path[0] == "input")
        others = sorted(path for path in self._values if path[0] != "input")
        by_args, by_others = self._smallest(args), self._smallest(others)
        if not by_args and not by_others:
            by_others = self._releasing(product(args, others))
        return by_args, by_others

    def _smallest(self, paths: list[Path]) -> list[str]:
        return self._releasing(combinations(paths, 1)) or self._releasing(combinations(paths, 2))

    def _releasing(self, choices: Iterable[tuple[Path, ...]]) -> list[str]:
        best = [change for chosen in choices if (change := self._best(chosen)) is not None]
        return [" and ".join(self._words(*one) for one in change.items()) for change in best]

    def _best(self, chosen: tuple[Path, ...]) -> dict[Path, Any] | None:
        """The releasing change closest to the original call."""
        found: list[tuple[float, dict[Path, Any]]] = []
        for values in product(*(self._values[path] for path in chosen)):
            if self.count >= MAX_TRIED:
                break
            self.count += 1
            change = dict(zip(chosen, values, strict=True))
            if self._decided(change) is Verdict.RELEASE:
                found.append((sum(self._distance(path, value) for path, value in change.items()), change))
        return min(found, key=lambda each: each[0])[1] if found else None

    def _distance(self, path: Path, value: Any) -> float:
        now = _value(self._side, self._question, path)
        numbers = isinstance(now, int | float) and isinstance(value, int | float)
        return abs(value - now) if numbers else (2.0 if value == ABSENT else 1.0)

    def _decided(self, change: Mapping[Path, Any]) -> Verdict:
        question = self._question
        try:
            return decide(self._side.bundle.rules, self._side.changed(question, change)).outcome
        except ValueError:  # a value does not have the declared type: no such call
            return Verdict.DENY

    def _words(self, path: Path, value: Any) -> str:
        if _is_hidden(path, self._hides):
            return f"another {path_text(path)}"
        if value == ABSENT:
            return f"no {path_text(path)}"
        if path[0] in ("role", "team"):
            return path_text(path) if value else f"not {path_text(path)}"
        return f"{path_text(path)} = {value!r}"
