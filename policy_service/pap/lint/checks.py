"""Lints of one policy: it never matches, is shadowed, overflows, names missing entities, or is misleading.

Bounds of arithmetic come from the manifest's JSON Schema, from the contract's integers for other arguments, and are 64
bits for facts. A condition to the left, in an earlier clause or in `if` narrows them. The engine gets only the agent,
the resource and the people of the call as entities. Reading an attribute of any other entity errs, which denies the
call; `has` and `in` are false.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final

from cedarpy import pst

from policy_service.domain.quorum import GroupDirectory
from policy_service.pap.lint.domains import (
    INT64,
    Domain,
    NarrowedBounds,
    bounds_of,
    people_domain,
    tool_domain,
)
from policy_service.pap.lint.proofs import (
    MAX_CONJUNCTIONS,
    Conjunction,
    Disjunction,
    TooComplexError,
    constant_truth,
    implied_bounds,
    is_impossible,
    policy_condition,
    to_disjunction,
)
from policy_service.pap.parts import BundleParts
from policy_service.pap.policies import Policy, children, expressions
from policy_service.pap.problems import Level, Problem
from policy_service.pdp.rules import scope_may_match


@dataclass(frozen=True)
class LintedPolicy:
    """A policy and the domains of the actions its scope can match, one for each tool version."""

    policy: Policy
    domains: tuple[Domain, ...]
    directory: GroupDirectory

    @cached_property
    def condition(self) -> pst.Expr:
        """Scope and clauses as one condition."""
        return policy_condition(self.policy.tree)

    @cached_property
    def cases(self) -> Disjunction | None:
        """When it holds; None when the condition is too complex."""
        return self._cases(holds=True)

    @cached_property
    def other_cases(self) -> Disjunction | None:
        """When it does not hold; None when the condition is too complex."""
        return self._cases(holds=False)

    def possible(self, domain: Domain) -> tuple[Conjunction, ...]:
        """The cases that are not proved impossible."""
        return tuple(case for case in self.cases or () if not is_impossible(case, domain))

    @cached_property
    def is_unsatisfiable(self) -> bool:
        """Whether it is proved that it never holds."""
        return self.cases is not None and not any(self.possible(domain) for domain in self.domains)

    @property
    def kind(self) -> str:
        return self.policy.source.kind

    def finding(
        self, code: str, message: str, level: Level = "warning", annotation: str | None = None
    ) -> Problem:
        text = f"{self.policy.source.id}: {message}"
        return self.policy.statement.problem(text, annotation).as_finding(code, level)

    def _cases(self, *, holds: bool) -> Disjunction | None:
        try:
            return to_disjunction(self.condition, holds)
        except TooComplexError:
            return None


def linted_policies(parts: BundleParts, policies: Mapping[str, Policy]) -> tuple[LintedPolicy, ...]:
    """Every policy with the domains of its calls."""
    domains = [
        (version, tool_domain(version, parts.config, parts.meters.get(version.tool, ())))
        for version in parts.tools
    ]
    people = {action: people_domain(action) for policy in policies.values() for action in policy.about_people}

    def about(policy: Policy) -> Iterator[Domain]:
        if policy.about_people:
            yield from (people[action] for action in sorted(policy.about_people))
            return
        for version, domain in domains:
            if scope_may_match(policy.tree, version.tool, version.manifest.groups):
                yield domain

    return tuple(LintedPolicy(policy, tuple(about(policy)), parts.directory) for policy in policies.values())


MAX_PAIRS: Final = 20_000
"""Pairs of rules that are compared; a bundle with more gets a note instead."""

_COMPARES: Final = frozenset({"eq", "less", "less_eq", "greater", "greater_eq"})


def check_satisfiable(subject: LintedPolicy) -> Iterator[Problem]:
    """A rule that no call can satisfy."""
    if subject.is_unsatisfiable:
        what = "it never asks people" if subject.kind == "gate" else f"this {subject.kind} does nothing"
        yield subject.finding(
            "never-matches",
            f"no call can satisfy all of its conditions, so {what}; look for contradictory conditions, or "
            "values the tool's manifest does not allow",
        )


def check_schema_bounds(subject: LintedPolicy) -> Iterator[Problem]:
    """A comparison with a value that no call can have, in a rule that is otherwise satisfiable."""
    if subject.is_unsatisfiable:
        return
    for expr in dict.fromkeys(expressions(subject.condition)):
        if _is_comparison(expr) and subject.domains and _never_true(subject, expr):
            yield subject.finding(
                "outside-schema",
                f"{_shown(expr)} is false for every call: the manifest's enum, minimum and maximum allow no such value",
            )


def check_shadowed(subjects: Sequence[LintedPolicy]) -> Iterator[Problem]:
    """Gates and permits without effect: whenever they hold, a plain forbid holds too."""
    about_tools = [one for one in subjects if not one.policy.about_people]
    forbids = [one for one in about_tools if one.kind == "forbid" and one.other_cases is not None]
    void = [one for one in about_tools if one.kind in {"gate", "permit"} and one.cases]
    if len(forbids) * len(void) > MAX_PAIRS:
        message = (
            f"{len(void)} permits and gates with {len(forbids)} forbids are too many pairs to compare; "
            "shadowed rules are not reported"
        )
        yield Problem("*.cedar", None, message).as_finding("not-looked-at", "note")
        return
    for subject in void:
        first = next((forbid for forbid in forbids if _implies(subject, forbid)), None)
        if first is not None and not subject.is_unsatisfiable:
            what = "asks about" if subject.kind == "gate" else "permits"
            yield subject.finding(
                "shadowed",
                f"every call it {what} is refused by {first.policy.source.id} ({first.policy.source.place}), a plain "
                "forbid; drop one of the two, or narrow the forbid",
            )


def check_complexity(subject: LintedPolicy) -> Iterator[Problem]:
    """A condition too complex to analyze."""
    if subject.cases is None:
        yield subject.finding(
            "not-looked-at",
            f"its condition has more than {MAX_CONJUNCTIONS} cases, so contradictions in it are not reported; "
            "split the policy",
            "note",
        )


def _implies(subject: LintedPolicy, forbid: LintedPolicy) -> bool:
    """Whether the forbid holds, or errs, for every call that satisfies this rule."""
    covered = set(map(id, forbid.domains))
    return all(
        id(domain) in covered
        and all(
            is_impossible(case | other, domain)
            for case in subject.possible(domain)
            for other in forbid.other_cases or ()
        )
        for domain in subject.domains
    )


def _is_comparison(expr: pst.Expr) -> bool:
    """A comparison with one literal side."""
    literal = (pst.StringLit, pst.LongLit)
    return (
        isinstance(expr, pst.BinaryOp)
        and expr.op in _COMPARES
        and (isinstance(expr.left, literal) != isinstance(expr.right, literal))
    )


def _never_true(subject: LintedPolicy, expr: pst.Expr) -> bool:
    """Whether it is false in every domain."""
    (case,) = to_disjunction(expr)
    return all(
        constant_truth(atom.expr, domain) is (not atom.holds) for domain in subject.domains for atom in case
    )


_SIGNS: Final = {"eq": "==", "less": "<", "less_eq": "<=", "greater": ">", "greater_eq": ">="}


def _shown(expr: pst.Expr) -> str:
    match expr:
        case pst.BinaryOp(op=op, left=left, right=right) if op in _SIGNS:
            return f"{_shown(left)} {_SIGNS[op]} {_shown(right)}"
        case pst.GetAttr(base=base, attr=attr):
            return f"{_shown(base)}.{attr}"
        case pst.Var(name=name):
            return name
        case pst.StringLit(value=text):
            return repr(text)
        case pst.LongLit(value=number):
            return str(number)
    return "(...)"


_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}


def check_overflow(subject: LintedPolicy) -> Iterator[Problem]:
    """The first operation of a rule that can overflow for some tool version."""
    for domain in subject.domains:
        found = next(_walk(subject.condition, domain, {}), None)
        if found is not None:
            yield subject.finding(
                "overflow",
                f"{found} can leave 64 bits for {domain.action!r}, and then every such call is denied; give the "
                "arguments a minimum and maximum in the manifest, or check a bound before (`x < 1000000 && ...`)",
            )
            return


def _walk(expr: pst.Expr, domain: Domain, narrowed: NarrowedBounds) -> Iterator[str]:
    match expr:
        case pst.BinaryOp(op="and" | "or" as op, left=left, right=right):
            yield from _walk(left, domain, narrowed)
            yield from _walk(right, domain, _after(left, op == "and", domain, narrowed))
            return
        case pst.IfThenElse(cond=cond, then_expr=then, else_expr=other):
            yield from _walk(cond, domain, narrowed)
            yield from _walk(then, domain, _after(cond, True, domain, narrowed))
            yield from _walk(other, domain, _after(cond, False, domain, narrowed))
            return
    for child in children(expr):
        yield from _walk(child, domain, narrowed)
    if isinstance(expr, pst.BinaryOp) and expr.op in _ARITHMETIC and _leaves(expr, domain, narrowed):
        yield f"`{_ARITHMETIC[expr.op]}`"
    elif isinstance(expr, pst.UnaryOp) and expr.op == "neg" and _leaves(expr, domain, narrowed):
        yield "`-` of a fact"


def _leaves(expr: pst.Expr, domain: Domain, narrowed: NarrowedBounds) -> bool:
    bounds = bounds_of(expr, domain, narrowed)
    return bounds is not None and (bounds[0] < INT64[0] or bounds[1] > INT64[1])


def _after(asked: pst.Expr, holds: bool, domain: Domain, narrowed: NarrowedBounds) -> NarrowedBounds:
    """The bounds after this condition evaluated to `holds`."""
    try:
        found = [implied_bounds(case, domain) for case in to_disjunction(asked, holds)]
    except TooComplexError:
        return narrowed
    if not found:
        return narrowed
    shared = set(found[0]).intersection(*found[1:])
    hull = {
        expr: (min(bounds[expr][0] for bounds in found), max(bounds[expr][1] for bounds in found))
        for expr in shared
    }
    merged = dict(narrowed)
    for expr, (low, high) in hull.items():
        known = merged.get(expr, INT64)
        merged[expr] = max(low, known[0]), min(high, known[1])
    return merged


def check_missing_entities(subject: LintedPolicy) -> Iterator[Problem]:
    """Every entity literal of which a rule reads an attribute or a membership."""
    for expr in dict.fromkeys(expressions(subject.condition)):
        named = _asked(expr)
        if named is not None and str(named.type) != "Action":
            yield subject.finding(
                "missing-entity",
                f"it reads from {named}, but only the call's own agent, resource and people exist in a decision; "
                "read the fact from `resource` or `principal`, or compare those with it",
            )


def _asked(expr: pst.Expr) -> pst.EntityUid | None:
    match expr:
        case pst.GetAttr(base=pst.EntityLit(value=uid)) | pst.HasAttr(base=pst.EntityLit(value=uid)):
            return uid
        case pst.BinaryOp(op="in" | "get_tag" | "has_tag", left=pst.EntityLit(value=uid)):
            return uid
    return None


MIN_ANSWER_WINDOW: Final = timedelta(minutes=5)


def check_answer_window(subject: LintedPolicy) -> Iterator[Problem]:
    """A gate whose question expires before people see it is a deny."""
    gate = subject.policy.source.gate
    if gate is not None and gate.answer_within < MIN_ANSWER_WINDOW:
        yield subject.finding(
            "short-window",
            f"people have {int(gate.answer_within.total_seconds())} s to answer, at night too, and an unanswered "
            "question expires; allow at least 5 minutes, or write a plain forbid",
        )


_ALPHABETS: Final = frozenset(
    {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "FULLWIDTH", "MATHEMATICAL"}
)


def check_patterns(subject: LintedPolicy) -> Iterator[Problem]:
    """`like` without a `*` is `==`; the author probably meant a prefix or a part."""
    for expr in dict.fromkeys(expressions(subject.condition)):
        if isinstance(expr, pst.Like) and not any(isinstance(one, pst.Wildcard) for one in expr.pattern):
            text = "".join(one.value for one in expr.pattern if isinstance(one, pst.Char))
            yield subject.finding(
                "like-without-wildcard", f"like {text!r} has no *, so it means ==; write == or add a *"
            )


def check_mixed_alphabets(subject: LintedPolicy) -> Iterator[Problem]:
    """A word with letters of two alphabets looks like another word and equals no word that people type."""
    for text in dict.fromkeys(_texts(subject)):
        for word in text.split():
            if len(found := _alphabets(word)) > 1:
                yield subject.finding(
                    "mixed-alphabets",
                    f"{word!a} mixes {' and '.join(sorted(name.title() for name in found))} letters, so it equals no "
                    "word that looks like it; type it again",
                )


def check_empty_groups(subject: LintedPolicy) -> Iterator[Problem]:
    """A group of a gate without members cannot answer. Members of directory groups are unknown here."""
    gate = subject.policy.source.gate
    if gate is None:
        return
    for annotation, groups in (("approval", gate.groups), ("escalate", gate.escalate)):
        for group in sorted(groups):
            if group not in subject.directory.elsewhere and not subject.directory.members(group):
                message = f"@{annotation} names {group!r}, which has no members in groups.toml"
                yield subject.finding("empty-group", message, "warning", annotation)


def _texts(subject: LintedPolicy) -> Iterator[str]:
    for expr in expressions(subject.condition):
        if isinstance(expr, pst.StringLit):
            yield expr.value
        elif isinstance(expr, pst.EntityLit):
            yield expr.value.id
        elif isinstance(expr, pst.Like):
            yield "".join(one.value if isinstance(one, pst.Char) else " " for one in expr.pattern)


def _alphabets(word: str) -> frozenset[str]:
    letters = [char for char in word if char.isalpha()]
    names = {unicodedata.name(char, "").partition(" ")[0] for char in letters}
    return frozenset(names & _ALPHABETS)


CHECKS: Final = (
    check_satisfiable,
    check_schema_bounds,
    check_overflow,
    check_missing_entities,
    check_patterns,
    check_mixed_alphabets,
    check_empty_groups,
    check_answer_window,
    check_complexity,
)
"""The checks of one policy; `check_shadowed` compares all policies."""
