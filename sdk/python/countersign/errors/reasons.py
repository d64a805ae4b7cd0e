"""Why effects of a transaction did not proceed, as values that errors carry for agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from countersign.contract.codes import DenyCode
from countersign.contract.states import EffectState
from countersign.contract.wire import DecisionView, EffectView, TransactionView

_STOPPED_TEXT: Final = {
    EffectState.DENIED: "it was denied",
    EffectState.EXPIRED: "there was no vote in time, or the release was not used in time",
    EffectState.WITHDRAWN: "it was withdrawn before anything fired",
    EffectState.REVOKED: "its release was revoked",
}
_STOPPED_ADVICE: Final = {
    EffectState.EXPIRED: (
        "run the block again for a new review; @answer_within and @valid_for on its gate give more time"
    ),
    EffectState.WITHDRAWN: "run the block again for a new review",
    EffectState.REVOKED: "an operator ended it (`policy-service revoke`): ask them before you stage it again",
    EffectState.DENIED: "ask the policy's maintainers",
}
_INDEPENDENT: Final = (
    "fix what the other effect's reason names, or make them independent: transaction(independent=True)"
)
_WITH_ANOTHER: Final = "it was withdrawn, because another effect of the transaction did not proceed"
_ENDED_OTHERWISE: Final = frozenset(
    {
        DenyCode.EXPIRED.value,
        DenyCode.SIBLING.value,
        DenyCode.SUPERSEDED.value,
        DenyCode.WITHDRAWN.value,
        EffectState.REVOKED.value,
    }
)
_TAKES_SIBLINGS_ALONG: Final = frozenset({EffectState.DENIED, EffectState.EXPIRED, EffectState.REVOKED})


@dataclass(frozen=True, slots=True)
class DenyReason:
    """Why one effect was refused, as the policy states it."""

    tool: str
    effect_id: str
    code: str
    text: str
    policy: str | None = None
    advice: str | None = None

    @classmethod
    def of(cls, tool: str, effect_id: str, decision: DecisionView) -> tuple[DenyReason, ...]:
        """The reasons of a decision."""
        return tuple(
            cls(tool, effect_id, one.code, one.text, one.policy, one.advice) for one in decision.reasons
        )

    @property
    def is_refusal(self) -> bool:
        """Whether policy or a person refused. After any other end the same call opens a new review."""
        return self.code not in _ENDED_OTHERWISE

    def __str__(self) -> str:
        policy = f", policy {self.policy}" if self.policy else ""
        advice = f" ({self.advice})" if self.advice else ""
        return f"{self.tool}: {self.text} [{self.code}{policy}]{advice}"


def stop_reasons(view: TransactionView) -> list[DenyReason]:
    """Why each effect of an ended transaction did not proceed: the service's reasons, else a text for its state."""
    return [reason for one in view.effects for reason in _reasons(one, view)]


def _reasons(one: EffectView, view: TransactionView) -> list[DenyReason]:
    if one.state not in _STOPPED_TEXT:
        return []
    own = list(DenyReason.of(one.tool, one.effect_id, one.decision))
    if own:
        return own
    if one.state is EffectState.WITHDRAWN and any(e.state in _TAKES_SIBLINGS_ALONG for e in view.effects):
        return [
            DenyReason(one.tool, one.effect_id, DenyCode.SIBLING.value, _WITH_ANOTHER, advice=_INDEPENDENT)
        ]
    text, advice = _STOPPED_TEXT[one.state], _STOPPED_ADVICE[one.state]
    return [DenyReason(one.tool, one.effect_id, one.state.value, text, advice=advice)]
