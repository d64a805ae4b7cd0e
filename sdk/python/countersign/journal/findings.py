"""What a verification of a journal finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import overload


class Damage(StrEnum):
    """The kinds of damage that verification distinguishes."""

    FILE = "file"
    """The database cannot read it, or finds its pages out of order."""
    SCHEMA = "schema"
    """A table, index or trigger is not as this SDK creates it."""
    LINE_CHANGED = "line_changed"
    """A line's bytes do not have its hash, or it does not follow from the line before it."""
    LINE_MOVED = "line_moved"
    """A line is valid but at another position than the one it names."""
    LINE_MISSING = "line_missing"
    """A line number is missing."""
    TAIL_CUT = "tail_cut"
    """The last lines are missing."""
    HEAD_CHANGED = "head_changed"
    """The row of the transaction names another last line."""
    ROW_CHANGED = "row_changed"
    """A row differs from the last values that the chain states."""
    ROW_MISSING = "row_missing"
    """A row that the chain states is missing."""
    ROW_UNKNOWN = "row_unknown"
    """No line states this row."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from what was written."""

    damage: Damage
    what: str
    txn: str | None = None  # None: not of one transaction
    line: int | None = None


@dataclass(slots=True)
class Scan:
    """One pass over a journal, and its findings."""

    findings: list[Finding] = field(default_factory=list)
    legible: bool = True
    """Whether rows can be read reliably."""

    def found(self, damage: Damage, what: str, txn: str | None = None, line: int | None = None) -> None:
        """Record one finding."""
        self.findings.append(Finding(damage, printable(what), printable(txn) or None, line))


@overload
def printable(raw: str) -> str: ...


@overload
def printable(raw: str | None) -> str | None: ...


def printable(raw: str | None) -> str | None:
    """Escape bytes that are not text."""
    return None if raw is None else raw.encode("utf-8", "backslashreplace").decode()
