"""A program that talks with a model, is cut somewhere, and begins again from the messages it has.

The model is asked by one client, as in `talking.py`; each of its messages has ids of its own, or those of every other,
as small servers make them. The tool answers each time otherwise, or always the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
from openai import DefaultHttpxClient

from countersign import tool
from countersign.integrations import Conversation, run_openai
from tests.fakes.desk import Desk
from tests.fakes.model_vendors import Vendor, openai_calls, openai_says, vendor
from tests.fakes.talking import TRUST_NONE

LINE_CUT = (500, {"error": {"message": "cut"}})
"""What the vendor answers where the line is cut."""

Message = dict[str, Any]


class KilledError(BaseException):
    """The process ends here."""


def says(text: str) -> Message:
    """Somebody speaks."""
    return {"role": "user", "content": text}


@dataclass
class Program:
    """One agent; `done` is what its tool did in the world."""

    desk: Desk
    model: Vendor
    client: openai.OpenAI
    equal_ids: bool
    equal_answers: bool = False
    done: list[str] = field(default_factory=list)
    _made: int = 0

    def __post_init__(self) -> None:
        @tool("credit", resource=("Customer", "customer"), registry=self.desk.registry)
        def credit(customer: str) -> str:
            """Give money back."""
            self.desk.act(customer)
            self.done.append(customer)
            return "credited" if self.equal_answers else f"credited {len(self.done)}"

        self.desk.publish(credit)
        self._credit = credit

    def calls(self, *customers: str) -> Message:
        """A message of the model that calls the tool for each of these, or for the first."""
        self._made += 1
        calls = [("credit", {"customer": customer}) for customer in customers or ("c-1",)]
        return openai_calls(*calls, turn="" if self.equal_ids else f"{self._made}-")

    def run(self, messages: Sequence[Message], *script: Any, key: str, **options: Any) -> Conversation:
        """Until the model has its last word, or it is cut."""
        self.model.script[:] = script
        given: dict[str, Any] = {"tools": [self._credit], "runtime": self.desk.runtime, "model": "small"}
        return run_openai(self.client, messages=copy.deepcopy(list(messages)), key=key, **given, **options)

    def cut(self, messages: list[Message], *script: Any, key: str, hears: int | None = None) -> list[Message]:
        """Cut by its model's vendor or its policy, or killed as it hears so many messages; answers what it has then."""
        heard: list[Message] = []

        def hear(message: Message) -> None:
            heard.append(json.loads(json.dumps(message)))
            if len(heard) == hears:
                raise KilledError

        try:
            self.run(messages, *script, key=key, on_message=hear)
        except (KilledError, openai.InternalServerError):
            return [*messages, *heard]
        raise AssertionError("it was not cut")

    @contextmanager
    def policy_kills(self) -> Iterator[None]:
        """Killed as the policy is asked: the turn has its number, and nothing has fired."""
        policy = self.desk.service.policy

        def kill(*_: Any) -> Any:
            raise KilledError

        self.desk.service.policy = kill
        try:
            yield
        finally:
            self.desk.service.policy = policy


@contextmanager
def program(desk: Desk, *, equal_ids: bool, equal_answers: bool = False) -> Iterator[Program]:
    """With its client and the model's side."""
    with (
        vendor() as model,
        DefaultHttpxClient(verify=TRUST_NONE) as http,
        openai.OpenAI(api_key="none", base_url=f"{model.url}/v1", max_retries=0, http_client=http) as client,
    ):
        yield Program(desk, model, client, equal_ids, equal_answers)


def last_word(words: str = "Done.") -> Message:
    """What the model says when it has nothing to call."""
    return openai_says(words)
