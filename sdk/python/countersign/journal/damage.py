"""What is wrong with a journal, by name, and where that is noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, overload

_SIDE_ROWS: Final = frozenset({"trigger", "function"})  # rows are legible without them
_STRANGE: Final = frozenset({"trigger", "view", "rule"})  # what may change rows or show others


class Damage(StrEnum):
    """Each kind of damage that verifying tells apart."""

    FILE = "file"
    """The database cannot read it, or finds its pages out of order."""
    SCHEMA = "schema"
    """A table, index or trigger is not as this SDK makes it."""
    LINE_CHANGED = "line_changed"
    """A line's bytes do not have its hash, or it does not follow from the line before it."""
    LINE_MOVED = "line_moved"
    """A line is sound, and stands in another place than the one it names."""
    LINE_MISSING = "line_missing"
    """A number is left out."""
    TAIL_CUT = "tail_cut"
    """The last lines are gone."""
    HEAD_CHANGED = "head_changed"
    """The row of the transaction names another last line."""
    ROW_CHANGED = "row_changed"
    """A row does not say what the chain's last word on it is."""
    ROW_MISSING = "row_missing"
    """The chain speaks of a row that is gone."""
    ROW_UNKNOWN = "row_unknown"
    """No line speaks of this row."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was written."""

    damage: Damage
    what: str
    txn: str | None = None  # None: not of one transaction
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """One transaction as far as it was verified: whoever keeps this elsewhere can compare it later."""

    txn: str
    key: str | None
    lines: int
    head: str
    txn_digest: str | None
    attempt: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at, and what was found."""

    chains: tuple[Chain, ...]
    findings: tuple[Finding, ...]
    lines: int

    @property
    def sound(self) -> bool:
        """Whether everything is as it was written."""
        return not self.findings


@dataclass(slots=True)
class Scan:
    """One pass over a journal, and what it finds."""

    findings: list[Finding] = field(default_factory=list)
    legible: bool = True
    """Whether rows can be read for what they are."""

    def found(self, damage: Damage, what: str, txn: str | None = None, line: int | None = None) -> None:
        """Note one thing that is wrong."""
        self.findings.append(Finding(damage, printable(what), printable(txn) or None, line))


@overload
def printable(raw: str) -> str: ...
@overload
def printable(raw: str | None) -> str | None: ...
def printable(raw: str | None) -> str | None:
    """Bytes that are no text any more, written out."""
    return None if raw is None else raw.encode("utf-8", "backslashreplace").decode()


def compare_schemas(
    look: Scan, ours: Mapping[str, tuple[str, str]], theirs: Mapping[str, tuple[str, str]]
) -> None:
    """Step 2 of verifying.py: what is there, by name as kind and definition, and what this SDK makes."""
    for name, made in ours.items():
        if theirs.get(name) != made:
            look.legible = look.legible and made[0] in _SIDE_ROWS
            look.found(
                Damage.SCHEMA, f"{made[0]} {name!r} is {'not as made' if name in theirs else 'missing'}"
            )
    for name in theirs.keys() - ours.keys():
        if theirs[name][0] in _STRANGE:
            look.found(Damage.SCHEMA, f"{theirs[name][0]} {name!r} is not this SDK's")
