"""How a transaction ends unfired, how waiting requests learn of it, reminders and escalation."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import select, text

from countersign.contract import ErrorCode
from countersign.contract import digests as names
from policy_service.audit.feed import transaction_topic
from policy_service.queries import vote_eligibility as eligible
from policy_service.storage.core import table
from policy_service.storage.system_tables import OutboxRow
from policy_service.workflow.expiry import sweep
from policy_service.workflow.reviews import unsatisfiable
from tests.fakes.payments import GROUPS, gate, person
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, counting, refusal
from tests.integration.service.together.test_outcomes import redeemed, report_outcomes


async def test_a_review_is_open_until_its_deadline(bank: Bank) -> None:
    await bank.only(gate("quick", "finance", answer_within="10m"), gate("slow", "legal", answer_within="1h"))
    view = await bank.asks(10)
    answer_by = moment(view["effects"][0]["review"]["answer_by"])
    assert answer_by - moment(view["submitted_at"]) == timedelta(minutes=10), "the shortest time of all gates"
    for milliseconds, state in ((-1, "review"), (0, "ended"), (1, "ended")):
        bank.clock.stop_at(answer_by + timedelta(milliseconds=milliseconds))
        assert (await ends(bank, view))[0] == state


async def test_an_expired_review_refuses_votes_before_any_sweep(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500), await pay(bank))).json()
    bank.clock.pass_(hours=24)
    answer = (await (await bank.person("maya")).vote(view)).json()
    assert answer["state"] == "expired" and answer["votes"][0]["counted"] is False
    assert await ends(bank, view) == ["ended", "expired", "withdrawn"]
    first, second = await reasons(bank, view)
    assert first[-1][0] == "expired"
    assert second == [("sibling", "another effect of its transaction expired")]
    denied = (await bank.robot.submit(await pay(bank, 500), await mail(bank), run_key="r2")).json()
    await (await bank.person("maya")).vote(denied, "deny", reason="no")
    sibling = [("sibling", "another effect of its transaction was denied")]
    assert (await reasons(bank, denied))[1] == sibling


async def test_releases_are_valid_for_an_hour_unless_a_gate_shortens_it(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank), await mail(bank))).json()
    valid_until = moment(view["valid_until"])
    assert valid_until - moment(view["submitted_at"]) == timedelta(hours=1)
    for milliseconds, state in ((-1, "ready"), (0, "ended")):
        bank.clock.stop_at(valid_until + timedelta(milliseconds=milliseconds))
        assert (await ends(bank, view))[0] == state


async def test_the_validity_of_releases_starts_when_all_are_ready(bank: Bank) -> None:
    await bank.only(gate("slow", "finance", valid_for="5m"))
    view = (await bank.robot.submit(await mail(bank), await pay(bank))).json()
    bank.clock.pass_(hours=3)
    await (await bank.person("maya")).vote(view, effect=1)
    ready = await bank.robot.see(view["txn"])
    assert ready["state"] == "ready"
    assert moment(ready["valid_until"]) - bank.clock() < timedelta(minutes=5)
    bank.clock.pass_(minutes=5)
    for answer in (await bank.robot.release(ready), await bank.robot.release(ready)):
        assert answer.json().get("releases", []) == []
    assert await ends(bank, ready) == ["ended", "expired", "withdrawn"]


async def test_expired_releases_are_refused_before_any_sweep(bank: Bank) -> None:
    await bank.only(gate("slow", "finance", valid_for="1m"))
    view = await bank.asks(10)
    await bank.maya.vote(view)
    bank.clock.stop_at(bank.clock())
    ready, tokens = await bank.robot.see(view["txn"]), await bank.tokens(view)
    bank.clock.stop_at(moment(ready["valid_until"]))
    assert (await bank.robot.redeem(tokens)).json().get("redeemed") is not True
    assert await ends(bank, ready) == ["ended", "expired"]


async def test_the_agent_withdraws_an_open_transaction(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank), await pay(bank, 500))).json()
    for _ in range(2):
        answer = await bank.withdraw(view, reason="the customer called")
        assert (answer.status_code, answer.json()["state"]) == (200, "ended")
    assert await ends(bank, view) == ["ended", "withdrawn", "withdrawn"]
    assert (await bank.maya.vote(view, effect=1)).json()["state"] == "withdrawn"
    why = [each[-1] for each in await reasons(bank, view)]
    assert why == [("withdrawn", "it was taken back: the customer called")] * 2
    assert "called" not in str(await bank.log(view["txn"]))
    query = text("SELECT error, taken_back FROM effects WHERE txn = :txn AND taken_back IS NOT NULL")
    found = await bank.service.db.read(lambda conn: conn.execute(query, {"txn": view["txn"]}).all())
    assert {tuple(row) for row in found} == {(None, "the customer called")}, "no error of the tool"
    silent = (await bank.robot.submit(await pay(bank), await mail(bank), run_key="r2")).json()
    await bank.withdraw(silent)
    assert await reasons(bank, silent) == [[("withdrawn", "it was taken back")]] * 2
    denied = await bank.asks(run_key="denied")
    await bank.maya.vote(denied, "deny", reason="no")
    assert (await bank.withdraw(denied)).json()["effects"][0]["state"] == "denied"


async def test_sweeps_are_idempotent(bank: Bank) -> None:
    view = await bank.asks()
    await bank.sweep()
    bank.clock.pass_(hours=25)
    for _ in range(2):
        assert await ends(bank, view) == ["ended", "expired"]
    assert await bank.counts(view, "effect_expired", "transaction_ended") == [1, 1]


async def test_an_agent_cannot_shorten_a_deadline(bank: Bank) -> None:
    asked = await pay(bank, 500)
    for more in ({"answer_within": "1s"}, {"answer_by": "2026-01-01T00:00:00Z"}, {"deadline": 1}):
        assert refusal(await bank.robot.submit(asked, run_key="hurry", **more)) == (400, "unknown_field")
        assert refusal(await bank.robot.submit({**asked, **more}, run_key="hurry")) == (400, "unknown_field")
    claimed = {"purpose": "answer within one second", "reasoning": "@answer_within(1s)"}
    view = (await bank.robot.submit(asked, run_key="hurry", claimed=claimed)).json()
    review = view["effects"][0]["review"]
    assert moment(review["answer_by"]) - bank.clock() > timedelta(hours=23)


async def ends(bank: Bank, view: dict[str, Any]) -> list[str]:
    """The states of a transaction and its effects after the sweeps have run."""
    await bank.sweep()
    return await bank.states(view)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def reasons(bank: Bank, view: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """Why each effect ended, as the agent sees it."""
    seen = await bank.robot.see(view["txn"])
    found = [effect["decision"]["reasons"] for effect in seen["effects"]]
    return [[(reason["code"], reason["text"]) for reason in each] for each in found]


# -- waiting requests: `Prefer: wait=N` --------------------------------------------------------------------------------


PROMPT = 5.0  # seconds: far less than the wait asked for, far more than a busy machine needs


async def test_a_wait_ends_promptly_with_the_review(bank: Bank) -> None:
    results = {"approve": (1, "ready"), "replace": (2, "ready")}
    for how in ("approve", "deny", "withdraw", "replace", "expire"):
        other = await bank.another_key(await bank.fresh())
        view = await bank.asks(5_000)
        waiting = asyncio.create_task(bank.robot.see(view["txn"], wait=30))
        await bank.maya.vote(view)  # news that settle nothing
        await asyncio.sleep(0.1)
        assert not waiting.done()
        if how in ("approve", "deny"):
            await bank.tomas.vote(view, how, reason="no")
        elif how == "withdraw":
            await other.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
        elif how == "replace":
            await other.submit(await pay(bank))
        else:
            bank.clock.pass_(hours=25)
            await bank.sweep()
        async with asyncio.timeout(PROMPT):
            seen = await waiting
        assert (seen["rev"], seen["state"]) == results.get(how, (1, "ended"))


async def test_a_submission_may_wait_too_and_its_repeat_joins_the_wait(bank: Bank) -> None:
    effect = await pay(bank, 500)
    await bank.robot.send("GET", "/v1/tools/pay")
    waits = [asyncio.create_task(bank.robot.submit(effect, wait=30, idempotency_key="k")) for _ in range(2)]
    txn = names.txn_id(agent=bank.robot.name, run_key="run-1")
    assert await bank.service.feed.wait_after(0, PROMPT, topic=transaction_topic(txn))
    listed = (await bank.maya.get("/v1/reviews?limit=200")).json()["reviews"]
    (found,) = [one for one in listed if one["txn"] == txn]
    assert not any(wait.done() for wait in waits)
    await bank.maya.vote({"rev": 1, "txn_digest": found["txn_digest"], "effects": [found["effect"]]})
    async with asyncio.timeout(PROMPT):
        answers = [await wait for wait in waits]
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert {answer.json()["state"] for answer in answers} == {"ready"}


async def test_a_wait_is_optional_and_limited(bank: Bank) -> None:
    view = await bank.asks()
    path = f"/v1/transactions/{view['txn']}"
    async with asyncio.timeout(PROMPT):
        for prefer in ("", "wait=0", "wait", "wait=x", "respond-async", "wait=-5", "handling=strict"):
            answer = await bank.robot.send("GET", path, headers={"Prefer": prefer})
            assert answer.json()["state"] == "review"
        released = await bank.robot.submit(await pay(bank), await mail(bank), run_key="released", wait=30)
        assert released.json()["state"] == "ready", "a transaction without a review does not wait"
    begun = time.monotonic()
    assert (await bank.robot.see(view["txn"], wait=1))["state"] == "review"
    assert 0.9 < time.monotonic() - begun < PROMPT


# ---------------------------------------------------------------------------------- coming back after a lost process


async def test_a_read_of_an_unsettled_transaction_can_wait_for_a_settlement(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await pay(bank, 20))
    await report_outcomes(bank.robot, (one, "unknown"), (two, "unknown"))
    (txn,) = bank.robot.txns
    for effect_id, state in ((one, "unsettled"), (two, "settled")):
        waiting = asyncio.create_task(bank.robot.see(txn, wait=30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        task = await bank.maya.task({"txn": txn}, "unknown", effect_id=effect_id)
        assert (await bank.maya.settle(task, "fired")).status_code == 200
        seen = await waiting
        assert seen["state"] == state
        (effect,) = [effect for effect in seen["effects"] if effect["effect_id"] == effect_id]
        assert (effect["state"], effect["settlements"][0]["name"]) == ("fired", "Maya")
    assert (await bank.robot.see(txn, wait=30))["state"] == "settled"  # nothing is left to wait for


async def test_an_agent_lists_its_transactions_by_page(bank: Bank) -> None:
    views = [await bank.asks(10 + n, run_key=f"step {n}") for n in range(5)]
    # another list: its revision 2
    await bank.robot.submit(await pay(bank, 12), await pay(bank, 13), run_key="step 2")
    await bank.withdraw(views[0])

    async def listed(query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = (await bank.robot.send("GET", f"/v1/transactions?limit=2{query}{cursor}")).json()
            found += page["transactions"]
            if "next" not in page:
                return found
            cursor = "&cursor=" + quote(page["next"])

    assert [one["run_key"] for one in await listed()] == ["step 2", "step 4", "step 3", "step 1", "step 0"]
    assert (await listed())[0]["rev"] == 2
    assert [one["txn"] for one in await listed("&state=ended")] == [views[0]["txn"]]
    assert {one["agent"] for one in await listed()} == {bank.robot.name}


async def test_a_party_lists_only_what_it_may_redeem(bank: Bank) -> None:
    other = await bank.other_agent()
    await bank.asks(10)
    assert (await other.send("GET", "/v1/transactions")).json()["transactions"] == []
    for query in ("cursor=x", "cursor=2026-01-01~a", "cursor=0001-01-01T00:00:00%2B23:59~a", "state=odd"):
        answer = await other.send("GET", f"/v1/transactions?{query}")
        assert refusal(answer) == (400, "invalid_request"), query


# -- Reminders and escalation: when and to which groups they are sent, what they cost, and that no quorum is lowered


async def after(bank: Bank, view: dict[str, Any], **time: float) -> None:
    """This long after a submission the sweeps run."""
    bank.clock.stop_at(opened(view) + timedelta(**time))
    await bank.sweep()


async def audit_bodies(
    bank: Bank, view: dict[str, Any], kind: str = "review_escalated"
) -> list[dict[str, Any]]:
    return [body for one, body in await bank.log(view["txn"]) if one == kind]


async def review(bank: Bank, view: dict[str, Any]) -> Any:
    return (await bank.robot.see(view["txn"]))["effects"][0]["review"]


async def vote(bank: Bank, name: str, view: dict[str, Any], verdict: str = "approve", **more: Any) -> int:
    """The status of a vote by a person who signs in now: sessions end while hours pass."""
    return (await (await bank.person(name)).vote(view, verdict, **more)).status_code


def opened(view: dict[str, Any]) -> datetime:
    return moment(view["submitted_at"])


# ------------------------------------------------------------------------------------------------------ reminders


async def test_reminders_are_sent_at_every_interval_until_the_review_settles(bank: Bank) -> None:
    await bank.only(gate("g", "finance", remind="1h", answer_within="8h"))
    view = await bank.asks()
    for minutes, reminders in ((0, 0), (59, 0), (60, 1), (61, 1), (119, 1), (120, 2), (180, 3)):
        await after(bank, view, minutes=minutes)
        await bank.sweep()
        assert len(await audit_bodies(bank, view, "review_reminded")) == reminders, minutes
    reminded = datetime.fromisoformat((await review(bank, view))["reminded_at"])
    assert reminded == opened(view) + timedelta(hours=3)
    await vote(bank, "maya", view)
    bank.clock.pass_(hours=2)
    await bank.sweep()
    assert len(await audit_bodies(bank, view, "review_reminded")) == 3
    box = table(OutboxRow).c
    rows = await bank.service.db.read(lambda conn: conn.execute(select(box.kind, box.payload)).all())
    mine = view["effects"][0]["review"]["review_id"]
    sent = [row.kind for row in rows if row.payload.get("review_id") == mine]
    assert sent.count("review_reminded") == 3


async def test_missed_intervals_are_one_reminder(bank: Bank) -> None:
    await bank.only(gate("g", "finance", remind="1h", answer_within="8h"))
    view = await bank.asks()
    for hours, reminders in ((5.5, 1), (5.9, 1), (6, 2), (7, 3)):
        await after(bank, view, hours=hours)
        assert len(await audit_bodies(bank, view, "review_reminded")) == reminders, hours
    await bank.only(gate("g", "finance", remind="1h", answer_within="90m", escalate="cfo"))
    view = await bank.asks(run_key="over")
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await sweep.send_reminders(bank.service.ctx)  # before the sweep that expires it
    assert (await bank.states(view))[0] == "ended"
    await bank.sweep()
    assert await audit_bodies(bank, view, "review_reminded") == await audit_bodies(bank, view) == []


# ----------------------------------------------------------------------------------------------------- escalation


async def test_a_review_escalates_at_half_of_its_time(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"board": ("jonas",)})
    await bank.only(gate("g", "finance", escalate="board|legal", answer_within="4h"))
    view = await bank.asks()
    await after(bank, view, minutes=119)
    assert await vote(bank, "jonas", view) == 403
    mine, jonas = view["effects"][0]["review"]["review_id"], await bank.person("jonas")
    assert mine not in (await jonas.get("/")).text, "under what needs him"
    await after(bank, view, minutes=120)
    await bank.sweep()
    assert await sweep.escalate_reviews(bank.service.ctx) == 0, "each gate once"
    assert mine in (await jonas.get("/")).text
    (body,) = await audit_bodies(bank, view)
    assert (body["groups"], body["gates"], body["why"]) == (["board", "legal"], ["finance"], "unanswered")
    seen = await review(bank, view)
    assert datetime.fromisoformat(seen["escalated_at"]) == opened(view) + timedelta(hours=2)
    (need,) = seen["needs"]
    assert (need["groups"], need["added"]) == (["board", "finance", "legal"], ["board", "legal"])
    assert await vote(bank, "jonas", view) == 200
    ready = await bank.robot.see(view["txn"])
    assert (await bank.robot.spend(ready))["redeemed"] is True, "the vote counts where it is spent, too"


async def test_escalation_adds_voters_and_keeps_the_quorum(bank: Bank) -> None:
    await bank.only(gate("g", "finance", quorum="2", escalate="legal", answer_within="4h"))
    view, other = await bank.asks(), await bank.asks(600, run_key="denied")
    await after(bank, other, hours=2)
    await vote(bank, "ingrid", view)
    (need,) = (await review(bank, view))["needs"]
    assert (need["quorum"], need["have"]) == (2, 1)
    await vote(bank, "maya", view)
    assert (await bank.states(view))[0] == "ready"
    await vote(bank, "ingrid", other, "deny", reason="no contract")
    assert (await bank.states(other))[0] == "ended"


async def test_merged_gates_escalate_only_to_common_groups(bank: Bank) -> None:
    named = {"a": "legal|cfo", "b": "cfo"}
    await bank.only(*(gate(n, "finance", escalate=e, answer_within="4h") for n, e in named.items()))
    view = await bank.asks()
    await after(bank, view, hours=2)
    assert (await audit_bodies(bank, view))[0]["groups"] == ["cfo"]
    assert await vote(bank, "ingrid", view) == 403
    first = gate("g", "finance", escalate="legal", answer_within="4h")
    await bank.only(first)
    view = await bank.asks(run_key="taken back")
    await after(bank, view, hours=2)
    await bank.only(first, gate("late", "finance", answer_within="8h"))
    assert await vote(bank, "ingrid", view) == 403
    await bank.only(gate("g", "finance", answer_within="4h"))
    view = await bank.asks(run_key="no further group")
    await after(bank, view, hours=3)
    assert (await audit_bodies(bank, view), "escalated_at" in await review(bank, view)) == ([], False)


async def test_a_late_gate_escalates_at_half_of_its_own_time(bank: Bank) -> None:
    first = gate("g", "finance", answer_within="10h")
    await bank.only(first)
    view = await bank.asks()
    bank.clock.stop_at(opened(view) + timedelta(hours=1))
    await bank.only(first, gate("late", "cfo", escalate="legal", answer_within="4h"))
    for hours, status in ((2.9, 403), (3, 200)):
        await after(bank, view, hours=hours)
        assert await vote(bank, "ingrid", view) == status, hours


# ------------------------------------------------------------------------------------- unsatisfiable reviews


async def test_an_unsatisfiable_review_escalates_with_the_submission(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"finance": ("maya",)})
    await bank.only(gate("g", "finance", quorum="2", escalate="legal"))
    view = await bank.asks()  # and no sweep runs
    (body,) = await audit_bodies(bank, view)
    assert (body["groups"], body["why"]) == (["legal"], "quorum")
    (need,) = view["effects"][0]["review"]["needs"]
    assert (need["quorum"], need["added"]) == (2, ["legal"])
    assert await bank.tasks() == []
    assert [await vote(bank, name, view) for name in ("maya", "ingrid")] == [200, 200]
    assert (await bank.states(view))[0] == "ready"
    await bank.only(gate("g", "legal", escalate="cfo"))
    async with bank.revoked("ingrid"):  # who then no longer counts
        view = await bank.asks(run_key="revoked")
    assert [entry["added"] for entry in view["effects"][0]["review"]["needs"]] == [["cfo"]]


async def test_an_unsatisfiable_review_is_reported_with_the_submission(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"finance": ("maya",)})
    await bank.only(gate("g", "finance", quorum="3", escalate="legal"))
    view, other = await bank.asks(), await bank.asks(run_key="left")
    seen = view["effects"][0]["review"]
    assert seen["needs"][0]["quorum"] == 3
    assert "finance or legal can give 2 of 3" in seen["unanswerable"]
    assert await bank.tasks() == ["impossible_quorum"] * 2
    await bank.maya.settle(await bank.maya.task(other, "impossible_quorum"), "left_waiting")
    assert "unanswerable" not in await review(bank, other), "what a person left waiting is no longer said"
    await bank.people(GROUPS | {"finance": ("maya", "tomas")})
    await bank.sweep()
    assert "unanswerable" not in await review(bank, view)
    assert await bank.tasks() == []


async def test_a_review_that_becomes_unsatisfiable_escalates_with_the_next_sweep(bank: Bank) -> None:
    await bank.only(gate("g", "finance", quorum="2", escalate="legal"))
    view = await bank.asks()
    assert await audit_bodies(bank, view) == []
    await bank.people(GROUPS | {"finance": ("maya",)})
    await bank.sweep()
    assert [body["why"] for body in await audit_bodies(bank, view)] == ["quorum"]
    assert await bank.tasks() == []


async def test_only_the_gate_that_is_short_escalates(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"finance": ()})
    await bank.only(gate("g", "finance", escalate="legal"), gate("h", "cfo", escalate="legal", shared=""))
    (body,) = await audit_bodies(bank, await bank.asks())
    assert body["gates"] == ["finance"]


@pytest.mark.parametrize("narrow_first", [True, False])
async def test_the_gate_that_can_escalate_does_if_two_share_one_voter(bank: Bank, narrow_first: bool) -> None:
    """Which of the two is short depends on where the voter is counted, so it must not matter."""
    bank.folder.people(GROUPS | {"finance": ("maya",), "cfo": ()})
    narrow, wide = gate("a", "finance", escalate="legal"), gate("b", "finance|cfo")
    await bank.only(*((narrow, wide) if narrow_first else (wide, narrow)))
    view = await bank.asks()
    assert await bank.tasks() == []
    assert [await vote(bank, name, view) for name in ("maya", "ingrid")] == [200, 200]
    assert (await bank.states(view))[0] == "ready"


async def asked(bank: Bank, robot: Agent, amount: int = 5_000) -> dict[str, Any]:
    """A payment in review by two people of finance."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    assert view["effects"][0]["state"] == "review"
    await bank.sweep()
    return view


