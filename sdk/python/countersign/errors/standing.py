"""What stands of a transaction that did not end well, in words an agent can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from countersign.errors.reasons import PendingReview

COMPENSATION_UNKNOWN: Final = "compensation_unknown"
"""In `outcomes`: the effect fired, and nobody knows whether its compensation did."""

STANDING: Final = frozenset({"fired", "compensating", "compensation_failed", COMPENSATION_UNKNOWN})
"""In `outcomes`: the effect stands, or may stand, and must not be repeated under another key."""

NOTHING_STANDS: Final = "Nothing of this transaction stands."
_UNKNOWN: Final = frozenset({"firing", "unknown"})
_COMPENSATING: Final = "compensating"


def what_stands(outcomes: dict[str, str], reviews: Sequence[PendingReview] = ()) -> str:
    """In words what stands and what may stand, so that an agent never reports a clean rollback that was none, nor takes
    for standing what is taken back as soon as people agree. `reviews`: which of that they are asked about.
    """
    standing = [
        name
        for name, outcome in outcomes.items()
        if outcome in STANDING - {_COMPENSATING, COMPENSATION_UNKNOWN}
    ]
    compensating = _compensating(outcomes)
    doubtful = [name for name, outcome in outcomes.items() if outcome == COMPENSATION_UNKNOWN]
    unknown = [name for name, outcome in outcomes.items() if outcome in _UNKNOWN]
    told = []
    if standing:
        told.append(f"Still standing and not undone: {', '.join(standing)}; a person has been told.")
    if compensating:
        asked = f": people are asked first ({'; '.join(map(str, reviews))})" if reviews else ""
        told.append(
            f"To be taken back, and not yet: {', '.join(compensating)}{asked}; `countersign resume --tools MODULE`, a "
            "worker or the next run of this key goes on with it."
        )
    if doubtful:
        told.append(
            f"It is not known whether this was taken back: {', '.join(doubtful)}; a person settles it."
        )
    if unknown:
        told.append(f"It is not known whether this happened: {', '.join(unknown)}; a person settles it.")
    return " ".join(told) or NOTHING_STANDS


def what_to_repeat(outcomes: dict[str, str]) -> str:
    """How to try again without doing anything twice, nor anything that follows from what is still being taken back."""
    if _compensating(outcomes):
        return "Stage nothing of it again before that is decided."
    rest = [name for name, outcome in outcomes.items() if outcome not in STANDING | _UNKNOWN]
    if len(rest) == len(outcomes):
        return "To try again, use another key."
    return f"To try again, stage under another key only what does not stand: {', '.join(rest) or 'nothing is left'}."


def only_people_are_left(outcomes: dict[str, str], reviews: Sequence[PendingReview]) -> bool:
    """Whether all that is still open is to be taken back, and people are asked about each of it."""
    still_open = [outcome for outcome in outcomes.values() if outcome in STANDING | _UNKNOWN]
    return bool(reviews) and still_open == [_COMPENSATING] * len(reviews)


def _compensating(outcomes: dict[str, str]) -> list[str]:
    return [name for name, outcome in outcomes.items() if outcome == _COMPENSATING]


def moved_text(
    adapter: str, key: str, verb: str, expected: str | None, now: str | None, holder: str, said: str
) -> str:
    """That nothing stands, because somebody else came in between; `said` are the resource's own words for it."""
    if said:
        return (
            f"{key!r} met another transaction in {adapter!r} ({said}). Nothing was fired, live effects are undone; run "
            "the transaction again."
        )
    found = f"{holder} is changing it" if holder else f"it is now at {_version(now)}"
    return (
        f"{key!r} of {adapter!r} was {verb} at {_version(expected)}, and {found}. Nothing was fired, live effects "
        "are undone; run the transaction again."
    )


def _version(version: str | None) -> str:
    return "no version (not there)" if version is None else f"version {version[:12]}"
