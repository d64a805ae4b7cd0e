"""Deciding as a person, from inside a test: a real sign-in and a real vote, on exactly what is asked."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2

from countersign.contract.names import txn_id
from countersign.contract.wire import ReviewSummary, ReviewView, TransactionView, VoteRequest, dump, parse
from countersign.errors import CountersignError, MisuseError, ReviewPending, ServiceRefused
from countersign.runtime import Runtime
from countersign.testing.service import TestedService

_FORM_TOKEN: Final = re.compile(r'name="csrf_token" value="([^"]+)"')
_SAID: Final = 500  # characters of the service's answer in an error


class VoteRefused(CountersignError):
    """The service did not take a person's vote; its reason is in the text."""

    code = "vote_refused"


class Browsers:
    """The signed-in people of one service, each with a session of their own."""

    def __init__(self, service: TestedService) -> None:
        self._service = service
        self._signed_in: dict[str, httpx2.Client] = {}

    def of(self, subject: str) -> httpx2.Client:
        """The browser of this person, who signs in when they are first needed."""
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
        nobody = ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT
        )  # plain http on loopback: it trusts nobody and costs nothing
        origin = self._service.url
        browser = httpx2.Client(base_url=origin, headers={"Origin": origin}, verify=nobody)
        answer = browser.post(link.path, data={"token": parse_qs(link.query)["token"][0]})
        if answer.status_code != httpx2.codes.SEE_OTHER:
            browser.close()
            raise VoteRefused(f"{subject} could not sign in: {answer.text[:_SAID]}")
        return browser


class People:
    """Who decides in one test, about one agent."""

    def __init__(self, service: TestedService, browsers: Browsers, runtime: Runtime) -> None:
        self._service, self._browsers, self._runtime = service, browsers, runtime

    def approve(self, asked: Any, *, by: str, reason: str = "approved in a test") -> None:
        """Approve what waits, as somebody of a group (`by="finance"`, the second one is `"finance-2"`), or as a person
        of the bundle's development sign-in. `asked` is a `ReviewPending`, what has one as `.pending`, or the key of the
        transaction. Of several questions, those are answered that ask this group.

        Raises:
            VoteRefused: the service did not take it: who they are, what they may, or that the review is over.
            MisuseError: nothing waits for this group.
        """
        self._vote("approve", asked, by, reason)

    def deny(self, asked: Any, reason: str, *, by: str) -> None:
        """Deny what waits; as `approve`."""
        self._vote("deny", asked, by, reason)

    def _vote(self, verdict: str, asked: Any, by: str, reason: str) -> None:
        view = self._view_of(asked)
        waiting = [
            one.review for one in view.effects if one.review is not None and one.review.state == "open"
        ]
        group = self._service.people.get(by)
        mine = [one for one in waiting if group is None or by in _asked_by(one)]
        if not mine:
            raise MisuseError(_nothing_waits(view, waiting, by))
        try:
            for one in mine:
                self._cast(by if group is None else group[0], one.review_id, verdict, reason)
        except VoteRefused as refused:
            people = self._service.people
            if group is not None or any(by in subjects for subjects in people.values()):
                raise
            groups = ", ".join(people)
            raise VoteRefused(f"{refused} ({by!r} is no group of this bundle; there are {groups})") from None

    def _view_of(self, asked: Any) -> TransactionView:
        try:
            return self._runtime.client().view(self._txn_of(asked))
        except ServiceRefused as refused:
            if refused.status != httpx2.codes.NOT_FOUND or not isinstance(asked, str):
                raise
            raise MisuseError(
                f"this agent has staged nothing as one under the key {asked!r}; where each call stands alone "
                "(independent=True), give the ReviewPending"
            ) from None

    def _txn_of(self, asked: Any) -> str:
        if isinstance(asked, str):
            return txn_id(agent=self._runtime.settings.agent, run_key=asked)
        pending = asked if isinstance(asked, ReviewPending) else getattr(asked, "pending", None)
        if not isinstance(pending, ReviewPending):
            raise MisuseError(
                f"{asked!r} is no question to people; give the ReviewPending, or the transaction's key"
            )
        return pending.txn

    def _cast(self, subject: str, review_id: str, verdict: str, reason: str) -> None:
        browser = self._browsers.of(subject)
        token = _FORM_TOKEN.search(browser.get("/", headers={"Accept": "text/html"}).text)
        review = parse(ReviewView, _taken(browser.get(f"/v1/reviews/{review_id}"), subject))
        vote = VoteRequest(
            verdict=verdict,
            rev=review.rev,
            effect_digest=review.effect.effect_digest,
            txn_digest=review.txn_digest,
            view_digest=review.view_digest,
            reason=reason,
        )
        headers = {"Content-Type": "application/json", "X-CSRF-Token": token[1] if token else ""}
        _taken(browser.post(f"/v1/reviews/{review_id}/votes", content=dump(vote), headers=headers), subject)


def _asked_by(review: ReviewSummary) -> set[str]:
    return {group for need in review.needs for group in need.groups}


def _nothing_waits(view: TransactionView, waiting: Sequence[ReviewSummary], by: str) -> str:
    asked = sorted({group for one in waiting for group in _asked_by(one)})
    if asked:
        return f"nothing waits for {by!r}; asked are {', '.join(asked)}"
    return f"nothing waits for people: the transaction is {view.state.value!r}"


def _taken(answer: httpx2.Response, subject: str) -> bytes:
    if answer.is_error:
        raise VoteRefused(f"{subject} may not decide this, or not so: {_said(answer)}")
    return answer.content


def _said(answer: httpx2.Response) -> str:
    """The service's words for it, where it has some (RFC 9457)."""
    if answer.headers.get("Content-Type", "").startswith("application/problem+json"):
        return str(answer.json()["detail"])[:_SAID]
    return answer.text[:_SAID]
