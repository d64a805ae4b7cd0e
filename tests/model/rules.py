"""The policies the machine of the whole protocol plays with: a few gates and forbids over the amount of a call, the
tools it holds, and who is in which group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from countersign.contract import ToolManifest
from tests.fakes.payments import MAIL, PAY, SHIP, UNPAY, person
from tests.model.gates import HOUR, OWNER, Gate, Rule, asks, version

PEOPLE = ("maya", "tomas", "ingrid", OWNER)
STAFF: Mapping[str, tuple[str, ...]] = {"finance": ("maya", "tomas", OWNER), "cfo": ("tomas",)}
STAFF = {**STAFF, "legal": ("ingrid", "maya"), "unseen": ("ingrid",)}
_BOOK_UNDO = {"tool": "unbook", "map": {"payment": "args:/account", "amount": "args:/amount"}}
BOOK = PAY | {"tool": "book", "title": "Book", "sentence": "Book for {account}", "compensation": _BOOK_UNDO}
UNBOOK = UNPAY | {"tool": "unbook", "title": "Unbook", "sentence": "Unbook {payment}"}
TOOLS: Mapping[str, dict[str, Any]] = {t["tool"]: t for t in (PAY, UNPAY, BOOK, UNBOOK, SHIP, MAIL)}


@dataclass(frozen=True)
class Bundle:
    """One bundle, by its name."""

    name: str
    rules: tuple[Rule, ...]
    tools: Mapping[str, dict[str, Any]] = field(default_factory=lambda: TOOLS)
    staff: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: STAFF)

    @cached_property
    def files(self) -> dict[str, str]:
        """The folder of these."""
        people = [f'[people.{name}]\nid = "{person(name)}"\nname = "{name.title()}"\n' for name in PEOPLE]
        groups = [f"[groups.{group}]\nmembers = {list(names)}\n" for group, names in self.staff.items()]
        return {
            "groups.toml": "".join(people + groups),
            "rules.cedar": ANYBODY_MAY + "".join(rule.cedar for rule in self.rules),
            **{f"tools/{tool}.json": json.dumps(manifest) for tool, manifest in self.tools.items()},
        }

    def lay(self, folder: Path) -> None:
        """Make the folder hold exactly these."""
        for file in [file for file in folder.rglob("*") if file.is_file()]:
            file.unlink()
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def gates_of(self, tool: str, amount: int) -> tuple[Gate, ...] | None:
        """The gates that fire on a call: none of them is a release; None is a deny."""
        fired = [rule for rule in self.rules if rule.tool == tool and amount > rule.over]
        if any(rule.gate is None for rule in fired):
            return None
        return tuple(rule.gate for rule in fired if rule.gate is not None)

    def groups_of(self, name: str) -> frozenset[str]:
        """The groups somebody is in."""
        return frozenset(group for group, names in self.staff.items() if name in names)

    @cached_property
    def versions(self) -> dict[str, str]:
        """The digest of each tool's manifest."""
        return {tool: version(manifest) for tool, manifest in self.tools.items()}

    def decide(self, tool: str, digest: str, amount: int) -> tuple[Gate, ...] | None:
        """The same where the tool is the one of this bundle."""
        return self.gates_of(tool, amount) if self.versions.get(tool) == digest else None

    def timeout(self, tool: str, digest: str) -> int | None:
        """Seconds after ``fire_by`` until an unreported call is unknown; None where the manifest is another."""
        if self.versions.get(tool) != digest:
            return None
        return ToolManifest.model_validate(self.tools[tool]).timeout_seconds


ANYBODY_MAY = '@id("anybody-may") permit (principal, action, resource);\n'
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
