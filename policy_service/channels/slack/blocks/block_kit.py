"""Building blocks of Slack messages: limits, ids, rich text, and safe rendering of untrusted text.

- A message has at most 50 blocks and 10,000 characters, counting all strings of its blocks.
- The id of its first block names review, revision and outbox row, so that an unacknowledged send can be looked up.
- A pointer in a button names the card and the view; it grants no permission.
- An invisible character becomes its code point between ‹ and ›; a confusable letter is followed by its code point.
- A text that is too long says how much of it is shown, and the writer records that it was cut.
- Only `escape_markup` produces text in Slack's markup, for the notification, which has no other format.
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
from policy_service.queries.effects import Piece

MAX_BLOCKS: Final = 50  # of a message; chat.postMessage refuses more, and slack_sdk does not count them
MAX_CHARACTERS: Final = 10_000  # of all blocks; Slack's undocumented limit is above 13,000
MAX_BLOCK_ID: Final = 255

_POINTER = re.compile(r"cs1:([A-Za-z0-9_-]{1,64}):([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """One message: its notification text and its blocks."""

    text: str
    blocks: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        """An upper bound of the characters that Slack counts."""
        return characters(self.blocks)

    def digest(self) -> str:
        """A digest of the content, independent of the outbox row."""
        blocks = [
            {**block, "block_id": _without_outbox(block["block_id"])} if "block_id" in block else block
            for block in self.blocks
        ]
        return hashlib.sha256(canonicalize({"text": self.text, "blocks": blocks})).hexdigest()


@dataclass(frozen=True, slots=True)
class Pointer:
    """A reference to a card and the view it showed.

    Raises ValueError if the two could not be parsed again.
    """

    card_id: str
    view_digest: str

    def __post_init__(self) -> None:
        if _POINTER.fullmatch(self.value) is None:
            raise ValueError(f"no pointer can be made of card {self.card_id!r} and view {self.view_digest!r}")

    @property
    def value(self) -> str:
        """For a button's value, or a modal's private metadata."""
        return f"cs1:{self.card_id}:{self.view_digest}"

    @classmethod
    def read(cls, value: object) -> Pointer | None:
        """Parse a pointer; None for any other value."""
        match = _POINTER.fullmatch(value) if isinstance(value, str) else None
        return cls(match[1], match[2]) if match else None


def block_id(review_id: str, rev: int, outbox_id: str) -> str:
    """The id of a message's first block.

    Raises ValueError if Slack would refuse it.
    """
    name = f"cs/{review_id}/{rev}/{outbox_id}"
    if len(name) > MAX_BLOCK_ID:
        raise ValueError(f"a block id has {MAX_BLOCK_ID} characters at most, not {len(name)}")
    return name


def render_message(text: str, blocks: Sequence[Block]) -> RenderedMessage:
    """A message of these blocks; ``text`` must be escaped.

    Raises SlackObjectFormationError or ValueError if a limit is exceeded.
    """
    made = RenderedMessage(text, tuple(block.to_dict() for block in blocks))
    if len(made.blocks) > MAX_BLOCKS:
        raise ValueError(f"a message has {MAX_BLOCKS} blocks at most, not {len(made.blocks)}")
    if made.size > MAX_CHARACTERS:
        raise ValueError(f"a message has {MAX_CHARACTERS:,} characters at most, not {made.size:,}")
    return made


def view_json(view: View) -> dict[str, Any]:
    """The JSON of a modal or home view.

    Raises SlackObjectFormationError if a limit is exceeded.
    """
    made: dict[str, Any] = view.to_dict()
    return made


def utf16_units(text: str) -> int:
    """The length in UTF-16 code units, as Slack's client counts."""
    return len(text) + sum(char > "\uffff" for char in text)


def characters(value: object) -> int:
    """The length of all strings in a value, an upper bound of what Slack counts."""
    if isinstance(value, str):
        return utf16_units(value)
    if isinstance(value, dict):
        return sum(map(characters, value.values()))
    return sum(map(characters, value)) if isinstance(value, Iterable) else 0


def _without_outbox(name: str) -> str:
    return name.rpartition("/")[0] if name.startswith("cs/") else name


MAX_NAME: Final = 80  # characters of a name, an id or a group
MAX_VALUE: Final = 300  # of one value in a sentence
MAX_SENTENCE: Final = 900  # of a whole sentence: about ten lines
MAX_WRITTEN: Final = 400  # of a person's text, except in its own message
MAX_PIECES: Final = 40  # of a sentence: each is an element of its own

Line: TypeAlias = list[RichTextElement]


