"""What a call of a model sends is counted whole, or the program is asked how much it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai
import pytest
from anthropic import NOT_GIVEN, omit
from anthropic.types import TextBlock
from pydantic import BaseModel

from countersign import BudgetExceeded, MisuseError
from countersign.integrations.sending import sent_text
from countersign.llm.budgets import Budget
from tests.fakes.desk import make_desk
from tests.fakes.talking import Talk

WORDS = "word " * 2_000
BLOCK = TextBlock(type="text", text=WORDS)
FILE = {"type": "document", "source": {"type": "url", "url": "https://cups.example/pages.pdf"}}


class Made(BaseModel, extra="allow"):
    """An object of a client, of whatever kind."""

    type: str


SAID = [{"role": "user", "content": "Hello."}]

COUNTED: dict[str, dict[str, Any]] = {
    "a text": {"system": WORDS},
    "blocks": {"system": [{"type": "text", "text": WORDS}]},
    "blocks of the client": {"system": [BLOCK]},
    "a tuple of them": {"system": (BLOCK,)},
    "an object of the client": {"thinking": Made(type="enabled", why=WORDS)},
    "a schema that has a property `type`": {
        "response_format": {"schema": {"properties": {"type": {"type": "string", "description": WORDS}}}}
    },
    "what goes beside": {"extra_body": {"note": [WORDS]}},
}
NOT_TEXT: dict[str, dict[str, Any]] = {
    "a file in the options": {"system": [FILE]},
    "a file of the client there": {"system": [Made(**FILE)]},
    "a kind of block nobody knows": {"system": [{"type": "hologram", "id": "h-1"}]},
    "a file deep in what goes beside": {"extra_body": {"messages": [{"content": [FILE]}]}},
    "an iterator, which is empty when the client looks": {"system": iter([BLOCK])},
    "a generator": {"system": (one for one in [BLOCK])},
    "bytes": {"system": b"word"},
    "a set": {"stop": {"word"}},
    "a time": {"metadata": {"at": datetime(2026, 1, 1, tzinfo=UTC)}},
    "a place of a file": {"metadata": {"at": Path("pages.pdf")}},
    "a class": {"response_format": BaseModel},
}


@pytest.mark.parametrize("options", COUNTED.values(), ids=COUNTED.keys())
def test_what_the_options_send_as_text_is_counted(options: dict[str, Any]) -> None:
    assert WORDS in str(sent_text(SAID, [], options))


@pytest.mark.parametrize("options", NOT_TEXT.values(), ids=NOT_TEXT.keys())
def test_of_what_is_more_than_text_the_program_is_asked(options: dict[str, Any]) -> None:
    assert sent_text(SAID, [], options) is None


@pytest.mark.parametrize("not_sent", [NOT_GIVEN, omit, openai.NOT_GIVEN, openai.omit])
def test_what_a_client_does_not_send_is_not_counted(not_sent: object) -> None:
    options = {"system": not_sent, "timeout": openai.Timeout(5), "extra_headers": {"x": WORDS}}
    assert sent_text(SAID, [], options) == [SAID, [], {}]


MESSAGES: dict[str, tuple[Any, bool]] = {
    "a block of the client": ([BLOCK], True),
    "a file of the client": ([Made(**FILE)], False),
    "a file": ([FILE], False),
    "a file that a tool answered": ([{"type": "tool_result", "tool_use_id": "c", "content": [FILE]}], False),
    "an iterator": (iter([BLOCK]), False),
}


@pytest.mark.parametrize(("content", "is_text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_what_a_message_holds_is_looked_at_as_the_client_writes_it(content: Any, is_text: bool) -> None:
    sent = sent_text([{"role": "user", "content": content}], [], {})
    assert (sent is not None) is is_text and (WORDS in str(sent)) is is_text


SYSTEMS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "blocks": (lambda: [{"type": "text", "text": WORDS}], BudgetExceeded),
    "blocks of the client": (lambda: [BLOCK], BudgetExceeded),
    "an iterator": (lambda: iter([BLOCK]), MisuseError),
    "a file": (lambda: [FILE], MisuseError),
}


@pytest.mark.parametrize(("system", "refusal"), SYSTEMS.values(), ids=SYSTEMS.keys())
def test_no_system_passes_a_budget(
    system: Callable[[], Any], refusal: type[Exception], tmp_path: Path
) -> None:
    desk, talk = make_desk(tmp_path, budgets=(Budget("tokens", "tokens", 2_000, "run"),)), Talk("anthropic")
    with desk.runtime, pytest.raises(refusal, match="token"):
        talk.run([talk.says("Hello.")], [], runtime=desk.runtime, system=system())
    assert talk.vendor.sent == []
