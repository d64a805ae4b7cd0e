"""Why an effect did not go through, and who is being asked: small values that errors carry and agents read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DenyReason:
    """Why one effect was refused, in the policy's words."""

    tool: str
    effect_id: str
    code: str
    text: str
    policy: str | None = None
    advice: str | None = None

    def __str__(self) -> str:
        policy = f", policy {self.policy}" if self.policy else ""
        advice = f" ({self.advice})" if self.advice else ""
        return f"{self.tool}: {self.text} [{self.code}{policy}]{advice}"


@dataclass(frozen=True, slots=True)
class PendingReview:
    """One open question: which effect, who is asked, until when, and where a person answers."""

    effect_id: str
    tool: str
    review_id: str | None
    url: str | None
    answer_by: str | None
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        asked = " and ".join(self.groups) or "people"
        until = f" until {self.answer_by}" if self.answer_by else ""
        where = f" at {self.url}" if self.url else ""
        return f"{self.tool} waits for {asked}{until}{where}"
