"""The errors of calls to language models; see the tree in errors/. They quote neither prompts nor responses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from countersign.errors import CountersignError, MisuseError, Stopped


class BudgetExceeded(Stopped):
    """The call would exceed a budget, so it was not made. The numbers are in the budget's measure: currency units,
    tokens, calls or seconds.
    """

    code = "budget_exceeded"

    def __init__(
        self,
        budget: str,
        *,
        measure: str,
        per: str,
        limit: Decimal,
        spent: Decimal,
        reserved: Decimal,
        asked: Decimal,
        renews_at: datetime | None,
    ) -> None:
        self.budget, self.measure, self.per = budget, measure, per
        self.limit, self.spent, self.reserved, self.asked = limit, spent, reserved, asked
        self.renews_at = renews_at
        renews = (
            "The budget of a run is not renewed."
            if renews_at is None
            else f"It renews at {renews_at:%Y-%m-%d %H:%M} UTC."
        )
        super().__init__(
            f"the model was not called: budget {budget!r} ({measure} per {per}) allows {limit:f}, {spent:f} are spent, "
            f"{reserved:f} reserved, and this call asks for up to {asked:f}. {renews} "
            f"{_what_to_do(measure, renews_at)}"
        )


def _what_to_do(measure: str, renews_at: datetime | None) -> str:
    less = "" if measure == "calls" else "ask for less (max_tokens, a shorter prompt), "
    wait = "" if renews_at is None else "wait, "
    advice = f"{less}{wait}{'or ' if less or wait else ''}tell the user that the budget is used up."
    return advice[0].upper() + advice[1:]


class PriceUnknown(MisuseError):
    """A money budget applies to a model without a price, so the cost of the call would be unknown."""

    code = "price_unknown"


_HOW_TO_RECORD: Final = (
    "Record the final response (of a stream: its last usage), or use unknown_tokens=True to record the call "
    "with its tokens unknown."
)


class UsageUnknown(CountersignError):
    """The response of a call does not state its usage. The call is in the journal all the same, and its reservation
    stays. If a decorated function made it, `response` is what it returned.
    """

    code = "usage_unknown"

    def __init__(
        self,
        kind: str,
        looked_for: Sequence[str],
        why: str = "",
        *,
        lacks: str = "what it used",
        advice: str = _HOW_TO_RECORD,
    ) -> None:
        self.kind, self.looked_for = kind, tuple(looked_for)
        self.response: object = None
        because = f" ({why})" if why else ""
        super().__init__(
            f"a response of type {kind!r} does not say {lacks}{because}; looked for: {'; '.join(self.looked_for)}. "
            f"{advice}"
        )


class CallNotRecorded(CountersignError):
    """A block of llm_call ended without a record or release. The reservation stays, because the call may have been
    made.
    """

    code = "call_not_recorded"
