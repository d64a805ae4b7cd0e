"""Parse the policy files of a bundle, one statement at a time, with their annotations, and validate them.

- Every policy has a unique `@id`; the engine's reasons and errors carry it.
- A template is refused: nothing links it, so it would never apply.
- A policy about actions of people (approve, settle, stop) is about nothing else and is no gate.
- The generated schema validates each policy, strictly.
- `id`, `title`, `doc` may be on any policy. A gate's annotations belong on a forbid with `@approval`, `@unseen` on a
  permit. Any other annotation, a misspelt one too, is a problem. A mistake never weakens a rule: a quorum that is not
  a number is refused (design section 4, "Annotations").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, cast

from cedarpy import Schema, policies_to_pst, pst, validate_policies

from countersign.contract.manifest import PEOPLE_ACTIONS
from policy_service.domain.gates import STEP_UPS, Gate
from policy_service.domain.values import parse_duration
from policy_service.pap.problems import Problem, did_you_mean
from policy_service.pap.scan import Statement, hidden_character_problems, scan
from policy_service.pdp.rules import UNKNOWN_TOOL, UNSEEN, PolicySource, scope_actions
from policy_service.slack import require_channel

POLICY_ANNOTATIONS: Final = frozenset({"id", "title", "doc"})
GATE_ANNOTATIONS: Final = frozenset(
    "approval quorum step_up shared answer_within valid_for channel remind escalate reason".split()
)
PERMIT_ANNOTATIONS: Final = frozenset({"unseen"})
MAX_QUORUM: Final = 50
"""A larger quorum cannot be met within any deadline and is a mistake."""

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_QUORUM: Final = re.compile(r"[0-9]{1,4}\Z")
_MAX_TEXT: Final = 2_000  # characters of a title or doc: it is shown with the decision


@dataclass
class _Annotations:
    """Reads the annotations of one policy and collects their problems."""

    statement: Statement
    effect: str
    annotations: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_gate(self) -> bool:
        return self.effect == "forbid" and "approval" in self.annotations

    def refuse(self, name: str, message: str) -> None:
        self.problems.append(self.statement.problem(message, name))

    def value(self, name: str, read: Callable[[str], Any], default: Any = None) -> Any:
        """The annotation's value, parsed by `read`; the default if it is missing or invalid."""
        if name not in self.annotations:
            return default
        try:
            return read(self.annotations[name])
        except ValueError as error:
            self.refuse(name, f"@{name}: {error}")
            return default


def _id(lint: _Annotations) -> str | None:
    policy_id = lint.annotations.get("id")
    if not policy_id:
        lint.refuse("id", 'every policy needs an id; write @id("what-it-says") above it')
        return None
    if not _ID.match(policy_id):
        characters = "letters, digits, dot, dash and underscore, 100 at most"
        lint.refuse("id", f"@id {policy_id!r} may hold {characters}")
        return None
    if policy_id in {UNSEEN, UNKNOWN_TOOL}:
        lint.refuse("id", f"@id {policy_id!r} belongs to a built-in gate; choose another")
    return policy_id


def _check_places(lint: _Annotations) -> None:
    for name in lint.annotations:
        gate_only, permit_only = name in GATE_ANNOTATIONS, name in PERMIT_ANNOTATIONS
        allowed = (gate_only and lint.is_gate) or (permit_only and lint.effect == "permit")
        if name not in POLICY_ANNOTATIONS and not allowed:
            lint.refuse(name, _misplaced(name, lint.effect))


def _misplaced(name: str, effect: str) -> str:
    if name in GATE_ANNOTATIONS and effect == "permit":
        return f"@{name} belongs on a gate, which is a forbid; write `forbid (...) when {{ people must agree }};`"
    if name in GATE_ANNOTATIONS:
        return f'@{name} belongs on a gate; add @approval("group"), or drop it from this plain forbid'
    if name in PERMIT_ANNOTATIONS:
        return f"@{name} belongs on a permit; a {effect} cannot exempt fields from review"
    known = sorted(POLICY_ANNOTATIONS | GATE_ANNOTATIONS | PERMIT_ANNOTATIONS)
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean @{close[0]}?" if close else f"known are {', '.join(known)}"
    return f"@{name} is not an annotation we know; {hint}"


def _gate(lint: _Annotations, policy_id: str, groups: frozenset[str]) -> Gate | None:
    def existing(text: str) -> frozenset[str]:
        return _groups(text, groups)

    asked = lint.value("approval", existing)
    fields: dict[str, Any] = {
        "quorum": lint.value("quorum", _quorum),
        "step_up": lint.value("step_up", _step_up),
        "shared": lint.value("shared", _flag),
        "answer_within": lint.value("answer_within", parse_duration),
        "valid_for": lint.value("valid_for", parse_duration),
        "reason": lint.value("reason", _flag),
        "channel": lint.value("channel", require_channel),
        "remind": lint.value("remind", parse_duration),
        "escalate": lint.value("escalate", existing),
        "title": lint.annotations.get("title"),
    }
    if lint.problems:
        return None
    return Gate(policy_id, asked, **{name: value for name, value in fields.items() if value is not None})


