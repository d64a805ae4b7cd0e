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


async def test_a_denial_says_why(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "deny")
    await visitor.vote(REVIEW, form | {"pick": "Not enough proof", "reason": "no\r\nticket "})
    assert world.cast[0][5] == "Not enough proof: no\nticket"
    after = (await visitor.get(f"/reviews/{REVIEW}")).text
    assert "Denied" in after
    assert "Nothing fired" in after


async def test_a_picked_reason_is_reason_enough(world: World, visitor: Visitor) -> None:
    await visitor.vote(REVIEW, await visitor.form(REVIEW, "deny") | {"pick": "Not now"})
    assert world.cast[0][5] == "Not now"


async def test_a_denial_without_a_reason_is_not_counted(world: World, visitor: Visitor) -> None:
    answer = await visitor.vote(REVIEW, await visitor.form(REVIEW, "deny") | {"reason": " \n "})
    assert answer.status_code == 400
    assert "Your vote was not counted" in answer.text
    assert f'href="/reviews/{REVIEW}">Open the review<' in answer.text
    assert world.cast == []


async def test_a_vote_on_a_stale_page_is_409_with_what_changed(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    world.put(replace(world.pages[REVIEW], rev=2))
    world.changed = [
        {"name": "amount_cents", "read": "124000", "now": "142000"},
        {"name": "memo", "read": "a\u202eb", "now": "<b>"},
    ]
    answer = await visitor.vote(REVIEW, form)
    assert answer.status_code == 409
    assert "Your vote was not counted" in answer.text
    assert "You were reading revision 1" in answer.text
    assert '<del class="val">124000</del>' in answer.text
    assert '<ins class="val">142000</ins>' in answer.text
    assert "\u202e" not in answer.text
    assert "&lt;b&gt;" in answer.text
    assert "Read revision 2" in answer.text
    assert world.cast == []


@pytest.mark.parametrize("field", ["rev", "effect_digest", "txn_digest"])
async def test_other_bytes_than_those_that_stand_are_stale(
    world: World, visitor: Visitor, field: str
) -> None:
    form = await visitor.form(REVIEW, "approve")
    answer = await visitor.vote(REVIEW, form | {field: "7" if field == "rev" else "0" * 64})
    assert answer.status_code == 409
    assert world.cast == []


async def test_a_stale_vote_whose_arguments_are_the_same_says_so(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    world.put(replace(world.pages[REVIEW], txn_digest="f" * 64))
    answer = await visitor.vote(REVIEW, form)
    assert "The arguments are the same" in answer.text


async def test_somebody_not_eligible_is_403_and_reads_why(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    world.put(
        replace(world.pages[REVIEW], why_not="the agent works for you, and nobody approves their own side")
    )
    answer = await visitor.vote(REVIEW, form)
    assert answer.status_code == 403
    assert "The agent works for you, and nobody approves their own side." in answer.text
    assert 'role="alert"' in answer.text
    assert world.cast == []


async def test_a_settled_review_is_409(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    world.put(replace(world.pages[REVIEW], state="expired"))
    answer = await visitor.vote(REVIEW, form)
    assert answer.status_code == 409
    assert "It had settled before your vote arrived" in answer.text


async def test_a_vote_on_nothing_is_404(visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    assert (await visitor.vote("rev_none", form)).status_code == 404


async def test_a_vote_without_a_session_is_401_and_not_a_redirect(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    world.sessions.clear()
    answer = await visitor.vote(REVIEW, form)
    assert answer.status_code == 401
    assert "Your vote was not counted" in answer.text


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


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("path", ["/reviews/rev_01KAHV6T3M/votes", "/sign-out", "/theme", "/sign-in/dev"])
async def test_a_form_sent_from_elsewhere_does_nothing(
    world: World, visitor: Visitor, path: str, headers: dict[str, str]
) -> None:
    form = await visitor.form(REVIEW, "approve") | {"token": world.link()}
    sessions = dict(world.sessions)
    answer = await visitor.client.post(path, data=form, headers=headers)
    assert answer.status_code == 403
    assert "Nothing was done" in answer.text
    assert (world.cast, world.sessions, len(world.links)) == ([], sessions, 1)


@pytest.mark.parametrize("headers", [{"Origin": "http://127.0.0.1:8765"}, {"Sec-Fetch-Site": "same-origin"}])
async def test_one_proof_of_our_own_page_is_enough(
    world: World, visitor: Visitor, headers: dict[str, str]
) -> None:
    form = await visitor.form(REVIEW, "approve")
    answer = await visitor.client.post(f"/reviews/{REVIEW}/votes", data=form, headers=headers)
    assert answer.status_code == 303


@pytest.mark.parametrize("token", ["", "x", "é"])
async def test_a_wrong_form_token_does_nothing(world: World, visitor: Visitor, token: str) -> None:
    form = await visitor.form(REVIEW, "approve")
    answer = await visitor.vote(REVIEW, form | {"csrf_token": token})
    assert answer.status_code == 403
    assert world.cast == []


async def test_another_sessions_form_token_does_nothing(world: World, visitor: Visitor) -> None:
    _, other = world.signed_in()
    answer = await visitor.vote(REVIEW, await visitor.form(REVIEW, "approve") | {"csrf_token": other.csrf})
    assert answer.status_code == 403
    assert world.cast == []


MALFORMED = {
    "an unknown field": "&person=cfo",
    "a repeated field": "&rev=1",
    "a status to set": "&state=met",
    "a reason nobody offered": "&pick=because",
    "bytes that are not UTF-8": "&reason=%ff",
    "no equals sign": "&reason",
    "too long a reason": "&reason=" + "x" * 4_001,
}


@pytest.mark.parametrize("extra", MALFORMED.values(), ids=MALFORMED)
async def test_a_form_that_is_not_ours_is_refused(world: World, visitor: Visitor, extra: str) -> None:
    form = await visitor.form(REVIEW, "approve")
    body = str(httpx2.QueryParams(form)) + extra
    headers = OWN_PAGE | {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await visitor.client.post(f"/reviews/{REVIEW}/votes", content=body, headers=headers)
    assert answer.status_code == 400
    assert world.cast == []


@pytest.mark.parametrize(
    "changes", [{"verdict": "maybe"}, {"rev": "01"}, {"rev": "-1"}, {"rev": "1.0"}, {"rev": "١"}, {"rev": ""}]
)
async def test_a_field_that_says_something_else_is_refused(
    world: World, visitor: Visitor, changes: dict[str, str]
) -> None:
    answer = await visitor.vote(REVIEW, await visitor.form(REVIEW, "approve") | changes)
    assert answer.status_code == 400
    assert world.cast == []


@pytest.mark.parametrize("name", ["csrf_token", "rev", "effect_digest", "txn_digest", "verdict"])
async def test_a_field_that_is_missing_is_refused(world: World, visitor: Visitor, name: str) -> None:
    form = await visitor.form(REVIEW, "approve")
    del form[name]
    assert (await visitor.vote(REVIEW, form)).status_code == 400
    assert world.cast == []


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/json", "multipart/form-data; boundary=x", ""]
)
async def test_a_body_of_another_type_is_refused(world: World, visitor: Visitor, media_type: str) -> None:
    """H1: text/plain is what a foreign form can send without a preflight."""
    body = str(httpx2.QueryParams(await visitor.form(REVIEW, "approve")))
    headers = OWN_PAGE | {"Content-Type": media_type}
    answer = await visitor.client.post(f"/reviews/{REVIEW}/votes", content=body, headers=headers)
    assert answer.status_code == 415
    assert world.cast == []


async def test_a_body_without_end_is_cut_off(world: World, visitor: Visitor) -> None:
    headers = OWN_PAGE | {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await visitor.client.post(
        f"/reviews/{REVIEW}/votes", content="reason=" + "x" * 70_000, headers=headers
    )
    assert answer.status_code == 413
    assert world.cast == []


async def test_a_method_override_is_not_listened_to(world: World, visitor: Visitor) -> None:
    form = await visitor.form(REVIEW, "approve")
    answer = await visitor.client.get(
        f"/reviews/{REVIEW}/votes", params=form, headers=OWN_PAGE | {"X-HTTP-Method-Override": "POST"}
    )
    assert answer.status_code == 405
    assert world.cast == []


async def test_a_gate_that_wants_a_reason_asks_for_one_on_the_form(world: World, visitor: Visitor) -> None:
    world.put(reviews.refund("rev_reason", reason_required=True))
    text = (await visitor.get("/reviews/rev_reason?full=1")).text
    assert 'name="reason" maxlength="4000" required' in text.split('id="approve"')[1]


async def test_the_form_that_approves_says_that_it_cannot_be_undone(visitor: Visitor) -> None:
    approve = (await visitor.get(f"/reviews/{REVIEW}?full=1")).text.split('id="approve"')[1]
    assert "This cannot be undone." in approve.split("</form>")[0]


async def test_the_last_signature_says_that_it_releases(visitor: Visitor) -> None:
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
