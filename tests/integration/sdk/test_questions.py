"""An agent that waits for people, is asked something, answers, and is approved: the SDK, the service and the page."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from countersign import MisuseError, Question, transaction
from countersign.cli.app import app
from countersign.contract import TxnState
from examples.person import Person
from tests.integration.sdk.conftest import Office, the_url, until

REFUNDED = [("refund", "o-1", 9_000)]


def asks(answer: str) -> Callable[[Person, str], None]:
    """Maya asks which invoice, waits until the page shows this answer, and approves."""

    def work(maya: Person, url: str) -> None:
        maya.ask(url, "which invoice?")
        until(lambda: answer in maya.read(url))
        maya.approve(url)

    return work


def test_it_is_asked_while_it_waits_answers_and_goes_on_when_approved(office: Office, key: str) -> None:
    heard: list[Question] = []

    def on_question(question: Question) -> str:
        heard.append(question)
        return "invoice 4711, it was paid twice"

    begun = time.monotonic()
    with office.meanwhile(key, asks("paid twice")):
        office.refund(key, 9_000, wait=60, on_question=on_question)
    assert time.monotonic() - begun < 24, "far less than the wait asked for"
    assert office.tools.done == REFUNDED
    (question,) = heard
    assert (question.text, question.tool, question.asked_by) == ("which invoice?", "refund", "Maya Lindqvist")


def test_a_program_that_does_not_wait_may_answer_later(office: Office, key: str) -> None:
    pending = office.asked(key, 9_000)
    assert pending.questions == ()
    office.person("maya").ask(the_url(pending), "which invoice?")
    pending = office.asked(key, 9_000)
    (question,) = pending.questions
    assert "Maya Lindqvist asks about refund: which invoice?" in str(pending)
    assert "countersign answer" in str(pending)
    view = office.runtime.client().answer(question.review_id, question.question_id, "4711")
    assert [one.answer for one in view.questions] == ["4711"]
    assert office.asked(key, 9_000).questions == ()


def test_one_that_says_nothing_waits_on_and_is_asked_once(office: Office, key: str) -> None:
    heard: list[str] = []

    def work(maya: Person, url: str) -> None:
        maya.ask(url, "which invoice?")
        until(lambda: heard)
        maya.ask(url, "and when?")
        until(lambda: len(heard) > 1)
        maya.approve(url)

    with office.meanwhile(key, work):
        office.refund(key, 9_000, wait=60, on_question=lambda q: heard.append(q.text))
    assert (heard, office.tools.done) == (["which invoice?", "and when?"], REFUNDED)


@pytest.mark.anyio
async def test_an_async_step_may_answer_with_a_coroutine(office: Office, key: str) -> None:
    async def on_question(question: Question) -> str:
        await asyncio.sleep(0)
        return f"about {question.tool}: 4711"

    with office.meanwhile(key, asks("about refund: 4711")):
        async with transaction(key, wait=60, on_question=on_question, runtime=office.runtime):
            office.tools.refund("o-1", 9_000)
    assert office.tools.done == REFUNDED


def test_an_answer_that_is_no_text_is_refused(office: Office, key: str) -> None:
    office.person("maya").ask(the_url(office.asked(key, 9_000)), "which invoice?")
    with pytest.raises(MisuseError, match="on_question"):
        office.refund(key, 9_000, on_question=lambda _: 7)


def test_from_a_terminal(office: Office, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in office.environment.items():
        monkeypatch.setenv(name, value)

    def say(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["answer", key, *words], catch_exceptions=False)
        return result.exit_code, result.output

    assert say()[0] == 1
    url, maya = the_url(office.asked(key, 9_000)), office.person("maya")
    assert say() == (0, "no question is open\n")
    maya.ask(url, "which \u202einvoice?")
    code, output = say()
    assert code == 0 and "Maya Lindqvist asks about refund: which \\u202einvoice?" in output
    maya.ask(url, "and when?")
    assert say("4711")[0] == 1
    first = re.findall(r"comment_\w+", say()[1])[0]
    assert say("4711", "--question", first) == (0, "answered\n")
    assert say("yesterday") == (0, "answered\n")
    assert say("again")[0] == 1
    html = maya.read(url)
    assert "4711" in html and "yesterday" in html


def test_a_list_with_a_query_is_signed_as_it_is_sent(office: Office, key: str) -> None:
    pending = office.asked(key, 9_000)
    listed = office.runtime.client().transactions(state=TxnState.REVIEW)
    assert pending.txn in {one.txn for one in listed.transactions}