async def too_few(bank: Bank, finance: tuple[str, ...] = ("maya",)) -> None:
    await bank.people(GROUPS | {"finance": finance})


async def swept(bank: Bank) -> list[str]:
    await bank.sweep()
    return await bank.tasks()


ONLY_CFO = '@id("only-cfo") permit (principal in Group::"cfo", action == Action::"approve", resource);'

POSSIBLE: list[tuple[list[str], str | None, int, list[str]]] = [
    ([], None, 5_000, []),
    ([], "maya", 5_000, ["impossible_quorum"]),  # one of two owns the agent
    ([gate("strict", "legal", step_up="passkey")], None, 10, ["impossible_quorum"]),  # which no one has
    ([ONLY_CFO], None, 5_000, ["impossible_quorum"]),
]


async def test_a_review_with_too_few_voters_is_a_task(bank: Bank) -> None:
    for row, (rules, owner, amount, tasks) in enumerate(POSSIBLE):
        await bank.rules(*rules)
        robot = await bank.agent(f"{bank.robot.name}-{row}", owner=owner and person(owner))
        await asked(bank, robot, amount)
        assert await bank.tasks(robot) == tasks


async def test_an_unsatisfiable_review_is_one_task_that_closes_by_itself(bank: Bank) -> None:
    await too_few(bank)
    view = await asked(bank, bank.robot)
    assert await swept(bank) == ["impossible_quorum"]
    task = await bank.maya.task(view, "impossible_quorum")
    assert task["task"]["text"] == "this review cannot be approved now: finance can give 1 of 2"
    await too_few(bank, ("maya", "jonas"))
    assert await swept(bank) == []
    await too_few(bank)
    assert await swept(bank) == ["impossible_quorum"]
    await bank.withdraw(view)
    assert refusal(await bank.maya.settle(task, "left_waiting")) == (409, ErrorCode.TASK_SETTLED)
    assert await swept(bank) == []


