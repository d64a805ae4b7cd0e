"""An effect in words: the sentence and the arguments, both from the stored canonical bytes and the reviewed manifest.

Nothing is shortened, nothing is HTML, and nothing comes from the agent but the values themselves. Where the bundle no
longer holds the manifest the effect was made with, the words are plain and the arguments stand in canonical order.

A value is hidden when it is a secret, lies inside one, or holds one; its byte count is shown instead. The agent's own
view is not touched (it sent the value), and the digest binds it all the same.
"""

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
    pointer_to,
    resolve_pointer,
)
from policy_service.domain.values import is_currency, money_text
from policy_service.pap.bundle import Bundle
from policy_service.queries.effects import args_of, manifest_for
from policy_service.storage.tables import EffectRow

PieceKind: TypeAlias = Literal["text", "money", "recipient", "value"]

NOT_IN_THE_SCHEMA = "not in the schema"
"""The type of an argument that the reviewed schema does not know."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in minor units with its ISO 4217 code, and the one way we print it."""

    minor: int
    currency: str
    text: str  # "$1,240.00": symbol and grouping fixed by us, never by the reader's locale


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the sentence: our printed words, or a value filled in from the bytes (`value`)."""

    text: str
    value: bool = False
    kind: PieceKind = "text"


@dataclass(frozen=True, slots=True)
class ArgRow:
    """One argument, in the order of the tool's schema."""

    name: str
    type_text: str  # "integer, minor units", "one of 3": words from the manifest's schema
    value_json: str  # the canonical JSON of exactly this value
    value_text: str  # a string's own characters; for every other type the same as `value_json`
    money: Money | None = None
    recipient: bool = False
    secret: bool = False  # the page then shows the byte count instead of the value
    unseen: bool = False  # Cedar could not weigh it
    bytes: int = 0  # UTF-8 length of `value_text`


def is_hidden(secret: Sequence[str], pointer: str) -> bool:
    """Whether showing what stands at ``pointer`` would show a secret."""
    return any(
        not one or one == pointer or one.startswith(f"{pointer}/") or pointer.startswith(f"{one}/")
        for one in secret
    )


def hidden_text(value: JSON) -> str:
    """What stands in place of a hidden value."""
    return f"(hidden value, {len(canonicalize(value))} bytes)"


def without_secrets(args: Mapping[str, JSON], secret: Sequence[str]) -> dict[str, JSON]:
    """The arguments with every hidden one replaced by its byte count."""
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
    """What will happen, with the values filled in."""
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
    """The amount at ``pointer``, if the manifest says it is money, the value is a whole number and the currency a
    code: what looks like one could move the point or add a digit."""
    field = next((field for field in manifest.money if field.amount == pointer), None)
    minor = _at(args, pointer)
    if field is None or isinstance(minor, bool) or not isinstance(minor, int):
        return None
    currency = _currency(field, args)
    if not is_currency(currency):
        return None  # nobody can say how many decimals it has: the numbers stand as they are
    return Money(minor, currency, money_text(minor, currency))


def first_money(bundle: Bundle, effect: EffectRow) -> Money | None:
    """The amount a list shows: the first money field of the manifest."""
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
        return None  # an optional argument that was not given


def _shown(value: JSON) -> str:
    return value if isinstance(value, str) else canonicalize(value).decode()


def arg_rows(bundle: Bundle, effect: EffectRow, unseen: list[str]) -> tuple[ArgRow, ...]:
    """Every argument: in the order of the schema, then any the schema does not know."""
    args = args_of(effect)
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    properties = schema_properties(manifest)
    order = [name for name in properties if name in args] + [name for name in args if name not in properties]
    return tuple(_row(manifest, properties.get(name), name, args, unseen, effect.secret) for name in order)


def schema_properties(manifest: ToolManifest | None) -> dict[str, Any]:
    """The schema of each argument, in the order it is written."""
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
