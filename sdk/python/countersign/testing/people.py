"""Acts as people in a test: real sign-ins, votes on open reviews, and answers to tasks.

Reviews and tasks are read from the lists that people use, so a compensation appears there like any other effect of its
transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2

from countersign.contract import TaskAnswer
from countersign.contract.digests import txn_id
from countersign.contract.wire import (
    ReviewPageView,
    ReviewView,
    SettleRequest,
    TaskDetail,
    TaskPage,
    TransactionView,
    VoteRequest,
    WireModel,
    dump,
    parse,
)
from countersign.errors import CountersignError, FireError, MisuseError, ReviewPending, ServiceRefused
from countersign.http_clients import http_client
from countersign.runtime import Runtime
from countersign.testing.service import TestedService

_FORM_TOKEN: Final = re.compile(r'name="csrf_token" value="([^"]+)"')
_Page = TypeVar("_Page", ReviewPageView, TaskPage)
_SAID: Final = 500  # characters of the service's response in an error


class VoteRefused(CountersignError):
    """The service refused a person's vote, or their answer to a task; the text contains its reason."""

    code = "vote_refused"


class Browsers:
    """The signed-in people of one service, each with their own session."""

    def __init__(self, service: TestedService) -> None:
        self._service = service
        self._signed_in: dict[str, httpx2.Client] = {}

    def of(self, subject: str) -> httpx2.Client:
        """The HTTP client of this person, who signs in on first use."""
        if subject not in self._signed_in:
            self._signed_in[subject] = self._sign_in(subject)
        return self._signed_in[subject]

    def close(self) -> None:
        """Close them all."""
        for browser in self._signed_in.values():
            browser.close()
        self._signed_in.clear()

    def _sign_in(self, subject: str) -> httpx2.Client:
        link = urlsplit(self._service.sign_in_link(subject))
        origin = self._service.url
        browser = http_client(base_url=origin, headers={"Origin": origin})
        answer = browser.post(link.path, data={"token": parse_qs(link.query)["token"][0]})
        if answer.status_code != httpx2.codes.SEE_OTHER:
            browser.close()
            raise VoteRefused(f"{subject} could not sign in: {answer.text[:_SAID]}")
        return browser


