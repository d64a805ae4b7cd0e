"""What stands of a transaction that did not end well, in words an agent can act on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from countersign.errors.reasons import PendingReview

COMPENSATION_UNKNOWN: Final = "compensation_unknown"
"""In `outcomes`: the effect fired, and nobody knows whether its compensation did."""

STANDING: Final = frozenset({"fired", "compensating", "compensation_failed", COMPENSATION_UNKNOWN})
"""In `outcomes`: the effect stands, or may stand, and must not be repeated under another key."""

NOTHING_STANDS: Final = "Nothing of this transaction stands."
USE_ANOTHER_KEY: Final = "To try again, use another key."
NOTHING_DONE: Final = "nothing was done:"
NOTHING_BEGUN: Final = "Nothing after it was started and nothing was compensated."
_OF_ONE_CALL: Final = {
    NOTHING_STANDS: "Nothing of this call stands.",
    USE_ANOTHER_KEY: "To try again, stage this call alone under another key: others of its block may have fired.",
    NOTHING_DONE: "this call was not done:",
    NOTHING_BEGUN: "It was not compensated, and the other calls of its block are told by themselves.",
}
"""What is said of a whole transaction, as it is said of a call that stands alone in its block."""
_UNKNOWN: Final = frozenset({"firing", "unknown"})
_COMPENSATING: Final = "compensating"

# Of the service's states; in any other one it may still happen, or be taken back.
_DONE: Final = frozenset({"fired", "compensation_failed"})
_NOT_DONE: Final = frozenset({"failed", "unused", "compensated", "denied", "expired", "withdrawn", "revoked"})
_ELSEWHERE: Final = (
    "A run with another journal spent it, on another host or under another COUNTERSIGN_JOURNAL."
)
_GO_ON_THERE: Final = (
    "`countersign resume --tools MODULE` there, or the same calls under this key, bring it to its end or say what "
    "nobody knows. Ask for none of it under another key: it might happen twice."
)
_DONE_THERE: Final = (
    "What has fired is done, and its result stands there: under another key it would be done once more, so stage under "
    "one only what is to happen besides."
)


def without_reads(outcomes: dict[str, str], reads: Collection[str]) -> dict[str, str]:
    """What is left to say of a transaction, of whose reads nothing stands."""
    return {name: outcome for name, outcome in outcomes.items() if name not in reads}


def what_stands(
    outcomes: dict[str, str], reviews: Sequence[PendingReview] = (), *, kept: bool = False
) -> str:
    """In words what stands and what may stand, so that an agent never reports a clean rollback that was none, nor takes
    for standing what is taken back as soon as people agree. `reviews`: which of that they are asked about; `kept`: its
    live effects stand.
    """
    standing = [
        name
        for name, outcome in outcomes.items()
        if outcome in STANDING - {_COMPENSATING, COMPENSATION_UNKNOWN}
    ]
    compensating = _compensating(outcomes)
    doubtful = [name for name, outcome in outcomes.items() if outcome == COMPENSATION_UNKNOWN]
    unknown = [name for name, outcome in outcomes.items() if outcome in _UNKNOWN]
    told = ["Its live effects stand."] if kept else []
    if standing:
        told.append(
            f"Still standing and not undone: {', '.join(standing)}; `countersign resume --tools MODULE` takes back "
            "what still can be, the rest is for a person."
        )
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


def what_to_repeat(outcomes: dict[str, str], *, kept: bool = False) -> str:
    """How to try again without doing anything twice, nor anything that follows from what is still being taken back."""
    if _compensating(outcomes):
        return "Stage nothing of it again before that is decided."
    rest = [name for name, outcome in outcomes.items() if outcome not in STANDING | _UNKNOWN]
    if len(rest) == len(outcomes) and not kept:
        return USE_ANOTHER_KEY
    return f"To try again, stage under another key only what does not stand: {', '.join(rest) or 'nothing is left'}."


def said_of_one_call(text: str) -> str:
    """What ended one call of a block whose calls stand alone: nobody repeats the others for its sake."""
    for of_all, of_one in _OF_ONE_CALL.items():
        text = text.replace(of_all, of_one)
    return text


def spent_elsewhere(states: Collection[str]) -> tuple[bool, str]:
    """Whether what another journal's run has redeemed came to its end, as the service knows of each effect, and what to
    do about it here, where nobody can go on with it.
    """
    told = set(states)
    if not told or told - _DONE - _NOT_DONE:
        return False, f"{_ELSEWHERE} It is not finished: {_GO_ON_THERE}"
    if told & _DONE:
        return True, f"{_ELSEWHERE} {_DONE_THERE}"
    return True, f"{_ELSEWHERE} {NOTHING_STANDS} {USE_ANOTHER_KEY}"


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
        met = f"{key!r} met another transaction" if key else "another transaction was met"
        return (
            f"{met} in {adapter!r} ({said}). Nothing was fired now, live effects are undone; "
            "run the transaction again."
        )
    found = f"{holder}, is changing it" if holder else f"it is now at {_version(now)}"
    return (
        f"{key!r} of {adapter!r} was {verb} at {_version(expected)}, and {found}. Nothing was fired now, live "
        "effects are undone; run the transaction again."
    )


def _version(version: str | None) -> str:
    return "no version (not there)" if version is None else f"version {version[:12]}"
