"""Retention: what moves to the archive and what stays, and what an archived run key answers."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from policy_service.audit.log import append, parties_by_txn
from policy_service.cli import app
from policy_service.errors import NotFoundError, StorageUnavailableError
from policy_service.pap.active_bundle import Candidate
from policy_service.pap.source import FolderSource
from policy_service.storage import archive_files
from policy_service.storage.advisory_locks import acquire_lease
from policy_service.storage.archive_files import archive_files as files_of
from policy_service.storage.archive_files import find_export, line_digest
from policy_service.storage.archive_tables import collect_rows
from policy_service.storage.core import find_one, insert_row, table, update_rows
from policy_service.storage.tables import EffectRow, TransactionRow
from policy_service.workflow.expiry import archive
from policy_service.workflow.expiry.archive import Archiver, reason_to_keep
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.vault import REASON, Vault, at, serving
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.engines import each_engine
from tests.integration.service.metered import METERS, counted_pay
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.together.bank import Bank, refusal, sizes
from tests.integration.service.together.test_outcomes import undone

__all__ = ["each_engine"]  # rows are collected and deleted by the same statements; triggers differ

DAYS = 30


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"archive_after_days": DAYS, "housekeeping_s": 3600}


async def archived(bank: World, holder: str = "test", days: int = DAYS) -> int:
    """How many transactions move when this many days and a second have passed."""
    bank.clock.pass_(days=days, seconds=1)
    return await Archiver(bank.service.ctx, holder).run()


async def fired(bank: Bank, robot: Agent, run_key: str = "run-1", **more: Any) -> Any:
    """A payment that was redeemed at once and fired."""
    view = (await robot.submit(await pay(bank), run_key=run_key, attempt_id=run_key, **more)).json()
    answer = await robot.report(run_key, outcome(view, "fired", result={"id": "p1"}))
    assert answer.json()["state"] == "settled", answer.text
    return view


def outcome(view: Any, word: str, **more: Any) -> dict[str, Any]:
    return {"effect_id": view["effects"][0]["effect_id"], "outcome": word, **more}


async def approved(bank: Bank, robot: Agent, maya: Visitor, run_key: str = "asked") -> Any:
    """A payment that Maya approved, that fired and is settled."""
    view = (await robot.submit(await pay(bank, 500), run_key=run_key)).json()
    assert (await maya.vote(view)).status_code == 200
    await robot.spend(await robot.see(view["txn"]), run_key)
    assert (await robot.report(run_key, outcome(view, "fired"))).json()["state"] == "settled"
    return view


def lines(bank: World) -> list[Any]:
    """The records in the archive."""
    files = files_of(bank.settings.archive_dir) if bank.settings.archive_dir.exists() else []
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


# -- what moves ------------------------------------------------------------------------------------------------


async def test_every_row_but_those_of_the_log_moves_to_the_file(
    bank: Bank, robot: Agent, maya: Visitor
) -> None:
    before = await bank.service.db.read(sizes)
    view = await approved(bank, robot, maya)
    held = await bank.service.db.read(lambda conn: collect_rows(conn, view["txn"]))
    assert await archived(bank) == 1
    after = await bank.service.db.read(sizes)
    grown = {name for name, size in after.items() if size != before[name]}
    assert grown <= {
        "audit",
        "archived_transactions",
        "spent_effects",
        "idempotency_keys",
        "outbox",
        "sessions",
    }
    (file,) = bank.settings.archive_dir.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(bank.settings.archive_dir.stat().st_mode) == 0o700
    (record,) = lines(bank)
    moved = {name: len(rows) for name, rows in record["rows"].items()}
    assert moved == {model.__tablename__: len(rows) for model, rows in held.items() if rows}
    assert {"votes": 1, "reviews": 1, "redemptions": 1, "attempts": 1}.items() <= moved.items()
    (body,) = [body for kind, body in await bank.log(view["txn"]) if kind == "rows_archived"]
    assert body["digest"] == line_digest(file.read_bytes().rstrip(b"\n"))
    assert (body["file"], body["spent"]) == (file.name, [view["effects"][0]["effect_id"]])
    assert await Archiver(bank.service.ctx, "test").run() == 0
    assert len(lines(bank)) == 1


async def test_every_revision_moves(bank: Bank, robot: Agent) -> None:
    await robot.submit(await pay(bank, 500), run_key="run-1")
    await robot.submit(await pay(bank, 600), run_key="run-1")
    view = await fired(bank, robot)
    assert view["rev"] == 3
    assert await archived(bank) == 1
    (record,) = lines(bank)
    assert [row["rev"] for row in record["rows"]["transactions"]] == [1, 2, 3]
    assert await bank.service.db.read(lambda conn: find_one(conn, EffectRow, txn=view["txn"])) is None


async def test_many_transactions_move_page_by_page(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PAGE", 2)
    await robot.submit(await pay(bank, 500), run_key="open")
    for n in range(5):
        await fired(bank, robot, f"run-{n}")
    bank.clock.pass_(days=DAYS, seconds=1)
    assert await Archiver(bank.service.ctx, "one").run() == 5
    assert await Archiver(bank.service.ctx, "one").run() == 0
    assert len(lines(bank)) == 5


async def test_those_that_stay_do_not_hold_up_others(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass looks at so many that stay, and the next one goes on behind them."""
    monkeypatch.setattr(archive, "_PAGE", 1)
    monkeypatch.setattr(archive, "_MAX_KEPT", 2)
    for n in range(3):
        view = await fired(bank, robot, f"stays-{n}")
        await robot.report(f"stays-{n}", outcome(view, "failed"))
    await fired(bank, robot, "moves")
    bank.clock.pass_(days=DAYS, seconds=1)
    archiver = Archiver(bank.service.ctx, "test")
    assert [await archiver.run() for _ in range(3)] == [0, 1, 0]
    await fired(bank, robot, "later")
    bank.clock.pass_(days=DAYS, seconds=1)
    assert [await archiver.run() for _ in range(3)].count(1) == 1, "and begins again"


