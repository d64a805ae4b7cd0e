"""Messages, views and rich text as Slack takes them.

Pure. Rules kept here:
- a message has at most 50 blocks and 10,000 characters, all strings of its blocks counted;
- its first block is named for review, revision and outbox row, so that a send nobody answered can be looked up;
- a pointer says which card was pressed and what was on it; who may do what is never read from it.

Pure. Rules kept here:
- what cannot be seen becomes its code point between ‹ and ›, and a letter that passes for another carries its own;
- a text that is longer than its place says how much of how much is shown, and the pen remembers that it had to cut;
- only `escaped` makes text for Slack's markup, for the one place that has no other: the notification.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias, cast

from slack_sdk.models.blocks import (
    Block,
    PlainTextObject,
    RichTextBlock,
    RichTextElement,
    RichTextElementParts,
    RichTextPreformattedElement,
    RichTextQuoteElement,
    RichTextSectionElement,
)
from slack_sdk.models.views import View

from countersign.contract import canonicalize
from policy_service.channels.presentation.marked_text import Span, mark
from policy_service.queries.effect_text import Piece

MAX_BLOCKS: Final = 50  # of a message; chat.postMessage refuses more, and slack_sdk does not count them
MAX_CHARACTERS: Final = (
    10_000  # of all blocks; Slack refuses a message somewhere above 13,000 and does not say where
)
MAX_BLOCK_ID: Final = 255

_POINTER = re.compile(r"cs1:([A-Za-z0-9_-]{1,64}):([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class RenderedMessage:
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


def render_message(text: str, blocks: Sequence[Block]) -> RenderedMessage:
    """The message of these blocks; ``text`` is escaped already.

    Raises SlackObjectFormationError or ValueError: a limit does not hold.
    """
    made = RenderedMessage(text, tuple(block.to_dict() for block in blocks))
    if len(made.blocks) > MAX_BLOCKS:
        raise ValueError(f"a message has {MAX_BLOCKS} blocks at most, not {len(made.blocks)}")
    if made.size > MAX_CHARACTERS:
        raise ValueError(f"a message has {MAX_CHARACTERS:,} characters at most, not {made.size:,}")
    return made


def view_json(view: View) -> dict[str, Any]:
    """A modal or a home, as Slack takes it.

    Raises SlackObjectFormationError: a limit does not hold.
    """
    made: dict[str, Any] = view.to_dict()
    return made


def utf16_units(text: str) -> int:
    """Characters as Slack's own client counts them: UTF-16 units."""
    return len(text) + sum(char > "\uffff" for char in text)


def characters(value: object) -> int:
    """The length of every string in it, names of kinds and links as well: never less than what Slack counts."""
    if isinstance(value, str):
        return utf16_units(value)
    if isinstance(value, dict):
        return sum(map(characters, value.values()))
    return sum(map(characters, value)) if isinstance(value, Iterable) else 0


def _without_outbox(name: str) -> str:
    return name.rpartition("/")[0] if name.startswith("cs/") else name


MAX_NAME: Final = 80  # characters of a name, an id, a group: longer ones are cut, and say so
MAX_VALUE: Final = 300  # of one value in a sentence
MAX_SENTENCE: Final = 900  # of a whole sentence: about ten lines
MAX_WRITTEN: Final = 400  # of what a person wrote, where it stands beside something else
MAX_PIECES: Final = 40  # of a sentence: each is an element of its own

Line: TypeAlias = list[RichTextElement]


