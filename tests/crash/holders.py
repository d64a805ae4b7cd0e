"""The chapter of people with passkeys: they enrol, vouch, countersign, are warned, remove; a copied key is logged."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

import httpx2
from sqlalchemy import select

from examples.person import Form, Person, _Forms
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from tests.crash.story import Story
from tests.fakes.authenticator import Passkey

CAREFUL = """
@id("careful") @approval("finance") @step_up("passkey")
forbid (principal, action == Action::"refund", resource)
when { context.input.amount_cents > 5000 };
"""


@dataclass
class _Holder:
    """Somebody with passkeys, who begins again when the service dies under them."""

    story: Story
    keys: list[Passkey] = field(default_factory=list)

    def send(self, person: Person, form: Form, **more: str) -> httpx2.Response:
        return person._browser.post(
            form.action, data=form.fields | more, headers={"Origin": person.origin, "Accept": "text/html"}
        )

    def enrol(self, person: Person, wanted: int) -> None:
        """Until there are so many: the first is trusted, the others are vouched for."""
        stored = len(listed(person))
        del self.keys[stored:]  # one that died on its way
        if stored >= wanted:
            return
        key = Passkey(origin=self.story.url)
        answer = self.send(person, _form(person._get("/passkeys").text, "name"), name=f"key {wanted}")
        if wanted > 1:
            answer = self.answer(person, answer, self.keys[0])
        self.keys.append(key)
        assert self.answer(person, answer, key).status_code == 303

    def answer(self, person: Person, page: httpx2.Response, key: Passkey) -> httpx2.Response:
        said = re.search(r'data-kind="(\w+)" data-options="([^"]*)"', page.text)
        assert said is not None, page.text[:500]
        options = html.unescape(said[2])
        credential = key.create(options) if said[1] == "create" else key.get(options)
        return self.send(person, _form(page.text, "nonce"), credential=credential)

    def approve(self, person: Person, review: str) -> httpx2.Response | None:
        """None where it was recorded before, without an answer."""
        text = person._get(f"/reviews/{review}?full=1").text
        if f"/reviews/{review}/step-up" not in text:
            return None
        form = _form(text.split('id="approve"')[1], "effect_digest")
        asked = self.send(person, form, verdict="approve", reason="seen")
        return self.answer(person, asked, self.keys[0])

    def remove(self, person: Person, left: int) -> None:
        if len(listed(person)) > left:
            form = _form(person._get("/passkeys").text, "passkey_id")
            form.fields["passkey_id"] = listed(person)[-1]
            assert self.answer(person, self.send(person, form), self.keys[0]).status_code == 303

    def dismiss(self, person: Person) -> None:
        text = person._get("/").text
        assert "changed in another session" in text
        assert self.send(person, _form(text, "back", "/passkeys/seen")).status_code == 303


def listed(person: Person) -> list[str]:
    """The ids of this person's passkeys, oldest first."""
    return re.findall(r'name="passkey_id" value="([^"]+)"', person._get("/passkeys").text)


def _form(text: str, having: str, action: str = "") -> Form:
    forms = _Forms()
    forms.feed(text)
    return next(form for form in forms.found if having in form.fields and form.action.endswith(action))


def steps_up(story: Story) -> None:
    """A refund waits for a passkey; another one is tried with a copy of it."""
    story.url = f"http://localhost:{story.port}"
    story.policies(CAREFUL)
    story.begin()
    maya = _Holder(story)
    story.as_person(lambda person: maya.enrol(person, 1))
    story.as_person(maya.dismiss)
    story.as_person(lambda person: maya.enrol(person, 2))
    first, second = (story.live("large", key)["reviews"][0].rpartition("/")[2] for key in ("one", "two"))

    def approve(person: Person) -> None:
        answer = maya.approve(person, first)
        assert answer is None or answer.status_code == 303

    story.as_person(approve)
    with story.reading() as conn:
        kind = table(AuditRow).c.kind
        regressed = select(kind).where(kind == "passkey_counter_regressed")

        def copied(person: Person) -> None:
            maya.keys[0].count = 0
            answer = maya.approve(person, second)
            assert answer is not None
            assert answer.status_code == 403

        story.as_person(copied)
        maya.keys[0].count = 100

        def removed_by_a_copy(person: Person) -> None:
            form = _form(person._get("/passkeys").text, "passkey_id")
            asked = maya.send(person, form)
            maya.keys[0].count = 0
            assert maya.answer(person, asked, maya.keys[0]).status_code == 403

        story.as_person(removed_by_a_copy)
        maya.keys[0].count = 200
        conn.rollback()
        assert len(conn.execute(regressed).all()) >= 2
    story.as_person(lambda person: maya.remove(person, 1))
    story.finish()
