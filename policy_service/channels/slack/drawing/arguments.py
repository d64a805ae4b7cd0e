"""The exact arguments as one block of JSON, a member a line; and the proof that it is the bytes people vote on.

Pure. Rules kept here:
- take the layout away and the canonical bytes are there again; where they are not, the card has no buttons;
- a secret value is a count of its bytes, in its place;
- what does not fit shows its beginning, with how much of how much that is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from policy_service.channels.showing.arguments import Sheet, members, same_bytes
from policy_service.channels.showing.marking import mark
from policy_service.channels.showing.wording import counted
from policy_service.channels.slack.drawing.message import units
from policy_service.channels.slack.drawing.writing import visible
from policy_service.queries.effect_text import ArgRow

MAX_ARGS_CHARACTERS: Final = 1_500  # about two screens of a phone: who has to scroll further reads the page
MAX_ARGS_LINES: Final = 30
BEGINNING_CHARACTERS: Final = (
    600  # shown of what does not fit: enough to know it again, too little to decide by
)
BEGINNING_LINES: Final = 20

_DECODER: Final = json.JSONDecoder(strict=True)


@dataclass(frozen=True, slots=True)
class Args:
    """What is shown of the arguments. ``exact``: all of them, as they are. ``note``: how much of them this is, else."""

    text: str
    exact: bool
    note: str = ""


def args_shown(page: Sheet, *, short: bool = False) -> Args:
    """The arguments of an effect, nothing of them where the rows are not the bytes. ``short``: nobody decides by it."""
    if not same_bytes(page):
        return Args("", False, "The arguments are not shown: they do not add up to the canonical bytes.")
    text = laid_out(page)
    secrets = {row.name: row.value_json for row in page.args if row.secret}
    most = BEGINNING_CHARACTERS if short else MAX_ARGS_CHARACTERS
    if units(text) <= most and text.count("\n") < MAX_ARGS_LINES:
        return Args(text, canonical_of(text, secrets) == page.canonical)
    return _beginning(text, len(page.canonical))


def laid_out(page: Sheet) -> str:
    """`{`, a member a line, `}`: in canonical order, with what cannot be seen written out."""
    lines = ",\n".join(f"  {_string(row.name)}: {_value(row)}" for _, row in members(page))
    return f"{{\n{lines}\n}}" if lines else "{}"


def canonical_of(text: str, secrets: Mapping[str, str]) -> bytes | None:
    """The canonical bytes behind a text that was laid out; None where it is none."""
    if text == "{}":
        return b"{}"
    if not text.startswith("{\n") or not text.endswith("\n}"):
        return None
    lines = text[2:-2].split("\n")
    told = [
        _member(line.removesuffix(",") if place < len(lines) else line, secrets)
        for place, line in enumerate(lines, 1)
    ]
    whole = [member for member in told if member is not None]
    return ("{" + ",".join(whole) + "}").encode() if len(whole) == len(lines) else None


def _member(line: str, secrets: Mapping[str, str]) -> str | None:
    if not line.startswith('  "'):
        return None
    try:
        name, end = _DECODER.raw_decode(line, 2)
    except ValueError:
        return None
    value = line[end:].removeprefix(": ")
    if value.startswith("(hidden, ") and name in secrets:
        value = secrets[name]
    return f"{line[2:end]}:{value}"


def _value(row: ArgRow) -> str:
    if row.secret:
        return f"(hidden, {counted(row.bytes, 'byte')})"
    if row.value_json.startswith('"'):
        return _string(row.value_text, address=row.recipient)
    return _written(row.value_json, address=False)


def _string(text: str, *, address: bool = False) -> str:
    """A string as JSON. It is marked by its own characters: an escape must not make a word of what is none."""
    return f'"{_written(text, address=address, json_text=True)}"'


def _written(text: str, *, address: bool, json_text: bool = False) -> str:
    spans = mark(text, block=True, address=address, every=True, edges=False).spans
    return "".join(
        json.dumps(span.text, ensure_ascii=False)[1:-1]
        if json_text and span.kind == "plain"
        else visible(span)
        for span in spans
    )


def _beginning(text: str, size: int) -> Args:
    lines = text.split("\n")
    first = "\n".join(lines[:BEGINNING_LINES])
    rest = f"all {counted(size, 'byte')} are on the page."
    if units(first) <= BEGINNING_CHARACTERS:
        shown = min(BEGINNING_LINES, len(lines))
        return Args(first, False, f"The first {shown:,} of {counted(len(lines), 'line')}; {rest}")
    first = text[:BEGINNING_CHARACTERS]
    return Args(first, False, f"The first {len(first):,} of {counted(len(text), 'character')}; {rest}")
