"""The form people write with: what it refuses, and in which words."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.fakes import reviews
from tests.fakes.pages import holds
from tests.fakes.web_queue import World
from tests.integration.web.conftest import OWN_PAGE, Visitor

pytestmark = pytest.mark.anyio

REVIEW = "/reviews/rev_talk"


async def write(visitor: Visitor, text: str = "hm", kind: str = "comment", **more: Any) -> httpx2.Response:
    headers = OWN_PAGE | more.pop("headers", {})
    fields = {"csrf_token": visitor.session.csrf, "kind": kind, "text": text} | more
    return await visitor.client.post(f"{REVIEW}/comments", data=fields, headers=headers)


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({"csrf_token": "x"}, 403),
    ({"headers": {"Origin": "https://evil.example"}}, 403),
    ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
    ({"text": " \r\n "}, 400),
    ({"text": "x" * 4_001}, 400),
    ({"text": "x" * 300_000}, 413),
    ({"kind": "vote"}, 400),
    ({"verdict": "approve"}, 400),
    ({"kind": ["comment", "question"]}, 400),
]


async def test_what_is_written_is_kept_and_what_is_no_form_of_ours_is_not(
    world: World, visitor: Visitor, stranger: httpx2.AsyncClient
) -> None:
    world.put(reviews.talked(comments=()))
    for given, status in REFUSED:
        assert (await write(visitor, **dict(given))).status_code == status, given
    fields = {"csrf_token": "x", "kind": "comment", "text": "hm"}
    answer = await stranger.post(f"{REVIEW}/comments", data=fields, headers=OWN_PAGE)
    assert (answer.status_code, "Your words were not kept" in answer.text) == (401, True)
    assert world.pages["rev_talk"].comments == ()
    answer = await write(visitor, " one\r\ntwo ", "question")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{REVIEW}#talk")
    (said,) = world.pages["rev_talk"].comments
    assert (said.text, said.question, said.person_name) == ("one\ntwo", True, "Maya Okafor")


async def test_a_refusal_speaks_of_words_and_not_of_a_vote(world: World, visitor: Visitor) -> None:
    nobody = {"may_comment": False, "may_ask": False}
    for page, kind, status, told in (
        ({"state": "denied"} | nobody, "comment", 409, "It had settled before"),
        (nobody, "comment", 403, "Those whom the review asks"),
        ({"may_ask": False}, "question", 403, "Those whom the review asks"),  # the agent's owner
    ):
        world.put(reviews.talked(comments=(), **page))
        answer = await write(visitor, kind=kind)
        assert answer.status_code == status
        holds(answer.text, "Your words were not kept", told, without=["vote was not counted"])


async def test_the_form_offers_what_this_person_may(world: World, visitor: Visitor) -> None:
    for may_comment, may_ask in ((True, True), (True, False), (False, False)):
        world.put(reviews.talked(may_comment=may_comment, may_ask=may_ask))
        html = (await visitor.get(REVIEW)).text
        assert ('value="comment"' in html, 'value="question"' in html) == (may_comment, may_ask)
        holds(html, "Why the full amount?", without=["<i>Which", "<b>Approved", "\u202e"])
        assert ("You own the agent" in html) is (may_comment and not may_ask)
    world.put(reviews.talked(comments=(), may_comment=False, may_ask=False))
    assert 'id="talk"' not in (await visitor.get(REVIEW)).text