def _groups(text: str, known: frozenset[str]) -> frozenset[str]:
    names = [name.strip() for name in text.split("|")]
    for name in names:
        if not name:
            raise ValueError(f'{text!r} names no group; write one, or several like "finance|cfo"')
        if name not in known:
            hint = did_you_mean(name, known, f"add [groups.{name}] to groups.toml")
            raise ValueError(f"there is no group {name!r}; {hint}")
    return frozenset(names)


def _quorum(text: str) -> int:
    if not _QUORUM.match(text) or not 1 <= int(text) <= MAX_QUORUM:
        raise ValueError(f"{text!r} is not a number of people from 1 to {MAX_QUORUM}")
    return int(text)


def _step_up(text: str) -> str:
    if text not in STEP_UPS:
        raise ValueError(f"{text!r} is not a way to step up; known are {', '.join(STEP_UPS)}")
    return text


def _flag(text: str) -> bool:
    if text not in ("", "true"):
        raise ValueError(f"{text!r} says nothing here; write it bare, or leave it out for no")
    return True


def _names(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f'{text!r} names no field; write the fields like "items,note"')
    return frozenset(names)


def _shown_text(text: str) -> str:
    if not text.strip() or len(text) > _MAX_TEXT:
        raise ValueError(f"write 1 to {_MAX_TEXT} characters")
    return text


MAX_POLICIES: Final = 10_000
"""In one bundle. Loading takes a millisecond or two for each."""

MAX_POLICIES_PER_TOOL: Final = 2_000
"""That can match one tool. Each call evaluates all of them, uninterruptibly, at some microseconds each."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: as written, and as the engine's syntax tree with its `@id`."""

    source: PolicySource
    tree: pst.Template
    statement: Statement

    @property
    def about_people(self) -> frozenset[str]:
        """The actions of people it is about. A policy open to all actions is about tools only."""
        return PEOPLE_ACTIONS & (scope_actions(self.tree) or frozenset())


def read_policies(
    files: Mapping[str, bytes], groups: frozenset[str]
) -> tuple[dict[str, Policy], list[Problem]]:
    """Every policy by id, in the order of files and lines, and every problem."""
    problems: list[Problem] = []
    policies: dict[str, Policy] = {}
    statements = _statements(files, problems)
    if len(statements) > MAX_POLICIES:  # before any is parsed: parsing 100,000 takes a minute
        message = f"more than {MAX_POLICIES} policies; a bundle holds that many at most"
        return {}, [*problems, Problem("*.cedar", None, message)]
    for statement in statements:
        policy = _read(statement, groups, problems)
        if policy is None:
            continue
        twin = policies.setdefault(policy.source.id, policy)
        if twin is not policy:
            message = f"@id {policy.source.id!r} is taken at {twin.source.place}"
            problems.append(statement.problem(message, "id"))
    return policies, problems


def schema_problems(policies: Iterable[Policy], tools: Schema, approving: Schema) -> list[Problem]:
    """The schema violations of each policy."""
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
        problems += [*hidden_character_problems(name, text), *wrong]
        if len(statements) > MAX_POLICIES:
            break  # it is refused in any case
    return statements


def _read(statement: Statement, groups: frozenset[str], problems: list[Problem]) -> Policy | None:
    tree = _parse(statement, problems)
    if tree is None:
        return None
    lint = _Annotations(statement, tree.effect, dict(tree.annotations))
    policy_id = _id(lint)
    _check_places(lint)
    for name in ("title", "doc"):
        lint.value(name, _shown_text)
    gate = _gate(lint, policy_id or "?", groups) if lint.is_gate else None
    unseen = lint.value("unseen", _names, frozenset()) if tree.effect == "permit" else frozenset()
    problems += lint.problems
    if policy_id is None:
        return None
    source = PolicySource(
        id=policy_id,
        effect=tree.effect,
        file=statement.file,
        line=statement.line,
        text=statement.text,
        annotations=lint.annotations,
        gate=gate if not lint.problems else None,
        unseen=unseen,
    )
    policy = Policy(source, replace(tree, id=policy_id), statement)
    if policy.about_people:
        policy = replace(policy, source=replace(source, people_action=min(policy.about_people)))
    problems += _people_problems(policy)
    return policy


def _parse(statement: Statement, problems: list[Problem]) -> pst.Template | None:
    try:
        parsed: Any = policies_to_pst(statement.text)
    except ValueError as error:
        problems.append(statement.problem(f"this is not Cedar: {error}"))
        return None
    if parsed.templates or len(parsed.static_policies) != 1:
        message = "a template (?principal, ?resource) never applies; name principal and resource"
        problems.append(statement.problem(message))
        return None
    return cast("pst.Template", next(iter(parsed.static_policies.values())))


def _people_problems(policy: Policy) -> list[Problem]:
    action = policy.source.people_action
    if action is not None and scope_actions(policy.tree) != frozenset({action}):
        message = f'a rule about Action::"{action}" may name no other action; write two'
        return [policy.statement.problem(message)]
    if action is not None and "approval" in policy.source.annotations:
        message = f'people are not asked about Action::"{action}"; drop @approval'
        return [policy.statement.problem(message, "approval")]
    return []


def is_unconditional(tree: pst.Template) -> bool:
    """Whether it applies to every request of its actions. A scope that only names a type narrows nothing: the principal
    of a rule is always an Agent, or a User in a rule about people.
    """
    scopes = (tree.principal, tree.resource)
    return not tree.clauses and all(isinstance(scope, pst.ScopeAny | pst.ScopeIs) for scope in scopes)


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
