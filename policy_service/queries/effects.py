"""What a stored effect row holds: its arguments, manifest, gates, and its agent as policies see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from countersign.contract import (
    JSON,
    MoneyField,
    PointerError,
    ToolManifest,
    canonicalize,
    load,
    pointer_to,
    resolve_pointer,
)
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.domain.values import is_currency, money_text
from policy_service.pap.bundle import Bundle
from policy_service.storage.tables import AgentRow, EffectRow


def manifest_for(bundle: Bundle, tool: str, tool_digest: str) -> ToolManifest | None:
    """The manifest of exactly this version of a tool; None if the bundle does not contain it."""
    version = bundle.version(tool, tool_digest)
    return None if version is None else version.manifest


def tool_title(bundle: Bundle, effect: EffectRow) -> str:
    """The title of the tool by its manifest, or its name."""
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    return effect.tool if manifest is None else manifest.title


def principal_of(agent: AgentRow) -> AgentPrincipal:
    """The agent as policies see it."""
    return AgentPrincipal(agent.name, agent.owner, frozenset(agent.roles), frozenset(agent.teams))


def gates_of(effect: EffectRow, fired: Sequence[Gate] = ()) -> tuple[Gate, ...]:
    """All gates that ever fired. If a gate fires again with another text, both are kept, so the stricter one
    counts.
    """
    return tuple(dict.fromkeys([*(Gate.from_json(gate) for gate in effect.gates), *fired]))


def args_of(effect: EffectRow) -> dict[str, JSON]:
    """The arguments, decoded from the stored canonical bytes.

    Raises:
        TypeError: they are not an object, which admission rules out.
    """
    return decode_args(effect.args)


def decode_args(stored: bytes) -> dict[str, JSON]:
    """The arguments from canonical bytes.

    Raises:
        TypeError: they are not an object.
    """
    args = load(stored)
    if not isinstance(args, dict):
        raise TypeError("stored args are always an object")
    return args


PieceKind: TypeAlias = Literal["text", "money", "recipient", "value"]

NOT_IN_THE_SCHEMA = "not in the schema"
"""The type text of an argument that the schema does not declare."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in minor units with its ISO 4217 code, and its text."""

    minor: int
    currency: str
    text: str  # "$1,240.00", independent of the reader's locale


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the sentence: text of the manifest, or a value from the arguments."""

    text: str
    value: bool = False
    kind: PieceKind = "text"


@dataclass(frozen=True, slots=True)
class ArgRow:
    """One argument, in schema order."""

    name: str
    type_text: str  # "integer, minor units", "one of 3": words from the manifest's schema
    value_json: str  # the canonical JSON of exactly this value
    value_text: str  # a string's own characters; for every other type the same as `value_json`
    money: Money | None = None
    recipient: bool = False
    secret: bool = False  # shown as a byte count
    unseen: bool = False  # not visible to Cedar
    bytes: int = 0  # UTF-8 length of `value_text`


def is_hidden(secret: Sequence[str], pointer: str) -> bool:
    """Whether showing the value at ``pointer`` would reveal a secret."""
    return any(
        not one or one == pointer or one.startswith(f"{pointer}/") or pointer.startswith(f"{one}/")
        for one in secret
    )


def hidden_text(value: JSON) -> str:
    """The replacement of a hidden value."""
    return f"(hidden value, {len(canonicalize(value))} bytes)"


def without_secrets(args: Mapping[str, JSON], secret: Sequence[str]) -> dict[str, JSON]:
    """The arguments with hidden values replaced by their byte counts."""
    return {
        name: hidden_text(value) if is_hidden(secret, pointer_to(name)) else value
        for name, value in args.items()
    }


_CONST = "const:"
_TYPES = {
    "integer": "integer",
    "boolean": "true or false",
    "number": "number",
    "string": "string",
    "object": "object",
}


def effect_sentence(bundle: Bundle, effect: EffectRow) -> tuple[Piece, ...]:
    """What the effect does, with its values."""
    manifest, args = manifest_for(bundle, effect.tool, effect.tool_digest), args_of(effect)
    if manifest is None:
        return (
            Piece("Call "),
            Piece(effect.tool, value=True, kind="value"),
            Piece(" with the arguments below"),
        )
    return tuple(
        Piece(part.text)
        if part.pointer is None
        else _value_piece(manifest, args, part.pointer, hidden=is_hidden(effect.secret, part.pointer))
        for part in manifest.sentence_parts
    )


def _value_piece(manifest: ToolManifest, args: JSON, pointer: str, *, hidden: bool) -> Piece:
    if hidden:
        return Piece("(hidden value)", value=True, kind="value")
    money = money_at(manifest, args, pointer)
    if money is not None:
        return Piece(money.text, value=True, kind="money")
    value = _at(args, pointer)
    kind = "recipient" if pointer in manifest.recipients else "value"
    return Piece(_shown(value), value=True, kind="recipient" if kind == "recipient" else "value")


def money_at(manifest: ToolManifest, args: JSON, pointer: str) -> Money | None:
    """The amount at ``pointer``, if the manifest declares it as money.

    The value must be an integer and the currency a known code: otherwise the decimal point could be
    misplaced.
    """
    field = next((field for field in manifest.money if field.amount == pointer), None)
    minor = _at(args, pointer)
    if field is None or isinstance(minor, bool) or not isinstance(minor, int):
        return None
    currency = _currency(field, args)
    if not is_currency(currency):
        return None  # unknown number of decimals: show the raw numbers
    return Money(minor, currency, money_text(minor, currency))


def first_money(bundle: Bundle, effect: EffectRow) -> Money | None:
    """The amount shown in lists: the first money field of the manifest."""
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is None or not manifest.money or is_hidden(effect.secret, manifest.money[0].amount):
        return None
    return money_at(manifest, args_of(effect), manifest.money[0].amount)


def _currency(field: MoneyField, args: JSON) -> str:
    if field.currency.startswith(_CONST):
        return field.currency.removeprefix(_CONST)
    found = _at(args, field.currency)
    return found if isinstance(found, str) else ""


def _at(args: JSON, pointer: str) -> JSON:
    try:
        return resolve_pointer(args, pointer)
    except PointerError:
        return None  # an optional argument that is absent


def _shown(value: JSON) -> str:
    return value if isinstance(value, str) else canonicalize(value).decode()


def arg_rows(bundle: Bundle, effect: EffectRow, unseen: list[str]) -> tuple[ArgRow, ...]:
    """Every argument: in schema order, then those the schema does not declare."""
    args = args_of(effect)
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    properties = schema_properties(manifest)
    order = [name for name in properties if name in args] + [name for name in args if name not in properties]
    return tuple(_row(manifest, properties.get(name), name, args, unseen, effect.secret) for name in order)


def schema_properties(manifest: ToolManifest | None) -> dict[str, Any]:
    """The schema of each argument, in order."""
    found = None if manifest is None else manifest.args.get("properties")
    return found if isinstance(found, dict) else {}


def _row(
    manifest: ToolManifest | None,
    schema: Any,
    name: str,
    args: dict[str, JSON],
    unseen: list[str],
    secret: list[str],
) -> ArgRow:
    pointer, value = pointer_to(name), args[name]
    text, hidden = _shown(value), is_hidden(secret, pointer)
    money = None if manifest is None or hidden else money_at(manifest, args, pointer)
    return ArgRow(
        name=name,
        type_text=_type_text(schema, is_money=money is not None),
        value_json=canonicalize(value).decode(),
        value_text=text,
        money=money,
        recipient=manifest is not None and pointer in manifest.recipients,
        secret=hidden,
        unseen=any(field == name or field.startswith(name + "/") for field in unseen),
        bytes=len(text.encode()),
    )


def _type_text(schema: Any, *, is_money: bool) -> str:
    if not isinstance(schema, dict):
        return NOT_IN_THE_SCHEMA
    if is_money:
        return "integer, minor units"
    if isinstance(schema.get("enum"), list):
        return f"one of {len(schema['enum'])}"
    if schema.get("type") == "array":
        return "list"
    return _TYPES.get(str(schema.get("type")), "any")
