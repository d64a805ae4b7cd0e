"""`countersign journal export`: transactions as one document, for other programs, spreadsheets and people.

Rules: what cannot be read is told as damaged, in JSON apart from the transactions that can be replayed; what a manifest
calls secret is hidden as `show` hides it (telling.py); the JSON document names its form and version; a cell of the CSV
never begins as a formula; what an agent wrote is no markup in the Markdown. An export is a copy to read: nothing is
taken back from it, and it proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from countersign.journal.telling import json_text, visible

Form = Literal["json", "csv", "md"]
FORMAT: Final = "countersign/journal-export/v1"

_OF_TXN: Final = ("txn", "key", "agent", "state", "revision", "attempt", "created", "changed", "note")
_OF_EFFECT: Final = (
    *("lane", "seq", "tool", "effect_state", "effect_id", "call_key"),
    *("args", "staged", "result", "error", "compensates", "settled"),
)
COLUMNS: Final = _OF_TXN + _OF_EFFECT
_IN_MARKDOWN: Final = ("lane", "seq", "tool", "state", "args", "result", "error", "settled")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet would run


def exported(form: Form, transactions: Sequence[Mapping[str, Any]], at: str) -> str:
    """These transactions, as `telling.describe` tells them, in one text."""
    if form == "json":
        sound = [one for one in transactions if "unreadable" not in one]
        document = {"format": FORMAT, "exported_at": at, "transactions": sound}
        if damaged := [one for one in transactions if "unreadable" in one]:
            document["damaged"] = damaged
        return json_text(document, indent=2) + "\n"
    return "".join(_table(transactions) if form == "csv" else _pages(transactions, at))


def _table(transactions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """RFC 4180, every cell quoted; a line for each effect, or one for a transaction that has none."""
    yield _row(COLUMNS)
    nothing: Mapping[str, Any] = {}
    for one in transactions:
        for effect in one["effects"] or (nothing,):
            told = {**effect, "effect_state": effect.get("state")}
            yield _row([*(one[name] for name in _OF_TXN), *(told.get(name) for name in _OF_EFFECT)])


def _row(cells: Sequence[Any]) -> str:
    return ",".join(_cell(cell) for cell in cells) + "\r\n"


def _cell(value: Any) -> str:
    text = "" if value is None else visible(str(value))
    if not isinstance(value, int) and text.startswith(_FORMULA):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"'


def _pages(transactions: Sequence[Mapping[str, Any]], at: str) -> Iterator[str]:
    yield f"# Journal\n\nExported {at}: {len(transactions)} transactions.\n"
    for one in transactions:
        yield f"\n## {_plain(one['key'])}\n\n"
        for name in _OF_TXN:
            if name != "key" and one[name] is not None:
                yield f"- {name}: {_plain(one[name])}\n"
        if one["effects"]:
            yield f"\n| {' | '.join(_IN_MARKDOWN)} |\n|{' --- |' * len(_IN_MARKDOWN)}\n"
            yield from (_line([effect[name] for name in _IN_MARKDOWN]) for effect in one["effects"])


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", r"\x7c") for cell in cells) + " |\n"


def _plain(value: Any) -> str:
    """Text in a code span that it cannot end: no link, no image, no HTML, not even the address of a page."""
    text = "" if value is None else visible(str(value))
    if not text:
        return ""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"{fence}{text}{fence}"