class People:
    """The people of one test, for one agent."""

    def __init__(self, service: TestedService, browsers: Browsers, runtime: Runtime) -> None:
        self._service, self._browsers, self._runtime = service, browsers, runtime

    def approve(self, asked: Any, *, by: str, reason: str = "approved in a test") -> None:
        """Approve open reviews, as a member of a group (`by="finance"`, the second one is `"finance-2"`), or as a
        person of the bundle's development sign-in. `asked` is a `ReviewPending`, a `FireError` (its compensations
        may wait too), an object with either as `.pending`, or the key of the transaction. Of several reviews, those
        for this group are answered.

        Raises:
            VoteRefused: the service refused the vote: wrong person, missing permission, or the review is closed.
            MisuseError: no review is open for this group.
        """
        self._vote("approve", asked, by, reason)

    def deny(self, asked: Any, reason: str, *, by: str) -> None:
        """Deny open reviews; like `approve`."""
        self._vote("deny", asked, by, reason)

    def settle(
        self,
        asked: Any,
        answer: str,
        *,
        by: str,
        tool: str | None = None,
        effect: str | None = None,
        reason: str = "settled in a test",
        result: Any = None,
    ) -> None:
        """Answer a task: `fired`, `not_fired`, or another answer that it accepts. `asked` and `by` as in `approve`. If
        several tasks of the transaction accept this answer, `tool` or `effect`, its id, selects one. `result`: with
        `fired`, what the tool returned.

        Raises:
            VoteRefused: the service refused it: wrong person, or this task has other answers.
            MisuseError: there is no open task, or more than one, or no such answer.
        """
        if answer not in list(TaskAnswer):
            raise MisuseError(f"{answer!r} is no answer to a task; there are {', '.join(TaskAnswer)}")
        view = self._view_of(asked)
        with self._speaking_for(by) as subject:
            task = _matching_task(view, self._tasks_of(view.txn, subject, tool, effect), answer)
            word = SettleRequest(
                answer=TaskAnswer(answer),
                effect_digest=task.effect.effect_digest,
                effect_state=task.effect.state,
                reason=reason,
                result=result,
            )
            self._post(subject, f"/v1/tasks/{task.task.task_id}/settle", word)

    def _vote(self, verdict: str, asked: Any, by: str, reason: str) -> None:
        view = self._view_of(asked)
        is_group = by in self._service.people
        with self._speaking_for(by) as subject:
            waiting = self._reviews_of(view.txn, subject)
            mine = [one for one in waiting if not is_group or by in _asked_by(one)]
            if not mine:
                raise MisuseError(_no_open_review(view, waiting, by))
            for one in mine:
                self._cast(subject, one.review_id, verdict, reason)

    @contextmanager
    def _speaking_for(self, by: str) -> Iterator[str]:
        """The subject that `by` names. If the bundle has no such person, a refusal mentions that too."""
        people = self._service.people
        try:
            yield people[by][0] if by in people else by
        except VoteRefused as refused:
            if by in people or any(by in subjects for subjects in people.values()):
                raise
            groups = ", ".join(people)
            raise VoteRefused(f"{refused} ({by!r} is no group of this bundle; there are {groups})") from None

    def _reviews_of(self, txn: str, subject: str) -> list[ReviewView]:
        pages = self._pages(subject, "/v1/reviews", ReviewPageView)
        return [one for page in pages for one in page.reviews if one.txn == txn]

    def _tasks_of(self, txn: str, subject: str, tool: str | None, effect: str | None) -> list[TaskDetail]:
        pages = self._pages(subject, "/v1/tasks", TaskPage)
        of_txn = (one for page in pages for one in page.tasks if one.txn == txn)
        named = (one for one in of_txn if tool in (None, one.tool) and effect in (None, one.effect_id))
        return [parse(TaskDetail, self._get(subject, f"/v1/tasks/{one.task_id}")) for one in named]

    def _pages(self, subject: str, path: str, kind: type[_Page]) -> Iterator[_Page]:
        query = ""
        while True:
            page = parse(kind, self._get(subject, path + query))
            yield page
            if page.next is None:
                return
            query = "?" + urlencode({"cursor": page.next})

    def _view_of(self, asked: Any) -> TransactionView:
        try:
            return self._runtime.client().view(self._txn_of(asked))
        except ServiceRefused as refused:
            if not refused.is_not_found or not isinstance(asked, str):
                raise
            raise MisuseError(
                f"this agent has staged nothing as one transaction under the key {asked!r}; for independent "
                "calls (independent=True) pass the ReviewPending"
            ) from None

    def _txn_of(self, asked: Any) -> str:
        if isinstance(asked, str):
            return txn_id(agent=self._runtime.settings.agent, run_key=asked)
        pending = getattr(asked, "pending", asked)
        if not isinstance(pending, ReviewPending | FireError):
            raise MisuseError(
                f"{asked!r} is not a review; pass the ReviewPending, the FireError or the transaction's key"
            )
        return pending.txn

    def _cast(self, subject: str, review_id: str, verdict: str, reason: str) -> None:
        review = parse(ReviewView, self._get(subject, f"/v1/reviews/{review_id}"))
        vote = VoteRequest(
            verdict=verdict,
            rev=review.rev,
            effect_digest=review.effect.effect_digest,
            txn_digest=review.txn_digest,
            view_digest=review.view_digest,
            reason=reason,
        )
        self._post(subject, f"/v1/reviews/{review_id}/votes", vote)

    def _get(self, subject: str, path: str) -> bytes:
        return _require_accepted(self._browsers.of(subject).get(path), subject)

    def _post(self, subject: str, path: str, said: WireModel) -> None:
        browser = self._browsers.of(subject)
        token = _FORM_TOKEN.search(browser.get("/", headers={"Accept": "text/html"}).text)
        headers = {"Content-Type": "application/json", "X-CSRF-Token": token[1] if token else ""}
        _require_accepted(browser.post(path, content=dump(said), headers=headers), subject)


def _asked_by(review: ReviewView) -> set[str]:
    return {group for need in review.needs for group in need.groups}


def _no_open_review(view: TransactionView, waiting: Sequence[ReviewView], by: str) -> str:
    asked = sorted({group for one in waiting for group in _asked_by(one)})
    if asked:
        return f"no review is open for {by!r}; open ones are for {', '.join(asked)}"
    return f"no review is open: the transaction is {view.state.value!r}"


def _matching_task(view: TransactionView, tasks: Sequence[TaskDetail], answer: str) -> TaskDetail:
    """The task this answer is for. A single task is used even if it accepts other answers; the service then refuses."""
    if not tasks:
        raise MisuseError(f"no such task is open: the transaction is {view.state.value!r}")
    fitting = [one for one in tasks if answer in {choice.answer for choice in one.choices}] or tasks
    if len(fitting) > 1:
        several = ", ".join(
            f"{one.task.kind} of {one.task.tool} (effect {one.task.effect_id})" for one in fitting
        )
        raise MisuseError(
            f"more than one task is open, select one by tool=... or effect=...; there are {several}"
        )
    return fitting[0]


def _require_accepted(answer: httpx2.Response, subject: str) -> bytes:
    if answer.is_error:
        raise VoteRefused(f"{subject} may not decide this, or not so: {_service_message(answer)}")
    return answer.content


def _service_message(answer: httpx2.Response) -> str:
    """The service's problem detail, if there is one (RFC 9457)."""
    if answer.headers.get("Content-Type", "").startswith("application/problem+json"):
        return str(answer.json()["detail"])[:_SAID]
    return answer.text[:_SAID]
