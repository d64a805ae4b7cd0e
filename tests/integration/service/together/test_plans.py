"""No request reads a growing table from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, event

from policy_service.queries import repository
from policy_service.queries.cursors import format_cursor
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank

GROWS = (
    "transactions", "effects", "decisions", "reviews", "review_groups", "votes", "attempts", "redemptions", "tasks",
    "audit",
)  # fmt: skip


@contextmanager
def plans(bank: Bank) -> Iterator[list[tuple[str, str]]]:
    """(line of the engine's plan, statement) of everything that is asked meanwhile, by reading or by writing."""
    found: list[tuple[str, str]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if not statement.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            return
        ask = cursor.connection.execute
        if conn.dialect.name == "sqlite":
            found.extend((row[3], statement) for row in ask(f"EXPLAIN QUERY PLAN {statement}", parameters))
            return
        ask("SET LOCAL enable_seqscan = off")  # small tables are read whole, unless nothing else is possible
        found.extend((row[0], statement) for row in ask(f"EXPLAIN {statement}", parameters))

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


def scans(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that read one of the growing tables from end to end, by no index."""
    return sorted({(line, asked) for line, asked in found for name in GROWS if _reads_all(line, name)})


def _reads_all(line: str, name: str) -> bool:
    return line == f"SCAN {name}" or f"Seq Scan on {name} " in line


_PERSON = "person=urn:countersign:dev%7Cmaya"
# Searches of the log, and the index of which each is a stretch.
SEARCHES = {
    "agent={agent}": "ix_audit_agent",
    "kind=vote_recorded": "ix_audit_kind",
    _PERSON: "ix_audit_person",
    _PERSON + "&agent={agent}&kind=x": "ix_audit_person",
    "about=" + "e" * 64: "",
}
PATHS = (
    "/", "/?order=newest", "/?tab=open", "/?tab=open&order=newest", "/?tab=open&group=finance",
    "/?tab=open&agent={agent}&text=acme", "/?tab=mine", "/?tab=decided", "/?tab=decided&agent={agent}",
    "/?review={review_id}", "/alike/{review_id}", "/v1/reviews?limit=5", "/v1/tasks", "/v1/audit?limit=5", "/agents",
    "/agents/{agent}", "/audit", "/audit?since=2026-01-01T00:00&until=2199-01-01",
)  # fmt: skip


async def test_a_page_reads_no_table_from_end_to_end(bank: Bank, robot: Agent, maya: Visitor) -> None:
    for n in range(3):
        view = (await robot.submit(await pay(bank, 500), await pay(bank, n + 1), run_key=f"r-{n}")).json()
    await maya.vote(view, "deny", reason="one that is decided")
    found_open = await bank.service.db.read(partial(repository.list_open_reviews, after=None, limit=1))
    for path in PATHS:
        with plans(bank) as found:
            answer = await maya.get(path.format(review_id=found_open[0].review_id, agent=robot.name))
        assert answer.status_code == (200 if "alike" not in path else 400), path  # of no kind: it is read
        assert found
        assert scans(found) == [], path
        # The open ones, or the newest settled ones, come in the order of an index: none is read to be sorted.
        reviews = [line for line, asked in found if "FROM reviews \nWHERE reviews.s" in asked]
        assert "tab=mine" in path or not [line for line in reviews if "TEMP B-TREE" in line], path
        if path == "/":  # what was opened in an emergency is found among other tasks by its kind
            lines = [line for line, asked in found if "FROM tasks" in asked and "tasks.kind = " in asked]
            assert [line for line in lines if "ix_tasks_kind" in line], lines
    for search, index in SEARCHES.items():
        with plans(bank) as found:
            assert (await maya.get(f"/audit?{search.format(agent=robot.name)}")).status_code == 200
        assert scans(found) == [], search
        lines = [line for line, asked in found if "FROM audit" in asked and "audit" in line]
        assert any(index in line for line in lines), (search, lines)
        read_whole = [line for line in lines if "TEMP B-TREE" in line or "Seq Scan" in line]
        assert not index or not read_whole, search


async def test_a_later_page_is_entered_where_the_last_one_ended(bank: Bank, robot: Agent) -> None:
    """Not walked to: a million rows may come before it."""
    maya = await bank.person("maya")
    view = (await robot.submit(await pay(bank, 500))).json()
    cursor = quote(format_cursor(bank.clock(), view["effects"][0]["review"]["review_id"]))
    for path in ("/v1/reviews?limit=1&", "/?tab=open&", "/?tab=decided&", "/?tab=decided&agent={agent}&"):
        with plans(bank) as found:
            assert (await maya.get(f"{path.format(agent=robot.name)}cursor={cursor}")).status_code == 200
        compared = [line for line, asked in found if "reviews.review_id) " in asked]
        entered = ("review_id)>(?", "review_id)<(?", "Index Cond")
        assert [line for line in compared if any(word in line for word in entered)], (path, compared)
        assert not [line for line in compared if "Filter:" in line and "ROW(" in line], path


AGENTS_PAGES = (
    "/v1/transactions?limit=2", "/v1/transactions?limit=2&state=ready", "/v1/transactions?limit=2&cursor={cursor}",
    "/v1/audit?limit=2", "/v1/audit?limit=2&after=7",
)  # fmt: skip


async def test_an_agents_page_reads_no_past(bank: Bank, robot: Agent) -> None:
    for n in range(4):
        await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}")
    await bank.service.sequencer.number()
    cursor = (await robot.send("GET", "/v1/transactions?limit=2")).json()["next"]
    unbounded = ("ix_audit_txn", "ix_transactions_due", "MULTI-INDEX OR", "BitmapOr")
    for path in AGENTS_PAGES:
        with plans(bank) as found:
            page = (await robot.send("GET", path.format(cursor=cursor))).json()
        assert len(page.get("rows") or page["transactions"]) == 2
        assert scans(found) == [], path
        lines = [line for line, asked in found if "FROM audit" in asked or "FROM transactions" in asked]
        assert lines
        assert not [line for line in lines for name in unbounded if name in line], (path, lines)


async def test_a_submission_and_a_vote_read_nothing_of_others(bank: Bank, robot: Agent) -> None:
    maya = await bank.person("maya")
    with plans(bank) as found:
        view = (await robot.submit(await pay(bank, 500), run_key="r-1")).json()
        assert view["state"] == "review"
        await maya.vote(view)
        assert (await robot.see(view["txn"]))["state"] == "ready"
    assert any("votes" in asked for _, asked in found)
    assert scans(found) == []


@pytest.mark.parametrize("verb", ["recorded-calls", "recorded-call"])
async def test_recorded_calls_are_found_by_an_index(bank: Bank, robot: Agent, verb: str) -> None:
    for n in range(3):
        view = (await robot.submit(await pay(bank, 500), await pay(bank, n + 1), run_key=f"r-{n}")).json()
    about = {"effect_id": view["effects"][0]["effect_id"]}
    args: dict[str, Any] = about if verb == "recorded-call" else {"days": 1, "with_secrets": False}
    with plans(bank) as found:
        answer = await bank.operator(verb, args)
    calls = [answer] if verb == "recorded-call" else answer
    assert [call["txn_size"] for call in calls][-2:] == [2] * min(len(calls), 2)
    assert len(calls) == 1 if verb == "recorded-call" else len(calls) >= 6
    lines = [line for line, asked in found if "FROM decisions" in asked]
    assert lines
    assert scans(found) == []
    # A whole group of every transaction is as bad as a scan, and so is sorting all decisions of many days.
    bad = ("MATERIALIZE", "GroupAggregate", "HashAggregate", "B-TREE")[: 4 if verb == "recorded-calls" else 3]
    assert not [line for line in lines for name in bad if name in line], lines
    key = ("sqlite_autoindex_decisions_1 (decision_id>?", "decisions_pkey")
    used = ("ix_decisions_effect",) if verb == "recorded-call" else key
    assert [line for line in lines for name in used if name in line], lines
