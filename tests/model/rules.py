"""The policies the machine plays with, as data: what the model reads, and the bundle folder the service reads.

A bundle is a few gates and forbids over the amount of a call, the tools it holds, and who is in which group. Its Cedar
text and its manifests are written from the same data, so that the two sides can only differ in what they make of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from countersign.contract import ToolManifest
from tests.fakes.payments import MAIL, PAY, SHIP, UNPAY, person

HOUR = 3_600
OWNER = "jonas"
PEOPLE = ("maya", "tomas", "ingrid", OWNER)
STAFF: Mapping[str, tuple[str, ...]] = {
    "finance": ("maya", "tomas", OWNER),
    "cfo": ("tomas",),
    "legal": ("ingrid", "maya"),
    "unseen": ("ingrid",),
}


@dataclass(frozen=True)
class Gate:
    """Forbidden until these people agree."""

    name: str
    groups: frozenset[str]
    quorum: int = 1
    answer_within: int = 24 * HOUR
    valid_for: int = HOUR
    shared: bool = False


@dataclass(frozen=True)
class Rule:
    """One policy: a gate, or a plain forbid where there is none, on a tool's calls above an amount."""

    name: str
    tool: str
    over: int = -1
    gate: Gate | None = None

    @property
    def cedar(self) -> str:
        """As its author writes it."""
        notes = "" if self.gate is None else _annotations(self.gate)
        when = "true" if self.over < 0 else f"context.input.amount > {self.over}"
        action = f'action == Action::"{self.tool}"'
        return f'@id("{self.name}") {notes}\nforbid (principal, {action}, resource) when {{ {when} }};\n'


def _annotations(gate: Gate) -> str:
    shared = " @shared" if gate.shared else ""
    return (
        f'@approval("{"|".join(sorted(gate.groups))}") @quorum("{gate.quorum}") '
        f'@answer_within("{gate.answer_within}s") @valid_for("{gate.valid_for}s"){shared}'
    )


def asks(name: str, tool: str, groups: str, over: int = -1, **more: Any) -> Rule:
    """A rule that asks these people."""
    return Rule(name, tool, over, Gate(name, frozenset(groups.split("|")), **more))


BOOK = PAY | {
    "tool": "book",
    "title": "Book",
    "sentence": "Book for {account}",
    "compensation": {"tool": "unbook", "map": {"payment": "args:/account", "amount": "args:/amount"}},
}
UNBOOK = UNPAY | {"tool": "unbook", "title": "Unbook", "sentence": "Unbook {payment}"}
TOOLS: Mapping[str, dict[str, Any]] = {t["tool"]: t for t in (PAY, UNPAY, BOOK, UNBOOK, SHIP, MAIL)}


def version(manifest: dict[str, Any]) -> str:
    """The digest of a reviewed manifest."""
    return ToolManifest.model_validate(manifest).digest


@dataclass(frozen=True)
class Bundle:
    """Everything in force at one time."""

    name: str
    rules: tuple[Rule, ...]
    tools: Mapping[str, dict[str, Any]] = field(default_factory=lambda: TOOLS)
    staff: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: STAFF)

    @cached_property
    def versions(self) -> dict[str, str]:
        """The digest of each tool's manifest."""
        return {tool: version(manifest) for tool, manifest in self.tools.items()}

    @cached_property
    def files(self) -> dict[str, str]:
        """The folder of this bundle."""
        people = [f'[people.{name}]\nid = "{person(name)}"\nname = "{name.title()}"\n' for name in PEOPLE]
        groups = [f"[groups.{group}]\nmembers = {list(names)}\n" for group, names in self.staff.items()]
        permit = '@id("anybody-may") permit (principal, action, resource);\n'
        return {
            "groups.toml": "".join(people + groups),
            "rules.cedar": permit + "".join(rule.cedar for rule in self.rules),
            **{f"tools/{tool}.json": json.dumps(manifest) for tool, manifest in self.tools.items()},
        }

    def decide(self, tool: str, digest: str, amount: int) -> tuple[Gate, ...] | None:
        """The gates that fire on a call: none of them is a release; None is a deny."""
        if self.versions.get(tool) != digest:
            return None
        fired = [rule for rule in self.rules if rule.tool == tool and amount > rule.over]
        if any(rule.gate is None for rule in fired):
            return None
        return tuple(rule.gate for rule in fired if rule.gate is not None)

    def groups_of(self, name: str) -> frozenset[str]:
        """The groups somebody is in."""
        return frozenset(group for group, names in self.staff.items() if name in names)

    def timeout(self, tool: str, digest: str) -> int | None:
        """Seconds after ``fire_by`` until an unreported call is unknown; None where the manifest is another."""
        if self.versions.get(tool) != digest:
            return None
        return ToolManifest.model_validate(self.tools[tool]).timeout_seconds

    def lay(self, folder: Path) -> None:
        """Make the folder hold exactly this bundle."""
        for file in [file for file in folder.rglob("*") if file.is_file()]:
            file.unlink()
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


