"""The pages of Slack accounts: an invitation is opened as often as one likes and taken by one form, by its person;
what is linked can be seen and ended there.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from structlog.testing import capture_logs

from tests.fakes.pages import holds
from tests.fakes.payments import Payments, person
from tests.fakes.slack_accounts import OTHER_TEAM, TEAM, account
from tests.fakes.world import running
from tests.integration.service.slack_links import MALLORY, MAYA, Workspace
from tests.integration.service.stepping_up import Holder, refusal_text


@pytest.fixture
async def maya(here: Workspace) -> Holder:
    return Holder(await here.world.person("maya"))


def at(secret: str) -> str:
    return f"/slack/link?invitation={secret}"


async def opened(holder: Holder, path: str) -> httpx2.Response:
    """What a browser shows of an invitation: its secret is taken out of the address into a cookie."""
    first = await holder.visitor.get(path)
    assert (first.status_code, first.headers["location"]) == (303, "/slack/link")
    kept = first.headers["set-cookie"].partition(";")[0]
    holder.visitor.http.cookies.clear()  # everybody's browsers share the one client
    cookies = f"countersign_dev={holder.visitor.cookie}; {kept}"
    return await holder.visitor.http.get("/slack/link", headers={"Cookie": cookies})


async def test_the_form_links_it_once(here: Workspace, maya: Holder) -> None:
    secret = await here.invited(replace(MAYA, email="maya@acme.example"))
    for _ in range(2):
        page = (await opened(maya, at(secret))).text
        for word in ("@maya", "U0MAYA", TEAM, "maya@acme.example", person("maya"), "decide in your name"):
            assert word in page
        assert "Link it only if you requested this link in Slack yourself." in page
    assert (await here.rows(), await here.log()) == ([], []), "opening it links nothing"
    assert re.search(rf'name="invitation" value="{re.escape(secret)}"', page)
    answer = await maya.send("/slack/link", invitation=secret)
    assert (answer.status_code, answer.headers["location"]) == (303, "/slack")
    assert "@maya" in await maya.page("/slack")
    again = await maya.send("/slack/link", invitation=secret)
    assert again.status_code == 400
    holds(again.text, "No Slack account was linked", 'href="/slack"')
    for refused in (again, await opened(maya, at(secret))):
        assert (refused.status_code, "/countersign link" in refusal_text(refused)) == (400, True)
    assert len(await here.rows()) == 1


async def test_only_the_form_holds_the_secret(here: Workspace, maya: Holder) -> None:
    """Nor is a name that is markup or hides letters anything but text: Slack lets people call themselves so."""
    secret = await here.invited(account("U0EVIL", "<img src=x>\u202eayam"))
    page = (await opened(maya, at(secret))).text
    assert page.count(secret) == 1
    answer = await maya.send("/slack/link", invitation=secret)
    assert 'countersign_dev_invitation=""; ' in str(answer.headers.get_list("set-cookie"))
    for text in (page, await maya.page("/slack")):
        assert "<img" not in text and "\u202e" not in text


async def test_a_visitor_signs_in_before_linking(here: Workspace) -> None:
    """The secret is in the first address and in the cookie, and nowhere else."""
    secret = await here.invited(MAYA)
    http = here.world.http
    with capture_logs() as said:
        first = await http.get(at(secret))
        assert (first.status_code, first.headers["location"]) == (303, "/slack/link")
        cookie = first.headers["set-cookie"]
        assert all(word in cookie for word in (secret, "HttpOnly", "SameSite=lax", "Max-Age=3600"))
        second = await http.get("/slack/link")
        assert (second.status_code, second.headers["location"]) == (303, "/sign-in?next=/slack/link")
        door = await http.get(second.headers["location"])
    assert secret not in first.text + second.text + door.text + repr(door.headers) + repr(said)
    assert 'href="/sign-in/acme?next=/slack/link"' in door.text
    http.cookies.clear()


async def test_a_hostile_invitation_leads_nowhere_else(here: Workspace) -> None:
    for secret in ("//evil.example", "x&next=//evil.example", "\r\nSet-Cookie: a=b", "é", ""):
        answer = await here.world.http.get(f"/slack/link?invitation={quote(secret)}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/slack/link")
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith(("countersign_dev_invitation=none; ", "countersign_dev_invitation=x; "))
        here.world.http.cookies.clear()


async def test_the_page_refuses_an_invitation_of_another_address(here: Workspace) -> None:
    """G12: an approver with another address who presses the button all the same."""
    secret = await here.invited(MALLORY)
    maya = Holder(await here.browser("maya", "maya@acme.example"))
    assert "mallory@acme.example" in (await opened(maya, at(secret))).text
    answer = await maya.send("/slack/link", invitation=secret)
    assert answer.status_code == 403
    assert "decide in your name" in refusal_text(answer)
    assert await here.rows() == []


async def test_a_person_changes_only_their_own_account(here: Workspace, maya: Holder) -> None:
    answer = await maya.send("/slack/link", invitation=await here.invited(MAYA))
    assert (answer.status_code, answer.headers["location"]) == (303, "/slack")
    for wanted, shown in (("yes", "in direct messages too"), ("no", "in channels only")):
        answer = await maya.send("/slack/direct", team_id=TEAM, user_id="U0MAYA", wanted=wanted)
        assert (answer.status_code, shown in await maya.page("/slack")) == (303, True)
    answer = await maya.send("/slack/direct", team_id=TEAM, user_id="U0MAYA", wanted="perhaps")
    assert answer.status_code == 400
    tomas = Holder(await here.world.person("tomas"))
    for path, more in (("/slack/unlink", {}), ("/slack/direct", {"wanted": "yes"})):
        answer = await tomas.send(path, team_id=TEAM, user_id="U0MAYA", **more)
        assert answer.status_code == 404
        assert "Your Slack accounts were not changed" in answer.text
    (row,) = await here.rows()
    assert not row.direct
    assert (await maya.send("/slack/unlink", team_id=OTHER_TEAM, user_id="U0MAYA")).status_code == 404
    assert (await maya.send("/slack/unlink", team_id=TEAM, user_id="U0MAYA")).status_code == 303
    assert await here.rows() == []
    assert (await here.log())[-1][:2] == ("slack_unlinked", f"person:{person('maya')}")
    assert "None is linked to you" in await maya.page("/slack")


async def test_linking_ends_other_use_of_the_cookie(here: Workspace, maya: Holder) -> None:
    """The thief holds the very cookie, and the form token with it; what they decide by Slack would outlive both."""
    thief = Holder(replace(maya.visitor))
    answer = await thief.send("/slack/link", invitation=await here.invited(account("U0THIEF", "thief")))
    assert answer.status_code == 303
    assert (await maya.visitor.get("/v1/reviews")).status_code == 401
    again = Holder(await here.world.person("maya"))
    page = await again.page("/")
    assert "changed in another session" not in await thief.page("/")
    assert "thief" in page.split("Your Slack accounts were changed in another session")[1]
    assert (await again.send("/slack/unlink", team_id=TEAM, user_id="U0THIEF")).status_code == 303
    assert "changed in another session" not in await again.page("/")


async def test_without_an_app_there_are_no_such_pages(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "none", folder.path) as world:
        maya = Holder(await world.person("maya"))
        answers: list[httpx2.Response] = [await maya.visitor.get(path) for path in ("/slack", at("x"))]
        answers += [await maya.send(f"/slack/{name}") for name in ("link", "unlink", "direct")]
        assert {answer.status_code for answer in answers} == {404}
        assert 'href="/slack"' not in await maya.page("/")
