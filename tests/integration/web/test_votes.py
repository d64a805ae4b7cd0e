"""Casting a vote through the form: what is let through, and everything that is not."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest

from tests.fakes import reviews
from tests.fakes.web_queue import World
from tests.integration.web.conftest import OWN_PAGE, Visitor, hidden_fields

pytestmark = pytest.mark.anyio

REVIEW = "rev_01KAHV6T3M"


async def test_an_approval_carries_revision_and_digests_of_what_was_read(
    world: World, visitor: Visitor
) -> None:
    page = world.pages[REVIEW]
    answer = await visitor.vote(REVIEW, await visitor.form(REVIEW, "approve") | {"reason": "fine by me"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/reviews/{REVIEW}")
    assert world.cast == [(REVIEW, "approve", 1, page.effect_digest, page.txn_digest, "fine by me")]
    after = (await visitor.get(f"/reviews/{REVIEW}")).text
    assert "Approved; the transaction waits" in after
    assert "Maya Okafor" in after


REASONS = [
    ({"pick": "Not enough proof", "reason": "no\r\nticket "}, "Not enough proof: no\nticket"),
    ({"pick": "Not now"}, "Not now"),
]


@pytest.mark.parametrize(("said", "why"), REASONS)
async def test_a_denial_says_why(world: World, visitor: Visitor, said: dict[str, str], why: str) -> None:
    form = await visitor.form(REVIEW, "deny")
    silent = await visitor.vote(REVIEW, form | {"reason": " \n "})
    assert silent.status_code == 400
    assert "Your vote was not counted" in silent.text
    assert f'href="/reviews/{REVIEW}">Open the review<' in silent.text
    assert world.cast == []
    await visitor.vote(REVIEW, form | said)
    assert world.cast[0][5] == why
    after = (await visitor.get(f"/reviews/{REVIEW}")).text
    assert "Denied" in after and "Nothing fired" in after


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
    for told in (
        "Your vote was not counted",
        "You were reading revision 1",
        '<del class="val">124000</del>',
        '<ins class="val">142000</ins>',
        "&lt;b&gt;",
        "Read revision 2",
    ):
        assert told in answer.text
    assert "\u202e" not in answer.text
    assert world.cast == []


async def test_a_vote_that_cannot_count_is_refused_and_told_why(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    assert (await visitor.vote("rev_none", form)).status_code == 404
    page = world.pages[REVIEW]
    why = "the agent works for you, and nobody approves their own side"
    world.put(replace(page, why_not=why))
    answer = await visitor.vote(REVIEW, form)
    assert (answer.status_code, f"T{why[1:]}." in answer.text, 'role="alert"' in answer.text) == (
        403,
        True,
        True,
    )
    world.put(replace(page, state="expired"))
    answer = await visitor.vote(REVIEW, form)
    assert (answer.status_code, "It had settled before your vote arrived" in answer.text) == (409, True)
    world.put(page)
    world.sessions.clear()
    answer = await visitor.vote(REVIEW, form)
    assert (answer.status_code, "Your vote was not counted" in answer.text) == (401, True)
    assert world.cast == []


FOREIGN = {
    "another site": {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    "another site, by origin alone": {"Origin": "https://evil.example"},
    "another site, by fetch metadata alone": {"Sec-Fetch-Site": "cross-site"},
    "a sibling host": {"Sec-Fetch-Site": "same-site"},
    "another port": {"Origin": "http://127.0.0.1:8766"},
    "another scheme": {"Origin": "https://127.0.0.1:8765"},
    "a sandboxed frame": {"Origin": "null"},
    "a typed address": {"Sec-Fetch-Site": "none"},
    "nowhere at all": {},
    "a script of ours": {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
    "a script without preflight": {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Mode": "no-cors"},
}  # fmt: skip


@pytest.mark.parametrize("path", [f"/reviews/{REVIEW}/votes", "/sign-out", "/theme", "/sign-in/dev"])
async def test_a_form_sent_from_elsewhere_does_nothing(world: World, visitor: Visitor, path: str) -> None:
    form = await visitor.form(REVIEW, "approve") | {"token": world.link()}
    sessions = dict(world.sessions)
    for whence, headers in FOREIGN.items():
        answer = await visitor.client.post(path, data=form, headers=headers)
        assert answer.status_code == 403, whence
        assert "Nothing was done" in answer.text
    assert (world.cast, world.sessions, len(world.links)) == ([], sessions, 1)


@pytest.mark.parametrize("headers", [{"Origin": "http://127.0.0.1:8765"}, {"Sec-Fetch-Site": "same-origin"}])
async def test_one_proof_of_our_own_page_is_enough(
    world: World, visitor: Visitor, headers: dict[str, str]
) -> None:
    form = await visitor.form(REVIEW, "approve")
    answer = await visitor.client.post(f"/reviews/{REVIEW}/votes", data=form, headers=headers)
    assert answer.status_code == 303


MALFORMED = {
    "an unknown field": "&person=cfo",
    "a repeated field": "&rev=1",
    "a status to set": "&state=met",
    "a reason nobody offered": "&pick=because",
    "bytes that are not UTF-8": "&reason=%ff",
    "no equals sign": "&reason",
    "too long a reason": "&reason=" + "x" * 4_001,
}


async def test_a_form_that_is_not_ours_is_refused(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    _, other = world.signed_in()
    for token in ("", "x", "é", other.csrf):
        assert (await visitor.vote(REVIEW, form | {"csrf_token": token})).status_code == 403
    changes = [{"verdict": "maybe"}, *({"rev": rev} for rev in ("01", "-1", "1.0", "١", ""))]
    for change in changes:
        assert (await visitor.vote(REVIEW, form | change)).status_code == 400, change
    for missing in ("csrf_token", "rev", "effect_digest", "txn_digest", "verdict"):
        fields = {name: value for name, value in form.items() if name != missing}
        assert (await visitor.vote(REVIEW, fields)).status_code == 400, missing
    body, path = str(httpx2.QueryParams(form)), f"/reviews/{REVIEW}/votes"
    ours = {"Content-Type": "application/x-www-form-urlencoded"}
    for what, extra in MALFORMED.items():
        answer = await visitor.client.post(path, content=body + extra, headers=OWN_PAGE | ours)
        assert answer.status_code == 400, what
    # H1: text/plain is what a foreign form can send without a preflight
    for media_type in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
        headers = OWN_PAGE | {"Content-Type": media_type}
        assert (await visitor.client.post(path, content=body, headers=headers)).status_code == 415
    endless = await visitor.client.post(path, content="reason=" + "x" * 70_000, headers=OWN_PAGE | ours)
    assert endless.status_code == 413
    assert world.cast == []


async def test_a_method_override_is_not_listened_to(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    answer = await visitor.client.get(
        f"/reviews/{REVIEW}/votes", params=form, headers=OWN_PAGE | {"X-HTTP-Method-Override": "POST"}
    )
    assert answer.status_code == 405
    assert world.cast == []


async def test_the_form_that_approves_says_what_it_wants_and_does(world: World, visitor: Visitor) -> None:
    world.put(reviews.refund("rev_reason", reason_required=True))
    text = (await visitor.get("/reviews/rev_reason?full=1")).text.split('id="approve"')[1]
    assert 'name="reason" maxlength="4000" required' in text
    assert "This cannot be undone." in text.split("</form>")[0]
    last = (await visitor.get("/reviews/rev_01KAHX04QE")).text
    first = (await visitor.get("/reviews/rev_hostile?full=1")).text
    assert "Countersign and release" in last
    assert "Countersign and release" not in first


async def test_what_stands_folded_is_not_approved(world: World, visitor: Visitor) -> None:
    folded = (await visitor.get(f"/reviews/{REVIEW}")).text
    assert 'name="verdict" value="approve"' not in folded
    deny = hidden_fields(folded, "deny")
    answer = await visitor.vote(REVIEW, deny | {"verdict": "approve"})
    assert answer.status_code == 400
    assert "read it first" in answer.text
    assert world.cast == []
    assert (await visitor.vote(REVIEW, deny | {"reason": "no"})).status_code == 303
