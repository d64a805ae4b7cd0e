"""The agents of a cases file: by alias for the whole file, or written out in one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from policy_service.domain.question import AgentPrincipal
from policy_service.pap.cases import fields
from policy_service.pap.cases.fields import Fields
from policy_service.pap.cases.yaml import Table
from policy_service.pap.problems import Problem

NOBODY = AgentPrincipal("")


def agents_of(file: Fields, name: str, problems: list[Problem]) -> dict[str, AgentPrincipal]:
    """The aliases of a file."""
    agents: dict[str, AgentPrincipal] = {}
    for alias, value in file.take("agents", fields.table, Table(file.table.line)).items():
        if isinstance(value, Table):
            agents[alias] = _agent(name, value, problems)
        else:
            message = f"agents: {alias!r} is not a mapping; write it like {{ name: desk-agent, roles: [] }}"
            problems.append(Problem(name, file.table.line_of("agents"), message))
    return agents


def agent_reader(
    name: str, agents: Mapping[str, AgentPrincipal], problems: list[Problem]
) -> Callable[[Any], AgentPrincipal]:
    """What reads `agent:` of a case: one of the aliases, or a mapping."""

    def read(value: Any) -> AgentPrincipal:
        if isinstance(value, Table):
            return _agent(name, value, problems)
        alias = fields.text(value)
        if alias not in agents:
            close = get_close_matches(alias, agents, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "add it to `agents:`"
            raise ValueError(f"there is no agent {alias!r} in this file; {hint}")
        return agents[alias]

    return read


def _agent(name: str, table: Table, problems: list[Problem]) -> AgentPrincipal:
    agent = Fields(name, table, "an agent", problems)
    owner: str | None = agent.take("owner", fields.text, "") or None
    principal = AgentPrincipal(
        name=agent.need("name", fields.text, ""),
        owner=owner,
        roles=agent.take("roles", fields.texts, frozenset[str]()),
        teams=agent.take("teams", fields.texts, frozenset[str]()),
    )
    agent.finish()
    return principal
