"""The status of a review: signatures, missing signatures and the outcome.

Pure. It implements no domain rule: who may vote and which votes count are given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from policy_service.channels.presentation.formatting import join_or, pluralize
from policy_service.queries.effects import Money, Piece
from policy_service.queries.review_models import GateView, ReviewPage, VoteLine

Tone: TypeAlias = Literal["", "why-good", "why-warn", "why-bad"]


@dataclass(frozen=True, slots=True)
class OpenSignature:
    """A missing signature, and who may give it."""

    by: str


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """Signatures that count, then missing ones."""

    have: int
    groups: str
    signed: tuple[VoteLine, ...]
    open_lines: tuple[OpenSignature, ...]
    step_up: str | None
    without_effect: tuple[VoteLine, ...] = ()  # approvals that do not count now
    could_sign: str = ""  # names of others who could sign

    @property
    def wanted(self) -> int:
        return len(self.open_lines)

    @property
    def count(self) -> str:
        return f"{self.have} of {self.have + self.wanted}"


@dataclass(frozen=True, slots=True)
class OutcomeText:
    """A settled review as one heading and one sentence."""

    heading: str
    text: str
    icon: str
    tone: Tone = ""
    tag: str = ""  # the label on the page


def quorum_status(page: ReviewPage) -> QuorumStatus:
    """Gates that ask the same groups are shown as one, as the domain merges them."""
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
    """`Ingrid Vik or Tomás Reyes`, `Ingrid Vik and 4 more`; "" without names."""
    if not names or not more:
        return join_or(names) if names else ""
    return f"{', '.join(names)} and {more:,} more"


def _open_line(gate: GateView, page: ReviewPage, *, first: bool) -> OpenSignature:
    if not first:
        return OpenSignature("Another person of these")
    mine = page.state == "open" and page.why_not is None and page.my_verdict is None
    who = _who(gate, mine=mine)
    if gate.barred:
        who += f". Not {join_or(gate.barred)}, who belongs to the requester"
    return OpenSignature(who + (". A signature for another gate counts here too" if gate.shared else ""))


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
    "failed": OutcomeText("Failed", "The call failed and had no effect.", "alert", "why-bad", "Failed"),
    "unknown": OutcomeText(
        "We do not know whether this fired",
        "It was redeemed, and its outcome was never reported. It is not retried: a person has to find out.",
        "unknown",
        "why-warn",
        "Unknown",
    ),
    "unused": OutcomeText(
        "Not used", "It was released and not redeemed. Nothing fired.", "info", "", "Unused"
    ),
    "compensating": OutcomeText(
        "Being undone", "It fired, and its compensation is under way.", "refresh", "why-warn", "Being undone"
    ),
    "compensated": OutcomeText("Undone", "It fired and was compensated.", "check", "", "Compensated"),
    "compensation_failed": OutcomeText(
        "It could not be undone",
        "It fired, and its compensation failed: a person has to settle it.",
        "alert",
        "why-bad",
        "Compensation failed",
    ),
}
_BY_REVIEW: dict[str, OutcomeText] = {
    "denied": OutcomeText("Denied", "Nothing fired. The agent was notified.", "deny", "", "Denied"),
    "expired": OutcomeText(
        "Expired",
        "Too few people voted in time. Nothing fired. The agent may ask again.",
        "clock",
        "",
        "Expired",
    ),
    "withdrawn": OutcomeText("Withdrawn", "The agent withdrew it. Nothing fired.", "close", "", "Withdrawn"),
    "revoked": OutcomeText(
        "Revoked", "The release was revoked before it was redeemed. Nothing fired.", "close", "", "Revoked"
    ),
    "met": OutcomeText("Approved", "Every gate has its approvals.", "check", "why-good", "Approved"),
}


_OPENED = OutcomeText("Opened in an emergency", "", "alert", "why-bad", "Break-glass")


def outcome_text(page: ReviewPage) -> OutcomeText:
    """The outcome of a closed review. The state of the effect says more than that of the review."""
    if page.superseded_by is not None and page.effect_state not in _BY_EFFECT:
        text = (
            f"Revision {page.superseded_by} of the transaction replaced this one. Nothing of this one fired."
        )
        return OutcomeText(f"Replaced by revision {page.superseded_by}", text, "swap", "", "Replaced")
    if known := _BY_EFFECT.get(page.effect_state):
        return known
    if page.state == "met" and page.break_glass is not None and page.break_glass.opened_at is not None:
        text = f"It was released without approvals. {page.agent} may fire it once, within 15 minutes."
        return replace(_OPENED, text=text if page.effect_state == "released" else "It did not fire.")
    if page.state == "met":
        return _approved(page)
    by_review = _BY_REVIEW.get(page.state) or _BY_REVIEW.get(page.effect_state)
    return by_review or OutcomeText(
        f"Closed: {page.state}", "It takes no more votes.", "info", "", page.state
    )


def short_outcome_text(state: str, effect_state: str, *, opened: bool = False) -> OutcomeText:
    """The outcome of a closed review in a list; ``opened`` means by break-glass."""
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
        text = "It fires only together with the other effects of its transaction, and some still wait."
        return OutcomeText("Approved; the transaction waits", text, "check", "", "Approved")
    return _BY_REVIEW["met"]


def counted_denial(page: ReviewPage) -> VoteLine | None:
    """The denial that settled the review."""
    return next((vote for vote in page.votes if vote.verdict == "deny" and vote.counted), None)


def signed_sentence(page: ReviewPage) -> tuple[Piece, ...]:
    """The sentence for "You sign: ...": no capital, no full stop, amounts with their currency code."""
    currencies = {row.money.text: row.money.currency for row in page.args if row.money}
    pieces = [_with_currency(piece, currencies) for piece in page.sentence]
    if pieces and not pieces[0].value:
        pieces[0] = replace(pieces[0], text=pieces[0].text[:1].lower() + pieces[0].text[1:])
    if pieces and not pieces[-1].value:
        pieces[-1] = replace(pieces[-1], text=pieces[-1].text.rstrip(". "))
    return tuple(pieces)


def _with_currency(piece: Piece, currencies: Mapping[str, str]) -> Piece:
    if piece.kind != "money" or piece.text not in currencies:
        return piece
    return replace(piece, text=f"{piece.text} {currencies[piece.text]}")


def single_amount(page: ReviewPage) -> Money | None:
    """The amount for the button, if there is exactly one."""
    amounts = [row.money for row in page.args if row.money]
    return amounts[0] if len(amounts) == 1 else None


def approval_effect(page: ReviewPage, wanted: int) -> str:
    """What this person's approval does to the whole transaction."""
    waiting = waiting_siblings(page)
    if page.state != "open":
        return ""
    if wanted > 1:
        more = pluralize(wanted - 1, "more signature")
        return f"Approving this releases nothing yet: {more} {'is' if wanted == 2 else 'are'} required."
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        return f"Approving this releases nothing yet: {waiting:,} more of its transaction {verb} for people."
    if page.siblings:
        whole = f"all {len(page.siblings) + 1:,} effects of its transaction together"
        return f"Approving this releases {whole}, if the policy still agrees."
    return ""


def waiting_siblings(page: ReviewPage) -> int:
    """The number of other effects of the transaction that still wait for approval."""
    return sum(1 for sibling in page.siblings if sibling.state == "review")
