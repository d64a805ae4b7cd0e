"""The emergency stop by people and the pages of agents, of the log and of the policies, over the real service."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from sqlalchemy import func, select

from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import DecisionRow
from policy_service.workflow.shadow import comparison
from tests.fakes.pages import holds, words
from tests.fakes.payments import ANYBODY, LARGE, Payments, person, plain_forbid
from tests.fakes.repository import Repository
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import Holder
from tests.integration.service.test_pages_of_reviews import caught_up, queries

pytestmark = pytest.mark.anyio

LEGAL_STARTS = (
    '@id("legal-starts") permit (principal in Group::"legal", action == Action::"start_again", resource);\n'
)


async def send(visitor: Visitor, path: str, **fields: str) -> httpx2.Response:
    """Send a form as its page would."""
    return await Holder(visitor).send(path, **({"reason": "it goes out twice"} | fields))


async def goes_on(bank: World, robot: Agent) -> bool:
    """Whether the agent may still submit."""
    answer = await robot.submit(await pay(bank, 5), run_key=uuid4().hex)
    assert answer.status_code == 201 or answer.json()["code"] == "frozen", answer.text
    return answer.status_code == 201


async def test_whoever_a_gate_asks_stops_it_at_once(bank: World, folder: Payments, robot: Agent) -> None:
    folder.rules(LEGAL_STARTS)
    await bank.activate()
    ready = (await robot.submit(await pay(bank, 5))).json()
    tokens = (await robot.release(ready)).json()["releases"]
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    stops = ({"what": "agent", "name": "robot"}, {"what": "tool", "name": "pay"}, {"what": "everything"})
    for stop in stops:
        assert (await send(maya, "/stop", **stop)).status_code == 303
        answers = [
            await robot.submit(await pay(bank, 6), run_key="next"),
            await robot.release(ready),
            await robot.redeem(tokens),
        ]
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "frozen")] * 3
        for path in ("/", "/tasks", "/policies", "/agents", "/agents/robot", "/audit", "/stop"):
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
    rows = (await maya.get("/v1/audit?limit=500")).json()["rows"]
    kinds = {"stop_began", "stop_ended", "agent_frozen", "agent_unfrozen"}
    told = [(row["actor"]["id"], row["body"]["reason"]) for row in rows if row["kind"] in kinds]
    assert told == [(person("maya"), "it goes out twice"), (person("ingrid"), "it goes out twice")] * 3


NO_STOPS: list[tuple[dict[str, str], int]] = [
    ({"what": "everything", "reason": "  "}, 400),
    ({"what": "universe"}, 400),
    ({"what": "everything", "name": "pay"}, 400),
    ({"what": "tool"}, 400),
    ({"what": "tool", "name": "pya"}, 400),  # the bundle does not hold it
    ({"what": "agent", "name": "rob"}, 404),  # nobody enrolled it
    ({"what": "everything", "csrf_token": "x" * 32}, 403),
    ({"what": "everything", "by": "somebody"}, 400),
]


async def test_a_form_that_is_not_in_order_stops_nothing(bank: World, robot: Agent, maya: Visitor) -> None:
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


async def test_who_may_not_stops_and_starts_nothing(bank: World, robot: Agent) -> None:
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
    await bank.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    assert (await send(maya, "/stop", what="everything")).status_code in (401, 403)
    assert await goes_on(bank, robot)


async def test_a_rule_about_stopping_says_who(bank: World, folder: Payments, robot: Agent) -> None:
    where = 'permit (principal in Group::"legal", action == Action::"stop", resource)'
    folder.rules(f'@id("legal-stops") {where} when {{ resource.what == "tool" }};')
    await bank.activate()
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    tool = {"what": "tool", "name": "pay"}
    for visitor, stop, status in (
        (maya, tool, 403),
        (ingrid, {"what": "everything"}, 403),
        (ingrid, tool, 303),
    ):
        assert (await send(visitor, "/stop", **stop)).status_code == status
        assert await goes_on(bank, robot) is (status == 403)


async def test_the_agents_pages_tell_what_was_done(bank: World, robot: Agent, folder: Payments) -> None:
    for path in ("/agents", "/agents/robot", "/audit", "/stop"):
        answer = await bank.http.get(path)
        assert (answer.status_code, answer.headers["location"].startswith("/sign-in")) == (303, True)
    assert (await bank.http.get("/audit/export.csv")).status_code == 401
    no_mail = (
        '@id("no-mail") @doc("We write no mail.") forbid (principal, action == Action::"mail", resource);'
    )
    folder.policies(ANYBODY + LARGE + no_mail)
    await bank.activate()
    maya = await bank.person("maya")
    view = (await robot.submit(await pay(bank, 500), run_key="large")).json()
    await robot.submit(await mail(bank), run_key="mail")
    bank.clock.pass_(minutes=12)
    await maya.vote(view, "deny", reason="wrong customer")
    holds(words((await maya.get("/agents")).text), "robot", "no owner")
    holds(
        words((await maya.get("/agents/robot")).text), "2 submissions", "12 min until people decide",
        "We write no mail.", "Maya: wrong customer", "2 denied",
    )  # fmt: skip
    assert (await maya.get("/agents/nobody")).status_code == 404
    await caught_up(bank)
    with queries(bank) as few:
        assert (await maya.get("/agents")).status_code == 200
    for n in range(6):
        await (await bank.agent(f"agent-{n}")).submit(await pay(bank, 5))
    await caught_up(bank)
    with queries(bank) as many:
        holds(words((await maya.get("/agents")).text), "agent-5")
    assert len(many) == len(few), many


# ------------------------------------------------------------------------------------------------------- the log


async def found(visitor: Visitor, query: str) -> list[str]:
    """The kinds on a page of the log, the newest first."""
    answer = await visitor.get(f"/audit?{query}")
    assert answer.status_code == 200, answer.text
    return re.findall(r'<a class="mono" href="/audit\?kind=[^"]+">([a-z_]+)</a>', answer.text)


async def test_the_log_is_searched_by_whatever_a_line_tells(bank: World, robot: Agent) -> None:
    other, maya = await bank.agent("other"), await bank.person("maya")
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
    mine, others = await found(maya, "agent=robot"), await found(maya, "agent=other")
    assert "vote_recorded" in mine and "vote_recorded" not in others and "effect_submitted" in others
    assert set(await found(maya, "kind=vote_recorded&agent=robot")) == {"vote_recorded"}
    for nothing in ("kind=vote_recorded&agent=other", "since=2199-01-01T00:00", "until=2001-01-01"):
        assert await found(maya, nothing) == [], nothing
    wrong = (f"cursor={'a' * 31}", "since=soon", "until=9999-12-31", f"agent={'a' * 501}")
    for query in ("cursor=x%27", *wrong):
        assert (await maya.get(f"/audit?{query}")).status_code == 400, query
    lines: list[Any] = [
        json.loads(line) for line in (await maya.get("/audit/export.jsonl?agent=robot")).text.splitlines()
    ]
    rows = list(csv.DictReader(io.StringIO((await maya.get("/audit/export.csv?agent=robot")).text)))
    exported = [(line["index"], line["record"]) for line in lines]
    assert exported == [(int(row["index"]), json.loads(row["record"])) for row in rows]
    assert {row["agent"] for row in rows} == {"robot"} and len(rows) > 3
    assert (await maya.get("/audit/export.xlsx")).status_code == 404


async def pages(visitor: Visitor, path: str) -> list[str]:
    """The pages from that one on, as each leads to the next."""
    texts = []
    while path:
        texts.append((await visitor.get(path)).text)
        following = re.search(r'href="(/audit\?[^"]*cursor=[0-9a-f]+)"', texts[-1])
        path = unescape(following.group(1)) if following else ""
    return texts


async def test_a_page_of_the_log_looks_far(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    maya = await bank.person("maya")
    await maya.vote((await robot.submit(await pay(bank, 500), run_key="first")).json())
    for n in range(16):
        await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}")
    await bank.service.sequencer.number()
    texts = await pages(maya, "/audit?agent=robot")
    seen = re.findall(r'<span class="mono muted">([\d,]+)</span>', "".join(texts))
    indexes = [int(index.replace(",", "")) for index in seen]
    assert len(texts) > 1 and indexes == sorted(set(indexes), reverse=True)  # no line is on two
    monkeypatch.setattr("policy_service.queries.audit_log.MAX_SEARCHED", 10)
    texts = await pages(maya, "/audit?agent=robot&kind=vote_recorded")  # rare beside much
    assert "".join(texts).count('href="/audit?kind=vote_recorded') == 1 and len(texts) > 2
    assert all(("Searched back to" in text) is ("Search further back" in text) for text in texts)


async def text_of(visitor: Visitor) -> str:
    return words((await visitor.get("/policies")).text)


async def attempt(maya: Visitor, **changes: str) -> tuple[int, str]:
    """Send the form as the page would."""
    fields = {"agent": "robot", "tool": "pay", "args": '{"account": "a1", "amount": 500}'} | changes
    answer = await Holder(maya).send("/policies/try", **fields)
    return answer.status_code, words(answer.text)


def rows_written(conn: Any) -> list[int]:
    counts = [select(func.count()).select_from(table(model)) for model in (DecisionRow, AuditRow)]
    return [conn.execute(count).scalar_one() for count in counts]


async def test_the_page_says_what_is_in_force(bank: World, robot: Agent, folder: Payments) -> None:
    for n in range(3):
        await robot.submit(await pay(bank, 500), run_key=f"run-{n}")
    text = await text_of(await bank.person("maya"))
    holds(text, bank.service.active.current.commit, "3 decisions in 7 days")
    assert re.search(r"large rules.cedar, line 2 gate finance 3 none", text)
    assert re.search(r"huge rules.cedar, line \d+ gate 2 of finance not lately", text)
    bank.clock.pass_(days=8)
    holds(await text_of(await bank.person("maya")), "0 decisions in 7 days")
    folder.rules('@id("who") permit (principal, action == Action::"approve", resource);\n')
    await bank.activate()
    about_people = r"who rules.cedar, line \d+ who may approve no approval"
    assert re.search(about_people, await text_of(await bank.person("maya")))


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({"agent": "nobody"}, 404, "No agent 'nobody' is enrolled here"),
    ({"args": "[1]"}, 400, "effects/0/args"),
    ({"args": '{"account": "a1", "amount": 1.5e400}'}, 400, "not valid JSON"),
    ({"tool": "x" * 201}, 400, "effects/0/tool"),
]


async def test_a_trial_is_not_recorded(bank: World, robot: Agent, folder: Payments, maya: Visitor) -> None:
    before = await bank.service.db.read(rows_written)
    status, text = await attempt(maya)
    assert status == 200
    holds(text, "Review, approval needed Asks 1 of finance.")
    holds((await attempt(maya, args='{"account": "a1", "amount": 5}'))[1], "Release, no approval needed")
    holds(
        (await attempt(maya, tool="gone"))[1],
        "the active bundle holds no tool 'gone'",
        "countersign tools export",
    )
    for changes, status, said in REFUSED:
        found, text = await attempt(maya, **changes)
        assert (found, said.lower() in text.lower()) == (status, True), text
    assert await bank.service.db.read(rows_written) == before
    folder.policies(ANYBODY + plain_forbid("stop"))
    await bank.activate()
    holds((await attempt(maya))[1], "Deny stop says no")


async def test_the_shadow_is_on_the_page(tmp_path: Path, folder: Payments) -> None:
    candidate = Payments(tmp_path / "candidate")
    candidate.policies(ANYBODY)
    async with running(tmp_path / "data", folder.path, shadow_dir=candidate.path) as bank:
        ctx = bank.service.ctx
        assert ctx.candidate is not None
        await comparison.shadow_new_decisions(ctx, ctx.candidate, "one")
        robot = await bank.agent("robot")
        await robot.submit(await pay(bank, 500))
        await bank.service.sequencer.number()
        await comparison.shadow_new_decisions(ctx, ctx.candidate, "one")
        text = await text_of(await bank.person("maya"))
    holds(
        text,
        "0 the same 0 stricter 1 looser 0 ask others",
        "pay robot review by 1 of finance release, looser large",
    )


async def test_commits_that_came_and_were_refused_are_told(tmp_path: Path) -> None:
    folder = Payments(tmp_path / "rules")
    repository = Repository(folder.path)
    first = repository.commit("Ask finance\n\nfrom 100 on")
    given = {"policies_repository": str(folder.path), "policies_poll_s": 3600}
    async with running(tmp_path / "data", tmp_path / "none", **given) as bank:
        folder.policies(ANYBODY + '@id("x") @aproval("finance")\nforbid (principal, action, resource);\n')
        bad = repository.commit("A slip\n\nnobody reads on")
        await bank.activate()
        maya = await bank.person("maya")
        text = await text_of(maya)
        shutil.rmtree(tmp_path / "data" / "policies.git")
        without = await text_of(maya)
    by = "Maya <maya@example.com>"
    holds(text, f"Ask finance {by}, ", without=["from 100 on", "nobody reads on"])
    assert re.search(f"{bad[:4]} .{{,40}}refused A slip {by} does not load: rules.cedar:2", text)
    assert re.search(f"{first[:4]} .{{,40}}in force Ask finance {by} ", text)
    assert re.search(f"{bad[:4]} .{{,40}}refused does not load: rules.cedar:2", without)


async def test_the_cases_of_the_rules_are_counted(bank: World, folder: Payments, maya: Visitor) -> None:
    holds(await text_of(maya), "0 cases: nothing holds these rules")
    case = "agents: { robot: { name: robot } }\ncases:\n  - it: a large payment asks\n    agent: robot\n    tool: pay\n"
    case += "    args: { account: a1, amount: 500 }\n    expect: review\n"
    for cases, told in (
        (case + "    needs: { finance: 1 }\n", "1 cases, all pass"),
        (case + "    needs: { cfo: 1 }\n", "1 cases, 1 do not hold"),
        ("cases: [", "cases cannot be read: cases/pay.yaml:"),
    ):
        folder.write("cases/pay.yaml", cases)
        await bank.activate()
        text = await text_of(maya)
        holds(text, told)
        assert "all pass" not in told or re.search(
            r"large rules.cedar, line 2 gate finance not lately 1 ", text
        )
