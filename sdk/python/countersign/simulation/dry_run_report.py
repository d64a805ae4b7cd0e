"""What a dry run has found: every staged call with the policy's answer, every live one, and what those would change.

Values only. What a reviewed manifest calls secret is hidden before it gets here; where nobody could say what is secret,
all the arguments are. A decision is what the policy said at that moment and promises nothing: `unknown` where nobody
could be asked, never a guess. Of a row that would change people read each column that matters, as text and as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from countersign.adapters.protocol import Change
from countersign.contract.admission import JSON
from countersign.errors.reasons import ApprovalRequirement, DenyReason
from countersign.journal.export import escape_unprintable

Foresight = Literal["release", "review", "deny", "unknown"]
_LONGEST: Final = 120  # characters of one value in a line for people; `changes` has all of it
_EXACT: Final = 2**53 - 1  # the largest whole number that every reader of JSON takes for what it is


@dataclass(frozen=True, slots=True)
class ForeseenEffect:
    """One staged call and what would be decided of it now; `why` says why that is unknown."""

    tool: str
    effect_id: str
    args: JSON
    decision: Foresight
    asks: tuple[ApprovalRequirement, ...] = ()
    reasons: tuple[DenyReason, ...] = ()
    policies: tuple[str, ...] = ()
    why: str | None = None

    @property
    def told(self) -> str:
        """What follows from the decision, in a line."""
        if self.asks:
            return f"asks {' and '.join(map(str, self.asks))}"
        return "; ".join(map(str, self.reasons)) or self.why or ""

    def __str__(self) -> str:
        told = f": {self.told}" if self.told else ""
        return f"{self.tool} {_json(self.args)}: {self.decision}{told}"


@dataclass(frozen=True, slots=True)
class SimulatedLiveCall:
    """One live call, which ran and was undone."""

    tool: str
    args: JSON

    def __str__(self) -> str:
        return f"{self.tool} {_json(self.args)}: ran and was undone"


@dataclass(frozen=True, slots=True)
class AdapterChanges:
    """What a commit would change in one live resource; None where it cannot tell."""

    adapter: str
    changes: tuple[Change, ...] | None

    def __str__(self) -> str:
        if self.changes is None:
            return f"{self.adapter}: cannot tell what would change"
        return f"{self.adapter}: {', '.join(map(_change, self.changes)) or 'no change found'}"


@dataclass(frozen=True, slots=True)
class DryRun:
    """One rehearsed step. Nothing of it fired, nothing was kept."""

    key: str
    effects: tuple[ForeseenEffect, ...]
    live: tuple[SimulatedLiveCall, ...]
    changes: tuple[AdapterChanges, ...]

    @property
    def is_clean(self) -> bool:
        """Whether every staged call would be released as it is: nobody is asked, nothing denied or unknown."""
        return all(one.decision == "release" for one in self.effects)

    @property
    def denials(self) -> tuple[DenyReason, ...]:
        """Every reason of every call that would be denied."""
        return tuple(reason for one in self.effects if one.decision == "deny" for reason in one.reasons)

    def having(self, decision: Foresight) -> tuple[ForeseenEffect, ...]:
        """The staged calls with that decision."""
        return tuple(one for one in self.effects if one.decision == decision)

    def to_json(self) -> dict[str, Any]:
        """The same as plain values; what would change is told by its kind and how it begins, a row column by column."""
        return {
            "key": self.key,
            "clean": self.is_clean,
            "effects": [
                {
                    "tool": one.tool,
                    "effect_id": one.effect_id,
                    "args": one.args,
                    "decision": one.decision,
                    "asks": [
                        {"groups": list(ask.groups), "quorum": ask.quorum, "step_up": ask.step_up}
                        for ask in one.asks
                    ],
                    "reasons": [
                        {"code": r.code, "text": r.text, "policy": r.policy, "advice": r.advice}
                        for r in one.reasons
                    ],
                    "policies": list(one.policies),
                    "why": one.why,
                }
                for one in self.effects
            ],
            "live": [{"tool": one.tool, "args": one.args} for one in self.live],
            "changes": [
                {
                    "adapter": one.adapter,
                    "changes": None if one.changes is None else [_plain(change) for change in one.changes],
                }
                for one in self.changes
            ],
        }

    def __str__(self) -> str:
        return "\n".join(escape_unprintable(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"dry run of {self.key!r}: nothing fired, nothing was kept"
        for number, one in enumerate(self.effects, start=1):
            yield f"  {number}  {one}"
        for live in self.live:
            yield f"  live  {live}"
        for changed in self.changes:
            yield f"  changes  {changed}"


def _change(change: Change) -> str:
    columns = ", ".join(_columns(change))
    return f"{change.key} {_what(change)}{columns and f' ({columns})'}"


def _columns(change: Change) -> Iterator[str]:
    """Of a row each column with its value, of a changed one those that differ; nothing of what is no row."""
    match change.before, change.after:
        case [Mapping() as before, Mapping() as after]:
            for column in _columns_that_differ(before, after):
                yield f"{column}: {_short(repr(before.get(column)))} -> {_short(repr(after.get(column)))}"
        case (Mapping() as row, None) | (None, Mapping() as row):
            yield from (f"{column}: {_short(repr(value))}" for column, value in row.items())


def _columns_that_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """As they are told: 1 and 1.0 are equal and no longer the same."""
    return [
        column
        for column in dict.fromkeys((*before, *after))
        if repr(before.get(column)) != repr(after.get(column))
    ]


def _plain(change: Change) -> dict[str, Any]:
    before, after = change.before, change.after
    told: dict[str, Any] = {"key": change.key, "what": _what(change)}
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        # values that are cut may not show which
        told["columns"] = [str(one) for one in _columns_that_differ(before, after)]
    return told | {"before": _plain_side(before), "after": _plain_side(after)}


def _plain_side(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(column): _plain_value(one) for column, one in value.items()}
    return _short(value)


def _plain_value(value: Any) -> Any:
    """As it is where JSON holds just that, else the beginning of its text."""
    match value:
        case bool() | None:
            return value
        case int():
            return value if abs(value) <= _EXACT else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict() | list():
            return _short(_json_of(value))
    return _short(value)


def _json_of(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        # what stands in a program's memory may have keys that are no text, or hold itself
        return str(value)


def _what(change: Change) -> str:
    if change.before is None:
        return "new"
    return "removed" if change.after is None else "changed"


def _short(value: Any) -> str | None:
    if value is None:
        return None
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _json(value: JSON) -> str:
    return orjson.dumps(value).decode()
