"""A headless browser: follows redirects, keeps cookies and submits the forms of an identity provider."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx2


@dataclass
class Form:
    """One form: where it goes, what it holds, and the words on it."""

    action: str
    words: str = ""
    fields: dict[str, str] = field(default_factory=dict)


class _Forms(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[Form] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and given.get("method", "").lower() == "post":
            self.found.append(Form(given.get("action", "")))
        elif tag == "input" and self.found and "name" in given:
            self.found[-1].fields[given["name"]] = given.get("value", "")

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1].words += data


class Browser:
    """One person's browser. `ours` is the deployment's address: what is reached there is not followed by itself."""

    def __init__(self, ours: str) -> None:
        self.ours = ours
        self.http = httpx2.Client(follow_redirects=False, timeout=20)

    def close(self) -> None:
        self.http.close()

    def get(self, url: str) -> httpx2.Response:
        """One page of ours, redirects within the deployment followed."""
        answer = self.http.get(urljoin(self.ours, url))
        while answer.is_redirect and urljoin(self.ours, answer.headers["location"]).startswith(self.ours):
            answer = self.http.get(urljoin(self.ours, answer.headers["location"]))
        return answer

    def to_the_provider(self, name: str, next_path: str = "/") -> str:
        """Press the button: the provider's address with all that we ask."""
        answer = self.http.get(f"{self.ours}/sign-in/{name}", params={"next": next_path})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def sign_in_there(self, url: str, choose: str = "", **typed: str) -> str:
        """Walk the provider's pages until it sends the browser back: the address it is sent to.

        Where the page offers people to choose from, `choose` is a word on the right button.
        """
        for _ in range(12):
            answer = self.http.get(url)
            while not answer.is_redirect:
                assert answer.status_code == 200, answer.text
                answer = self._submit(str(answer.url), answer.text, choose, typed)
            url = urljoin(str(answer.url), answer.headers["location"])
            if urlsplit(url).netloc == urlsplit(self.ours).netloc:
                return url
        raise AssertionError("the provider never sent the browser back")

    def sign_out_there(self, issuer: str) -> None:
        """End this browser's session at the provider, by its own page."""
        answer = self.http.get(f"{issuer}/session/end")
        assert answer.status_code == 200, answer.text
        form = _Forms(answer.text).found[0]
        fields = form.fields | {"logout": "yes"}
        answer = self.http.post(urljoin(str(answer.url), form.action), data=fields)
        assert answer.is_redirect, answer.text

    def _submit(self, base: str, html: str, choose: str, typed: dict[str, str]) -> httpx2.Response:
        forms = _Forms(html).found
        form = next((form for form in forms if choose and choose in form.words), forms[0])
        fields = form.fields | {name: value for name, value in typed.items() if name in form.fields}
        return self.http.post(urljoin(base, form.action), data=fields)
