"""Searching a journal: which transactions somebody wants to see."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from countersign.errors import MisuseError
from countersign.journal.moves import LocalState, LocalTxn

PARKED: Final = "parked"
_AGO: Final = re.compile(r"([0-9]{1,6})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}
STATES: Final = (
    frozenset({PARKED}) | {state.value for state in LocalTxn} | {state.value for state in LocalState}
)
"""What may be asked for: a state of the transaction as `list` tells it, or of one of its effects."""

WANTED: Final = """
(CASE WHEN t.parked <> 0 THEN 'parked' ELSE t.state END = :state OR :state IS NULL
    OR EXISTS (SELECT 1 FROM effects e WHERE e.txn = t.txn AND e.staging = coalesce(t.staging, t.stagings)
        AND e.state = :state))
AND (EXISTS (SELECT 1 FROM effects e WHERE e.txn = t.txn AND e.tool = :tool
    AND e.staging = coalesce(t.staging, e.staging)) OR :tool IS NULL)
AND (t.agent = :agent OR :agent IS NULL)
AND (replace(lower(t.run_key), lower(:text), '') <> lower(t.run_key) OR :text IS NULL OR :text = '')
AND (t.updated_at >= :since OR :since IS NULL)
AND (t.updated_at < :until OR :until IS NULL)
"""
"""The condition on a row `t` of `transactions`; its names are `Wanted.parameters`. Each is compared before it is asked
whether it was said at all: so PostgreSQL knows its type.
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look for; what is None is not asked. The time is of the last change, and half open."""

    state: str | None = None
    tool: str | None = None
    agent: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise MisuseError(f"there is no state {self.state!r}; there are {', '.join(sorted(STATES))}")

    @property
    def parameters(self) -> dict[str, str | float | None]:
        """As the condition names them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def moment(text: str | None, now: float) -> float | None:
    """A time as a person types it: a day or a time by ISO 8601, UTC where no zone is said, or how long ago (`2h`).

    Raises:
        MisuseError: it is no such time.
    """
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise MisuseError(
            f"{text!r} is no time; write it like 2026-11-23 or 2026-11-23T08:00:00Z, or how long ago, like 2h or 7d"
        ) from error
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
