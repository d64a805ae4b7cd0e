"""The emergency stop by people, the pages of agents and the log, over the real service."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from uuid import uuid4

import httpx2
import pytest

from tests.fakes.payments import ANYBODY, LARGE, Payments, person
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.test_pages_of_reviews import caught_up, queries

pytestmark = pytest.mark.anyio

LEGAL_STARTS = (
    '@id("legal-starts") permit (principal in Group::"legal", action == Action::"start_again", resource);\n'
)


def words(html: str) -> str:
    """The text of a page, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


async def send(visitor: Visitor, path: str, **fields: str) -> httpx2.Response:
    """Send a form as its page would."""
    headers = {name: value for name, value in visitor.headers().items() if name in ("Cookie", "Origin")}
    form = {"csrf_token": visitor.csrf, "reason": "it goes out twice", **fields}
    return await visitor.http.post(path, data=form, headers=headers)


STOPS = [{"what": "agent", "name": "robot"}, {"what": "tool", "name": "pay"}, {"what": "everything"}]


@pytest.mark.parametrize("stop", STOPS, ids=["agent", "tool", "everything"])
async def test_a_person_whom_a_gate_asks_stops_it_at_once(
    bank: World, folder: Payments, robot: Agent, stop: dict[str, str]
) -> None:
    folder.rules(LEGAL_STARTS)
    await bank.activate()
    ready = (await robot.submit(await pay(bank, 5))).json()
    tokens = (await robot.release(ready)).json()["releases"]
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    assert (await send(maya, "/stop", **stop)).status_code == 303
    answers = [
        await robot.submit(await pay(bank, 6), run_key="next"),
        await robot.release(ready),
        await robot.redeem(tokens),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "frozen")] * 3
    for path in ("/", "/tasks", "/policies", "/agents", "/agents/robot", "/audit", "/stop"):
        text = words((await ingrid.get(path)).text)
        assert "by Maya : “it goes out twice”" in text or "by Maya: “it goes out twice”" in text, path
    refused = await send(maya, "/start-again", **stop)
    assert (refused.status_code, "no policy permits you to start again" in words(refused.text).lower()) == (
        403,
        True,
    )
    assert (await robot.redeem(tokens)).status_code == 403
    assert (await send(ingrid, "/start-again", **stop)).status_code == 303
    assert (await robot.redeem(tokens)).status_code == 200
    assert "Stopped:" not in words((await maya.get("/")).text)
    await bank.service.sequencer.number()
    rows = (await maya.get("/v1/audit?limit=500")).json()["rows"]
    kinds = {"stop_began", "stop_ended", "agent_frozen", "agent_unfrozen"}
    told = [(row["actor"]["id"], row["body"]["reason"]) for row in rows if row["kind"] in kinds]
    assert told == [(person("maya"), "it goes out twice"), (person("ingrid"), "it goes out twice")]


async def goes_on(bank: World, robot: Agent) -> bool:
    """Whether the agent may still submit."""
    answer = await robot.submit(await pay(bank, 5), run_key=uuid4().hex)
    assert answer.status_code == 201 or answer.json()["code"] == "frozen", answer.text
    return answer.status_code == 201


