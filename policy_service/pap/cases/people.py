"""One case about a person who wants to do something here (approve, settle, stop, ...), from its table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, cast

from countersign.contract import TaskKind
from policy_service.domain.people import ABOUT
from policy_service.domain.question import AgentPrincipal
from policy_service.pap.cases import fields
from policy_service.pap.cases.agents import agent_reader
from policy_service.pap.cases.case import DEFAULT_NOW, PeopleCase
from policy_service.pap.cases.fields import Fields
from policy_service.pap.cases.yaml import Table
from policy_service.pap.problems import Problem

_KINDS = tuple(kind.value for kind in TaskKind)
_STOPPABLE = ("everything", "tool", "agent")
_SOMEBODY = "urn:case|somebody"
_ROBOT = AgentPrincipal("agent")


def people_case_of(
    name: str, table: Table, kind: str, agents: Mapping[str, AgentPrincipal], problems: list[Problem]
) -> PeopleCase:
    """The case; what is wrong with it is added to the problems."""
    case = Fields(name, table, f"a case of `{kind}:`", problems)
    for key in ("matrix", "each"):
        case.take(key, lambda value: value, None)
    now = case.take("now", fields.moment, DEFAULT_NOW)
    about = ABOUT[kind]
    of_effect = about != "Stop"
    read = PeopleCase(
        file=name,
        line=table.line,
        it=case.need("it", fields.text, ""),
        action=kind,
        person=case.take("person", fields.text, _SOMEBODY),
        groups=case.take("groups", fields.texts, frozenset[str]()),
        assurance=cast(
            "Literal['oidc', 'dev']", case.take("assurance", fields.one_of("oidc", "dev"), "oidc")
        ),
        agent=case.take("agent", agent_reader(name, agents, problems), _ROBOT) if of_effect else _ROBOT,
        tool=case.need("tool", fields.text, "") if of_effect else "",
        gates=case.take("asked_by", fields.texts, frozenset[str]()) if of_effect else frozenset(),
        kind=case.take("kind", fields.one_of(*_KINDS), _KINDS[0]) if about == "Task" else "",
        what="" if of_effect else case.take("what", fields.one_of(*_STOPPABLE), _STOPPABLE[0]),
        name="" if of_effect else case.take("name", fields.text, ""),
        now=now,
        opened_at=case.take("opened_at", fields.moment, now - timedelta(hours=1)),
        env=case.take("env", fields.text, "production"),
        allowed=case.need("expect", fields.one_of("allowed", "refused"), "refused") == "allowed",
        policies=case.take("policies", fields.some_texts, frozenset[str]()),
    )
    case.finish()
    return read