class TextWriter:
    """Writes the lines of one message, and remembers whether it had to cut."""

    def __init__(self) -> None:
        self.cut = False

    def shown(
        self,
        text: str,
        limit: int = MAX_NAME,
        *,
        address: bool = False,
        block: bool = False,
        edges: bool = True,
    ) -> str:
        """Somebody else's text in characters that can be seen; ``block``: it keeps its lines."""
        room, read, out = limit, 0, ""
        marked = mark(text[: limit + 1], address=address, block=block, every=True, edges=edges)
        for span in marked.spans:
            written = visible_span(span)
            if utf16_units(written) > room:
                part = _prefix(span.text, room) if span.kind == "plain" else ""
                self.cut = True
                return f"{out}{part}… (the first {read + len(part):,} of {len(text):,} characters)"
            room, read, out = room - utf16_units(written), read + len(span.text), out + written
        return out

    def value(self, text: str, limit: int = MAX_VALUE, *, address: bool = False, block: bool = False) -> Line:
        """The same, bold."""
        words = self.shown(text, limit, address=address, block=block)
        return bold(words) if words else our_text("(empty)")

    def said(self, text: str, limit: int = MAX_NAME, *, block: bool = False) -> Line:
        """The same, plain."""
        return our_text(self.shown(text, limit, block=block))

    def sentence(self, pieces: Sequence[Piece], limit: int = MAX_SENTENCE) -> Line:
        """A sentence: its words as they are printed, its values bold."""
        line: Line = []
        room = limit
        for place, piece in enumerate(pieces):
            if room <= 0 or place >= MAX_PIECES:
                self.cut = True
                return line + our_text(f"… (the first {place:,} of {len(pieces):,} parts of this sentence)")
            words = self._piece(piece, min(MAX_VALUE, room))
            room -= max(1, utf16_units(words))
            line += bold(words) if piece.value else our_text(words)
        return line

    def spoken(self, pieces: Sequence[Piece], limit: int = MAX_SENTENCE) -> str:
        """The same in one string, for plain text."""
        return "".join(str(getattr(part, "text", "")) for part in self.sentence(pieces, limit))

    def names(self, names: Sequence[str], most: int, limit: int = MAX_NAME) -> str:
        """`Ana Ito, Ben Roe and 3 more`."""
        shown = ", ".join(self.shown(name, limit) for name in names[:most])
        if len(names) <= most:
            return shown
        self.cut = True
        return f"{shown} and {len(names) - most:,} more"

    def _piece(self, piece: Piece, room: int) -> str:
        if not piece.value:
            return self.shown(piece.text, room, edges=False)
        return self.shown(piece.text, room, address=piece.kind == "recipient") or "(empty)"


def our_text(text: str) -> Line:
    """Our words, which are short and hold nothing of others but what a pen has shown."""
    return [RichTextElementParts.Text(text=text)] if text else []


def bold(text: str) -> Line:
    """A value."""
    style = RichTextElementParts.TextStyle(bold=True)
    return [RichTextElementParts.Text(text=text, style=style)] if text else []


def link(url: str, text: str) -> Line:
    """A way to a page of ours, and to nowhere else."""
    return [RichTextElementParts.Link(url=url, text=text)]


def date_text(at: datetime, *, left: bool = False) -> Line:
    """A time in the reader's own zone, in UTC where the client cannot say it; ``left``: and how far away it is."""
    form = "{date_short_pretty} at {time}, {ago}" if left else "{date_short_pretty} at {time}"
    return [RichTextElementParts.Date(timestamp=int(at.timestamp()), format=form, fallback=utc_text(at))]


def utc_text(at: datetime) -> str:
    """`19 Nov 2026, 17:07 UTC`: with its day, because a message stays where it is."""
    return f"{at.day} {at:%b %Y}, {at:%H:%M} UTC"


def section(*lines: Line) -> RichTextSectionElement:
    """One paragraph; one that would be nothing says so, because Slack draws none."""
    return RichTextSectionElement(elements=[part for line in lines for part in line] or our_text("(empty)"))


def quote(line: Line) -> RichTextQuoteElement:
    """What somebody wrote."""
    return RichTextQuoteElement(elements=line)


def preformatted(text: str) -> RichTextPreformattedElement:
    """Exactly these characters."""
    return RichTextPreformattedElement(elements=our_text(text))


def rich_text(*paragraphs: RichTextElement, block_id: str | None = None) -> RichTextBlock:
    """A block of paragraphs. Those that follow each other are lines of one section, as Slack's own editor writes them:
    what stands between two sections is each client's own idea."""
    joined: list[RichTextElement] = []
    for one in paragraphs:
        last = joined[-1] if joined else None
        if isinstance(one, RichTextSectionElement) and isinstance(last, RichTextSectionElement):
            joined[-1] = section(cast(Line, last.elements), our_text("\n"), cast(Line, one.elements))
        else:
            joined.append(one)
    return RichTextBlock(elements=joined, block_id=block_id)


def plain(text: str) -> PlainTextObject:
    """Plain text in which `:smile:` stays as it was written."""
    return PlainTextObject(text=text, emoji=False)


def escape_markup(text: str) -> str:
    """Text for a notification: nothing in it is a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def visible_span(span: Span) -> str:
    """A stretch of text in characters that can be seen."""
    if span.kind == "plain":
        return span.text
    times = f"{span.count:,} × " if span.count > 1 else ""
    return f"{span.text if span.kind == 'suspect' else ''}‹{times}{span.code}›"


def _prefix(text: str, room: int) -> str:
    """As much as fits, never half a character."""
    part = text[: max(0, room)]
    while utf16_units(part) > room:
        part = part[:-1]
    return part
