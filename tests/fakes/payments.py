"""A bundle whose rules a test writes: payments that can be taken back, parcels another party sends, and mail.

Small payments go at once; above 100 finance is asked, above 1,000 two people of it. A test adds rules, or writes its
own, and activates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policy_service.identity.dev_signin import DEV_ISSUER
from tests.fakes.bundles import BundleFolder

PEOPLE = ("maya", "tomas", "ingrid", "jonas")
GROUPS = {"finance": ("maya", "tomas"), "cfo": ("tomas",), "legal": ("ingrid",), "unseen": ("ingrid",)}

ANYBODY = '@id("anybody-may") permit (principal, action, resource);\n'


def person(name: str) -> str:
    """How policies and votes name somebody."""
    return f"{DEV_ISSUER}|{name}"


def gate(name: str, groups: str, when: str = "true", action: str = "pay", **annotations: str) -> str:
    """One gate as its author writes it."""
    extra = " ".join(f'@{key}("{value}")' if value else f"@{key}" for key, value in annotations.items())
    return f'@id("{name}") @approval("{groups}") {extra}\n{_forbid(action, when)}'


def plain_forbid(name: str, when: str = "true", action: str = "pay") -> str:
    """One rule no vote can lift."""
    return f'@id("{name}") @doc("{name} says no")\n{_forbid(action, when)}'


def _forbid(action: str, when: str) -> str:
    return f'forbid (principal, action == Action::"{action}", resource) when {{ {when} }};\n'


LARGE = gate("large", "finance", "context.input.amount > 100")
HUGE = gate("huge", "finance", "context.input.amount > 1000", quorum="2")
USUAL = ANYBODY + LARGE + HUGE


def _schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    closed = {"type": "object", "additionalProperties": False}
    return closed | {"required": list(required), "properties": properties}


_TEXT = {"type": "string", "maxLength": 5_000}
_NUMBER = {"type": "integer"}


def manifest(tool: str, args: dict[str, Any], pointer: str, **more: Any) -> dict[str, Any]:
    """One reviewed tool."""
    sentence = f"{tool.title()} for {{{pointer.removeprefix('/')}}}"
    shown = {"tool": tool, "title": tool.title(), "sentence": sentence}
    return {**shown, "args": args, "resource": {"type": "Account", "id": pointer}, **more}


PAY = manifest(
    "pay",
    _schema(("account", "amount"), account=_TEXT, amount=_NUMBER, items={"type": "array", "items": _TEXT}),
    "/account",
    compensation={"tool": "unpay", "map": {"payment": "result:/id", "amount": "args:/amount"}},
    groups=["money"],
    timeout_seconds=90,
)
UNPAY = manifest("unpay", _schema(("payment", "amount"), payment=_TEXT, amount=_NUMBER), "/payment")
SHIP = manifest("ship", _schema(("order",), order=_TEXT), "/order", aud="warehouse")
MAIL = manifest("mail", _schema(("to", "text"), to=_TEXT, text=_TEXT), "/to")


class Payments(BundleFolder):
    """The folder of this bundle."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for tool in (PAY, UNPAY, SHIP, MAIL):
            self.write(f"tools/{tool['tool']}.json", tool)
        self.people(GROUPS)
        self.policies(USUAL)
        self._first = self._content()

    @property
    def touched(self) -> bool:
        """Whether anything in it is another than at first."""
        return self._content() != self._first

    def restore(self) -> None:
        """Make it what it was at first."""
        for file in self._content().keys() - self._first.keys():
            (self.path / file).unlink()
        for file, content in self._first.items():
            self.write(file, content)

    def _content(self) -> dict[str, bytes]:
        files = (file for file in self.path.rglob("*") if file.is_file())
        return {str(file.relative_to(self.path)): file.read_bytes() for file in files}

    def people(self, groups: dict[str, tuple[str, ...]]) -> Payments:
        """Who is in which group from now on."""
        lines = [f'[people.{name}]\nid = "{person(name)}"\nname = "{name.title()}"\n' for name in PEOPLE]
        lines += [f"[groups.{name}]\nmembers = {list(members)}\n" for name, members in groups.items()]
        self.write("groups.toml", "".join(lines))
        return self

    def rules(self, *added: str) -> Payments:
        """The usual rules and these."""
        self.policies(USUAL + "".join(added))
        return self
