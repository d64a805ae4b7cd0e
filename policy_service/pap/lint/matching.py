"""Rules that never do anything: what they ask contradicts the schema or itself, or another rule is always first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cedarpy import pst

from policy_service.pap.lint.logic import MAX_CASES, cases
from policy_service.pap.lint.proofs import impossible, truth
from policy_service.pap.lint.subject import Subject, expressions
from policy_service.pap.problems import Problem

MAX_PAIRS: Final = 20_000
"""Pairs of rules that are compared; a bundle with more gets a note instead of an hour of proofs."""

_COMPARES: Final = frozenset({"eq", "less", "less_eq", "greater", "greater_eq"})


def never_matching(subject: Subject) -> Iterator[Problem]:
    """A rule that no call can ever satisfy."""
    if subject.cases is not None and not any(subject.possible(domain) for domain in subject.domains):
        what = "it asks nobody" if subject.kind == "gate" else f"this {subject.kind} does nothing"
        yield subject.finding(
            "never-matches",
            f"no call can satisfy all of its conditions, so {what}; look for conditions that exclude each other, or "
            "values the tool's manifest does not allow",
        )


def outside_the_schema(subject: Subject) -> Iterator[Problem]:
    """A comparison with a value that no call can have, in a rule that may hold for another reason."""
    if subject.cases is not None and not any(subject.possible(domain) for domain in subject.domains):
        return
    for expr in dict.fromkeys(expressions(subject.condition)):
        if _is_comparison(expr) and subject.domains and _never_true(subject, expr):
            yield subject.finding(
                "outside-schema",
                f"{_shown(expr)} is false for every call: the manifest's enum, minimum and maximum allow no such value",
            )


def shadowed(subjects: Sequence[Subject]) -> Iterator[Problem]:
    """Gates and permits that another rule makes void: whenever they hold a plain forbid holds as well."""
    forbids = [
        one
        for one in subjects
        if one.kind == "forbid" and not one.about_people and one.other_cases is not None
    ]
    void = [one for one in subjects if one.kind in {"gate", "permit"} and not one.about_people and one.cases]
    if len(forbids) * len(void) > MAX_PAIRS:
        message = (
            f"{len(void)} permits and gates beside {len(forbids)} forbids are too many to compare each with each; "
            "shadowed ones are not looked for"
        )
        yield Problem("*.cedar", None, message).as_finding("not-looked-at", "note")
        return
    for subject in void:
        first = next((forbid for forbid in forbids if _implies(subject, forbid)), None)
        if first is not None and any(subject.possible(domain) for domain in subject.domains):
            what = "asks about" if subject.kind == "gate" else "permits"
            yield subject.finding(
                "shadowed",
                f"every call it {what} is refused by {first.policy.source.id} ({first.policy.source.place}), a plain "
                "forbid; drop one of the two, or narrow the forbid",
            )


def given_up(subject: Subject) -> Iterator[Problem]:
    """A condition that was not looked at whole."""
    if subject.cases is None:
        yield subject.finding(
            "not-looked-at",
            f"its condition has more than {MAX_CASES} cases, so contradictions in it are not looked for; "
            "split the policy",
            "note",
        )


def _implies(subject: Subject, forbid: Subject) -> bool:
    """Whether the forbid holds, or errs, for every call for which this rule holds."""
    covered = set(map(id, forbid.domains))
    return all(
        id(domain) in covered
        and all(
            impossible(case | other, domain)
            for case in subject.possible(domain)
            for other in forbid.other_cases or ()
        )
        for domain in subject.domains
    )


def _is_comparison(expr: pst.Expr) -> bool:
    """Whether a person wrote it to compare something with a literal."""
    literal = (pst.StringLit, pst.LongLit)
    return (
        isinstance(expr, pst.BinaryOp)
        and expr.op in _COMPARES
        and (isinstance(expr.left, literal) != isinstance(expr.right, literal))
    )


def _never_true(subject: Subject, expr: pst.Expr) -> bool:
    """Whether it is false in every domain in which the other atoms leave the rule possible."""
    (case,) = cases(expr)
    return all(truth(atom.expr, domain) is (not atom.holds) for domain in subject.domains for atom in case)


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
