"""What a draft suggests from the names of arguments, and the order in which people read them."""

from collections.abc import Callable
from typing import Any

import pytest

from countersign import ToolRegistry, tool
from countersign.contract.manifest import ToolManifest
from countersign.manifests.drafts import manifest_json
from countersign.tools.tool import tool_of


def drafted(fn: Callable[..., Any], **declared: Any) -> ToolManifest:
    made = tool("act", resource=("Box", "const:one"), registry=ToolRegistry(), **declared)(fn)
    return tool_of(made).draft_manifest()


def refund(payment_id: str, amount_cents: int, currency: str, account: str) -> None: ...
def fees(amount_cents: int, fee_cents: int, price: int, currency: str) -> None: ...
def exchange(amount_cents: int, from_currency: str, to_currency: str) -> None: ...
def coupon(amount_cents: int) -> None: ...
def typed(amount_cents: str, currency: str) -> None: ...
def mail(to: list[str], cc: str | None, reply_email: str, too: str) -> None: ...
def sign_in(user: str, password: str, api_key: str, max_tokens: int, tokens: list[str]) -> None: ...


def test_arguments_stay_in_the_order_of_the_signature() -> None:
    names = ["payment_id", "amount_cents", "currency", "account"]
    made = drafted(refund)
    written: Any = made.args["properties"]
    text = manifest_json(made).decode()
    assert list(written) == names
    assert [text.index(f'"{one}": {{') for one in names] == sorted(
        text.index(f'"{one}": {{') for one in names
    )
    assert made.sentence == "Act: " + ", ".join(f"{one} {{{one}}}" for one in names)


@pytest.mark.parametrize(("fn", "money", "recipients", "secret"), [
    (refund, [("/amount_cents", "/currency")], (), ()),
    (fees, [("/amount_cents", "/currency"), ("/fee_cents", "/currency")], (), ()),
    (exchange, [], (), ()),  # which of the two is not known
    (coupon, [], (), ()),
    (typed, [], (), ()),
    (mail, [], ("/to", "/reply_email"), ()),
    (sign_in, [], (), ("/password", "/api_key")),
])  # fmt: skip
def test_well_known_names_suggest_money_recipients_and_secrets(
    fn: Any, money: Any, recipients: Any, secret: Any
) -> None:
    made = drafted(fn)
    assert [(one.amount, one.currency) for one in made.money] == money
    assert (made.recipients, made.secret) == (recipients, secret)


def test_what_the_decorator_names_replaces_the_suggestion() -> None:
    usd = {"amount": "amount_cents", "currency": "const:USD"}
    made = drafted(refund, money=[usd], recipients=["account"], secret=["payment_id"])
    assert [(one.amount, one.currency) for one in made.money] == [("/amount_cents", "const:USD")]
    assert (made.recipients, made.secret) == (("/account",), ("/payment_id",))
