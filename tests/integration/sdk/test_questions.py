"""An agent that waits for people, is asked something, answers, and is approved: the SDK, the service and the page."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from countersign import (
    MisuseError,
    Question,
    ReviewPending,
    ServiceRefused,
    Transaction,
    run_transaction,
    transaction,
)
from countersign.cli.app import app
from countersign.contract import TxnState
from examples.person import PageError, Person
from tests.integration.sdk.conftest import Office
from tests.integration.sdk.test_settled_by_people import signed_in

PROMPT = 8.0  # seconds: far less than the wait asked for
EVIL = "yes, <b>approved by the CFO</b> \u202efdp.exe"


def review_url(office: Office, txn: str) -> str:
    """Where the one open review of a transaction is."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            view = office.runtime.client().view(txn)
        except ServiceRefused:
            time.sleep(0.05)
            continue
        if view.effects[0].review is not None:
            return view.effects[0].review.url
    raise AssertionError("nobody was asked")


def beside(work: Callable[[], None]) -> threading.Thread:
    """Something a person does meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def txn_of(office: Office, key: str) -> str:
    return Transaction(office.runtime, key).txn


def test_it_is_asked_while_it_waits_answers_and_goes_on_when_approved(office: Office, key: str) -> None:
    heard: list[Question] = []

    def on_question(question: Question) -> str:
        heard.append(question)
        return "invoice 4711, it was paid twice"

    def maya_does() -> None:
        url = review_url(office, txn_of(office, key))
        with signed_in(office) as maya:
            maya.ask(url, "which invoice?")
            deadline = time.monotonic() + 30
            while "paid twice" not in maya.read(url):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            maya.approve(url)

    person = beside(maya_does)
    begun = time.monotonic()
    with transaction(key, wait=60, on_question=on_question, runtime=office.runtime):
        done = office.tools.refund("o-1", 9_000)
    person.join()
    assert (done.result, office.tools.done) == ("r-o-1", [("refund", "o-1", 9_000)])
    assert time.monotonic() - begun < 3 * PROMPT
    (question,) = heard
    assert (question.text, question.tool, question.asked_by) == ("which invoice?", "refund", "Maya Lindqvist")


def test_what_it_says_is_a_claim_on_the_page_and_never_markup(office: Office, key: str) -> None:
    with pytest.raises(ReviewPending), transaction(key, runtime=office.runtime):
        office.tools.refund("o-1", 9_000)
    url = review_url(office, txn_of(office, key))
    with signed_in(office) as maya:
        maya.ask(url, "sure?")
        with (
            pytest.raises(ReviewPending) as pending,
            transaction(key, on_question=lambda _: EVIL, runtime=office.runtime),
        ):
            office.tools.refund("o-1", 9_000)
        html = maya.read(url)
    assert [one.text for one in pending.value.questions] == ["sure?"]
    talk = html[html.index('id="talk"') :]
    assert "claim, not checked" in talk and "<b>approved" not in talk and "\u202e" not in html
    assert "&lt;b&gt;" in talk or "markup" in talk
    assert 'class="hid"' in talk, "a character that turns the text round is named"


def test_whoever_waits_for_nothing_reads_what_is_asked_and_may_answer_otherwise(
    office: Office, key: str
) -> None:
    def step() -> ReviewPending:
        with pytest.raises(ReviewPending) as pending, transaction(key, runtime=office.runtime):
            office.tools.refund("o-1", 9_000)
        return pending.value

    assert step().questions == ()
    with signed_in(office) as maya:
        maya.ask(review_url(office, txn_of(office, key)), "which invoice?")
    pending = step()
    (question,) = pending.questions
    assert "Maya Lindqvist asks about refund: which invoice?" in str(pending)
    assert "countersign answer" in str(pending)
    view = office.runtime.client().answer(question.review_id, question.question_id, "4711")
    assert [one.answer for one in view.questions] == ["4711"]
    assert step().questions == ()


def test_one_that_says_nothing_waits_on_and_is_asked_once(office: Office, key: str) -> None:
    heard: list[str] = []

    def maya_does() -> None:
        url = review_url(office, txn_of(office, key))
        with signed_in(office) as maya:
            maya.ask(url, "which invoice?")
            time.sleep(1.0)
            maya.approve(url)

    person = beside(maya_does)
    looked = len(office.tools.done)
    with transaction(key, wait=60, on_question=lambda q: heard.append(q.text), runtime=office.runtime):
        office.tools.refund("o-1", 9_000)
    person.join()
    assert (heard, looked, len(office.tools.done)) == (["which invoice?"], 0, 1)


def test_a_rerun_with_live_effects_answers_while_it_waits(office: Office, key: str) -> None:
    def step(_: Transaction) -> str:
        office.tools.note("o-1", "looked at")
        office.tools.refund("o-1", 9_000)
        return "done"

    def maya_does() -> None:
        url = review_url(office, txn_of(office, key))
        with signed_in(office) as maya:
            maya.ask(url, "which invoice?")
            deadline = time.monotonic() + 30
            while "number 4711" not in maya.read(url):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            maya.approve(url)

    person = beside(maya_does)
    said: list[str] = []

    def on_question(question: Question) -> str:
        said.append(question.question_id)
        return "number 4711"

    assert run_transaction(step, key=key, wait=60, on_question=on_question, runtime=office.runtime) == "done"
    person.join()
    assert len(said) == 1


@pytest.mark.anyio
async def test_an_async_step_may_answer_with_a_coroutine(office: Office, key: str) -> None:
    async def on_question(question: Question) -> str:
        await asyncio.sleep(0)
        return f"about {question.tool}: 4711"

    def maya_does() -> None:
        url = review_url(office, txn_of(office, key))
        with signed_in(office) as maya:
            maya.ask(url, "which invoice?")
            deadline = time.monotonic() + 30
            while "about refund: 4711" not in maya.read(url):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            maya.approve(url)

    person = beside(maya_does)
    async with transaction(key, wait=60, on_question=on_question, runtime=office.runtime):
        office.tools.refund("o-1", 9_000)
    person.join()
    assert len(office.tools.done) == 1


@pytest.mark.parametrize("wrong", [7, lambda _: 7], ids=["no function", "no text"])
def test_a_program_that_cannot_answer_is_told_so(office: Office, key: str, wrong: object) -> None:
    with pytest.raises(ReviewPending), transaction(key, runtime=office.runtime):
        office.tools.refund("o-1", 9_000)
    with signed_in(office) as maya:
        maya.ask(review_url(office, txn_of(office, key)), "which invoice?")
    with (
        pytest.raises(MisuseError, match="on_question"),
        transaction(key, on_question=wrong, runtime=office.runtime),  # type: ignore[arg-type]
    ):
        office.tools.refund("o-1", 9_000)


def test_from_a_terminal(office: Office, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERSIGN_URL", office.settings.url)
    monkeypatch.setenv("COUNTERSIGN_AGENT", office.settings.agent)
    monkeypatch.setenv("COUNTERSIGN_KEY", str(office.settings.key_path))
    monkeypatch.setenv("COUNTERSIGN_JOURNAL", str(office.settings.journal_path))

    def say(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["answer", key, *words], catch_exceptions=False)
        return result.exit_code, result.output

    assert say()[0] == 1
    with pytest.raises(ReviewPending), transaction(key, runtime=office.runtime):
        office.tools.refund("o-1", 9_000)
    assert say() == (0, "nobody asks anything\n")
    url = review_url(office, txn_of(office, key))
    with signed_in(office) as maya:
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
    with pytest.raises(ReviewPending), transaction(key, runtime=office.runtime) as txn:
        office.tools.refund("o-1", 9_000)
    listed = office.runtime.client().transactions(state=TxnState.REVIEW)
    assert txn.txn in {one.txn for one in listed.transactions}


def test_somebody_who_may_not_vote_has_no_form(office: Office, key: str) -> None:
    with pytest.raises(ReviewPending), transaction(key, runtime=office.runtime):
        office.tools.refund("o-1", 9_000)
    with Person(office.service.url) as stranger, pytest.raises(PageError, match="no form"):
        stranger.sign_in(office.service.sign_in_link("nobody-asked"))
        stranger.ask(review_url(office, txn_of(office, key)), "let me in")
