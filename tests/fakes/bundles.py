"""A small bundle folder to change one file of: tests say what differs and nothing else."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from policy_service.domain.policy_request import AgentPrincipal, Decision, PolicyRequest
from policy_service.pap.bundle import Bundle, load_bundle
from policy_service.pap.problems import BundleError
from policy_service.pdp.engine import decide

NOW = datetime(2026, 11, 21, 22, 0, tzinfo=UTC)

GROUPS = """
[people.maya]
id = "urn:test|maya"
name = "Maya"
[people.tomas]
id = "urn:test|tomas"
name = "Tomas"
[groups.finance]
members = ["maya", "tomas"]
[groups.cfo]
members = ["tomas"]
[groups.unseen]
members = ["maya"]
"""

PERMIT_ALL = '@id("all") permit (principal, action, resource);\n'

PAY_ARGS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["account", "amount"],
    "properties": {
        "account": {"type": "string"},
        "amount": {"type": "integer"},
        "currency": {"type": "string", "enum": ["USD", "EUR"]},
        "note": {"type": ["string", "null"]},
        "items": {"type": "array", "items": {"type": "string"}},
        "tags": {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
    },
}


def pay_manifest(**changes: Any) -> dict[str, Any]:
    """The manifest of the one tool `pay`."""
    shown = {"tool": "pay", "title": "Pay", "sentence": "Pay {amount} to {account}"}
    return shown | {"args": PAY_ARGS, "resource": {"type": "Account", "id": "/account"}} | changes


def pay_args(**properties: Any) -> dict[str, Any]:
    """The args of `pay` with properties more or other."""
    return PAY_ARGS | {"properties": {**PAY_ARGS["properties"], **properties}}


def facts_of(entity: str, file: str = "facts/accounts.json", more: str = "", **attributes: str) -> str:
    """What facts.toml says of one kind of thing: its attributes, and the file they are looked up in."""
    declared = "".join(f'{name} = "{kind}"\n' for name, kind in attributes.items())
    source = f'[[source]]\nname = "{entity.lower()}"\nkind = "file"\nfile = "{file}"\nentity = "{entity}"\n'
    return f"[entities.{entity}.attributes]\n{declared}{source}{more}"


COUNTED = pay_manifest(args=pay_args(amount={"type": "integer", "minimum": 0}))
"""The manifest of a `pay` whose amounts a meter may add up."""

SPENT = '[meters.spent]\nsum = "/amount"\nof = ["pay"]\nper = "principal"\nwindow = "24h"\n'
"""A meter that adds them up."""

CAP = '@id("cap") forbid (principal, action, resource) when { context.history.spent > 100 };'


def asks_above(limit: int) -> str:
    """Rules by which payments above the limit wait for finance."""
    gate = '@id("g") @approval("finance") forbid (principal, action, resource) when { context.input.amount > LIMIT };'
    return PERMIT_ALL + gate.replace("LIMIT", str(limit))


class BundleFolder:
    """A folder with one tool `pay` and the groups above; no policy until a test writes one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("groups.toml", GROUPS)
        self.write("tools/pay.json", pay_manifest())
        self._bundle: Bundle | None = None

    def write(self, name: str, content: str | bytes | dict[str, Any]) -> Self:
        """Put a file there; a dict becomes JSON."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            content = json.dumps(content)
        whole = self.path.with_name(
            f"{self.path.name}.new"
        )  # a service that polls never reads half of a file
        whole.write_bytes(content if isinstance(content, bytes) else content.encode())
        whole.replace(file)
        self._bundle = None
        return self

    def policies(self, text: str) -> Self:
        """Replace the policy file."""
        return self.write("rules.cedar", text)

    def load(self) -> Bundle:
        """The bundle, loaded once until a file changes."""
        if self._bundle is None:
            self._bundle = load_bundle(self.path)
        return self._bundle

    def problems(self) -> list[str]:
        """What loading has against the folder; empty when it loads."""
        try:
            self.load()
        except BundleError as error:
            return [str(problem) for problem in error.problems]
        return []

    def question(self, args: Any, *, tool: str = "pay", facts: Any = None, **changes: Any) -> PolicyRequest:
        """A question about a call of `pay`, with the facts the bundle has for it."""
        bundle = self.load()
        agent = changes.pop("agent", AgentPrincipal("robot"))
        now = changes.pop("now", NOW)
        if facts is None:
            raw = json.dumps(args).encode()
            facts = asyncio.run(bundle.facts_for(tool, args, raw, agent=agent.name, now=now))
        known = bundle.manifests.get(tool)
        digest = changes.pop("tool_digest", known.digest if known else "0" * 64)
        return PolicyRequest(agent, tool, digest, args, facts, now, **changes)

    def decide(self, args: Any, **changes: Any) -> Decision:
        """The bundle's decision on a call of `pay`."""
        return decide(self.load().rules, self.question(args, **changes))


PAY: dict[str, Any] = {"account": "a1", "amount": 100}
"""Args of an ordinary call."""
