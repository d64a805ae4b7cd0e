"""What a sentence and a table of arguments are made of: stretches of text, amounts, and one argument after the other.

Nothing is shortened and nothing is HTML; text that an agent wrote arrives exactly as it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
