"""A message as Slack takes it: its blocks, the name by which it is found again, and where its buttons point.

Pure. Rules kept here:
- a message has at most 50 blocks and 10,000 characters, all strings of its blocks counted;
- its first block is named for review, revision and outbox row, so that a send nobody answered can be looked up;
- a pointer says which card was pressed and what was on it; who may do what is never read from it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slack_sdk.models.blocks import Block
from slack_sdk.models.views import View

from countersign.contract import canonicalize

MAX_BLOCKS: Final = 50  # of a message; chat.postMessage refuses more, and slack_sdk does not count them
MAX_CHARACTERS: Final = (
    10_000  # of all blocks; Slack refuses a message somewhere above 13,000 and does not say where
)
MAX_BLOCK_ID: Final = 255

_POINTER = re.compile(r"cs1:([A-Za-z0-9_-]{1,64}):([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One message: the text of its notification, and its blocks."""

    text: str
    blocks: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        """What Slack counts of it, or a little more."""
        return characters(self.blocks)

    def digest(self) -> str:
        """The name of what it says: the same for every outbox row that says the same."""
        blocks = [
            {**block, "block_id": _without_outbox(block["block_id"])} if "block_id" in block else block
            for block in self.blocks
        ]
        return hashlib.sha256(canonicalize({"text": self.text, "blocks": blocks})).hexdigest()


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which card, and what was on it.

    Raises ValueError where the two could not be read back.
    """

    card_id: str
    view_digest: str

    def __post_init__(self) -> None:
        if _POINTER.fullmatch(self.value) is None:
            raise ValueError(
                f"no pointer can be written of card {self.card_id!r} and view {self.view_digest!r}"
            )

    @property
    def value(self) -> str:
        """For a button's value, or a modal's private metadata."""
        return f"cs1:{self.card_id}:{self.view_digest}"

    @classmethod
    def read(cls, value: object) -> Pointer | None:
        """None for whatever is not exactly one of ours."""
        match = _POINTER.fullmatch(value) if isinstance(value, str) else None
        return cls(match[1], match[2]) if match else None


def block_id(review_id: str, rev: int, outbox_id: str) -> str:
    """The name of a message's first block.

    Raises ValueError where Slack would refuse it.
    """
    name = f"cs/{review_id}/{rev}/{outbox_id}"
    if len(name) > MAX_BLOCK_ID:
        raise ValueError(f"a block is named by {MAX_BLOCK_ID} characters at most, not {len(name)}")
    return name


def drawn(text: str, blocks: Sequence[Block]) -> Drawn:
    """The message of these blocks; ``text`` is escaped already.

    Raises SlackObjectFormationError or ValueError: a limit does not hold.
    """
    made = Drawn(text, tuple(block.to_dict() for block in blocks))
    if len(made.blocks) > MAX_BLOCKS:
        raise ValueError(f"a message has {MAX_BLOCKS} blocks at most, not {len(made.blocks)}")
    if made.size > MAX_CHARACTERS:
        raise ValueError(f"a message has {MAX_CHARACTERS:,} characters at most, not {made.size:,}")
    return made


def viewed(view: View) -> dict[str, Any]:
    """A modal or a home, as Slack takes it.

    Raises SlackObjectFormationError: a limit does not hold.
    """
    made: dict[str, Any] = view.to_dict()
    return made


def units(text: str) -> int:
    """Characters as Slack's own client counts them: UTF-16 units."""
    return len(text) + sum(char > "\uffff" for char in text)


def characters(value: object) -> int:
    """The length of every string in it, names of kinds and links as well: never less than what Slack counts."""
    if isinstance(value, str):
        return units(value)
    if isinstance(value, dict):
        return sum(map(characters, value.values()))
    return sum(map(characters, value)) if isinstance(value, Iterable) else 0


def _without_outbox(name: str) -> str:
    return name.rpartition("/")[0] if name.startswith("cs/") else name
