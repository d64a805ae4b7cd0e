"""What the game of reviews is played under: gates, who is in which group, who is barred, who may break the glass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.payments import MAIL, PAY, UNPAY, person
from tests.model.gates import HOUR, OWNER, InForce, Rule, asks, version

PEOPLE = ("maya", "tomas", "ingrid", "wim", OWNER)
STAFF: Mapping[str, tuple[str, ...]] = {
    "finance": ("maya", "tomas", OWNER),
    "cfo": ("tomas",),
    "legal": ("ingrid", "maya"),
    "board": ("ingrid", "wim"),
    "oncall": ("ingrid", "maya", OWNER),
    "captain": ("wim", OWNER),
    "unseen": ("ingrid",),
}
TOOLS: Mapping[str, dict[str, Any]] = {manifest["tool"]: manifest for manifest in (PAY, UNPAY, MAIL)}
VERSIONS = {tool: version(manifest) for tool, manifest in TOOLS.items()}

_PEOPLE_MAY = '@id("people-may") permit (principal, action == Action::"approve", resource);\n'
_GLASS = (
    '@id("oncall-opens") permit (principal in Group::"oncall", action == Action::"break_glass", resource);\n'
    '@id("captain-opens-alone") permit\n'
    '(principal in Group::"captain", action == Action::"break_glass_alone", resource);\n'
)

LARGE = asks("large", "pay", "finance", 100, escalate="board")
HUGE = asks("huge", "pay", "finance", 1_000, quorum=2, escalate="board|cfo")
MAILED = asks("mailed", "mail", "legal", reason=True)
_USUAL = (LARGE, HUGE, MAILED)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "usual": _USUAL,
    "more of them": (LARGE, asks("huge", "pay", "finance", 1_000, quorum=3, escalate="board|cfo"), MAILED),
    "others": (asks("large", "pay", "legal", 100), HUGE, MAILED),
    "legal too": (*_USUAL, asks("too", "pay", "legal", 50, answer_within=HOUR, valid_for=600, reason=True)),
    "wide": (*_USUAL, asks("wide", "pay", "finance|cfo", 100)),
    "watched": (*_USUAL, asks("watched", "pay", "legal|cfo", 1_000, shared=True)),
    "nobody further": (*_USUAL, asks("close", "pay", "finance", 100)),
    "closed": (*_USUAL, Rule("no-large", "pay", 100)),
    "lax": (),
}


@dataclass(frozen=True)
class Laws(InForce):
    """Everything in force at one time."""

    rules: str = "usual"
    staff: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: STAFF)
    barred: frozenset[str] = frozenset()
    glass: bool = True
    people = PEOPLE

    def holds(self) -> tuple[tuple[Rule, ...], Mapping[str, dict[str, Any]]]:
        """The gates and the plain forbids; the manifests of the tools."""
        return RULES[self.rules], TOOLS

    def permits(self) -> str:
        """Who may vote, and who may break the glass."""
        barred = [
            f'@id("not-{name}") forbid (principal == User::"{person(name)}", '
            'action == Action::"approve", resource);\n'
            for name in sorted(self.barred)
        ]
        return super().permits() + _PEOPLE_MAY + (_GLASS if self.glass else "") + "".join(barred)

    def opens(self, name: str) -> bool:
        """Whether policy names somebody as one of two who open in an emergency."""
        return self.glass and "oncall" in self.groups_of(name)

    def opens_alone(self, name: str) -> bool:
        """Whether policy lets somebody open alone."""
        return self.glass and "captain" in self.groups_of(name)
