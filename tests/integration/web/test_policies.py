"""The policies page: what it shows of hostile text, what its form takes, and that it changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape

import pytest

from tests.fakes import policies
from tests.fakes.pages import holds
from tests.fakes.web_queue import Settings, World
from tests.integration.web.conftest import OWN_PAGE, SITE, Visitor, client_of

pytestmark = pytest.mark.anyio

FORM = {"agent": "desk-agent", "tool": "refund_payment", "args": '{"amount_cents": 5001}'}


async def attempt(visitor: Visitor, **changes: str) -> tuple[int, str]:
    fields = FORM | {"csrf_token": visitor.session.csrf} | changes
    answer = await visitor.client.post("/policies/try", data=fields, headers=OWN_PAGE)
    return answer.status_code, answer.text


def area(text: str) -> str:
    return unescape(text.split('id="try-args"')[1].split(">", 1)[1].split("</textarea>")[0])


async def test_everything_in_force_is_on_the_page(world: World, visitor: Visitor) -> None:
    async with client_of(world, Settings(SITE)) as client:
        answer = await client.get("/policies")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/policies")
    text = (await visitor.get("/policies")).text
    ids = [row.policy_id for row in policies.ROWS]
    holds(text, *ids, policies.COMMIT, "asks for 2 of finance, which has 1", "attachments")
    holds(
        (await visitor.get("/policies?policy=never-to-closed-accounts")).text,
        "Closed accounts get nothing back.",
        'aria-label="Cedar text of never-to-closed-accounts"',
    )
    answer = await visitor.get("/policies?policy=gone")
    assert answer.status_code == 404
    holds(answer.text, "The bundle in force holds no policy &#39;gone&#39;.")


async def test_what_does_not_load_is_told(world: World, visitor: Visitor) -> None:
    holds((await visitor.get("/policies")).text, without=["could not be asked about"])
    broken = policies.shadow(commit=None, since=None, problems=("a.cedar:1: this is not Cedar",), rows=())
    for shadow, told in (
        (policies.shadow(failed=2), "2 effects could not be asked about"),
        (broken, "It does not load, so nothing is compared with it"),
    ):
        world.policies = replace(world.policies, shadow=shadow)
        holds((await visitor.get("/policies")).text, told)
    problem = "refunds.cedar:12: <script>alert(1)</script>\u202e"
    force = replace(world.policies.in_force, problems=(problem,), failed_at=world.clock())
    world.policies = replace(world.policies, shadow=None, events=(), in_force=force)
    holds(
        (await visitor.get("/policies")).text, "A newer bundle does not load", "refunds.cedar:12: &lt;script&gt;",
        without=["In shadow", "<script>alert", "\u202e"],
    )  # fmt: skip


async def test_an_effect_is_tried_and_the_form_keeps_what_was_typed(world: World, visitor: Visitor) -> None:
    status, text = await attempt(visitor)
    assert status == 200
    assert world.tried == [("desk-agent", "refund_payment", {"amount_cents": 5001})]
    holds(text, "Asks 1 of Finance.", "Account state", "{&#34;amount_cents&#34;: 5001}")
    _, text = await attempt(visitor, args='{"a": "x\u200by",\r\n "b": 1}')
    assert area(text) == '\n{"a": "x\\u200by",\n "b": 1}'  # a browser takes the first line break for itself


async def test_what_cannot_be_tried_is_said_beside_the_form(world: World, visitor: Visitor) -> None:
    for changes, status, said in (
        ({"args": "{"}, 400, "The arguments are not JSON we take"),
        ({"args": '{"a": 1, "a": 2}'}, 400, "The arguments are not JSON we take"),
        ({"agent": "nobody"}, 404, "no agent"),
    ):
        found, text = await attempt(visitor, **changes)
        assert (found, said.lower() in text.lower(), "Nothing was asked" in text) == (status, True, True)
    assert world.tried == [("nobody", "refund_payment", {"amount_cents": 5001})]
    world.tried.clear()
    assert (await attempt(visitor, csrf_token="another"))[0] == 403
    assert (await attempt(visitor, surprise="1"))[0] == 400
    foreign = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    data = FORM | {"csrf_token": visitor.session.csrf}
    assert (await visitor.client.post("/policies/try", data=data, headers=foreign)).status_code == 403
    assert world.tried == []


async def test_a_review_is_tried_in_a_variation_without_its_secrets(visitor: Visitor) -> None:
    review = (await visitor.get("/reviews/rev_01KAHX04QE")).text
    holds(review, 'href="/policies?try=rev_01KAHX04QE#try"')
    text = (await visitor.get("/policies?try=rev_01KAHX04QE")).text
    args = json.loads(area(text))
    assert (args["traffic_percent"], "deploy_key" in args) == (100, False)
    holds(text, 'value="ship-bot"', without=["s3cr3t"])
    assert (await visitor.get("/policies?try=rev_none")).status_code == 404
