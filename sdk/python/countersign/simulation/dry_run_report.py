"""The result of a dry run: every staged call with its decision, every live call, and the changes of the live calls.

Values only. What a reviewed manifest declares secret is hidden before it gets here; if that is unknown, all arguments
are. A decision is what the policy said at that moment and promises nothing. It is `unknown` if the service did not
answer, never a guess. Each relevant column of a changed row is shown, as text and as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import orjson

from countersign.adapters.protocol import Change
from countersign.contract.admission import JSON
from countersign.errors.pending import ApprovalRequirement
from countersign.errors.reasons import DenyReason
from countersign.journal.export import escape_unprintable

Foresight = Literal["release", "review", "deny", "unknown"]
_LONGEST: Final = 120  # characters of one value in a line; `changes` has all of it
_EXACT: Final = 2**53 - 1  # the largest integer that every JSON reader reads exactly


@dataclass(frozen=True, slots=True)
class ForeseenEffect:
    """One staged call and its decision as of now; `why` explains an unknown one."""

    tool: str
    effect_id: str
    args: JSON
    decision: Foresight
    asks: tuple[ApprovalRequirement, ...] = ()
    reasons: tuple[DenyReason, ...] = ()
    policies: tuple[str, ...] = ()
    why: str | None = None

    @property
    def summary(self) -> str:
        """The consequence of the decision in a line."""
        if self.asks:
            return f"asks {' and '.join(map(str, self.asks))}"
        return "; ".join(map(str, self.reasons)) or self.why or ""

    def __str__(self) -> str:
        message = f": {self.summary}" if self.summary else ""
        return f"{self.tool} {_json(self.args)}: {self.decision}{message}"


@dataclass(frozen=True, slots=True)
class SimulatedLiveCall:
    """One live call, which ran and was undone."""

    tool: str
    args: JSON

    def __str__(self) -> str:
        return f"{self.tool} {_json(self.args)}: ran and was undone"


@dataclass(frozen=True, slots=True)
class AdapterChanges:
    """What a commit would change in one live resource; None if it cannot tell."""

    adapter: str
    changes: tuple[Change, ...] | None

    def __str__(self) -> str:
        if self.changes is None:
            return f"{self.adapter}: cannot tell what would change"
        return f"{self.adapter}: {', '.join(map(_change, self.changes)) or 'no change found'}"


@dataclass(frozen=True, slots=True)
class DryRun:
    """One dry run. Nothing was fired or kept."""

    key: str
    effects: tuple[ForeseenEffect, ...]
    live: tuple[SimulatedLiveCall, ...]
    changes: tuple[AdapterChanges, ...]

    @property
    def is_clean(self) -> bool:
        """Whether every staged call would be released as it is, without a review."""
        return all(one.decision == "release" for one in self.effects)

    @property
    def denials(self) -> tuple[DenyReason, ...]:
        """Every reason of every call that would be denied."""
        return tuple(reason for one in self.effects if one.decision == "deny" for reason in one.reasons)

    def having(self, decision: Foresight) -> tuple[ForeseenEffect, ...]:
        """The staged calls with that decision."""
        return tuple(one for one in self.effects if one.decision == decision)

    def to_json(self) -> dict[str, Any]:
        """The result as plain values. A change has its kind and the beginning of its values; a row has its columns."""
        return {
            "key": self.key,
            "clean": self.is_clean,
            "effects": [
                {
                    "tool": one.tool,
                    "effect_id": one.effect_id,
                    "args": one.args,
                    "decision": one.decision,
                    "asks": [asdict(ask) | {"groups": list(ask.groups)} for ask in one.asks],
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
    """The columns of a new or removed row with their values; of a changed row those that differ."""
    match change.before, change.after:
        case [Mapping() as before, Mapping() as after]:
            for column in _columns_that_differ(before, after):
                yield f"{column}: {_short(repr(before.get(column)))} -> {_short(repr(after.get(column)))}"
        case (Mapping() as row, None) | (None, Mapping() as row):
            yield from (f"{column}: {_short(repr(value))}" for column, value in row.items())


def _columns_that_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """By their `repr`: 1 and 1.0 are equal but not the same."""
    return [
        column
        for column in dict.fromkeys((*before, *after))
        if repr(before.get(column)) != repr(after.get(column))
    ]


def _plain(change: Change) -> dict[str, Any]:
    before, after = change.before, change.after
    message: dict[str, Any] = {"key": change.key, "what": _what(change)}
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        # truncated values may not show the difference
        message["columns"] = [str(one) for one in _columns_that_differ(before, after)]
    return message | {"before": _plain_side(before), "after": _plain_side(after)}


def _plain_side(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(column): _plain_value(one) for column, one in value.items()}
    return _short(value)


def _plain_value(value: Any) -> Any:
    """The value if JSON holds it exactly, otherwise the beginning of its text."""
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
        # an in-memory value may have keys that are no text, or contain itself
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
