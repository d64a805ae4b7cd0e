"""The arguments of an effect, as rows and as bytes, and the proof that both say the same.

Pure. Rules kept here:
- the rows must reproduce the canonical bytes exactly, else the page shows no way to vote;
- a long value is folded, never cut: the fold says how many bytes it holds;
- a secret value appears nowhere, not in the bytes either; its size does.
"""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policy_service.channels.presentation.formatting import pluralize
from policy_service.channels.presentation.homoglyphs import ascii_lookalike
from policy_service.channels.presentation.marked_text import Marked, mark
from policy_service.channels.presentation.text_findings import TextFinding
from policy_service.queries.effect_text import NOT_IN_THE_SCHEMA, ArgRow
from policy_service.queries.view_digest import FOLD_ABOVE_LINES, is_long, line_count


def name_findings(rows: Sequence[ArgRow]) -> dict[str, tuple[TextFinding, ...]]:
    """What is to be said of names, by name. Where the schema knows none, the page says that of the whole tool."""
    alike: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        alike[_read(row.name)].append(row.name)
    unknown = {row.name for row in rows if row.type_text == NOT_IN_THE_SCHEMA}
    if len(unknown) == len(rows):
        unknown = set()
    found: dict[str, tuple[TextFinding, ...]] = {}
    for row in rows:
        about: tuple[TextFinding, ...] = ()
        if row.name in unknown:
            about += (
                TextFinding(
                    "lookalike", "not in the schema", "The reviewed schema has no argument of this name."
                ),
            )
        if len(alike[_read(row.name)]) > 1:
            about += (
                TextFinding(
                    "lookalike",
                    "a name like another",
                    "Another argument has a name that reads like this one.",
                ),
            )
        if about:
            found[row.name] = about
    return found


def _read(name: str) -> str:
    """A name as a hurried reader takes it: letters and digits, in one case, each as the letter it looks like."""
    plain = "".join(
        ascii_lookalike(char, in_address=True) or char for char in unicodedata.normalize("NFKC", name)
    )
    return "".join(char for char in plain.casefold() if char.isalnum())


_PREVIEW_CHARS = 240
_PREVIEW_LINES = 5


class ArgumentsPage(Protocol):
    """A page that shows an effect's arguments and the bytes they were decoded from."""

    @property
    def args(self) -> tuple[ArgRow, ...]: ...
    @property
    def canonical(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class FoldedText:
    """A marked text with, when it is long, a beginning to show and a label for the rest."""

    whole: Marked
    preview: Marked | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class ArgView:
    """One row of the table."""

    anchor: str
    row: ArgRow
    name: Marked
    value: FoldedText

    of_names: tuple[TextFinding, ...] = ()  # what its name is to those of the other rows

    @property
    def findings(self) -> tuple[TextFinding, ...]:
        return self.of_names + self.name.findings + (() if self.row.secret else self.value.whole.findings)


@dataclass(frozen=True, slots=True)
class CanonicalBytes:
    """The canonical bytes in stretches; a number stands for that many bytes of a secret value."""

    size: int
    stretches: tuple[Marked | int, ...]


def arg_views(page: ArgumentsPage, *, full: bool = False) -> tuple[ArgView, ...]:
    """The rows; ``full``: none is folded."""
    about = name_findings(page.args)
    return tuple(
        ArgView(
            f"arg-{place}",
            row,
            mark(row.name),
            fold(row.value_text, address=row.recipient, full=full),
            about.get(row.name, ()),
        )
        for place, row in enumerate(page.args, start=1)
    )


def fold(text: str, *, address: bool = False, full: bool = False) -> FoldedText:
    """Fold a text that is longer than a reader takes in at a glance, unless they asked for all of it."""
    whole = mark(text, block=True, address=address)
    if full or not is_long(text):
        return FoldedText(whole)
    size, lines = len(text.encode()), line_count(text)
    shown_lines = text.split("\n")[:_PREVIEW_LINES]
    preview = "\n".join(shown_lines)[:_PREVIEW_CHARS]
    label = f"Show all {pluralize(size, 'byte')}"
    if lines > FOLD_ABOVE_LINES and "\n".join(shown_lines) == preview:
        label = f"First {_PREVIEW_LINES} of {pluralize(lines, 'line')}. {label}"
    return FoldedText(whole, mark(preview, block=True, address=address, edges=False), label)


def matches_canonical(page: ArgumentsPage) -> bool:
    """True when the rows, put together again, are the bytes that will be voted on."""
    joined = "".join(before + row.value_json for before, row in ordered_members(page)) or "{"
    return (joined + "}").encode() == page.canonical and all(_is_faithful(row) for row in page.args)


def canonical_view(page: ArgumentsPage) -> CanonicalBytes:
    """The bytes to read. Where rows do not reproduce them, a secret cannot be told apart: then nothing is."""
    size = len(page.canonical)
    if not any(row.secret for row in page.args):
        return CanonicalBytes(size, (mark(page.canonical.decode(), block=True, every=True),))
    return CanonicalBytes(size, tuple(_redacted(page)) if matches_canonical(page) else (size,))


def _redacted(page: ArgumentsPage) -> list[Marked | int]:
    stretches: list[Marked | int] = []
    text = ""
    for before, row in ordered_members(page):
        text += before
        if row.secret:
            stretches += [mark(text, block=True, every=True), len(row.value_json.encode())]
            text = ""
        else:
            text += row.value_json
    return [*stretches, mark(text + "}", block=True, every=True)]


def ordered_members(page: ArgumentsPage) -> list[tuple[str, ArgRow]]:
    """The rows as JCS orders them (by UTF-16 units), each with what stands before its value."""
    rows = sorted(page.args, key=lambda row: row.name.encode("utf-16-be"))
    return [(f"{',' if place else '{'}{_quoted(row.name)}:", row) for place, row in enumerate(rows)]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_faithful(row: ArgRow) -> bool:
    """What is shown of a string are its own characters, of everything else its JSON."""
    text = json.loads(row.value_json) if row.value_json.startswith('"') else row.value_json
    return bool(text == row.value_text)
