"""Answering people: what they ask about a step is put to the program once, and what it says goes back to them.

Rules: a question is handed to `on_question` once, also over the reruns of a step; an answer that was lost on its way is
sent again and not made anew; None leaves the question to somebody else. An answer is a claim to people: it changes
nothing that was staged and decides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from countersign.contract import names
from countersign.contract.codes import ErrorCode
from countersign.contract.wire import TransactionView
from countersign.engine import Engine
from countersign.errors import MisuseError, ServiceRefused
from countersign.errors.reasons import Question, open_questions

if TYPE_CHECKING:
    from countersign.runtime import Runtime

OnQuestion: TypeAlias = Callable[[Question], str | Awaitable[str | None] | None]

_TOO_LATE: Final = frozenset({ErrorCode.REVIEW_CLOSED, ErrorCode.ALREADY_ANSWERED, ErrorCode.NOT_FOUND})


class Answering:
    """What one step was asked, and what it said."""

    def __init__(self, on_question: OnQuestion | None = None) -> None:
        if on_question is not None and not callable(on_question):
            raise MisuseError(
                f"on_question is called with each question; this is {type(on_question).__name__}"
            )
        self._on_question = on_question
        self._said: dict[str, str | None] = {}
        self.last_seen = ""  # the newest question, so that a wait is ended by newer ones only

    async def answer(self, engine: Engine, view: TransactionView) -> None:
        """Put to the program what people ask, and send what it says.

        Raises:
            ServiceUnavailable: an answer did not arrive; it is sent again at the next look.
            Exception: what `on_question` raised.
        """
        for question in open_questions(view):
            self.last_seen = max(self.last_seen, question.question_id)
            if (asks := self._on_question) is None:
                continue
            if question.question_id not in self._said:
                self._said[question.question_id] = await _ask(engine, asks, question)
            if (text := self._said[question.question_id]) is not None:
                await _send(engine, question, text)


async def _ask(engine: Engine, on_question: OnQuestion, question: Question) -> str | None:
    said = await engine.waits.call(functools.partial(on_question, question), {}, None)
    if said is not None and not isinstance(said, str):
        raise MisuseError(f"on_question answers with text or None, not {type(said).__name__}")
    return said


async def _send(engine: Engine, question: Question, text: str) -> None:
    try:
        await engine.service.answer(question.review_id, question.question_id, text)
    except ServiceRefused as refused:
        if refused.problem_code not in _TOO_LATE:
            raise


def asked_about(runtime: Runtime, key: str) -> tuple[Question, ...]:
    """What people ask about the step of this run key, as one transaction or as independent ones.

    Raises:
        MisuseError: this agent has no such step, in its journal or at the service.
    """
    journal, client = runtime.journal, runtime.client()
    known = {record.txn for record in journal.transactions.find(key) if record.run_key == key}
    txns = known or {names.txn_id(agent=runtime.settings.agent, run_key=key)}
    try:
        return tuple(one for txn in sorted(txns) for one in open_questions(client.view(txn)))
    except ServiceRefused as refused:
        if refused.problem_code != ErrorCode.NOT_FOUND:
            raise
        raise MisuseError(
            f"nobody was ever asked about {key!r}; `countersign journal list` shows the keys there are"
        ) from None


def chosen(asked: Sequence[Question], question_id: str | None) -> tuple[str, str]:
    """The review and the question that is meant.

    Raises:
        MisuseError: there is none, or several and nobody said which.
    """
    found = [one for one in asked if question_id in {None, one.question_id}]
    if len(found) == 1:
        return found[0].review_id, found[0].question_id
    if found:
        named = ", ".join(one.question_id for one in found)
        raise MisuseError(f"people ask {len(found)} things; say which you answer: --question one of {named}")
    raise MisuseError("nobody asks that, or it was answered already; leave the text out to see what is asked")
