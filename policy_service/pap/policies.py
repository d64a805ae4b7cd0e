"""The policy files of a bundle: parsed one statement at a time, named by our own ids, checked against the
schema.

Rules kept here: every policy has a unique `@id`, and that id is what the engine's reasons and errors carry; a
template is refused (nothing links it, so it would be a rule that never applies); a policy about what people do
(approving, settling, stopping) is about nothing else and asks no people; the generated schema validates each one,
strictly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from cedarpy import Schema, policies_to_pst, pst, validate_policies

from countersign.contract.manifest import PEOPLE_ACTIONS
from policy_service.pap.annotations import read_annotations
from policy_service.pap.problems import Problem
from policy_service.pap.scan import Statement, hidden_characters, scan
from policy_service.pdp.rules import PolicySource
from policy_service.pdp.slices import actions_named

MAX_POLICIES: Final = 10_000
"""Of a whole bundle: what it takes to load grows with them, at a millisecond or two each."""

MAX_OF_ONE_TOOL: Final = 2_000
"""That can match one tool: all of them are weighed at each call, which nothing can interrupt, at some microseconds
each."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: as written, and as the engine's tree with our id."""

    source: PolicySource
    tree: pst.Template
    statement: Statement

    @property
    def about_people(self) -> frozenset[str]:
        """Which of the things people do it is about; a policy open to all actions is about tools only."""
        return PEOPLE_ACTIONS & (actions_named(self.tree) or frozenset())


def read_policies(
    files: Mapping[str, bytes], groups: frozenset[str]
) -> tuple[dict[str, Policy], list[Problem]]:
    """Every policy by id, in the order of files and lines, and every problem on the way."""
    problems: list[Problem] = []
    policies: dict[str, Policy] = {}
    statements = _statements(files, problems)
    if len(statements) > MAX_POLICIES:  # before any is parsed: a hundred thousand take a minute
        return {}, [
            *problems,
            Problem("*.cedar", None, f"more than {MAX_POLICIES} policies; a bundle holds that many at most"),
        ]
    for statement in statements:
        policy = _read(statement, groups, problems)
        if policy is None:
            continue
        twin = policies.get(policy.source.id)
        if twin is not None:
            problems.append(
                statement.problem(f"@id {policy.source.id!r} is taken at {twin.source.place}", "id")
            )
        else:
            policies[policy.source.id] = policy
    return policies, problems


def validate(policies: Iterable[Policy], tools: Schema, approving: Schema) -> list[Problem]:
    """What the schema has against each policy."""
    problems: list[Problem] = []
    for policy in policies:
        schema = approving if policy.about_people else tools
        result = validate_policies(policy.statement.text, schema, release_gil=True)
        messages = dict.fromkeys(
            error.error.removeprefix("for policy `policy0`, ") for error in result.errors
        )
        if not result.validation_passed and not messages:
            messages = {"does not fit the schema": None}
        problems += [policy.statement.problem(message) for message in messages]
    return problems


def _statements(files: Mapping[str, bytes], problems: list[Problem]) -> list[Statement]:
    statements: list[Statement] = []
    for name, raw in files.items():
        if not name.endswith(".cedar"):
            continue
        try:
            text = raw.decode("utf-8")
            found, wrong = scan(name, text)
        except UnicodeDecodeError as error:
            problems.append(Problem(name, None, f"byte {error.start} is not UTF-8"))
            continue
        statements += found
        problems += [*hidden_characters(name, text), *wrong]
        if len(statements) > MAX_POLICIES:
            break  # it is refused whatever else is in it
    return statements


def _read(statement: Statement, groups: frozenset[str], problems: list[Problem]) -> Policy | None:
    tree = _parse(statement, problems)
    if tree is None:
        return None
    annotations: dict[str, str] = dict(tree.annotations)
    read = read_annotations(statement, tree.effect, annotations, groups)
    problems += read.problems
    if read.id is None:
        return None
    source = PolicySource(
        id=read.id,
        effect=tree.effect,
        file=statement.file,
        line=statement.line,
        text=statement.text,
        annotations=annotations,
        gate=read.gate,
        unseen=read.unseen,
    )
    policy = Policy(source, replace(tree, id=read.id), statement)
    if policy.about_people:
        policy = replace(policy, source=replace(source, people_do=min(policy.about_people)))
    problems += _people_problems(policy)
    return policy


def _parse(statement: Statement, problems: list[Problem]) -> pst.Template | None:
    try:
        parsed: Any = policies_to_pst(statement.text)
    except ValueError as error:
        problems.append(statement.problem(f"this is not Cedar: {error}"))
        return None
    if parsed.templates or len(parsed.static_policies) != 1:
        problems.append(
            statement.problem("a template (?principal, ?resource) applies to nobody; name them instead")
        )
        return None
    return cast("pst.Template", next(iter(parsed.static_policies.values())))


def _people_problems(policy: Policy) -> list[Problem]:
    if not policy.about_people:
        return []
    action = min(policy.about_people)
    if actions_named(policy.tree) != frozenset({action}):
        return [
            policy.statement.problem(f'a rule about Action::"{action}" may name no other action; write two')
        ]
    if "approval" in policy.source.annotations:
        message = f'nobody is asked about Action::"{action}"; drop @approval'
        return [policy.statement.problem(message, "approval")]
    return []