class TextWriter:
    """Renders untrusted text of one message, and records whether any text was cut."""

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
        """Untrusted text with invisible characters escaped; ``block``: keep its lines."""
        remaining, read, out = limit, 0, ""
        marked = mark(text[: limit + 1], address=address, block=block, every=True, edges=edges)
        for span in marked.spans:
            written = visible_span(span)
            if utf16_units(written) > remaining:
                part = _prefix(span.text, remaining) if span.kind == "plain" else ""
                self.cut = True
                return f"{out}{part}… (the first {read + len(part):,} of {len(text):,} characters)"
            remaining, read, out = remaining - utf16_units(written), read + len(span.text), out + written
        return out

    def value(self, text: str, limit: int = MAX_VALUE, *, address: bool = False, block: bool = False) -> Line:
        """The same, bold."""
        words = self.shown(text, limit, address=address, block=block)
        return bold(words) if words else our_text("(empty)")

    def said(self, text: str, limit: int = MAX_NAME, *, block: bool = False) -> Line:
        """The same, plain."""
        return our_text(self.shown(text, limit, block=block))

    def sentence(self, pieces: Sequence[Piece], limit: int = MAX_SENTENCE) -> Line:
        """A sentence with its values in bold."""
        line: Line = []
        remaining = limit
        for place, piece in enumerate(pieces):
            if remaining <= 0 or place >= MAX_PIECES:
                self.cut = True
                return line + our_text(f"… (the first {place:,} of {len(pieces):,} parts of this sentence)")
            words = self._piece(piece, min(MAX_VALUE, remaining))
            remaining -= max(1, utf16_units(words))
            line += bold(words) if piece.value else our_text(words)
        return line

    def spoken(self, pieces: Sequence[Piece], limit: int = MAX_SENTENCE) -> str:
        """The same as plain text."""
        return "".join(str(getattr(part, "text", "")) for part in self.sentence(pieces, limit))

    def names(self, names: Sequence[str], most: int, limit: int = MAX_NAME) -> str:
        """`Ana Ito, Ben Roe and 3 more`."""
        shown = ", ".join(self.shown(name, limit) for name in names[:most])
        if len(names) <= most:
            return shown
        self.cut = True
        return f"{shown} and {len(names) - most:,} more"

    def _piece(self, piece: Piece, remaining: int) -> str:
        if not piece.value:
            return self.shown(piece.text, remaining, edges=False)
        return self.shown(piece.text, remaining, address=piece.kind == "recipient") or "(empty)"


def our_text(text: str) -> Line:
    """Our own text. Untrusted parts must have been rendered by a writer."""
    return [RichTextElementParts.Text(text=text)] if text else []


def bold(text: str) -> Line:
    """Bold text, for values."""
    style = RichTextElementParts.TextStyle(bold=True)
    return [RichTextElementParts.Text(text=text, style=style)] if text else []


def link(url: str, text: str) -> Line:
    """A link, only to a page of this service."""
    return [RichTextElementParts.Link(url=url, text=text)]


def date_text(at: datetime, *, left: bool = False) -> Line:
    """A time in the reader's time zone, with UTC as fallback; ``left``: also relative."""
    form = "{date_short_pretty} at {time}, {ago}" if left else "{date_short_pretty} at {time}"
    return [RichTextElementParts.Date(timestamp=int(at.timestamp()), format=form, fallback=utc_text(at))]


def utc_text(at: datetime) -> str:
    """`19 Nov 2026, 17:07 UTC`."""
    return f"{at.day} {at:%b %Y}, {at:%H:%M} UTC"


def section(*lines: Line) -> RichTextSectionElement:
    """One paragraph; an empty one becomes "(empty)", because Slack does not render it."""
    return RichTextSectionElement(elements=[part for line in lines for part in line] or our_text("(empty)"))


def quote(line: Line) -> RichTextQuoteElement:
    """A quotation."""
    return RichTextQuoteElement(elements=line)


def preformatted(text: str) -> RichTextPreformattedElement:
    """Preformatted text."""
    return RichTextPreformattedElement(elements=our_text(text))


def rich_text(*paragraphs: RichTextElement, block_id: str | None = None) -> RichTextBlock:
    """A block of paragraphs. Adjacent paragraphs become lines of one section, as in Slack's own editor, because clients
    render the space between sections differently."""
    joined: list[RichTextElement] = []
    for one in paragraphs:
        last = joined[-1] if joined else None
        if isinstance(one, RichTextSectionElement) and isinstance(last, RichTextSectionElement):
            joined[-1] = section(cast(Line, last.elements), our_text("\n"), cast(Line, one.elements))
        else:
            joined.append(one)
    return RichTextBlock(elements=joined, block_id=block_id)


def plain(text: str) -> PlainTextObject:
    """Plain text without emoji codes."""
    return PlainTextObject(text=text, emoji=False)


def escape_markup(text: str) -> str:
    """Escape text for a notification, so that it contains no mention or link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def visible_span(span: Span) -> str:
    """A span of text with invisible characters escaped."""
    if span.kind == "plain":
        return span.text
    times = f"{span.count:,} × " if span.count > 1 else ""
    return f"{span.text if span.kind == 'suspect' else ''}‹{times}{span.code}›"


def _prefix(text: str, remaining: int) -> str:
    """The longest prefix that fits, without splitting a character."""
    part = text[: max(0, remaining)]
    while utf16_units(part) > remaining:
        part = part[:-1]
    return part
