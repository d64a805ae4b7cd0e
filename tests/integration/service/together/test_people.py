"""The queue in the API, for people with a session who send what our own page would send."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.fakes.payments import gate, person
from tests.fakes.world import URL, Visitor
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio


def ballot(view: dict[str, Any], **other: Any) -> dict[str, Any]:
    seen = view["effects"][0]
    digests = {"effect_digest": seen["effect_digest"], "txn_digest": view["txn_digest"]}
    return {"verdict": "approve", "rev": view["rev"], **digests, **other}


def votes_path(view: dict[str, Any]) -> str:
    return f"/v1/reviews/{view['effects'][0]['review']['review_id']}/votes"


async def test_a_review_shows_its_gates_and_deadline(bank: Bank) -> None:
    owned = await bank.agent("owned", owner=person("jonas"))
    view = await bank.asks(robot=owned, claimed={"purpose": "the invoice of May"})
    shown = (await bank.ingrid.get(f"/v1/reviews/{view['effects'][0]['review']['review_id']}")).json()
    assert (shown["state"], shown["title"]) == ("open", "Pay")
    assert (shown["agent"], shown["owner"]) == ("owned", person("jonas"))
    assert shown["effect"]["args"] == {"account": "acme", "amount": 500}
    need = {"gates": ["large"], "groups": ["finance"], "quorum": 1, "have": 0, "shared": False, "added": []}
    assert shown["needs"] == [need]
    assert shown["claimed"] == {"purpose": "the invoice of May"}
    assert shown["url"] == f"{URL}/reviews/{shown['review_id']}"
    assert shown["answer_by"] > shown["opened_at"] and shown["votes"] == []


async def test_the_queue_is_paged_by_deadline(bank: Bank) -> None:
    await bank.rules(gate("hurry", "finance", 'context.input.account == "soon"', answer_within="5m"))
    views = [await bank.asks(run_key=f"r{n}") for n in range(5)]
    soon = (await bank.robot.submit(await pay(bank, 500, account="soon"), run_key="soon")).json()
    found: list[str] = []
    query: str | None = ""
    while query is not None:
        page = (await bank.maya.get(f"/v1/reviews?limit=2{query}")).json()
        found += [review["txn"] for review in page["reviews"]]
        assert len(page["reviews"]) <= 2
        query = f"&cursor={quote(page['next'])}" if "next" in page else None
    mine = [txn for txn in found if txn in bank.robot.txns]
    assert mine == [soon["txn"], *(view["txn"] for view in views)]


async def test_a_review_that_does_not_exist_is_not_found(bank: Bank) -> None:
    vote, headers = ballot(await bank.asks()), bank.maya.headers()
    assert refusal(await bank.maya.get("/v1/reviews/rev_0")) == (404, "not_found")
    nowhere = await bank.maya.http.post("/v1/reviews/rev_0/votes", json=vote, headers=headers)
    assert refusal(nowhere) == (404, "not_found")
    for query in ("cursor=x", "cursor=~", "cursor=2026-01-01~r", "limit=0", "limit=x", "limit=9999"):
        assert refusal(await bank.maya.get(f"/v1/reviews?{query}")) == (400, "invalid_request"), query


async def sent(maya: Visitor, view: dict[str, Any], **headers: Any) -> tuple[int, str]:
    """A vote with some headers changed or missing; returns the refusal."""
    given = {name: value for name, value in (maya.headers() | headers).items() if value is not None}
    answer = await maya.http.post(votes_path(view), content=json.dumps(ballot(view)).encode(), headers=given)
    code: str = answer.json().get("code", "")
    return answer.status_code, code


FORGED: list[tuple[dict[str, Any], int, str]] = [
    ({"Cookie": None}, 401, "unauthenticated"),
    ({"Cookie": "countersign_dev=made-up"}, 401, "unauthenticated"),
    ({"X-CSRF-Token": None}, 403, "csrf"),
    ({"X-CSRF-Token": "made-up"}, 403, "csrf"),
    ({"X-CSRF-Token": b"caf\xe9"}, 403, "csrf"),
    ({"Origin": None}, 403, "csrf"),
    ({"Origin": "https://evil.example"}, 403, "csrf"),
    ({"Origin": "null"}, 403, "csrf"),
    ({"Origin": "http://127.0.0.1:9999"}, 403, "csrf"),
    ({"Sec-Fetch-Site": "cross-site"}, 403, "csrf"),
    ({"Sec-Fetch-Site": "same-site"}, 403, "csrf"),
    ({"Sec-Fetch-Mode": "cors"}, 403, "csrf"),
    ({"Host": "evil.example"}, 421, "misdirected_host"),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
]

BALLOTS: list[tuple[dict[str, Any], str]] = [
    ({"verdict": "maybe"}, "invalid_request"),
    ({"rev": 0}, "invalid_request"),
    ({"effect_digest": "x"}, "invalid_request"),
    ({"reason": 1}, "invalid_request"),
    ({"reason": "r" * 4_001}, "invalid_request"),
    ({"person": "tomas"}, "unknown_field"),
]


async def test_a_vote_from_another_page_is_refused(bank: Bank) -> None:
    view = await bank.asks()
    assert await sent(bank.maya, view, **{"X-CSRF-Token": bank.tomas.csrf}) == (403, "csrf")
    for headers, status, code in FORGED:
        assert await sent(bank.maya, view, **headers) == (status, code), headers
    for other, code in BALLOTS:
        vote, own = ballot(view, **other), bank.maya.headers()
        answer = await bank.maya.http.post(votes_path(view), json=vote, headers=own)
        assert refusal(answer) == (400, code), other
    assert (await bank.states(view))[0] == "review"
    assert (await sent(bank.maya, view))[0] == 200
