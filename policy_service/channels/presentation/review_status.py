"""What stands where the decision bar stands: the lines to sign on, and what became of the effect.

Pure. It repeats no rule of the domain: whether a person may vote, and which votes count, arrive decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from policy_service.channels.presentation.formatting import join_or
from policy_service.queries.review_models import GateView, ReviewPage, VoteLine

Tone: TypeAlias = Literal["", "why-good", "why-warn", "why-bad"]


@dataclass(frozen=True, slots=True)
class OpenSignature:
    """A line nobody has signed yet, and who may."""

    by: str


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """The foot of the contract: signed lines, then open ones."""

    have: int
    groups: str
    signed: tuple[VoteLine, ...]
    open_lines: tuple[OpenSignature, ...]
    step_up: str | None
    without_effect: tuple[VoteLine, ...] = ()  # approvals that do not count as things stand
    could_sign: str = ""  # others who could, in words

    @property
    def wanted(self) -> int:
        return len(self.open_lines)

    @property
    def count(self) -> str:
        return f"{self.have} of {self.have + self.wanted}"


@dataclass(frozen=True, slots=True)
class OutcomeText:
    """A settled review in one heading and one sentence."""

    heading: str
    text: str
    icon: str
    tone: Tone = ""
    tag: str = ""  # the word on the sheet


def quorum_status(page: ReviewPage) -> QuorumStatus:
    """Gates that ask the same groups are one question, as the domain merges them."""
    asked: dict[frozenset[str], GateView] = {}
    for gate in page.gates:
        key = frozenset(gate.groups)
        if key not in asked or gate.quorum > asked[key].quorum:
            asked[key] = gate
    signed = tuple(vote for vote in page.votes if vote.counted and vote.verdict == "approve")
    lines = tuple(
        _open_line(gate, page, first=place == gate.have)
        for gate in asked.values()
        for place in range(gate.have, gate.quorum)
    )
    step_up = next((gate.step_up for gate in page.gates if gate.step_up), None)
    groups = "; ".join(join_or(gate.groups) for gate in asked.values())
    idle = tuple(vote for vote in page.votes if not vote.counted and vote.verdict == "approve")
    open_gates = [gate for gate in asked.values() if gate.have < gate.quorum]
    others = "; or ".join(
        filter(None, (join_names(gate.could_sign, gate.could_sign_more) for gate in open_gates))
    )
    return QuorumStatus(len(signed), groups, signed, lines, step_up, idle, others)


def join_names(names: Sequence[str], more: int) -> str:
    """`Ingrid Vik or Tomás Reyes`, `Ingrid Vik and 4 more`; empty where nobody has a name."""
    if not names or not more:
        return join_or(names) if names else ""
    return f"{', '.join(names)} and {more:,} more"


def _open_line(gate: GateView, page: ReviewPage, *, first: bool) -> OpenSignature:
    if not first:
        return OpenSignature("Another person of these")
    mine = page.state == "open" and page.why_not is None and page.my_verdict is None
    who = _who(gate, mine=mine)
    if gate.barred:
        who += f". Not {join_or(gate.barred)}, on the asking side"
    return OpenSignature(who + (". A signature on another line counts here too" if gate.shared else ""))


def _who(gate: GateView, *, mine: bool) -> str:
    if not gate.could_sign:
        groups = join_or((*gate.groups, *gate.also))
        return f"You, or anyone in {groups}" if mine else f"Anyone in {groups}"
    if gate.could_sign_more:
        others = join_names(gate.could_sign, gate.could_sign_more)
        return f"You, {others}" if mine else others
    return join_or(("You", *gate.could_sign) if mine else gate.could_sign)


_BY_EFFECT: dict[str, OutcomeText] = {
    "redeemed": OutcomeText(
        "Redeemed, once",
        "The release is spent. The outcome has not been reported yet.",
        "seal",
        "",
        "Redeemed",
    ),
    "fired": OutcomeText(
        "Fired", "It happened, once. The receipt is in the log.", "fire", "why-good", "Fired"
    ),
    "failed": OutcomeText(
        "Failed", "It was tried and is known not to have happened.", "alert", "why-bad", "Failed"
    ),
    "unknown": OutcomeText(
        "We do not know whether this fired",
        "It was redeemed, then no answer came. It will not fire again by itself: a person has to find out.",
        "unknown",
        "why-warn",
        "Unknown",
    ),
    "unused": OutcomeText("Not used", "It was released and left. Nothing fired.", "info", "", "Unused"),
    "compensating": OutcomeText(
        "Being undone", "It fired, and its compensation is under way.", "refresh", "why-warn", "Being undone"
    ),
    "compensated": OutcomeText(
        "Undone", "It fired, and was compensated afterwards.", "check", "", "Compensated"
    ),
    "compensation_failed": OutcomeText(
        "It could not be undone",
        "It fired, and its compensation failed: a person has to settle it.",
        "alert",
        "why-bad",
        "Compensation failed",
    ),
}
_BY_REVIEW: dict[str, OutcomeText] = {
    "denied": OutcomeText("Denied", "Nothing fired. The agent was told.", "deny", "", "Denied"),
    "expired": OutcomeText(
        "Expired",
        "Too few people voted in time. Nothing fired. The agent may ask again.",
        "clock",
        "",
        "Expired",
    ),
    "withdrawn": OutcomeText("Withdrawn", "The agent took it back. Nothing fired.", "close", "", "Withdrawn"),
    "revoked": OutcomeText(
        "Revoked", "The release was taken back before it was spent. Nothing fired.", "close", "", "Revoked"
    ),
    "met": OutcomeText(
        "Approved", "Everybody who was asked has countersigned.", "check", "why-good", "Approved"
    ),
}


_OPENED = OutcomeText("Opened in an emergency", "", "alert", "why-bad", "Break-glass")


def outcome_text(page: ReviewPage) -> OutcomeText:
    """What became of a review that is no longer open. The effect's own fate says more than the review's."""
    if page.superseded_by is not None and page.effect_state not in _BY_EFFECT:
        text = f"Revision {page.superseded_by} of the transaction stands now. Nothing of this one fired."
        return OutcomeText(f"Replaced by revision {page.superseded_by}", text, "swap", "", "Replaced")
    if known := _BY_EFFECT.get(page.effect_state):
        return known
    if page.state == "met" and page.break_glass is not None and page.break_glass.opened_at is not None:
        text = f"Nobody's approval let it go. {page.agent} may fire it, once, for 15 minutes at most."
        return replace(_OPENED, text=text if page.effect_state == "released" else "Nothing of it fired.")
    if page.state == "met":
        return _approved(page)
    by_review = _BY_REVIEW.get(page.state) or _BY_REVIEW.get(page.effect_state)
    return by_review or OutcomeText(
        f"Closed: {page.state}", "Nobody is asked any more.", "info", "", page.state
    )


def short_outcome_text(state: str, effect_state: str, *, opened: bool = False) -> OutcomeText:
    """What a list says of a review that is no longer open; ``opened``: by break-glass, by nobody's approval."""
    return (
        _BY_EFFECT.get(effect_state)
        or (_OPENED if opened and state == "met" else None)
        or _BY_REVIEW.get(state)
        or OutcomeText(f"Closed: {state}", "", "info", "", state)
    )


def _approved(page: ReviewPage) -> OutcomeText:
    waiting = sum(1 for sibling in page.siblings if sibling.state == "review")
    if page.effect_state == "released" and not waiting:
        text = f"{page.agent} may fire it now, once."
        return OutcomeText("Approved and released", text, "check", "why-good", "Released")
    if waiting:
        text = (
            "It fires only together with the other effects of its transaction, and some of them still wait."
        )
        return OutcomeText("Approved; the transaction waits", text, "check", "", "Approved")
    return _BY_REVIEW["met"]


def counted_denial(page: ReviewPage) -> VoteLine | None:
    """The vote that settled it with a no."""
    return next((vote for vote in page.votes if vote.verdict == "deny" and vote.counted), None)
