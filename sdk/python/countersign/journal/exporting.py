"""`countersign journal export`: transactions as one document, for other programs, spreadsheets and people.

Rules: what cannot be read is told as damaged, in JSON apart from the transactions that can be replayed; what a manifest
calls secret is hidden as `show` hides it (telling.py); the JSON document names its form and version; a cell of the CSV
never begins as a formula; what an agent wrote is no markup in the Markdown. An export is a copy to read: nothing is
taken back from it. Each transaction of the JSON document has a digest over all that is said of it, so that an edit by
hand is noticed, and the head of its chain, by which it can be compared with the journal. Neither is signed: whoever
knows this page can edit it and make the digest anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from countersign.contract import names
from countersign.contract.canonical import canonicalize
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
        sound = [
            {**one, "digest": transaction_digest(one)} for one in transactions if "unreadable" not in one
        ]
        document = {"format": FORMAT, "exported_at": at, "transactions": sound}
        if damaged := [one for one in transactions if "unreadable" in one]:
            document["damaged"] = damaged
        return json_text(document, indent=2) + "\n"
    return "".join(_table(transactions) if form == "csv" else _pages(transactions, at))


def transaction_digest(told: Mapping[str, Any]) -> str:
    """The digest of one transaction of a JSON document: SHA-256 over the name of the form and the canonical JSON of all
    its members but `digest`.

    Raises:
        AdmissionError: it holds what is no JSON.
    """
    said = {name: value for name, value in told.items() if name != "digest"}
    return names.labelled_digest(f"{FORMAT}\n".encode(), canonicalize(said))


def _table(transactions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """RFC 4180, every cell quoted; a line for each effect, or one for a transaction that has none. Those that its
    list does not hold follow.
    """
    yield _row(COLUMNS)
    nothing: Mapping[str, Any] = {}
    for one in transactions:
        for effect in [*one["effects"], *one["dropped"]] or (nothing,):
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
        if effects := [*one["effects"], *one["dropped"]]:
            yield f"\n| {' | '.join(_IN_MARKDOWN)} |\n|{' --- |' * len(_IN_MARKDOWN)}\n"
            yield from (_line([effect[name] for name in _IN_MARKDOWN]) for effect in effects)


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
