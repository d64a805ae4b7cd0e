"""The queue by API: for people with a session, who send what our own page would send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.payments import Payments, gate, person
from tests.fakes.world import URL, Agent, Visitor, World
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio


async def waiting(bank: World, robot: Agent, **members: Any) -> dict[str, Any]:
    """A payment finance is asked about."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, 500), **members)).json()
    return view


def ballot(view: dict[str, Any], **other: Any) -> dict[str, Any]:
    seen = view["effects"][0]
    digests = {"effect_digest": seen["effect_digest"], "txn_digest": view["txn_digest"]}
    return {"verdict": "approve", "rev": view["rev"], **digests, **other}


def votes_path(view: dict[str, Any]) -> str:
    return f"/v1/reviews/{view['effects'][0]['review']['review_id']}/votes"


async def test_a_review_shows_what_is_asked_of_whom_and_by_when(bank: World, robot: Agent) -> None:
    view = await waiting(bank, robot, claimed={"purpose": "the invoice of May"})
    ingrid = await bank.person("ingrid")  # in none of the groups, and still may look
    shown = (await ingrid.get(f"/v1/reviews/{view['effects'][0]['review']['review_id']}")).json()
    assert shown["state"] == "open" and shown["title"] == "Pay"
    assert shown["effect"]["args"] == {"account": "acme", "amount": 500}
    assert shown["needs"] == [
        {"gates": ["large"], "groups": ["finance"], "quorum": 1, "have": 0, "shared": False, "added": []}
    ]
    assert shown["claimed"] == {"purpose": "the invoice of May"}
    assert shown["url"] == f"{URL}/reviews/{shown['review_id']}"
    assert shown["answer_by"] > shown["opened_at"] and shown["votes"] == []


async def test_the_queue_is_read_by_key_those_that_expire_first_in_front(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(gate("hurry", "finance", 'context.input.account == "soon"', answer_within="5m"))
    await bank.activate()
    views = [await waiting(bank, robot, run_key=f"r{n}") for n in range(5)]
    soon = (await robot.submit(await pay(bank, 500, account="soon"), run_key="soon")).json()
    maya = await bank.person("maya")
    found: list[str] = []
    cursor = ""
    while True:
        page = (await maya.http.get("/v1/reviews", params={"limit": 2, **({"cursor": cursor} if cursor else {})},
                                    headers={"Cookie": f"countersign_dev={maya.cookie}"})).json()  # fmt: skip
        found += [review["txn"] for review in page["reviews"]]
        assert len(page["reviews"]) <= 2
        if (cursor := page.get("next")) is None:
            break
    mine = [txn for txn in found if txn in robot.txns]
    assert mine == [soon["txn"], *(view["txn"] for view in views)]


@pytest.mark.parametrize(
    "query", ["cursor=x", "cursor=~", "cursor=2026-01-01~r", "limit=0", "limit=x", "limit=9999"]
)
async def test_a_page_of_the_queue_that_cannot_be_is_refused(bank: World, query: str) -> None:
    maya = await bank.person("maya")
    answer = await maya.get(f"/v1/reviews?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_a_review_that_does_not_exist_is_not_found(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    view = await waiting(bank, robot)
    assert (await maya.get("/v1/reviews/rev_0")).json()["code"] == "not_found"
    answer = await maya.http.post("/v1/reviews/rev_0/votes", json=ballot(view), headers=maya.headers())
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def sent(maya: Visitor, view: dict[str, Any], **headers: Any) -> tuple[int, str]:
    """A vote with some headers another or gone; the refusal."""
    given = {name: value for name, value in (maya.headers() | headers).items() if value is not None}
    answer = await maya.http.post(votes_path(view), content=json.dumps(ballot(view)).encode(), headers=given)
    code: str = answer.json().get("code", "")
    return answer.status_code, code


FORGED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no session": ({"Cookie": None}, 401, "unauthenticated"),
    "a session nobody has": ({"Cookie": "countersign_dev=made-up"}, 401, "unauthenticated"),
    "no form token": ({"X-CSRF-Token": None}, 403, "csrf"),
    "another form token": ({"X-CSRF-Token": "made-up"}, 403, "csrf"),
    "a form token that is no ASCII": ({"X-CSRF-Token": b"caf\xe9"}, 403, "csrf"),
    "no origin": ({"Origin": None}, 403, "csrf"),
    "another origin": ({"Origin": "https://evil.example"}, 403, "csrf"),
    "the null origin": ({"Origin": "null"}, 403, "csrf"),
    "another port": ({"Origin": "http://127.0.0.1:9999"}, 403, "csrf"),
    "another site, says the browser": ({"Sec-Fetch-Site": "cross-site"}, 403, "csrf"),
    "a sibling site, says the browser": ({"Sec-Fetch-Site": "same-site"}, 403, "csrf"),
    "a script, says the browser": ({"Sec-Fetch-Mode": "cors"}, 403, "csrf"),
    "another host": ({"Host": "evil.example"}, 421, "misdirected_host"),
    "a form instead of JSON": ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "status", "code"), FORGED.values(), ids=FORGED)
