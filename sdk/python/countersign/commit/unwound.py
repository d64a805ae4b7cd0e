"""How the taking back of one transaction went: what people are asked about first, and why the rest still stands.
Nothing in it repeats what is secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from countersign.commit.plan import PlannedCall
from countersign.commit.raised import MAX_ERROR
from countersign.contract.wire import EffectView
from countersign.errors import CountersignError, ReleaseRefused, ServiceRefused, ServiceUnavailable
from countersign.errors.reasons import PendingReview

_SAID: Final = {  # without the advice that goes with it where it is raised
    ServiceRefused: "{0.detail}",
    ReleaseRefused: "{0.reason}",
    ServiceUnavailable: "the policy service did not answer ({0.why})",
}


@dataclass(frozen=True, slots=True)
class Unwound:
    """What people are asked about first, and by the names of calls why what is not taken back is not."""

    reviews: tuple[PendingReview, ...]
    in_vain: Mapping[str, str]

    @property
    def note(self) -> str | None:
        """For the transaction."""
        return "; ".join(self._lines()) or None

    def beside(self, why: str) -> str:
        """Why the transaction did not go through, and this."""
        return "; ".join([why, *self._lines()])

    def _lines(self) -> list[str]:
        return [f"{name} was not taken back: {why}" for name, why in self.in_vain.items()]


def why_not(call: PlannedCall, error: CountersignError) -> str:
    """Why a call is not taken back, in the words of whoever refused; where it has secrets, which those may repeat, only
    what kind of refusal it was.
    """
    if call.has_secrets:
        return f"{type(error).__name__}, whose text is not told, for it may repeat secret arguments"
    told = next((text.format(error) for kind, text in _SAID.items() if isinstance(error, kind)), str(error))
    return told[:MAX_ERROR]


def how_it_ended(call: PlannedCall, undo: EffectView) -> str:
    """Why the service lets a call's compensation go no more."""
    reasons = [] if call.has_secrets else [one.text for one in undo.decision.reasons]
    told = f": {'; '.join(reasons)}" if reasons else ""
    return f"{undo.tool} is {undo.state.value}{told}"
