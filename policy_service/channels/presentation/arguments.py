"""The arguments of an effect as rows and as bytes, and the check that both agree.

Pure.

- The rows must reproduce the canonical bytes exactly; otherwise the page offers no vote.
- A long value is folded, never cut; the label gives its size.
- A secret value appears nowhere, not in the bytes either; only its size does.
"""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policy_service.channels.presentation.deceptive_text import ascii_lookalike
from policy_service.channels.presentation.formatting import pluralize
from policy_service.channels.presentation.marked_text import Marked, TextFinding, mark
from policy_service.queries.effects import NOT_IN_THE_SCHEMA, ArgRow
from policy_service.queries.view_digest import FOLD_ABOVE_LINES, is_long, line_count


def name_findings(rows: Sequence[ArgRow]) -> dict[str, tuple[TextFinding, ...]]:
    """Findings about argument names. If the schema declares none of them, the page says so about the tool
    instead.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        alike[_normalized(row.name)].append(row.name)
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
        if len(alike[_normalized(row.name)]) > 1:
            about += (
                TextFinding(
                    "lookalike",
                    "a name similar to another",
                    "Another argument has a similar name.",
                ),
            )
        if about:
            found[row.name] = about
    return found


def _normalized(name: str) -> str:
    """A name as a hurried reader sees it: letters and digits, case-folded, lookalikes replaced."""
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
    """A marked text and, if it is long, its beginning and a label for the rest."""

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

    of_names: tuple[TextFinding, ...] = ()  # findings about its name among the other rows

    @property
    def findings(self) -> tuple[TextFinding, ...]:
        return self.of_names + self.name.findings + (() if self.row.secret else self.value.whole.findings)


@dataclass(frozen=True, slots=True)
class CanonicalBytes:
    """The canonical bytes as marked text; a number represents the size of a secret value."""

    size: int
    stretches: tuple[Marked | int, ...]


def arg_views(page: ArgumentsPage, *, full: bool = False) -> tuple[ArgView, ...]:
    """The rows; ``full`` folds none."""
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
    """Fold a long text, unless ``full``."""
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
    """Whether the rows, joined, are the bytes that will be voted on."""
    joined = "".join(before + row.value_json for before, row in ordered_members(page)) or "{"
    return (joined + "}").encode() == page.canonical and all(_is_faithful(row) for row in page.args)


def canonical_view(page: ArgumentsPage) -> CanonicalBytes:
    """The bytes for display. If the rows do not reproduce them, secrets cannot be located, so nothing is
    shown.
    """
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
    """The rows in JCS order (UTF-16 code units), each with the text before its value."""
    rows = sorted(page.args, key=lambda row: row.name.encode("utf-16-be"))
    return [(f"{',' if place else '{'}{_quoted(row.name)}:", row) for place, row in enumerate(rows)]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_faithful(row: ArgRow) -> bool:
    """A string is shown as its own characters, any other value as its JSON."""
    text = json.loads(row.value_json) if row.value_json.startswith('"') else row.value_json
    return bool(text == row.value_text)