async def test_a_vote_that_our_own_page_did_not_send_is_refused(
    bank: World, robot: Agent, headers: dict[str, Any], status: int, code: str
) -> None:
    view = await waiting(bank, robot)
    maya = await bank.person("maya")
    assert await sent(maya, view, **headers) == (status, code)
    assert (await robot.see(view["txn"]))["state"] == "review"
    assert (await sent(maya, view))[0] == 200


async def test_the_form_token_of_another_person_is_refused(bank: World, robot: Agent) -> None:
    view = await waiting(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    assert await sent(maya, view, **{"X-CSRF-Token": tomas.csrf}) == (403, "csrf")


BALLOTS: dict[str, tuple[dict[str, Any], str]] = {
    "a verdict we do not know": ({"verdict": "maybe"}, "invalid_request"),
    "a revision of zero": ({"rev": 0}, "invalid_request"),
    "a digest that is none": ({"effect_digest": "x"}, "invalid_request"),
    "a reason that is no text": ({"reason": 1}, "invalid_request"),
    "a very long reason": ({"reason": "r" * 4_001}, "invalid_request"),
    "another person's name": ({"person": "tomas"}, "unknown_field"),
}


@pytest.mark.parametrize(("other", "code"), BALLOTS.values(), ids=BALLOTS)
async def test_a_ballot_that_cannot_be_is_refused(
    bank: World, robot: Agent, other: dict[str, Any], code: str
) -> None:
    view = await waiting(bank, robot)
    maya = await bank.person("maya")
    answer = await maya.http.post(votes_path(view), json=ballot(view, **other), headers=maya.headers())
    assert (answer.status_code, answer.json()["code"]) == (400, code)


async def test_a_session_ends_by_idleness_by_age_and_by_signing_out(bank: World) -> None:
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    bank.clock.pass_(minutes=59)
    assert (await maya.get("/v1/reviews")).status_code == 200
    bank.clock.pass_(minutes=2)
    assert (await maya.get("/v1/reviews")).status_code == 200
    assert (await tomas.get("/v1/reviews")).status_code == 401
    for _ in range(12):
        bank.clock.pass_(minutes=58)
        await maya.get("/v1/reviews")
    assert (await maya.get("/v1/reviews")).status_code == 401
    again = await bank.person("maya")
    await bank.service.sessions.sign_out(again.cookie)
    assert (await again.get("/v1/reviews")).status_code == 401


async def test_a_sign_in_link_works_once_and_not_for_long(bank: World) -> None:
    async def spend(link: str) -> int:
        token = link.partition("token=")[2]
        answer = await bank.http.post("/sign-in/dev", data={"token": token}, headers={"Origin": URL})
        bank.http.cookies.clear()
        return answer.status_code

    link = (await bank.operator("sign-in-link", {"sub": "maya", "name": "Maya"}))["url"]
    assert await spend(link) == 303
    assert 400 <= await spend(link) < 500
    old = (await bank.operator("sign-in-link", {"sub": "maya", "name": "Maya"}))["url"]
    bank.clock.pass_(minutes=11)
    assert 400 <= await spend(old) < 500
    assert 400 <= await spend(link + "x") < 500


async def test_tasks_are_shown_to_people_page_by_page(bank: World, robot: Agent) -> None:
    for n in range(3):
        view = (
            await robot.submit(await pay(bank), run_key=f"r{n}", attempt_id=f"{robot.attempt}-{n}")
        ).json()
        unknown = {"effect_id": view["effects"][0]["effect_id"], "outcome": "unknown"}
        await robot.report(f"{robot.attempt}-{n}", unknown)
    maya = await bank.person("maya")
    first = (await maya.get("/v1/tasks?limit=2")).json()
    rest = (await maya.get(f"/v1/tasks?limit=2&cursor={first['next']}")).json()
    found = [task for task in [*first["tasks"], *rest["tasks"]] if task["txn"] in robot.txns]
    assert [task["kind"] for task in found] == ["unknown"] * 3 and "next" not in rest
    assert "pay" in found[0]["text"]


async def test_the_owner_is_shown_with_the_agent(bank: World) -> None:
    owned = await bank.agent("owned", owner=person("jonas"))
    view = await waiting(bank, owned)
    maya = await bank.person("maya")
    shown = (await maya.get(f"/v1/reviews/{view['effects'][0]['review']['review_id']}")).json()
    assert (shown["agent"], shown["owner"]) == ("owned", person("jonas"))