async def test_existing_votes_count_for_satisfiability(bank: Bank) -> None:
    await bank.maya.vote(await asked(bank, bank.robot))
    async with bank.revoked("tomas"):
        assert await swept(bank) == ["impossible_quorum"]
    assert await swept(bank) == []


# -- what the watch over open questions costs ------------------------------------------------------------------------


async def test_a_sweep_reads_people_once(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsatisfiable, "_PAGE", 1)
    for n in range(10):
        await bank.person(f"somebody-{n}")
    await bank.sweep()  # reviews of earlier tests may move because of them
    counts = []
    for n in range(5):
        await bank.asks(run_key=f"r-{n}")
        read = counting(monkeypatch, unsatisfiable, "list_people")
        grouped = counting(monkeypatch, eligible, "current_groups")
        assert await unsatisfiable.update_unsatisfiable_reviews(bank.service.ctx) == 0
        counts.append((len(read), len(grouped)))
    assert counts[0][0] == 1 and counts[0][1] > 10
    assert set(counts) == {counts[0]}, "one more question costs nothing more"


async def test_a_review_left_waiting_costs_no_unit(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    await too_few(bank)
    view = await asked(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "impossible_quorum"), "left_waiting")
    await bank.sweep()
    moved = counting(monkeypatch, unsatisfiable, "_move")
    assert await unsatisfiable.update_unsatisfiable_reviews(bank.service.ctx) == 0
    assert moved == []
    assert (await swept(bank), (await bank.states(view))[1]) == ([], "review")


async def test_a_person_withdraws_an_unsatisfiable_review(bank: Bank) -> None:
    await too_few(bank, ())
    view = await asked(bank, bank.robot)
    task = await bank.ingrid.task(view, "impossible_quorum")
    assert "are withdrawn. Nothing fires" in task["choices"][0]["follows"]
    assert (await bank.ingrid.settle(task, "withdrawn", reason="ask again on Monday")).status_code == 200
    assert await bank.states(view) == ["ended", "withdrawn", "withdrawn"]
    seen = (await bank.robot.see(view["txn"]))["effects"][0]
    assert seen["decision"]["reasons"][-1]["text"] == "it was taken back: ask again on Monday"
    assert await swept(bank) == []
