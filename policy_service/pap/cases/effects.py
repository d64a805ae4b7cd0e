"""One case about a call, from its table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from countersign.contract import ContractError, canonicalize, load
from policy_service.domain.gates import STEP_UPS
from policy_service.domain.question import AgentPrincipal, CallMethod, Claimed
from policy_service.pap.cases import fields
from policy_service.pap.cases.agents import NOBODY, agent_reader
from policy_service.pap.cases.case import DEFAULT_NOW, Asked, Case, Expected, GivenFacts
from policy_service.pap.cases.fields import Fields
from policy_service.pap.cases.yaml import Table
from policy_service.pap.problems import Problem

_METHODS = ("key", "api_key")


def case_of(name: str, table: Table, agents: Mapping[str, AgentPrincipal], problems: list[Problem]) -> Case:
    """The case; what is wrong with it is added to the problems."""
    case = Fields(name, table, "a case", problems)
    for key in ("matrix", "each"):  # have been read before, and are what a misspelt one is likened to
        case.take(key, lambda value: value, None)
    no_args: tuple[Any, bytes] = ({}, b"{}")
    args, args_bytes = case.take("args", _args, no_args)
    facts = case.take("facts", fields.table, None)
    claimed = case.take("claimed", fields.table, None)
    read = Case(
        file=name,
        line=table.line,
        it=case.need("it", fields.text, ""),
        agent=case.need("agent", agent_reader(name, agents, problems), NOBODY),
        tool=case.need("tool", fields.text, ""),
        args=args,
        args_bytes=args_bytes,
        expected=_expected(case, name, problems),
        now=case.take("now", fields.moment, DEFAULT_NOW),
        env=case.take("env", fields.text, "production"),
        txn_size=case.take("txn_size", fields.number(1), 1),
        claimed=Claimed() if claimed is None else _claimed(name, claimed, problems),
        on_behalf_of=case.take("on_behalf_of", fields.text, "") or None,
        method=cast("CallMethod", case.take("method", fields.one_of(*_METHODS), "key")),
        history=case.take("history", _history, {}),
        facts=None if facts is None else _facts(name, facts, problems),
    )
    case.finish()
    return read


def _args(value: Any) -> tuple[Any, bytes]:
    """The args as admission takes them, and their canonical bytes."""
    try:
        args = load(json.dumps(fields.table(value)).encode())
        return args, canonicalize(args)
    except ContractError as error:
        raise ValueError(f"{error}; a call like this is refused before any rule is asked") from error


def _history(value: Any) -> dict[str, int]:
    counted = fields.table(value)
    return {fields.text(meter): fields.number(0)(count) for meter, count in counted.items()}


def _claimed(name: str, table: Table, problems: list[Problem]) -> Claimed:
    said = Fields(name, table, "claimed", problems)
    claimed = Claimed(
        *(said.take(key, fields.text, "") or None for key in ("purpose", "reasoning", "on_behalf_of"))
    )
    said.finish()
    return claimed


def _facts(name: str, table: Table, problems: list[Problem]) -> GivenFacts:
    about = Fields(name, table, "facts", problems)
    empty = Table(table.line)
    facts = GivenFacts(about.take("resource", fields.table, empty), about.take("agent", fields.table, empty))
    about.finish()
    return facts


# ------------------------------------------------------------------------------------------ expectations


def _expected(case: Fields, name: str, problems: list[Problem]) -> Expected:
    expected = Expected(
        outcome=case.need("expect", fields.one_of("release", "review", "deny"), ""),
        gates=case.take("gates", fields.some_texts, None),
        needs=case.take("needs", lambda value: _needs(value, name, problems), None),
        policies=case.take("policies", fields.some_texts, frozenset[str]()),
        reasons=case.take("reasons", fields.some_texts, None),
        errors=case.take("errors", fields.some_texts, None),
        step_up=case.take("step_up", fields.one_of(*STEP_UPS), "") or None,
        valid_for=case.take("valid_for", fields.duration, None),
        answer_within=case.take("answer_within", fields.duration, None),
    )
    _require_sense(case, expected)
    return expected


def _require_sense(case: Fields, expected: Expected) -> None:
    about = {
        "gates": "review",
        "needs": "review",
        "step_up": "review",
        "answer_within": "review",
        "reasons": "deny",
    }
    for key, outcome in {**about, "errors": "deny"}.items():
        if key in case.table and expected.outcome not in (outcome, ""):
            case.refuse(key, f"{key}: belongs to `expect: {outcome}`, and this expects {expected.outcome}")
    if "valid_for" in case.table and expected.outcome == "deny":
        case.refuse("valid_for", "valid_for: a deny is no release, so nothing of it is valid")
    if expected.outcome == "review" and not {"gates", "needs"} & case.table.keys():
        case.refuse("expect", "a review says who is asked: add `gates: [...]` or `needs: { group: 1 }`")
    if expected.outcome == "deny" and not {"reasons", "policies", "errors"} & case.table.keys():
        message = "a deny says why, or any slip of the pen would do: add `reasons: [...]` (a policy's id, or a code)"
        case.refuse("expect", message)


def _needs(value: Any, name: str, problems: list[Problem]) -> dict[str, int | Asked]:
    needs: dict[str, int | Asked] = {}
    for groups, asked in fields.table(value).items():
        key = "|".join(sorted(group.strip() for group in groups.split("|")))
        needs[key] = _asked(asked, name, problems) if isinstance(asked, Table) else fields.number(1)(asked)
    if not needs:
        raise ValueError("an empty mapping expects nothing; leave it out")
    return needs


def _asked(table: Table, name: str, problems: list[Problem]) -> Asked:
    gate = Fields(name, table, "a need", problems)
    usual = Asked(1)
    asked = Asked(
        people=gate.need("people", fields.number(1), 1),
        step_up=gate.take("step_up", fields.one_of(*STEP_UPS), "") or None,
        reason=gate.take("reason", fields.flag, usual.reason),
        shared=gate.take("shared", fields.flag, usual.shared),
        answer_within=gate.take("answer_within", fields.duration, usual.answer_within),
    )
    gate.finish()
    return asked
