"""Votes and comments by forms: what is accepted and what is refused."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from policy_service.channels.web.presenters.review_page import stale_changes
from tests.fakes.pages import holds
from tests.fakes.payments import person
from tests.fakes.world import URL
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.together.bank import Bank
from tests.integration.web.conftest import OWN_PAGE, drawn

pytestmark = pytest.mark.anyio


async def form_of(bank: Bank, view: dict[str, Any], verdict: str = "approve") -> dict[str, str]:
    """The form behind a button of Maya's page."""
    fields = await Holder(bank.maya).form(review_of(view), verdict)
    seen = {"rev", "effect_digest", "txn_digest", "view_digest", "view_parts", "verdict"}
    assert set(fields) == seen
    return fields | {"csrf_token": bank.maya.csrf}


async def send(
    bank: Bank, path: str, form: dict[str, Any] | str, headers: dict[str, str] = OWN_PAGE
) -> httpx2.Response:
    """A form of Maya's browser, or the bytes of one."""
    given: dict[str, Any] = {"content": form} if isinstance(form, str) else {"data": form}
    cookie = {"Cookie": f"countersign_dev={bank.maya.cookie}"}
    return await bank.http.post(path, headers=cookie | headers, **given)


async def counted(bank: Bank, view: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Verdicts and reasons, as the API returns them."""
    votes = (await bank.maya.get(f"/v1/reviews/{review_of(view)}")).json()["votes"]
    return [(vote["verdict"], vote["reason"]) for vote in votes]


async def test_a_vote_carries_the_reason_and_the_pick(bank: Bank) -> None:
    for verdict, said, reason, shown in (
        ("approve", {"reason": "fine by me"}, "fine by me", "Approved"),
        ("deny", {"pick": "Not now", "reason": "no\r\nticket "}, "Not now: no\nticket", "Denied"),
        ("deny", {"pick": "Not now"}, "Not now", "Nothing fired"),
    ):
        view = await bank.asks(run_key=reason)
        path = f"/reviews/{review_of(view)}"
        answer = await send(bank, f"{path}/votes", await form_of(bank, view, verdict) | said)
        assert (answer.status_code, answer.headers["location"]) == (303, path)
        assert await counted(bank, view) == [(verdict, reason)]
        holds((await bank.maya.get(path)).text, shown, "Maya")


async def test_a_vote_that_cannot_count_is_refused_with_a_reason(bank: Bank) -> None:
    mine = await bank.asks(robot=await bank.agent(f"{bank.robot.name}-mine", owner=person("maya")))
    view = await bank.asks()
    form, silent = await form_of(bank, view), await form_of(bank, view, "deny")
    path = f"/reviews/{review_of(view)}/votes"
    answer = await send(bank, path, silent | {"reason": " \n "})
    assert answer.status_code == 400
    holds(answer.text, "Your vote was not counted", f'href="{path.removesuffix("/votes")}">Open the review<')
    for other in ({"rev": "7"}, {"effect_digest": "0" * 64}, {"txn_digest": "0" * 64}):
        answer = await send(bank, path, form | other)
        assert (answer.status_code, "Your vote was not counted" in answer.text) == (409, True), other
    assert (await send(bank, "/reviews/rev_none/votes", form)).status_code == 404
    effect = mine["effects"][0]
    read = {"effect_digest": effect["effect_digest"], "txn_digest": mine["txn_digest"]}
    answer = await send(bank, f"/reviews/{review_of(mine)}/votes", silent | read | {"reason": "no"})
    assert (answer.status_code, 'role="alert"' in answer.text) == (403, True)
    await bank.service.sessions.sign_out(bank.maya.cookie)
    answer = await send(bank, path, form)
    assert (answer.status_code, "Your vote was not counted" in answer.text) == (401, True)
    await bank.sign_in()
    assert await counted(bank, view) == []


async def test_a_vote_on_a_stale_page_shows_the_changes_and_no_link_back_to_it(bank: Bank) -> None:
    view = await bank.asks(run_key="stale")
    form = await form_of(bank, view)
    assert (await bank.asks(600, run_key="stale"))["rev"] == 2
    answer = await send(bank, f"/reviews/{review_of(view)}/votes", form)
    assert answer.status_code == 409
    holds(
        answer.text, "Your vote was not counted", "You were reading revision 1", '<del class="val">500</del>',
        '<ins class="val">(absent)</ins>', "Revision 2 has no review of this effect.", without=["Read revision 2"],
    )  # fmt: skip
    changed = stale_changes([{"name": "memo", "read": "a\u202eb", "now": "<b>"}])
    more = {"undone": "x", "read_rev": 1, "rev": 2, "review_id": "r", "moved": ()}
    text = await drawn(bank, "stale.html", changed=changed, **more)
    holds(text, "Read revision 2", "&lt;b&gt;", "U+202E", without=["\u202e"])


FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": URL + "6"},
    {"Origin": URL.replace("http", "https")}, {"Origin": "null"}, {"Sec-Fetch-Site": "none"}, {},
    OWN_PAGE | {"Sec-Fetch-Mode": "cors"}, {"Origin": URL, "Sec-Fetch-Mode": "no-cors"},
]  # fmt: skip


async def test_a_form_sent_from_elsewhere_does_nothing(bank: Bank) -> None:
    view = await bank.asks()
    form = await form_of(bank, view) | {"kind": "comment", "text": "hm", "token": "x"}
    review = f"/reviews/{review_of(view)}"
    for path in (f"{review}/votes", f"{review}/comments", "/sign-out", "/theme", "/sign-in/dev"):
        for headers in FOREIGN:
            answer = await send(bank, path, form, headers)
            assert (answer.status_code, "Nothing was done" in answer.text) == (403, True), (path, headers)
    assert await counted(bank, view) == []
    # one proof of our own page is enough
    proofs: list[dict[str, str]] = [{"Origin": URL}, {"Sec-Fetch-Site": "same-origin"}]
    for headers in proofs:
        form = await form_of(bank, view)
        assert (await send(bank, f"{review}/votes", form, headers)).status_code == 303
        view = await bank.asks(run_key="another")
        review = f"/reviews/{review_of(view)}"


# an unknown field, one twice, a status, an odd reason, no UTF-8, no equals sign, too long
MALFORMED = [
    "&person=cfo", "&rev=1", "&state=met", "&pick=because", "&reason=%ff", "&reason", "&reason=" + "x" * 4_001,
]  # fmt: skip


async def test_a_form_that_is_not_ours_is_refused(bank: Bank) -> None:
    view = await bank.asks()
    form, path = await form_of(bank, view), f"/reviews/{review_of(view)}/votes"
    for token in ("", "x", "é", bank.tomas.csrf):
        assert (await send(bank, path, form | {"csrf_token": token})).status_code == 403
    for change in ({"verdict": "maybe"}, *({"rev": rev} for rev in ("01", "-1", "1.0", "١", ""))):
        assert (await send(bank, path, form | change)).status_code == 400, change
    for missing in ("csrf_token", "rev", "effect_digest", "txn_digest", "verdict"):
        fields = {name: value for name, value in form.items() if name != missing}
        assert (await send(bank, path, fields)).status_code == 400, missing
    body = str(httpx2.QueryParams(form))
    ours = OWN_PAGE | {"Content-Type": "application/x-www-form-urlencoded"}
    for extra in MALFORMED:
        assert (await send(bank, path, body + extra, ours)).status_code == 400, extra
    # H1: text/plain is what a foreign form can send without a preflight
    for media_type in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
        answer = await send(bank, path, body, OWN_PAGE | {"Content-Type": media_type})
        assert answer.status_code == 415
    assert (await send(bank, path, "reason=" + "x" * 70_000, ours)).status_code == 413
    override = OWN_PAGE | {"X-HTTP-Method-Override": "POST"}
    assert (await bank.http.get(path, params=form, headers=override)).status_code == 405
    assert await counted(bank, view) == []


BAD_WORDS: list[tuple[dict[str, Any], int]] = [
    ({"text": " \r\n "}, 400), ({"text": "x" * 4_001}, 400), ({"text": "x" * 300_000}, 413),
    ({"kind": "vote"}, 400), ({"kind": ["comment", "question"]}, 400),
    ({"csrf_token": "x"}, 403), ({"verdict": "approve"}, 400),
]  # fmt: skip


async def test_comments_are_saved_and_invalid_forms_refused(bank: Bank) -> None:
    view = await bank.asks()
    path = f"/reviews/{review_of(view)}"
    form = {"csrf_token": bank.maya.csrf, "kind": "question", "text": " one\r\ntwo "}
    for given, status in BAD_WORDS:
        assert (await send(bank, f"{path}/comments", form | given)).status_code == status, given
    answer = await bank.http.post(f"{path}/comments", data=form, headers=OWN_PAGE)
    assert (answer.status_code, "Your comment was not saved" in answer.text) == (401, True)
    answer = await send(bank, f"{path}/comments", form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{path}#talk")
    (said,) = (await bank.maya.get(f"/v1{path}")).json()["comments"]
    assert (said["text"], said["kind"], said["channel"]) == ("one\ntwo", "question", "web")
    fields = {"kind": "comment", "text": "hm"}
    for who, status in ((Holder(bank.jonas), 403), (Holder(bank.maya), 409)):
        if status == 409:
            await bank.maya.vote(view, "deny", reason="no")
        refused = await who.send(f"{path}/comments", **fields)
        assert refused.status_code == status
        holds(refused.text, "Your comment was not saved", without=["vote was not counted"])
