"""A person at a browser, without one: signs in by the one-time link, reads the review page, sends its form.

Only what a browser would do: the pages are fetched over HTTP, the form is the one in the page with every
hidden field it carries, and the Origin header is the page's own. There is no back door.
"""

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2

from countersign.http_clients import http_client

_REVIEW_FIELD = "effect_digest"  # the hidden field that makes a form the one to vote with
_TASK_FIELD = "effect_state"  # the one that makes it the one to settle with


class PageError(Exception):
    """The page was not what a person needs to go on; the sentence says which and why."""


@dataclass
class Form:
    """One form of a page: where it goes, its fields with their values, its buttons."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class _Forms(HTMLParser):
    """Collects the forms of a page; fields of a form are named inputs, text areas and what is selected."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._open: Form | None = None
        self._selecting = ""
        self._writing = ""  # the field that the text being read belongs to

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = Form(given.get("action", ""), given.get("method", "get").lower())
            self.found.append(self._open)
        elif self._open is not None and given.get("name") and _is_field(tag, given.get("type", "text")):
            self._open.fields[given["name"]] = given.get("value", "")
        self._writing = given.get("name", "") if tag == "textarea" else ""
        if tag == "select":
            self._selecting = given.get("name", "")
        if tag == "option" and "selected" in given:
            self._writing = self._selecting

    def handle_data(self, data: str) -> None:
        if self._open is not None and self._writing:
            self._open.fields[self._writing] = self._open.fields.get(self._writing, "") + data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._open is not None and self._writing:
            # the first line break after the tag is not part of the text
            self._open.fields[self._writing] = self._open.fields[self._writing].removeprefix("\n")
        if tag in ("textarea", "option"):
            self._writing = ""
        if tag == "form":
            self._open = None


def _is_field(tag: str, kind: str) -> bool:
    """Fields a form always sends; buttons and choices are the person's."""
    return tag == "textarea" or (tag == "input" and kind not in {"submit", "radio", "checkbox"})


class Person:
    """Somebody with a session of their own."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self._browser = http_client(base_url=origin, timeout=30.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()

    def sign_in(self, link: str) -> None:
        """Open the one-time link and press its button.

        Raises:
            PageError: the link is spent, or the service wants something else.
        """
        if not parse_qs(urlsplit(link).query).get("token"):
            raise PageError(f"{link!r} is not a sign-in link")
        page = self._get(link)
        form = self._form(page, "token")
        self._send(form, {})

    def is_asked(self, review_url: str) -> bool:
        """Whether the review page offers this person the form."""
        return self._find(self._get(review_url), _REVIEW_FIELD) is not None

    def approve(self, review_url: str, reason: str = "") -> None:
        """Read the review and approve what it shows."""
        self._vote(review_url, "approve", reason)

    def deny(self, review_url: str, reason: str) -> None:
        """Read the review and deny it."""
        self._vote(review_url, "deny", reason)

    def propose(self, review_url: str, changes: dict[str, str], reason: str) -> None:
        """Propose other arguments: change the fields of these names, read the difference, and send it."""
        page = self._get(f"{review_url}/propose")
        form = self._form(page, "value_0")
        places = {
            name: field
            for field, name in re.findall(r'<label for="(value_\d+)"><code>(.*?)</code>', page.text)
        }
        filled = form.fields | {places[name]: value for name, value in changes.items()}
        headers = {"Origin": self.origin, "Accept": "text/html"}
        difference = self._browser.post(form.action, data=filled, headers=headers)
        if difference.status_code != httpx2.codes.OK:
            raise PageError(f"the change was not taken ({difference.status_code}): {difference.text[:200]}")
        self._send(self._form(difference, "args"), {"reason": reason})

    def accept_change(self, review_url: str) -> None:
        """Accept the first change that is proposed on a review of one's own agent."""
        found = re.search(r'action="(/proposals/[^"]+/accept)"', (page := self._get(review_url)).text)
        if found is None:
            raise PageError(f"{page.url.path} shows this person no change to accept")
        form = next(form for form in self._forms(page) if form.action == found.group(1))
        form.action = urljoin(str(page.url), form.action)
        self._send(form, {})

    def ask(self, review_url: str, text: str) -> None:
        """Read the review and ask its agent something."""
        self._send(self._form(self._get(review_url), "text"), {"kind": "question", "text": text})

    def comment(self, review_url: str, text: str) -> None:
        """Read the review and write a comment."""
        self._send(self._form(self._get(review_url), "text"), {"kind": "comment", "text": text})

    def read(self, review_url: str) -> str:
        """The page as it was sent."""
        return self._get(review_url).text

    def settle(self, task_url: str, answer: str, reason: str, result: str = "") -> None:
        """Read the task and press one of its answers."""
        form = self._form(self._get(task_url), _TASK_FIELD)
        if not result:
            form.fields.pop("result", None)
        self._send(form, {"answer": answer, "reason": reason, **({"result": result} if result else {})})

    def open_tasks(self) -> list[str]:
        """The addresses of the tasks that wait for somebody, the oldest first."""
        return re.findall(r'class="row-title" href="(/tasks/[^"]+)"', self._get("/tasks").text)

    def lesson(self) -> list[str]:
        """The blocks of code that an empty queue shows, as they are copied."""
        blocks = re.findall(r"<pre[^>]*>(.*?)</pre>", self._get("/").text, re.S)
        return [html.unescape(re.sub(r"<[^>]+>", "", block)) for block in blocks]

    def _vote(self, review_url: str, verdict: str, reason: str) -> None:
        # The page with nothing folded: an approval of anything that was not opened is refused.
        form = self._form(self._get(f"{review_url}?full=1"), _REVIEW_FIELD)
        self._send(form, {"verdict": verdict, "reason": reason})

    def _get(self, url: str) -> httpx2.Response:
        page = self._browser.get(url, headers={"Accept": "text/html"})
        if page.status_code != httpx2.codes.OK:
            raise PageError(f"GET {urlsplit(url).path} answered {page.status_code}: {page.text[:200]}")
        return page

    def _form(self, page: httpx2.Response, having: str) -> Form:
        form = self._find(page, having)
        if form is None:
            raise PageError(f"{page.url.path} has no form with the field {having!r}; may this person answer?")
        return form

    def _find(self, page: httpx2.Response, having: str) -> Form | None:
        """The posting form of a page that carries a certain field."""
        for form in self._forms(page):
            if form.method == "post" and having in form.fields:
                form.action = urljoin(str(page.url), form.action)
                return form
        return None

    @staticmethod
    def _forms(page: httpx2.Response) -> list[Form]:
        forms = _Forms()
        forms.feed(page.text)
        return forms.found

    def _send(self, form: Form, answers: dict[str, str]) -> None:
        answer = self._browser.post(
            form.action, data=form.fields | answers, headers={"Origin": self.origin, "Accept": "text/html"}
        )
        if answer.status_code != httpx2.codes.SEE_OTHER:
            path = urlsplit(form.action).path
            raise PageError(f"POST {path} answered {answer.status_code}: {answer.text[:200]}")
