"""What the talks of these tests ask for, and how one ends that waits for people or is killed."""

import json

import pytest

from countersign import OutcomeUnknown
from tests.fakes.talking import ASK, Talk

BOTH = ("openai", "anthropic-async")
REFUND = {"order_id": "o-4", "amount_cents": 1200}
LARGE = {"order_id": "o-4", "amount_cents": 20_000}
HUGE = {"order_id": "o-4", "amount_cents": 900_000}
NOTE = {"order_id": "o-4", "text": "late"}
GARBAGE = ("refund", {"order_id": "o-4"})


def asked(end) -> str:
    assert end.pending is not None
    assert "refund waits for finance" in end.text
    return str(end.pending.txn)


def killed(talk: Talk, tools, said, **options) -> list:
    """The conversation as kept by a process that ended when its calls were carried out and no answer was kept."""
    heard = []

    def hear(message) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(json.loads(json.dumps(message)))

    with pytest.raises((KeyboardInterrupt, OutcomeUnknown)):
        talk.run([said], tools, on_message=hear, **options)
    return [*options.get("messages", ASK), *heard]


def answers_after(talk: Talk, tools, messages, **options):
    """The answers to the last calls of these messages, where the model then has its last word."""
    return talk.run([talk.says("I see.")], tools, messages=messages, **options).steps[0].answers
