"""The support desk's tools: what the agent may ask for. Calling one stages it; only a commit runs it.

Their reviewed descriptions are in the bundle (`policies/tools`), and the SDK asks the service for those.
"""

import os
from pathlib import Path
from typing import Literal

from countersign import NotDone, current_effect, tool
from examples.support_desk import desk

BOOKS = "SUPPORT_DESK_BOOKS"  # the environment variable that names the database


def _books() -> Path:
    return Path(os.environ[BOOKS])


@tool("refund", resource=("Account", "customer"))
def refund(
    payment_id: str, amount_cents: int, currency: Literal["USD", "EUR", "GBP"], customer: str, reason: str
) -> dict[str, int]:
    """Refund a payment."""
    try:
        left = desk.give_back(_books(), payment_id, amount_cents, reason, current_effect().call_key)
    except desk.NoSuchPaymentError as refusal:
        raise NotDone(str(refusal)) from refusal
    return {"left_cents": left}


@tool("send_mail", resource=("Account", "customer"))
def send_mail(customer: str, to: str, subject: str, body: str) -> None:
    """Send mail to a customer."""
    desk.send(_books(), to, subject, body)
