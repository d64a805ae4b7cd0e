"""Rows of the journal as people may see them, without any key: sealed values are hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import orjson

from countersign.contract.admission import JSON
from countersign.journal.database import Row
from countersign.journal.records import damaged, settlement_texts
from countersign.journal.sealed_values import replace_value, sealed_parts
from countersign.journal.sealing import is_sealed
from countersign.journal.states import LocalState


@dataclass(frozen=True, slots=True)
class ShownEffect:
    """One call as people may see it, without any key: sealed values are hidden. A sealed result is None, and
    `result_sealed` is True.
    """

    lane: str
    seq: int
    effect_id: str
    tool: str
    tool_digest: str | None
    call_key: str
    args: JSON
    staged: JSON
    state: LocalState
    result: bytes | None = field(repr=False)
    result_sealed: bool
    has_secrets: bool
    error: str | None
    compensates: str | None
    parsed_settlements: tuple[Mapping[str, JSON], ...]


@dataclass(frozen=True, slots=True)
class UnreadableEffect:
    """One call with an unreadable row, by its position in the list; `why` names it too."""

    lane: str
    seq: int
    why: str


def shown_effect(row: Row) -> ShownEffect:
    """Read one row of `effects` without unsealing or verifying it.

    Raises:
        JournalError: the row holds what no version of this SDK writes.
    """
    try:
        return ShownEffect(
            lane=row["lane"],
            seq=row["seq"],
            effect_id=row["effect_id"],
            tool=row["tool"],
            tool_digest=row["tool_digest"],
            call_key=row["call_key"],
            args=redacted(row["args"]) if row["args"] else HIDDEN,
            staged=None if row["staged_args"] is None else redacted(row["staged_args"]),
            state=LocalState(row["state"]),
            result=None if is_sealed(row["result"]) else _text(row["result"]),
            result_sealed=is_sealed(row["result"]),
            has_secrets=is_sealed(row["args"]),
            error=row["error"],
            compensates=row["compensates"],
            parsed_settlements=settlement_texts(
                [] if row["settlements"] is None else redacted(row["settlements"])
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("effect", row["effect_id"], str(error)) from error


def _text(raw: bytes | None) -> bytes | None:
    """Require valid UTF-8 of a text for people."""
    if raw is not None:
        raw.decode()
    return raw


HIDDEN: Final = "(secret)"
"""Shown in place of a hidden value."""


def redacted(stored: bytes) -> JSON:
    """A column for people, without any key: sealed values are hidden."""
    if not is_sealed(stored):
        return cast(JSON, orjson.loads(stored))
    value, sealed = sealed_parts(stored)
    for pointer, _, _ in sealed:
        value, _ = replace_value(value, pointer, HIDDEN)
    return cast(JSON, value)
