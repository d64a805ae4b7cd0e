"""The policies page: what it shows of hostile text, what its form takes, and that it changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape

import pytest

from tests.fakes import policies
from tests.fakes.web_queue import Settings, World
from tests.integration.web.conftest import OWN_PAGE, SITE, Visitor, client_of

pytestmark = pytest.mark.anyio

FORM = {"agent": "desk-agent", "tool": "refund_payment", "args": '{"amount_cents": 5001}'}


async def attempt(visitor: Visitor, **changes: str) -> tuple[int, str]:
    fields = FORM | {"csrf_token": visitor.session.csrf} | changes
    answer = await visitor.client.post("/policies/try", data=fields, headers=OWN_PAGE)
    return answer.status_code, answer.text


async def test_a_stranger_is_asked_to_sign_in_and_comes_back(world: World) -> None:
    async with client_of(world, Settings(SITE)) as client:
        answer = await client.get("/policies")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/policies")


async def test_everything_in_force_is_on_the_page(visitor: Visitor) -> None:
    text = (await visitor.get("/policies")).text
    shown = [*(row.policy_id for row in policies.ROWS), policies.COMMIT, "asks for 2 of finance, which has 1"]
    assert [what for what in (*shown, "attachments") if what not in text] == []
    one = (await visitor.get("/policies?policy=never-to-closed-accounts")).text
    assert "Closed accounts get nothing back." in one
    assert 'aria-label="Cedar text of never-to-closed-accounts"' in one
    answer = await visitor.get("/policies?policy=gone")
    assert answer.status_code == 404
    assert "The bundle in force holds no policy &#39;gone&#39;." in answer.text


async def test_the_shadow_says_what_it_could_not_do(visitor: Visitor, world: World) -> None:
    assert "could not be asked about" not in (await visitor.get("/policies")).text
    world.policies = replace(world.policies, shadow=policies.shadow(failed=2))
    assert "2 effects could not be asked about" in (await visitor.get("/policies")).text
    broken = policies.shadow(commit=None, since=None, problems=("a.cedar:1: this is not Cedar",), rows=())
    world.policies = replace(world.policies, shadow=broken)
    assert "It does not load, so nothing is compared with it" in (await visitor.get("/policies")).text
    world.policies = replace(world.policies, shadow=None, events=())
    assert "In shadow" not in (await visitor.get("/policies")).text


async def test_what_keeps_a_newer_bundle_out_is_told_with_its_place(visitor: Visitor, world: World) -> None:
    problem = "refunds.cedar:12: <script>alert(1)</script>\u202e"
    force = replace(world.policies.in_force, problems=(problem,), failed_at=world.clock())
    world.policies = replace(world.policies, in_force=force)
    text = (await visitor.get("/policies")).text
    assert "A newer bundle does not load" in text
    assert "refunds.cedar:12: &lt;script&gt;" in text
    assert "<script>alert" not in text
    assert "\u202e" not in text


async def test_an_effect_is_tried_and_the_form_keeps_what_was_typed(visitor: Visitor, world: World) -> None:
    status, text = await attempt(visitor)
    assert status == 200
    assert world.tried == [("desk-agent", "refund_payment", {"amount_cents": 5001})]
    assert "Asks 1 of Finance." in text
    assert "Account state" in text
    assert "{&#34;amount_cents&#34;: 5001}" in text


async def test_the_form_keeps_lines_and_writes_out_what_is_hidden(visitor: Visitor, world: World) -> None:
    _, text = await attempt(visitor, args='{"a": "x\u200by",\r\n "b": 1}')
    area = unescape(text.split('id="try-args"')[1].split(">", 1)[1].split("</textarea>")[0])
    assert area == '\n{"a": "x\\u200by",\n "b": 1}'  # a browser takes the first line break for itself


UNTRIED = [
    ({"args": "{"}, 400, "The arguments are not JSON we take"),
    ({"args": '{"a": 1, "a": 2}'}, 400, "The arguments are not JSON we take"),
    ({"agent": "nobody"}, 404, "no agent"),
]
FOREIGN: dict[str, str] = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}


async def test_what_cannot_be_tried_is_said_beside_the_form(visitor: Visitor, world: World) -> None:
    for changes, status, said in UNTRIED:
        found, text = await attempt(visitor, **changes)
        assert (found, said.lower() in text.lower(), "Nothing was asked" in text) == (status, True, True)
    assert world.tried == [("nobody", "refund_payment", {"amount_cents": 5001})]
    world.tried.clear()
    assert (await attempt(visitor, csrf_token="another"))[0] == 403
    assert (await attempt(visitor, surprise="1"))[0] == 400
    data = FORM | {"csrf_token": visitor.session.csrf}
    assert (await visitor.client.post("/policies/try", data=data, headers=FOREIGN)).status_code == 403
    assert world.tried == []


async def test_a_review_is_tried_in_a_variation_without_its_secrets(visitor: Visitor) -> None:
    review = (await visitor.get("/reviews/rev_01KAHX04QE")).text
    assert 'href="/policies?try=rev_01KAHX04QE#try"' in review
    text = (await visitor.get("/policies?try=rev_01KAHX04QE")).text
    area = unescape(text.split('id="try-args"')[1].split(">", 1)[1].split("</textarea>")[0])
    assert json.loads(area)["traffic_percent"] == 100
    assert "deploy_key" not in json.loads(area)
    assert "s3cr3t" not in text
    assert 'value="ship-bot"' in text
    assert (await visitor.get("/policies?try=rev_none")).status_code == 404
