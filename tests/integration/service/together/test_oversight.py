"""The emergency stop by people, and the pages of agents and of the audit log."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from uuid import uuid4

import httpx2
import pytest

from policy_service.audit.log import highest_index
from tests.fakes.pages import holds, words
from tests.fakes.payments import ANYBODY, LARGE, person, plain_forbid
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import Holder
from tests.integration.service.test_pages_of_reviews import caught_up, queries
from tests.integration.service.together.bank import Bank

LEGAL_STARTS = (
    '@id("legal-starts") permit (principal in Group::"legal", action == Action::"start_again", resource);\n'
)


async def send(visitor: Visitor, path: str, **fields: str) -> httpx2.Response:
    """Send a form as its page would."""
    return await Holder(visitor).send(path, **({"reason": "it goes out twice"} | fields))


async def goes_on(bank: Bank, robot: Agent) -> bool:
    """Whether the agent may still submit."""
    answer = await robot.submit(await pay(bank, 5), run_key=uuid4().hex)
    assert answer.status_code == 201 or answer.json()["code"] == "frozen", answer.text
    return answer.status_code == 201


async def test_people_of_a_gate_may_stop(bank: Bank, robot: Agent) -> None:
    await bank.rules(LEGAL_STARTS)
    await bank.service.sequencer.number()
    before = await bank.service.db.read(highest_index)
    ready = (await robot.submit(await pay(bank, 5))).json()
    tokens = (await robot.release(ready)).json()["releases"]
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    stops = ({"what": "agent", "name": robot.name}, {"what": "tool", "name": "pay"}, {"what": "everything"})
    for stop in stops:
        assert (await send(maya, "/stop", **stop)).status_code == 303
        submitted = await robot.submit(await pay(bank, 6), run_key="next")
        answers = [submitted, await robot.release(ready), await robot.redeem(tokens)]
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "frozen")] * 3
        for path in ("/", "/tasks", "/policies", "/agents", f"/agents/{robot.name}", "/audit", "/stop"):
            text = words((await ingrid.get(path)).text).replace("Maya :", "Maya:")
            holds(text, "by Maya: “it goes out twice”")
        refused = await send(maya, "/start-again", **stop)
        assert refused.status_code == 403
        holds(words(refused.text).lower(), "no policy permits you to start again")
        assert not await goes_on(bank, robot)
        assert (await send(ingrid, "/start-again", **stop)).status_code == 303
        assert await goes_on(bank, robot)
    assert (await robot.redeem(tokens)).status_code == 200
    holds(words((await maya.get("/")).text), without=["Stopped:"])
    await bank.service.sequencer.number()
    rows = (await maya.get(f"/v1/audit?after={before}&limit=500")).json()["rows"]
    kinds = {"stop_began", "stop_ended", "agent_frozen", "agent_unfrozen"}
    logged = [(row["actor"]["id"], row["body"]["reason"]) for row in rows if row["kind"] in kinds]
    assert logged == [(person("maya"), "it goes out twice"), (person("ingrid"), "it goes out twice")] * 3


NO_STOPS: list[tuple[dict[str, str], int]] = [
    ({"what": "everything", "reason": "  "}, 400),
    ({"what": "universe"}, 400),
    ({"what": "everything", "name": "pay"}, 400),
    ({"what": "tool"}, 400),
    ({"what": "tool", "name": "pya"}, 400),  # the bundle does not hold it
    ({"what": "agent", "name": "rob"}, 404),  # it is not enrolled
    ({"what": "everything", "csrf_token": "x" * 32}, 403),
    ({"what": "everything", "by": "somebody"}, 400),
]


async def test_a_form_that_is_not_in_order_stops_nothing(bank: Bank, robot: Agent, maya: Visitor) -> None:
    for form, status in NO_STOPS:
        assert (await send(maya, "/stop", **form)).status_code == status, form
    cookie = {"Cookie": f"countersign_dev={maya.cookie}"}
    data = {"csrf_token": maya.csrf, "what": "everything", "reason": "x"}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await maya.http.post("/stop", data=data, headers=cookie | headers)).status_code == 403
    for may in (True, False):  # neither does a link, and none starts again
        for path in ("/stop", "/start-again"):
            await maya.get(f"{path}?what=everything&reason=x")
            assert await goes_on(bank, robot) is may
        await bank.operator("stop", {"tool": None, "reason": "look"})
    await bank.operator("go-on", {"tool": None})


async def test_who_may_not_stops_and_starts_nothing(bank: Bank, robot: Agent) -> None:
    jonas, maya = await bank.person("jonas"), await bank.person("maya")
    answer = await send(jonas, "/stop", what="everything")
    assert answer.status_code == 403
    holds(words(answer.text), "are in no group")
    holds(words((await jonas.get("/stop")).text), "You cannot")
    assert await goes_on(bank, robot)
    assert (await send(maya, "/stop", what="everything")).status_code == 303
    answer = await send(maya, "/start-again", what="everything")  # no rule names anybody
    assert answer.status_code == 403
    holds(words(answer.text), "No policy names who may start it again")
    assert not await goes_on(bank, robot)
    await bank.operator("go-on", {"tool": None})
    assert await goes_on(bank, robot)
    async with bank.revoked("maya"):
        assert (await send(maya, "/stop", what="everything")).status_code in (401, 403)
    assert await goes_on(bank, robot)


async def test_a_rule_about_stopping_says_who(bank: Bank, robot: Agent) -> None:
    where = 'permit (principal in Group::"legal", action == Action::"stop", resource)'
    await bank.rules(f'@id("legal-stops") {where} when {{ resource.what == "tool" }};')
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    tool = {"what": "tool", "name": "pay"}
    everything = {"what": "everything"}
    for visitor, stop, status in ((maya, tool, 403), (ingrid, everything, 403), (ingrid, tool, 303)):
        assert (await send(visitor, "/stop", **stop)).status_code == status
        assert await goes_on(bank, robot) is (status == 403)
    await bank.operator("go-on", {"tool": "pay"})


async def test_the_pages_of_agents(bank: Bank, robot: Agent, maya: Visitor) -> None:
    for path in ("/agents", f"/agents/{robot.name}", "/audit", "/stop"):
        answer = await bank.http.get(path)
        assert (answer.status_code, answer.headers["location"].startswith("/sign-in")) == (303, True)
    assert (await bank.http.get("/audit/export.csv")).status_code == 401
    await bank.policies(ANYBODY + LARGE + plain_forbid("no-mail", action="mail"))
    view = (await robot.submit(await pay(bank, 500), run_key="large")).json()
    await robot.submit(await mail(bank), run_key="mail")
    bank.clock.pass_(minutes=12)
    await maya.vote(view, "deny", reason="wrong customer")
    holds(words((await maya.get("/agents")).text), robot.name, "no owner")
    holds(
        words((await maya.get(f"/agents/{robot.name}")).text), "2 submissions", "12 min until people decide",
        "no-mail says no", "Maya: wrong customer", "2 denied",
    )  # fmt: skip
    assert (await maya.get("/agents/unknown")).status_code == 404
    await caught_up(bank)
    with queries(bank) as few:
        assert (await maya.get("/agents")).status_code == 200
    for n in range(6):
        await (await bank.other_agent(str(n))).submit(await pay(bank, 5))
    await caught_up(bank)
    with queries(bank) as many:
        holds(words((await maya.get("/agents")).text), f"{robot.name}-5")
    assert len(many) == len(few), many


# ------------------------------------------------------------------------------------------------------- the log


async def found(visitor: Visitor, query: str) -> list[str]:
    """The kinds on a page of the log, the newest first."""
    answer = await visitor.get(f"/audit?{query}")
    assert answer.status_code == 200, answer.text
    return re.findall(r'<a class="mono" href="/audit\?kind=[^"]+">([a-z_]+)</a>', answer.text)


async def test_the_log_is_searched(bank: Bank, robot: Agent) -> None:
    other, maya = await bank.other_agent(), await bank.person("maya")
    view = (await robot.submit(await pay(bank, 500))).json()
    await maya.vote(view)
    await other.submit(await pay(bank, 5))
    await bank.service.sequencer.number()
    of_effect = await found(maya, f"about={view['effects'][0]['effect_id']}")
    assert of_effect[-1] == "effect_submitted"
    of_txn = await found(maya, f"about={view['txn']}")
    assert {"vote_recorded", "effect_released"} <= set(of_effect) < set(of_txn)
    by_maya = await found(maya, f"person={person('maya')}")
    assert "vote_recorded" in by_maya and "effect_submitted" not in by_maya
    mine, others = await found(maya, f"agent={robot.name}"), await found(maya, f"agent={other.name}")
    assert "vote_recorded" in mine and "vote_recorded" not in others and "effect_submitted" in others
    assert set(await found(maya, f"kind=vote_recorded&agent={robot.name}")) == {"vote_recorded"}
    for nothing in (f"kind=vote_recorded&agent={other.name}", "since=2199-01-01T00:00", "until=2001-01-01"):
        assert await found(maya, nothing) == [], nothing
    wrong = (f"cursor={'a' * 31}", "since=soon", "until=9999-12-31", f"agent={'a' * 501}")
    for query in ("cursor=x%27", *wrong):
        assert (await maya.get(f"/audit?{query}")).status_code == 400, query
    text = (await maya.get(f"/audit/export.jsonl?agent={robot.name}")).text
    lines = [json.loads(line) for line in text.splitlines()]
    rows = list(csv.DictReader(io.StringIO((await maya.get(f"/audit/export.csv?agent={robot.name}")).text)))
    exported = [(line["index"], line["record"]) for line in lines]
    assert exported == [(int(row["index"]), json.loads(row["record"])) for row in rows]
    assert {row["agent"] for row in rows} == {robot.name} and len(rows) > 3
    assert (await maya.get("/audit/export.xlsx")).status_code == 404


async def pages(visitor: Visitor, path: str) -> list[str]:
    """The pages from that one on, as each leads to the next."""
    texts = []
    while path:
        texts.append((await visitor.get(path)).text)
        following = re.search(r'href="(/audit\?[^"]*cursor=[0-9a-f]+)"', texts[-1])
        path = unescape(following.group(1)) if following else ""
    return texts


async def test_a_page_of_the_log_looks_far(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    maya = await bank.person("maya")
    await maya.vote((await robot.submit(await pay(bank, 500), run_key="first")).json())
    for n in range(16):
        await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}")
    await bank.service.sequencer.number()
    texts = await pages(maya, f"/audit?agent={robot.name}")
    seen = re.findall(r'<span class="mono muted">([\d,]+)</span>', "".join(texts))
    indexes = [int(index.replace(",", "")) for index in seen]
    assert len(texts) > 1 and indexes == sorted(set(indexes), reverse=True)  # no line is on two
    monkeypatch.setattr("policy_service.queries.audit_log.MAX_SEARCHED", 10)
    texts = await pages(maya, f"/audit?agent={robot.name}&kind=vote_recorded")  # rare among many
    assert "".join(texts).count('href="/audit?kind=vote_recorded') == 1 and len(texts) > 2
    assert all(("Searched back to" in text) is ("Search further back" in text) for text in texts)
