"""An agent that waits for people, is asked something, answers, and is approved: the SDK, the service and the page."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from countersign import MisuseError, Question, Transaction, run_transaction, transaction
from countersign.cli.app import app
from countersign.contract import TxnState
from examples.person import PageError, Person
from tests.integration.sdk.conftest import Office, the_url, until

EVIL = "yes, <b>approved by the CFO</b> \u202efdp.exe"


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


def test_what_it_says_is_a_claim_on_the_page_and_never_markup(office: Office, key: str) -> None:
    url, maya = the_url(office.asked(key, 9_000)), office.person("maya")
    maya.ask(url, "sure?")
    pending = office.asked(key, 9_000, on_question=lambda _: EVIL)
    assert [one.text for one in pending.questions] == ["sure?"]
    html = maya.read(url)
    talk = html[html.index('id="talk"') :]
    assert "claim, not checked" in talk and "<b>approved" not in talk and "\u202e" not in html
    assert "&lt;b&gt;" in talk or "markup" in talk
    assert 'class="hid"' in talk, "a character that turns the text round is named"


def test_whoever_waits_for_nothing_reads_what_is_asked_and_may_answer_otherwise(
    office: Office, key: str
) -> None:
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


def test_a_rerun_with_live_effects_answers_while_it_waits(office: Office, key: str) -> None:
    said: list[str] = []

    def step(_: Transaction) -> str:
        office.tools.note("o-1", "looked at")
        office.tools.refund("o-1", 9_000)
        return "done"

    def on_question(question: Question) -> str:
        said.append(question.question_id)
        return "number 4711"

    with office.meanwhile(key, asks("number 4711")):
        done = run_transaction(step, key=key, wait=60, on_question=on_question, runtime=office.runtime)
    assert (done, len(said), office.tools.done) == ("done", 1, REFUNDED)


@pytest.mark.anyio
async def test_an_async_step_may_answer_with_a_coroutine(office: Office, key: str) -> None:
    async def on_question(question: Question) -> str:
        await asyncio.sleep(0)
        return f"about {question.tool}: 4711"

    with office.meanwhile(key, asks("about refund: 4711")):
        async with transaction(key, wait=60, on_question=on_question, runtime=office.runtime):
            office.tools.refund("o-1", 9_000)
    assert office.tools.done == REFUNDED


@pytest.mark.parametrize("wrong", [7, lambda _: 7], ids=["no function", "no text"])
def test_a_program_that_cannot_answer_is_told_so(office: Office, key: str, wrong: object) -> None:
    office.person("maya").ask(the_url(office.asked(key, 9_000)), "which invoice?")
    with pytest.raises(MisuseError, match="on_question"):
        office.refund(key, 9_000, on_question=wrong)


def test_from_a_terminal(office: Office, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in office.environment.items():
        monkeypatch.setenv(name, value)

    def say(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["answer", key, *words], catch_exceptions=False)
        return result.exit_code, result.output

    assert say()[0] == 1
    url, maya = the_url(office.asked(key, 9_000)), office.person("maya")
    assert say() == (0, "nobody asks anything\n")
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


def test_somebody_who_may_not_vote_has_no_form(office: Office, key: str) -> None:
    url = the_url(office.asked(key, 9_000))
    with Person(office.service.url) as stranger, pytest.raises(PageError, match="no form"):
        stranger.sign_in(office.service.sign_in_link("nobody-asked"))
        stranger.ask(url, "let me in")