LARGE = asks("large", "pay", "finance", 100)
HUGE = asks("huge", "pay", "finance", 1_000, quorum=2)
BOOKED = asks("booked", "book", "finance|cfo", 100)
_USUAL = (LARGE, HUGE, BOOKED)
USUAL = Bundle("usual", _USUAL)

BUNDLES: Mapping[str, Bundle] = {
    bundle.name: bundle
    for bundle in (
        USUAL,
        Bundle(
            "stricter",
            (
                *_USUAL,
                asks("legal-too", "pay", "legal", 50, answer_within=HOUR, valid_for=600),
                asks("mail-asks", "mail", "finance", valid_for=1_200),
                asks("watched", "pay", "legal|cfo", 1_000, shared=True),
            ),
        ),
        Bundle("wide", (*_USUAL, asks("wide", "pay", "finance|cfo", 100), asks("alone", "book", "cfo", 5))),
        Bundle("closed", (*_USUAL, Rule("no-large", "pay", 100), Rule("no-ship", "ship"))),
        Bundle("lax", ()),
        Bundle("no-mail", _USUAL, {tool: m for tool, m in TOOLS.items() if tool != "mail"}),
        Bundle("new-pay", _USUAL, {**TOOLS, "pay": PAY | {"title": "Pay now", "timeout_seconds": 20}}),
        Bundle("staff", _USUAL, staff={**STAFF, "finance": ("maya", "ingrid"), "cfo": (OWNER,)}),
        Bundle(
            "undo-asks",
            (*_USUAL, asks("undo", "unpay", "legal", valid_for=300), asks("unbook-asks", "unbook", "legal")),
        ),
        Bundle("undo-never", (*_USUAL, Rule("no-undo", "unpay"), Rule("no-unbook", "unbook"))),
    )
}


def merged(gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """Gates that fired together: those of one group set are one, the stricter of each."""
    found: dict[frozenset[str], Gate] = {}
    for gate in gates:
        same = found.get(gate.groups)
        found[gate.groups] = gate if same is None else _stricter(same, gate)
    return tuple(found.values())


def _stricter(one: Gate, other: Gate) -> Gate:
    return replace(
        one,
        quorum=max(one.quorum, other.quorum),
        answer_within=min(one.answer_within, other.answer_within),
        valid_for=min(one.valid_for, other.valid_for),
        shared=one.shared and other.shared,
    )


def met(gates: tuple[Gate, ...], approvers: Mapping[str, frozenset[str]]) -> bool:
    """Whether these people, each in these groups, are enough: every unshared place has a person of its own."""
    wanted = merged(gates)
    for gate in (gate for gate in wanted if gate.shared):
        if sum(1 for groups in approvers.values() if groups & gate.groups) < gate.quorum:
            return False
    places = [gate.groups for gate in wanted if not gate.shared for _ in range(gate.quorum)]
    return bool(wanted) and _seat(places, dict(approvers))


def _seat(places: list[frozenset[str]], people: dict[str, frozenset[str]]) -> bool:
    """By trying everybody: short, slow, and nothing to get wrong."""
    if not places:
        return True
    for name, groups in people.items():
        if groups & places[0]:
            rest = {other: theirs for other, theirs in people.items() if other != name}
            if _seat(places[1:], rest):
                return True
    return False
