"""One policy as the lints look at it: its condition, and what is known about every kind of call it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from cedarpy import pst

from policy_service.pap.lint.domains import Domain, domain_of, people_domain
from policy_service.pap.lint.logic import Case, Cases, TooManyCasesError, cases, condition_of
from policy_service.pap.lint.proofs import impossible
from policy_service.pap.parts import Parts
from policy_service.pap.policies import Policy
from policy_service.pap.problems import Level, Problem
from policy_service.pdp.slices import may_match


@dataclass(frozen=True)
class Subject:
    """A policy and the domains of the actions its scope can match; a domain for each version of a tool."""

    policy: Policy
    domains: tuple[Domain, ...]

    @cached_property
    def condition(self) -> pst.Expr:
        """Scope and clauses as one condition."""
        return condition_of(self.policy.tree)

    @cached_property
    def cases(self) -> Cases | None:
        """When it holds; None when there are too many cases to look at."""
        return self._cases(holds=True)

    @cached_property
    def other_cases(self) -> Cases | None:
        """When it does not hold; None when there are too many cases to look at."""
        return self._cases(holds=False)

    def possible(self, domain: Domain) -> tuple[Case, ...]:
        """The cases of which nobody can prove that they never happen."""
        return tuple(case for case in self.cases or () if not impossible(case, domain))

    @property
    def about_people(self) -> bool:
        """Whether it is about what people do."""
        return bool(self.policy.about_people)

    @property
    def kind(self) -> str:
        """Permit, forbid or gate, as texts for people call it."""
        return "gate" if self.policy.source.gate is not None else self.policy.source.effect

    def finding(
        self, code: str, message: str, level: Level = "warning", annotation: str | None = None
    ) -> Problem:
        """Something to say about this policy."""
        told = f"{self.policy.source.id}: {message}"
        return self.policy.statement.problem(told, annotation).as_finding(code, level)

    def _cases(self, *, holds: bool) -> Cases | None:
        try:
            return cases(self.condition, holds)
        except TooManyCasesError:
            return None


def subjects_of(parts: Parts, policies: Mapping[str, Policy]) -> tuple[Subject, ...]:
    """Every policy with what is known about its calls."""
    domains = [
        (version, domain_of(version, parts.config, parts.meters.get(version.tool, ())))
        for version in parts.tools
    ]
    people = {action: people_domain(action) for policy in policies.values() for action in policy.about_people}

    def about(policy: Policy) -> Iterator[Domain]:
        if policy.about_people:
            yield from (people[action] for action in sorted(policy.about_people))
            return
        for version, domain in domains:
            if may_match(policy.tree, version.tool, version.manifest.groups):
                yield domain

    return tuple(Subject(policy, tuple(about(policy))) for policy in policies.values())


def expressions(node: pst.Expr) -> Iterator[pst.Expr]:
    """This expression and all below it."""
    yield node
    for child in children(node):
        yield from expressions(child)


def children(node: pst.Expr) -> tuple[pst.Expr, ...]:
    """The expressions directly below."""
    match node:
        case pst.UnaryOp(arg=arg):
            return (arg,)
        case pst.BinaryOp(left=left, right=right):
            return (left, right)
        case pst.GetAttr(base=base) | pst.HasAttr(base=base) | pst.Like(base=base):
            return (base,)
        case pst.Is(base=base, in_expr=inside):
            return (base,) if inside is None else (base, inside)
        case pst.IfThenElse(cond=cond, then_expr=then, else_expr=other):
            return (cond, then, other)
        case pst.Set(elements=elements):
            return tuple(elements)
        case pst.Record(fields=fields):
            return tuple(fields.values())
    return ()