async def test_one_process_archives_at_a_time(bank: Bank, robot: Agent) -> None:
    await fired(bank, robot)
    bank.clock.pass_(days=DAYS, seconds=1)
    lease = archive._LEASE, "other", archive._LEASE_FOR
    await bank.service.db.write(lambda tx: acquire_lease(tx, *lease))
    assert await Archiver(bank.service.ctx, "test").run() == 0
    bank.clock.pass_(minutes=6)
    assert await Archiver(bank.service.ctx, "test").run() == 1


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_every_row_is_found_by_an_index(bank: Bank, robot: Agent, maya: Visitor) -> None:
    """A pass over a large database must not read a whole table. The plans of a server depend on its statistics."""
    await approved(bank, robot, maya)
    statements: list[tuple[str, Any]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if statement.startswith(("SELECT", "DELETE")):
            statements.append((statement, tuple(parameters)))

    event.listen(Engine, "before_cursor_execute", note)
    assert await archived(bank) == 1
    event.remove(Engine, "before_cursor_execute", note)
    with bank.service.db._readers.connect() as conn:
        plans = {
            s: [row[-1] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", p)] for s, p in statements
        }
    whole = re.compile(r"SCAN (?!\(|CONSTANT)")  # not of an empty list
    scans = {statement: plan for statement, plan in plans.items() if any(map(whole.match, plan))}
    assert scans == {}
    assert sum(statement.startswith("DELETE") for statement in plans) > 5
    assert any("ix_transactions_over" in line for plan in plans.values() for line in plan)


async def test_nothing_is_archived_by_default(bank: Bank, robot: Agent) -> None:
    assert "archive" in {job.name for job in bank.service._jobs()}
    await fired(bank, robot)
    default = {"archive_after_days": type(bank.settings).model_fields["archive_after_days"].default}
    bank.service.ctx = replace(bank.service.ctx, settings=bank.settings.model_copy(update=default))
    assert await archived(bank, days=4_000) == 0


# -- what stays ------------------------------------------------------------------------------------------------

Story = Callable[[Bank, Agent], Awaitable[Any]]


async def a_contradiction(bank: Bank, robot: Agent) -> Any:
    view = await fired(bank, robot)
    await robot.report("run-1", outcome(view, "failed"))
    return view


async def unreported(bank: Bank, robot: Agent) -> Any:
    return (await robot.submit(await pay(bank), attempt_id="a")).json()


async def unknown(bank: Bank, robot: Agent) -> Any:
    view = await unreported(bank, robot)
    bank.clock.pass_(hours=1)
    await bank.sweep()
    return view


async def asked(bank: Bank, robot: Agent) -> Any:
    return (await robot.submit(await pay(bank, 500))).json()


async def ready(bank: Bank, robot: Agent) -> Any:
    return (await robot.submit(await pay(bank))).json()


async def compensating(bank: Bank, robot: Agent) -> Any:
    view = (await robot.submit(await pay(bank), await mail(bank), attempt_id="a")).json()
    one, two = (effect["effect_id"] for effect in view["effects"])
    paid = {"effect_id": one, "outcome": "fired", "result": {"id": "p1"}}
    await robot.report("a", paid, {"effect_id": two, "outcome": "failed"})
    assert (await undone(robot, view)).json()["effect"]["state"] == "released"
    return view


async def compensation_due(bank: Bank, robot: Agent) -> Any:
    view = (await robot.submit(await pay(bank), await mail(bank), attempt_id="a")).json()
    one, two = (effect["effect_id"] for effect in view["effects"])
    await robot.report("a", {"effect_id": one, "outcome": "fired"}, {"effect_id": two, "outcome": "failed"})
    return view


STAYS: dict[str, tuple[Story, str]] = {
    "an outcome was contradicted": (a_contradiction, "a task is open"),
    "no one reported": (unreported, "an outcome is not reported"),
    "it became unknown": (unknown, "an outcome is unknown"),
    "people are asked": (asked, "people are asked"),
    "it may be redeemed": (ready, "a release is open"),
    "its compensation may fire": (compensating, "a compensation is open"),
    "it has to be compensated": (compensation_due, "it is not settled"),
}


@pytest.mark.parametrize("what", STAYS)
async def test_what_is_not_over_stays(bank: Bank, robot: Agent, what: str) -> None:
    story, reason = STAYS[what]
    view = await story(bank, robot)
    assert await archived(bank, days=400) == 0
    assert await why(bank, view["txn"]) == reason
    assert lines(bank) == []


async def why(bank: Bank, txn: str) -> str | None:
    """The reason by which it stays."""
    rows = await bank.service.db.read(lambda conn: collect_rows(conn, txn))
    now = bank.clock()
    bundles = archive._bundles(bank.service.ctx)
    return reason_to_keep(rows, bundles, before=archive._cutoff(bank.service.ctx), meters_from=now)


async def test_the_last_change_counts(bank: Bank, robot: Agent) -> None:
    """An outcome that a person settled yesterday is of yesterday, however old the submission is."""
    view = await unknown(bank, robot)
    bank.clock.pass_(days=DAYS)
    maya = await bank.person("maya")
    settled = await maya.settle(await maya.task(view, "unknown"), "fired")
    assert settled.status_code == 200, settled.text
    assert await archived(bank, days=DAYS - 1) == 0
    assert await why(bank, view["txn"]) == "it changed too recently"
    assert await archived(bank, days=1) == 1


async def test_a_settled_task_is_a_change(bank: Bank, robot: Agent, maya: Visitor) -> None:
    view = await a_contradiction(bank, robot)
    bank.clock.pass_(days=DAYS)
    maya = await bank.person("maya")
    settled = await maya.settle(await maya.task(view, "contradiction"), "record_holds")
    assert settled.status_code == 200, settled.text
    assert await archived(bank, days=DAYS - 1) == 0
    assert await archived(bank, days=1) == 1


async def test_a_late_vote_is_a_change(bank: Bank, robot: Agent, maya: Visitor) -> None:
    view = await approved(bank, robot, maya)
    bank.clock.pass_(days=DAYS)
    tomas = await bank.person("tomas")
    assert (await tomas.vote(view)).status_code == 200
    assert await archived(bank, days=DAYS - 1) == 0
    assert await archived(bank, days=1) == 1


async def test_what_a_meter_counts_stays(bank: Bank, robot: Agent) -> None:
    await bank.write("tools/pay.json", counted_pay())
    await bank.write("meters.toml", METERS.replace('"24h"', '"90d"'))
    view = await fired(bank, robot)
    assert await archived(bank) == 0
    assert await why(bank, view["txn"]) == "a meter counts it"
    assert await archived(bank, days=90 - DAYS) == 1


async def test_what_a_meter_in_shadow_counts_stays(bank: Bank, robot: Agent, tmp_path: Path) -> None:
    """A candidate with a longer window would otherwise be compared with fewer rows than it will have."""
    await bank.write("tools/pay.json", counted_pay())
    await bank.write("meters.toml", METERS)
    shadow = Payments(tmp_path / "shadow")
    shadow.write("tools/pay.json", counted_pay())
    shadow.write("meters.toml", METERS.replace('"24h"', '"90d"'))
    candidate = Candidate(FolderSource(shadow.path))
    bank.service.ctx = replace(bank.service.ctx, candidate=candidate)
    view = await fired(bank, robot)
    assert await archived(bank) == 0, "it is not loaded yet"
    await candidate.reload()
    assert await archived(bank, days=0) == 0
    assert await why(bank, view["txn"]) == "a meter counts it"
    assert await archived(bank, days=90 - DAYS) == 1
    candidate.close()


@pytest.mark.parametrize(("days", "warned"), [(0, False), (29, True), (30, False)])
async def test_an_archive_that_hides_precedents_is_a_warning_at_the_start(
    bank: Bank, days: int, warned: bool
) -> None:
    settings = bank.settings.model_copy(update={"archive_after_days": days})
    with capture_logs() as logged:
        Archiver(replace(bank.service.ctx, settings=settings), "test")
    assert [line["event"] for line in logged] == ["archive_shortens_precedents"] * warned


async def test_a_reservation_that_was_given_back_keeps_nothing(bank: Bank, robot: Agent) -> None:
    await bank.write("tools/pay.json", counted_pay())
    await bank.write("meters.toml", METERS.replace('"24h"', '"90d"'))
    await bank.withdraw(await ready(bank, robot))
    assert await archived(bank) == 1
    (record,) = lines(bank)
    assert all("given_back_at" in row for row in record["rows"]["reservations"])


async def test_a_meter_is_read_as_of_the_oldest_open_effect(bank: Bank, robot: Agent) -> None:
    """A payment that waits for people is decided again with the meters of its own day."""
    await bank.write("tools/pay.json", counted_pay())
    await bank.write("meters.toml", METERS)
    await bank.policies(ANYBODY + gate("slow", "finance", "context.input.amount > 100", answer_within="60d"))
    await fired(bank, robot)
    waits = (await robot.submit(await pay(bank, 500), run_key="waits")).json()
    assert await archived(bank) == 0
    await bank.withdraw(waits)
    assert await Archiver(bank.service.ctx, "test").run() == 1


async def test_what_changes_between_the_steps_stays(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await fired(bank, robot)
    prepare = archive._prepare

    async def then_changed(ctx: Any, txn: str) -> Any:
        found = await prepare(ctx, txn)
        named = {"effect_id": view["effects"][0]["effect_id"]}
        await bank.service.db.write(lambda tx: update_rows(tx.conn, EffectRow, named, {"error": "late"}))
        return found

    monkeypatch.setattr(archive, "_prepare", then_changed)
    assert await archived(bank) == 0
    monkeypatch.setattr(archive, "_prepare", prepare)
    assert await Archiver(bank.service.ctx, "test").run() == 1
    first, second = lines(bank)
    assert "error" not in first["rows"]["effects"][0] and second["rows"]["effects"][0]["error"] == "late"


async def test_nothing_is_deleted_when_the_file_cannot_be_written(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await fired(bank, robot)

    def fails(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive_files.os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        await archived(bank)
    monkeypatch.undo()
    assert (await robot.see(view["txn"]))["state"] == "settled"
    assert await Archiver(bank.service.ctx, "test").run() == 1


async def test_a_transaction_that_cannot_be_read_stops_no_other(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = await fired(bank, robot, "broken")
    await fired(bank, robot, "sound")
    prepare = archive._prepare

    async def half(ctx: Any, txn: str) -> Any:
        if txn == broken["txn"]:
            raise ValueError("damaged")
        return await prepare(ctx, txn)

    monkeypatch.setattr(archive, "_prepare", half)
    assert await archived(bank) == 1
    assert (await robot.see(broken["txn"]))["state"] == "settled"


# -- what it answers then --------------------------------------------------------------------------------------


async def test_nothing_is_archived_soon_after_a_restore(bank: Bank, robot: Agent) -> None:
    """An agent may still report a redemption of the lost part of the log, of a run key that had ended before."""
    await fired(bank, robot)
    bank.clock.pass_(days=DAYS + 1)
    await bank.service.db.write(lambda tx: append(tx, "database_restored", actor="operator", body={}))
    assert await archived(bank, days=0) == 0
    assert await archived(bank) == 1


async def test_a_rerun_of_an_archived_run_key_is_refused_with_its_outcome(bank: Bank, robot: Agent) -> None:
    view = await fired(bank, robot, idempotency_key="first")
    effect = view["effects"][0]
    assert await archived(bank) == 1
    held = await bank.service.db.read(sizes)
    for calls, more in (
        ([await pay(bank)], {}),
        ([await pay(bank)], {"attempt_id": "other"}),
        ([await mail(bank)], {}),
        ([await pay(bank, 500)], {}),
        ([await pay(bank)], {"attempt_id": "run-1", "idempotency_key": "first"}),
    ):
        answer = await robot.submit(*calls, **more)
        assert refusal(answer) == (409, "already_redeemed"), answer.text
        known = {"effect_id": effect["effect_id"], "seq": 1, "state": "fired"}
        assert answer.json()["effects"] == [known]
        assert (answer.json()["state"], answer.json()["txn"]) == ("settled", view["txn"])
    assert await bank.service.db.read(sizes) == held, "nothing was stored"
    assert (await robot.submit(await pay(bank), run_key="another")).json()["state"] == "ready"


async def test_a_run_key_that_fired_nothing_stays_closed_too(bank: Bank, robot: Agent) -> None:
    denied = await bank.asks(500, run_key="withdrawn")
    await bank.withdraw(denied)
    failed = (await robot.submit(await mail(bank), run_key="failed", attempt_id="f")).json()
    assert (await robot.report("f", outcome(failed, "failed"))).json()["state"] == "ended"
    assert await archived(bank) == 2
    assert refusal(await robot.submit(await pay(bank, 500), run_key="withdrawn")) == (409, "illegal_state")
    assert refusal(await robot.submit(await mail(bank), run_key="failed")) == (409, "already_redeemed")


async def test_old_ids_get_the_right_code(bank: Bank, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank), run_key="run-1")).json()
    tokens = (await robot.release(view)).json()["releases"]
    assert (await robot.redeem(tokens, "a")).status_code == 200
    await robot.report("a", outcome(view, "fired"))
    assert await archived(bank) == 1
    txn = view["txn"]
    assert refusal(await robot.redeem(tokens, "a")) == (409, "already_redeemed")
    assert refusal(await robot.redeem(tokens, "b")) == (409, "already_redeemed")
    assert refusal(await robot.report("a", outcome(view, "fired"))) == (409, "already_reported")
    assert refusal(await robot.report("b", outcome(view, "fired"))) == (404, "unknown_attempt")
    ids = {"effect_ids": [view["effects"][0]["effect_id"]]}
    assert refusal(await robot.send("POST", "/v1/redemptions/a/renew", ids)) == (409, "already_reported")
    assert refusal(await robot.release(view)) == (409, "already_redeemed")
    assert refusal(await undone(robot, view)) == (409, "already_redeemed")
    assert refusal(await undone(await bank.agent("stranger"), view)) == (404, "not_found")
    assert refusal(await bank.withdraw(view)) == (409, "already_redeemed")
    answer = await robot.send("GET", f"/v1/transactions/{txn}")
    assert refusal(answer) == (409, "already_redeemed"), "it must not look like one that never arrived"
    assert "archived" in answer.json()["detail"] and ".jsonl" in answer.json()["detail"]
    other = await bank.agent("other")
    for who in (f"/v1/transactions/{txn}", f"/v1/transactions/{'0' * 64}"):
        hidden = await other.send("GET", who)
        assert refusal(hidden) == (404, "not_found") and "archived" not in hidden.text


async def test_revoking_a_commit_names_how_many_it_left_out(bank: Bank, robot: Agent) -> None:
    """Nothing of an archived transaction is open; but its decisions are not found."""
    why = {"reason": "a bad rule"}
    view = await fired(bank, robot)
    decided = {"commit": view["effects"][0]["decision"]["commit"], **why}
    assert (await bank.operator("revoke-commit", decided))["archived"] == 0
    assert await archived(bank) == 1
    with pytest.raises(NotFoundError, match="1 archived transactions, of which nothing is open"):
        await bank.operator("revoke-commit", decided)
    await robot.submit(await pay(bank), run_key="open")
    done = await bank.operator("revoke-commit", decided)
    assert (len(done["open"]), done["archived"]) == (1, 1)


async def test_the_database_itself_refuses_an_archived_transaction(bank: Bank, robot: Agent) -> None:
    view = await fired(bank, robot)
    rows = await bank.service.db.read(lambda conn: collect_rows(conn, view["txn"]))
    assert await archived(bank) == 1
    (row,) = rows[TransactionRow]
    row.rev = 2
    with pytest.raises((IntegrityError, StorageUnavailableError), match="archived"):
        await bank.service.db.write(lambda tx: insert_row(tx.conn, row))
    row.txn = "0" * 64
    await bank.service.db.write(lambda tx: insert_row(tx.conn, row))
    await bank.service.db.write(lambda tx: tx.conn.execute(delete(table(TransactionRow))).rowcount)


# -- what still reads it ---------------------------------------------------------------------------------------


async def test_the_audit_log_reads_as_before(bank: Bank, robot: Agent, maya: Visitor) -> None:
    view = await approved(bank, robot, maya)
    txn = view["txn"]

    async def read() -> tuple[list[Any], list[str], list[str]]:
        await bank.service.sequencer.number()
        own = (await robot.send("GET", "/v1/audit")).json()["rows"]
        found = [await maya.get(f"/audit/export.jsonl?{query}") for query in (f"about={txn}", "agent=robot")]
        return own, *(answer.text.splitlines() for answer in found)

    before = await read()
    assert all(before)
    assert await archived(bank) == 1
    maya.cookie = (await bank.person("maya")).cookie
    for was, now in zip(before, await read(), strict=True):
        kept = [line for line in now if line in was]
        (added,) = [line for line in now if line not in was]
        assert sorted(map(str, kept)) == sorted(map(str, was)) and "rows_archived" in str(added)
    parties = await bank.service.db.read(lambda conn: parties_by_txn(conn, {txn}))
    assert parties == {txn: frozenset({"robot"})}, "so that its agent's events are found"
    other = await bank.agent("other")
    assert (await other.send("GET", "/v1/audit")).json()["rows"] == []


@pytest.fixture
async def sealed(bank: Bank, robot: Agent) -> tuple[str, Path]:
    """A review that Maya met with the page before her, archived; and the file."""
    view = await bank.asks(500)
    maya = Holder(await bank.person("maya"))
    form = await maya.form(review_of(view))
    assert (await maya.send(f"/reviews/{review_of(view)}/votes", **form)).status_code == 303
    await robot.spend(await robot.see(view["txn"]), "a")
    await robot.report("a", outcome(view, "fired"))
    assert await archived(bank) == 1
    (record,), (file,) = lines(bank), bank.settings.archive_dir.iterdir()
    assert len(record["rows"]["views"]) == 1
    gone = await (await bank.person("maya")).get(f"/v1/reviews/{review_of(view)}/export")
    assert gone.status_code == 404 and "verify-review --review" in gone.json()["detail"]
    return review_of(view), file


def verified(bank: Bank, *args: str, env: dict[str, str] | None = None) -> Result:
    """The command, with the deployment's keys."""
    jwks = bank.settings.data_dir / "jwks.json"
    jwks.write_text(json.dumps(bank.service.ctx.signer.keys.to_jwks()))
    return CliRunner().invoke(app, ["verify-review", *args, "--jwks", str(jwks)], env=env)


async def test_an_archived_review_is_verified(bank: Bank, sealed: tuple[str, Path]) -> None:
    review_id, file = sealed
    env = {"COUNTERSIGN_DATA_DIR": str(bank.settings.data_dir)}
    for path in ([str(file)], [str(file.parent)], []):
        result = verified(bank, *path, "--review", review_id, env=env)
        assert result.exit_code == 0, result.output
        assert "this review is valid" in result.output and "1 of 1 for finance" in result.output
        assert line_digest(file.read_bytes()[:-1]) in result.output
    unknown = verified(bank, str(file), "--review", "rev_other")
    assert unknown.exit_code == 1 and "no complete line" in unknown.output
    assert verified(bank).exit_code == 2, "which file?"
    assert verified(bank, str(file.parent)).exit_code == 2


async def test_the_last_complete_line_counts(bank: Bank, robot: Agent, sealed: tuple[str, Path]) -> None:
    """A crash after the sync leaves a line that is written again; one in the middle of writing leaves a torn line."""
    review_id, file = sealed
    line = file.read_bytes()
    first = json.loads(line)
    first["exports"][review_id] = "{}"
    file.write_bytes(json.dumps(first).encode() + b"\n" + line + line[: len(line) // 2])
    assert verified(bank, str(file), "--review", review_id).exit_code == 0
    await fired(bank, robot, "next")
    assert await archived(bank) == 1
    assert verified(bank, str(file.parent), "--review", review_id).exit_code == 0
    newest = files_of(file.parent)[-1].read_bytes().splitlines()
    assert json.loads(newest[-1])["rows"]["transactions"][0]["run_key"] == "next", (
        "a torn line spoils no later one"
    )


async def test_a_line_that_somebody_changed_is_refused(bank: Bank, sealed: tuple[str, Path]) -> None:
    review_id, file = sealed
    whole = file.read_bytes()
    for old, new in ((b"finance", b"legalxx"), (b"approve", b"decline"), (b"500", b"900")):
        assert old in whole
        file.write_bytes(whole.replace(old, new))
        result = verified(bank, str(file), "--review", review_id)
        assert result.exit_code == 1 and "NOT VALID" in result.output, result.output
        assert line_digest(whole[:-1]) not in result.output
    assert find_export([file], review_id) is not None


# -- restored databases ----------------------------------------------------------------------------------------


def keeping(vault: Vault) -> AbstractAsyncContextManager[World]:
    """The service on it, which archives."""
    return running(vault.data, vault.bundle, **vault.settings, archive_after_days=DAYS)


async def test_a_restored_database_agrees_with_the_archive(vault: Vault) -> None:
    """A copy from before the archiving has the rows again: they count, and the line in the file is a line more."""
    async with serving(vault) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank), run_key="run-1", attempt_id="a")).json()
        assert (await robot.report("a", outcome(view, "fired"))).json()["state"] == "settled"
    copy = vault.save()
    async with keeping(vault) as bank:
        assert await archived(bank) == 1
        assert refusal(await at(bank, robot).submit(await pay(bank), run_key="run-1")) == (
            409,
            "already_redeemed",
        )
    vault.bring_back(copy)
    assert vault.verb(*REASON)[0] == 0
    async with keeping(vault) as bank:
        robot = at(bank, robot)
        await bank.operator("go-on", {"tool": None})
        assert (await robot.submit(await pay(bank), run_key="run-1")).json()["state"] == "settled"
        assert await archived(bank, "other") == 1
        assert refusal(await robot.submit(await pay(bank), run_key="run-1")) == (409, "already_redeemed")
        first, second = lines(bank)
        assert first == second
        assert await bank.service.db.read(faults_of_log) == []


async def test_what_a_person_settled_as_fired_after_a_restore_is_spent(vault: Vault) -> None:
    """The database has no redemption of it; it may have happened in the lost part of the log."""
    async with keeping(vault) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank), run_key="lost")).json()
    assert vault.verb(*REASON, "--even-so")[0] == 0
    async with keeping(vault) as bank:
        robot = at(bank, robot)
        await bank.operator("go-on", {"tool": None})
        maya = await bank.person("maya")
        assert (await maya.settle(await maya.task(view, "restored"), "fired")).status_code == 200
        assert await archived(bank) == 1
        assert refusal(await robot.submit(await pay(bank), run_key="lost")) == (409, "already_redeemed")
        assert await bank.service.db.read(faults_of_log) == []
