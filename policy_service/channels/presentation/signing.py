"""What a person signs: the sentence, the amount, a reason, and what an approval does to the whole transaction. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from policy_service.channels.presentation.formatting import pluralize
from policy_service.queries.effect_text import Money, Piece
from policy_service.queries.review_models import ReviewPage


def signed_sentence(page: ReviewPage) -> tuple[Piece, ...]:
    """The sentence as it stands in "You sign: ...": no capital, no full stop, money with its code."""
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
    """The amount for the button, when there is exactly one."""
    amounts = [row.money for row in page.args if row.money]
    return amounts[0] if len(amounts) == 1 else None


def approval_effect(page: ReviewPage, wanted: int) -> str:
    """What this person's approval does to the whole transaction."""
    waiting = waiting_siblings(page)
    if page.state != "open":
        return ""
    if wanted > 1:
        more = pluralize(wanted - 1, "more signature")
        return f"Approving this releases nothing yet: {more} {'is' if wanted == 2 else 'are'} wanted."
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        return f"Approving this releases nothing yet: {waiting:,} more of its transaction {verb} for people."
    if page.siblings:
        whole = f"all {len(page.siblings) + 1:,} effects of its transaction together"
        return f"Approving this releases {whole}, if the policy still agrees."
    return ""


def waiting_siblings(page: ReviewPage) -> int:
    """How many other effects of the transaction still wait for people."""
    return sum(1 for sibling in page.siblings if sibling.state == "review")
