"""People with passkeys before the real pages: what they see, the forms they send, what their device signs."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any

import httpx2

from examples.person import _Forms
from tests.fakes.authenticator import Passkey
from tests.fakes.world import Visitor, World

LOCALHOST = "http://localhost:8420"


@dataclass
class Ceremony:
    """A page that asks for a passkey."""

    action: str
    kind: str
    options: str
    fields: dict[str, str]


@dataclass
class Holder:
    """A signed-in person with passkeys, in one browser."""

    visitor: Visitor
    passkeys: list[Passkey] = field(default_factory=list)

    async def page(self, path: str) -> str:
        answer = await self.visitor.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def send(self, path: str, **fields: str) -> httpx2.Response:
        """A form, as our own page sends it."""
        headers = {"Cookie": f"countersign_dev={self.visitor.cookie}", "Origin": self.visitor.origin}
        form = {"csrf_token": self.visitor.csrf, **fields}
        answer = await self.visitor.http.post(path, data=form, headers=headers)
        if cookie := re.search(r"countersign_dev=([^;]+)", answer.headers.get("set-cookie", "")):
            self.visitor.cookie = cookie[1]
            self.visitor.http.cookies.clear()  # everybody's browsers share the one client
        return answer

    async def enrol(self, passkey: Passkey | None = None, name: str = "blue key") -> httpx2.Response:
        """Add a passkey; where an older one is asked first, the first of this person's vouches."""
        passkey = passkey or Passkey()
        answer = await self.send("/passkeys/additions", name=name)
        if answer.status_code == 200 and (asked := ceremony(answer.text)).kind == "get":
            answer = await self.answer(asked, self.passkeys[0].get(asked.options))
        if answer.status_code != 200:
            return answer
        asked = ceremony(answer.text)
        answer = await self.answer(asked, passkey.create(asked.options))
        if answer.status_code == 303:
            self.passkeys.append(passkey)
        return answer

    async def answer(self, asked: Ceremony, credential: str, **other: str) -> httpx2.Response:
        """Send what a device said back."""
        fields = {name: value for name, value in asked.fields.items() if name != "csrf_token"}
        return await self.send(asked.action, **(fields | {"credential": credential} | other))

    async def listed(self) -> list[str]:
        """The ids of the passkeys their page shows."""
        return re.findall(r'name="passkey_id" value="([^"]+)"', await self.page("/passkeys"))

    async def form(self, review_id: str, verdict: str = "approve", query: str = "?full=1") -> dict[str, str]:
        """The fields of the form on the review's page."""
        text = await self.page(f"/reviews/{review_id}{query}")
        forms = _Forms()
        forms.feed(text.split(f'id="{verdict}"')[1].split("</details>")[0])
        found = forms.found[0].fields
        found.pop("csrf_token")
        return {name: value for name, value in found.items() if value} | {"verdict": verdict}

    async def begin(self, review_id: str, **other: str) -> Ceremony:
        """Press approve on a page that asks for a passkey."""
        form = await self.form(review_id)
        answer = await self.send(f"/reviews/{review_id}/step-up", **(form | other))
        assert answer.status_code == 200, answer.text
        return ceremony(answer.text)

    async def approve(self, review_id: str) -> httpx2.Response:
        """Approve with the first passkey."""
        asked = await self.begin(review_id)
        return await self.answer(asked, self.passkeys[0].get(asked.options))

    async def break_glass(self, review_id: str, reason: str = "the site is down") -> httpx2.Response:
        """Sign for an opening with the first passkey, as the page's form leads there."""
        text = await self.page(f"/reviews/{review_id}?full=1")
        forms = _Forms()
        forms.feed(text.split('id="break-glass"')[1].split("</details>")[0])
        (form,) = forms.found
        fields = {name: value for name, value in form.fields.items() if value and name != "csrf_token"}
        answer = await self.send(form.action, **fields, verdict="break_glass", reason=reason)
        if answer.status_code != 200:
            return answer
        asked = ceremony(answer.text)
        return await self.answer(asked, self.passkeys[0].get(asked.options))


def ceremony(text: str) -> Ceremony:
    """What a ceremony's page asks."""
    assert 'id="ceremony"' in text, text
    forms = _Forms()
    forms.feed(text)
    form = next(one for one in forms.found if "nonce" in one.fields)
    said = re.search(r'data-kind="(\w+)" data-options="([^"]*)"', text)
    assert said is not None
    return Ceremony(form.action, said[1], html.unescape(said[2]), form.fields)


async def holder(world: World, name: str, **passkey: Any) -> Holder:
    """Somebody who has just signed in and enrolled a first passkey."""
    found = Holder(await world.person(name))
    answer = await found.enrol(Passkey(**passkey))
    assert answer.status_code == 303, answer.text
    return found


def refusal_text(answer: httpx2.Response) -> str:
    """A refusal's page in words."""
    assert answer.status_code >= 400, answer.status_code
    return html.unescape(re.sub(r"<[^>]+>", " ", answer.text.split('class="panel refusal"')[1]))


def review_of(view: dict[str, Any], effect: int = 0) -> Any:
    return view["effects"][effect]["review"]["review_id"]
