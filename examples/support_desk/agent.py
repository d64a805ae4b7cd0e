"""A support agent working through its tickets. It decides what to do; Countersign decides what may happen.

    python -m examples.support_desk.agent          (with the SDK's variables set; `make demo` sets them)

Each ticket is one transaction under the ticket's number. On a terminal it talks to people; with --json it
writes one line for each thing that becomes of a ticket, for the program that started it.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from countersign import Denied, EffectFailed, ReviewPending, run_transaction, transaction
from examples.support_desk.tools import refund, send_mail

PATIENCE_SECONDS = 24 * 3600.0  # how long the agent waits for people before it goes home


@dataclass(frozen=True)
class Ticket:
    """What a customer wants, and the calls the agent makes for it."""

    key: str
    wish: str
    work: Callable[[], object]


@dataclass(frozen=True)
class Event:
    """What became of a ticket: fired, waits, denied or failed; and why, or where people are asked."""

    ticket: str
    wish: str
    state: str
    text: str = ""
    url: str = ""
    policy: str = ""


TICKETS = (
    Ticket(
        "ticket-1",
        "refund $24.00 to cus_1001",
        lambda: refund("pay_5001", 2_400, "USD", "cus_1001", "the cup arrived broken"),
    ),
    Ticket(
        "ticket-2",
        "mail ada@example.com that it is done",
        lambda: send_mail("cus_1001", "ada@example.com", "Your refund", "It is on its way. Sorry!"),
    ),
    Ticket(
        "ticket-3",
        "refund $39.00 to cus_1003",
        lambda: refund("pay_5003", 3_900, "USD", "cus_1003", "the parcel never came"),
    ),
    Ticket(
        "ticket-4",
        "refund $1,240.00 to cus_1002",
        lambda: refund("pay_5002", 124_000, "USD", "cus_1002", "the event was cancelled"),
    ),
)


def handle(ticket: Ticket, tell: Callable[[Event], None]) -> None:
    """Do what a ticket asks for, if it may be done; wait for people where they are asked."""
    try:
        try:
            with transaction(key=ticket.key):
                ticket.work()
        except ReviewPending as pending:
            tell(Event(ticket.key, ticket.wish, "waits", str(pending), pending.reviews[0].url or ""))
            run_transaction(lambda _: ticket.work(), key=ticket.key, wait=PATIENCE_SECONDS)
    except Denied as denied:
        reason = denied.reasons[0]
        policy = reason.policy or reason.code
        tell(Event(ticket.key, ticket.wish, "denied", f"{reason.text} [{policy}]", policy=policy))
    except EffectFailed as failed:
        tell(Event(ticket.key, ticket.wish, "failed", str(failed)))
    else:
        tell(Event(ticket.key, ticket.wish, "fired"))


def main(arguments: list[str]) -> None:
    """Work through all tickets."""

    def as_json(event: Event) -> None:
        print(json.dumps(asdict(event)), flush=True)

    def as_text(event: Event) -> None:
        print(" ".join(filter(None, (event.wish, event.state, event.url or event.text))), flush=True)

    for ticket in TICKETS:
        handle(ticket, as_json if "--json" in arguments else as_text)


if __name__ == "__main__":
    main(sys.argv[1:])
