"""Votes and words sent by the forms of a page: what is let through, and everything that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from tests.fakes import reviews
from tests.fakes.pages import holds
from tests.fakes.web_queue import World
from tests.integration.web.conftest import OWN_PAGE, Visitor, hidden_fields

pytestmark = pytest.mark.anyio

REVIEW = "rev_01KAHV6T3M"


async def test_an_approval_carries_what_was_read(world: World, visitor: Visitor) -> None:
    page = world.pages[REVIEW]
    answer = await visitor.vote(REVIEW, await visitor.form(REVIEW, "approve") | {"reason": "fine by me"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/reviews/{REVIEW}")
    assert world.cast == [(REVIEW, "approve", 1, page.effect_digest, page.txn_digest, "fine by me")]
    after = (await visitor.get(f"/reviews/{REVIEW}")).text
    holds(after, "Approved; the transaction waits", "Maya Okafor")


async def test_a_denial_says_why(world: World, visitor: Visitor) -> None:
    page, form = world.pages[REVIEW], await visitor.form(REVIEW, "deny")
    silent = await visitor.vote(REVIEW, form | {"reason": " \n "})
    assert silent.status_code == 400
    holds(silent.text, "Your vote was not counted", f'href="/reviews/{REVIEW}">Open the review<')
    assert world.cast == []
    for said, why in (
        ({"pick": "Not enough proof", "reason": "no\r\nticket "}, "Not enough proof: no\nticket"),
        ({"pick": "Not now"}, "Not now"),
    ):
        world.put(page)
        await visitor.vote(REVIEW, form | said)
        assert world.cast[-1][5] == why
    holds((await visitor.get(f"/reviews/{REVIEW}")).text, "Denied", "Nothing fired")


async def test_a_vote_on_a_stale_page_is_409_with_what_changed(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    for other in ({"rev": "7"}, {"effect_digest": "0" * 64}, {"txn_digest": "0" * 64}):
        answer = await visitor.vote(REVIEW, form | other)
        assert (answer.status_code, "The arguments are the same" in answer.text) == (409, True), other
    world.put(replace(world.pages[REVIEW], rev=2))
    world.changed = [
        {"name": "amount_cents", "read": "124000", "now": "142000"},
        {"name": "memo", "read": "a\u202eb", "now": "<b>"},
    ]
    answer = await visitor.vote(REVIEW, form)
    assert answer.status_code == 409
    holds(
        answer.text, "Your vote was not counted", "You were reading revision 1", '<del class="val">124000</del>',
        '<ins class="val">142000</ins>', "&lt;b&gt;", "Read revision 2", without=["\u202e"],
    )  # fmt: skip
    assert world.cast == []


async def test_a_vote_that_cannot_count_is_refused_and_told_why(world: World, visitor: Visitor) -> None:
    page, form = world.pages[REVIEW], await visitor.form(REVIEW, "approve")
    assert (await visitor.vote("rev_none", form)).status_code == 404
    for stands, status, told in (
        (replace(page, why_not="the agent works for you"), 403, "The agent works for you."),
        (replace(page, state="expired"), 409, "It had settled before your vote arrived"),
        (page, 401, "Your vote was not counted"),
    ):
        world.put(stands)
        if status == 401:
            world.sessions.clear()
        answer = await visitor.vote(REVIEW, form)
        assert (answer.status_code, 'role="alert"' in answer.text) == (status, status != 401)
        holds(answer.text, told)
    assert world.cast == []


FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://127.0.0.1:8766"},
    {"Origin": "https://127.0.0.1:8765"}, {"Origin": "null"}, {"Sec-Fetch-Site": "none"}, {},
    {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
    {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Mode": "no-cors"},
]  # fmt: skip


async def test_a_form_sent_from_elsewhere_does_nothing(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve") | {"token": world.link()}
    sessions, votes = dict(world.sessions), f"/reviews/{REVIEW}/votes"
    for path in (votes, "/sign-out", "/theme", "/sign-in/dev"):
        for headers in FOREIGN:
            answer = await visitor.client.post(path, data=form, headers=headers)
            assert (answer.status_code, "Nothing was done" in answer.text) == (403, True), (path, headers)
    assert (world.cast, world.sessions, len(world.links)) == ([], sessions, 1)
    # one proof of our own page is enough
    for review, headers in (
        (REVIEW, {"Origin": "http://127.0.0.1:8765"}),
        ("rev_hostile", {"Sec-Fetch-Site": "same-origin"}),
    ):
        form = await visitor.form(review, "approve")
        answer = await visitor.client.post(f"/reviews/{review}/votes", data=form, headers=headers)
        assert answer.status_code == 303


# an unknown field, one twice, a status, an odd reason, no UTF-8, no equals sign, too long
MALFORMED = [
    "&person=cfo", "&rev=1", "&state=met", "&pick=because", "&reason=%ff", "&reason", "&reason=" + "x" * 4_001,
]  # fmt: skip


async def test_a_form_that_is_not_ours_is_refused(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    _, other = world.signed_in()
    for token in ("", "x", "é", other.csrf):
        assert (await visitor.vote(REVIEW, form | {"csrf_token": token})).status_code == 403
    for change in ({"verdict": "maybe"}, *({"rev": rev} for rev in ("01", "-1", "1.0", "١", ""))):
        assert (await visitor.vote(REVIEW, form | change)).status_code == 400, change
    for missing in ("csrf_token", "rev", "effect_digest", "txn_digest", "verdict"):
        fields = {name: value for name, value in form.items() if name != missing}
        assert (await visitor.vote(REVIEW, fields)).status_code == 400, missing
    body, path = str(httpx2.QueryParams(form)), f"/reviews/{REVIEW}/votes"
    ours = OWN_PAGE | {"Content-Type": "application/x-www-form-urlencoded"}
    for extra in MALFORMED:
        assert (await visitor.client.post(path, content=body + extra, headers=ours)).status_code == 400, extra
    # H1: text/plain is what a foreign form can send without a preflight
    for media_type in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
        headers = OWN_PAGE | {"Content-Type": media_type}
        assert (await visitor.client.post(path, content=body, headers=headers)).status_code == 415
    endless = await visitor.client.post(path, content="reason=" + "x" * 70_000, headers=ours)
    assert endless.status_code == 413
    override = OWN_PAGE | {"X-HTTP-Method-Override": "POST"}
    assert (await visitor.client.get(path, params=form, headers=override)).status_code == 405
    assert world.cast == []


async def test_the_form_that_approves_says_what_it_wants_and_does(world: World, visitor: Visitor) -> None:
    world.put(reviews.refund("rev_reason", reason_required=True))
    text = (await visitor.get("/reviews/rev_reason?full=1")).text.split('id="approve"')[1]
    holds(text, 'name="reason" maxlength="4000" required')
    holds(text.split("</form>")[0], "This cannot be undone.")
    holds((await visitor.get("/reviews/rev_01KAHX04QE")).text, "Countersign and release")
    first = (await visitor.get("/reviews/rev_hostile?full=1")).text
    holds(first, without=["Countersign and release"])


async def test_what_stands_folded_is_not_approved(world: World, visitor: Visitor) -> None:
    folded = (await visitor.get(f"/reviews/{REVIEW}")).text
    holds(folded, without=['name="verdict" value="approve"'])
    deny = hidden_fields(folded, "deny")
    answer = await visitor.vote(REVIEW, deny | {"verdict": "approve"})
    assert (answer.status_code, "read it first" in answer.text) == (400, True)
    assert world.cast == []
    assert (await visitor.vote(REVIEW, deny | {"reason": "no"})).status_code == 303


TALK = "/reviews/rev_talk"


async def write(visitor: Visitor, text: str = "hm", kind: str = "comment", **more: Any) -> httpx2.Response:
    headers = OWN_PAGE | more.pop("headers", {})
    fields = {"csrf_token": visitor.session.csrf, "kind": kind, "text": text} | more
    return await visitor.client.post(f"{TALK}/comments", data=fields, headers=headers)


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
    answer = await stranger.post(f"{TALK}/comments", data=fields, headers=OWN_PAGE)
    assert (answer.status_code, "Your words were not kept" in answer.text) == (401, True)
    assert world.pages["rev_talk"].comments == ()
    answer = await write(visitor, " one\r\ntwo ", "question")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{TALK}#talk")
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
        html = (await visitor.get(TALK)).text
        assert ('value="comment"' in html, 'value="question"' in html) == (may_comment, may_ask)
        holds(html, "Why the full amount?", without=["<i>Which", "<b>Approved", "\u202e"])
        assert ("You own the agent" in html) is (may_comment and not may_ask)
    world.put(reviews.talked(comments=(), may_comment=False, may_ask=False))
    assert 'id="talk"' not in (await visitor.get(TALK)).text