async def test_without_a_rule_nobody_starts_again_from_here(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    assert (await send(maya, "/stop", what="everything")).status_code == 303
    answer = await send(maya, "/start-again", what="everything")
    assert answer.status_code == 403
    assert "No policy says who starts again" in words(answer.text)
    assert not await goes_on(bank, robot)
    await bank.operator("go-on", {"tool": None})
    assert await goes_on(bank, robot)


async def test_whoever_no_gate_asks_and_no_rule_names_and_who_was_revoked_stops_nothing(
    bank: World, robot: Agent
) -> None:
    jonas, maya = await bank.person("jonas"), await bank.person("maya")
    answer = await send(jonas, "/stop", what="everything")
    assert (answer.status_code, "are in no group" in words(answer.text)) == (403, True)
    assert "You cannot" in words((await jonas.get("/stop")).text)
    await bank.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    assert (await send(maya, "/stop", what="everything")).status_code in (401, 403)
    assert await goes_on(bank, robot)


async def test_a_rule_about_stopping_says_who(bank: World, folder: Payments, robot: Agent) -> None:
    where = 'permit (principal in Group::"legal", action == Action::"stop", resource)'
    folder.rules(f'@id("legal-stops") {where} when {{ resource.what == "tool" }};')
    await bank.activate()
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    assert (await send(maya, "/stop", what="tool", name="pay")).status_code == 403
    assert (await send(ingrid, "/stop", what="everything")).status_code == 403
    assert await goes_on(bank, robot)
    assert (await send(ingrid, "/stop", what="tool", name="pay")).status_code == 303
    assert not await goes_on(bank, robot)


NOT_A_STOP = {
    "without a reason": ({"what": "everything", "reason": "  "}, 400),
    "of nothing we know": ({"what": "universe"}, 400),
    "of everything by a name": ({"what": "everything", "name": "pay"}, 400),
    "of a tool without a name": ({"what": "tool"}, 400),
    "of a tool the bundle does not hold": ({"what": "tool", "name": "pya"}, 400),
    "of an agent nobody enrolled": ({"what": "agent", "name": "rob"}, 404),
    "with another session's token": ({"what": "everything", "csrf_token": "x" * 32}, 403),
    "with a field too many": ({"what": "everything", "by": "somebody"}, 400),
}


async def test_a_form_that_is_not_in_order_stops_nothing(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    for name, (form, status) in NOT_A_STOP.items():
        assert (await send(maya, "/stop", **form)).status_code == status, name
        assert await goes_on(bank, robot), name


async def test_a_link_neither_stops_nor_starts(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    for running in (True, False):
        for path in ("/stop", "/start-again"):
            await maya.get(f"{path}?what=everything&reason=x")
            assert await goes_on(bank, robot) is running
        await bank.operator("stop", {"tool": None, "reason": "look"})


async def test_a_stop_from_another_site_is_none(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    form = {"csrf_token": maya.csrf, "what": "everything", "reason": "x"}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        cookie = {"Cookie": f"countersign_dev={maya.cookie}"}
        answer = await maya.http.post("/stop", data=form, headers=cookie | headers)
        assert answer.status_code == 403
    assert await goes_on(bank, robot)


async def test_the_agents_page_tells_what_it_did_and_what_was_refused(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.policies(
        ANYBODY
        + LARGE
        + '@id("no-mail") @doc("We write no mail.") forbid (principal, action == Action::"mail", resource);'
    )
    await bank.activate()
    maya = await bank.person("maya")
    view = (await robot.submit(await pay(bank, 500), run_key="large")).json()
    await robot.submit(await mail(bank), run_key="mail")
    bank.clock.pass_(minutes=12)
    await maya.vote(view, "deny", reason="wrong customer")
    listed = words((await maya.get("/agents")).text)
    assert "robot" in listed and "nobody's" in listed
    text = words((await maya.get("/agents/robot")).text)
    assert "2 submissions" in text
    assert "12 min until people decide" in text
    assert "We write no mail." in text
    assert "Maya: wrong customer" in text
    assert "2 denied" in text
    assert (await maya.get("/agents/nobody")).status_code == 404


async def test_a_list_of_many_agents_takes_no_more_queries_than_one_of_few(bank: World) -> None:
    maya = await bank.person("maya")
    first = await bank.agent("agent-0")
    await first.submit(await pay(bank, 5))
    await caught_up(bank)
    with queries(bank) as few:
        assert (await maya.get("/agents")).status_code == 200
    for n in range(1, 12):
        await (await bank.agent(f"agent-{n}")).submit(await pay(bank, 5))
    await caught_up(bank)
    with queries(bank) as many:
        text = words((await maya.get("/agents")).text)
    assert "agent-11" in text
    assert len(many) == len(few), many


async def test_every_page_of_these_wants_a_session(bank: World) -> None:
    for path in ("/agents", "/agents/robot", "/audit", "/stop"):
        answer = await bank.http.get(path)
        assert (answer.status_code, answer.headers["location"].startswith("/sign-in")) == (303, True)
    assert (await bank.http.get("/audit/export.csv")).status_code == 401


# ------------------------------------------------------------------------------------------------------- the log


async def found(visitor: Visitor, query: str) -> list[str]:
    """The kinds on a page of the log, the newest first."""
    answer = await visitor.get(f"/audit?{query}")
    assert answer.status_code == 200, answer.text
    return re.findall(r'<a class="mono" href="/audit\?kind=[^"]+">([a-z_]+)</a>', answer.text)


async def test_the_log_is_searched_by_whatever_a_line_tells(bank: World, robot: Agent) -> None:
    other = await bank.agent("other")
    maya = await bank.person("maya")
    view = (await robot.submit(await pay(bank, 500))).json()
    await maya.vote(view)
    await other.submit(await pay(bank, 5))
    await bank.service.sequencer.number()
    effect = view["effects"][0]["effect_id"]
    of_effect = await found(maya, f"about={effect}")
    assert of_effect[-1] == "effect_submitted"
    assert {"vote_recorded", "effect_released"} <= set(of_effect)
    assert set(of_effect) < set(await found(maya, f"about={view['txn']}"))
    by_maya = await found(maya, f"person={person('maya')}")
    assert "vote_recorded" in by_maya and "effect_submitted" not in by_maya
    mine, others = await found(maya, "agent=robot"), await found(maya, "agent=other")
    assert "vote_recorded" in mine and "vote_recorded" not in others and "effect_submitted" in others
    assert set(await found(maya, "kind=vote_recorded&agent=robot")) == {"vote_recorded"}
    assert await found(maya, "kind=vote_recorded&agent=other") == []
    assert await found(maya, "agent=nobody") == []
    assert await found(maya, "since=2199-01-01T00:00") == []
    assert await found(maya, "until=2001-01-01") == []


async def test_a_page_leads_to_the_next_and_no_line_is_on_two(bank: World, robot: Agent) -> None:
    for n in range(20):
        await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}")
    await bank.service.sequencer.number()
    maya, seen, path = await bank.person("maya"), [], "/audit?agent=robot"
    while path:
        text = (await maya.get(path)).text
        seen += re.findall(r'<span class="mono muted">([\d,]+)</span>', text)
        following = re.search(r'href="(/audit\?agent=robot&amp;cursor=[0-9a-f]+)"', text)
        path = unescape(following.group(1)) if following else ""
    indexes = [int(index.replace(",", "")) for index in seen]
    assert len(indexes) > 50  # more than one page
    assert indexes == sorted(set(indexes), reverse=True)


async def test_what_is_rare_beside_much_is_looked_for_so_far_and_no_further(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_service.workflow.pages.searching.LOOKED_THROUGH", 10)
    view = (await robot.submit(await pay(bank, 500), run_key="first")).json()
    maya = await bank.person("maya")
    await maya.vote(view)
    for n in range(5):
        await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}")
    await bank.service.sequencer.number()
    kinds, path, pages = [], "/audit?agent=robot&kind=vote_recorded", 0
    while path:
        text, pages = (await maya.get(path)).text, pages + 1
        kinds += re.findall(r'<a class="mono" href="/audit\?kind=[^"]+">([a-z_]+)</a>', text)
        assert ("Looked back to" in text) is ("Look further back" in text)
        following = re.search(r'href="(/audit\?[^"]*cursor=[0-9a-f]+)"', text)
        path = unescape(following.group(1)) if following else ""
    assert kinds == ["vote_recorded"]
    assert pages > 2


async def test_a_question_that_is_none_is_refused(bank: World) -> None:
    maya = await bank.person("maya")
    for query in (
        "cursor=x%27",
        f"cursor={'a' * 31}",
        "since=soon",
        "until=9999-12-31",
        f"agent={'a' * 501}",
    ):
        assert (await maya.get(f"/audit?{query}")).status_code == 400, query


async def test_the_log_leaves_as_json_lines_and_as_a_table(bank: World, robot: Agent) -> None:
    await robot.submit(await pay(bank, 5))
    await bank.service.sequencer.number()
    maya = await bank.person("maya")
    lines = (await maya.get("/audit/export.jsonl?agent=robot")).text.splitlines()
    rows = list(csv.DictReader(io.StringIO((await maya.get("/audit/export.csv?agent=robot")).text)))
    assert [json.loads(line)["index"] for line in lines] == [int(row["index"]) for row in rows]
    assert [json.loads(line)["record"] for line in lines] == [json.loads(row["record"]) for row in rows]
    assert {row["agent"] for row in rows} == {"robot"}
    assert len(rows) > 3
    assert (await maya.get("/audit/export.xlsx")).status_code == 404
