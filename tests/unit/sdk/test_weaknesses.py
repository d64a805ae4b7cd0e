"""Where other runtimes for agents broke when they were tried: unwinding, recovery, interrupts, hostile text.

What `tests/scenarios.toml` asks for and no other file of this folder happens to show.
"""

import asyncio
import json
import sqlite3
from typing import Any

import pytest

from countersign import ToolRegistry, Transaction, errors, replay, resume, transaction
from countersign.adapters.sqlite import SQLiteSession
from countersign.contract import DenyCode, EffectState
from countersign.contract.wire import Reason
from tests.fakes.desk import Desk, answering_tool, listed, make_runtime, notes_in, save_tool, states
from tests.fakes.running import fails, order_tool, refusing_tool, run
from tests.unit.sdk.live.test_lane import lock_is_free


def test_scenario_5_the_order_in_which_tools_are_registered_does_not_matter(desk: Desk) -> None:
    undone: Any = {"compensate": "void", "compensation_map": {"order_id": "args:/order_id"}}
    charge = answering_tool(desk, None, name="charge", **undone)
    answering_tool(desk, None, name="void")
    desk.run((charge, "o-1"), (refusing_tool(desk), "o-1"), raises=errors.EffectFailed)
    assert desk.done == [("charge", "o-1"), ("void", "o-1")]


def test_scenario_9_that_something_can_be_taken_back_is_no_permission(desk: Desk, charge: Any) -> None:
    desk.service.deny(desk.run((charge, "o-1", 90_000), raises=errors.ReviewPending).txn)
    desk.run((charge, "o-1", 90000), raises=errors.Denied)
    assert (desk.done, desk.face.asked("/v1/redemptions")) == ([], 0)


def test_scenario_14_an_expired_review_ends_with_that_reason(desk: Desk, refund: Any) -> None:
    txn = desk.run((refund, "o-1", 90_000), raises=errors.ReviewPending).txn
    (held,) = desk.service.latest(txn).held
    held.state = EffectState.EXPIRED
    held.reasons = (Reason(code=DenyCode.EXPIRED, text="no answer within 4 hours"),)
    (found,) = resume(desk.runtime)
    assert found.after == "ended"
    assert "no answer within 4 hours [expired]" in found.note
    assert (desk.done, resume(desk.runtime)) == ([], [])


@pytest.mark.parametrize("index", range(3))
def test_scenario_22_interrupted_unwinding_is_finished_once(desk: Desk, charge: Any, index: int) -> None:
    notify = refusing_tool(desk)
    asked, compensate = list[str](), desk.service.compensate

    def away_at(txn: str, effect: str, kid: str) -> Any:
        asked.append(effect)
        if len(asked) == index + 1:
            desk.face.faults["/v1/"] = ["lost_request"] * 40
        return compensate(txn, effect, kid)

    desk.service.compensate = away_at  # type: ignore[method-assign]
    charges = [(charge, order, 100) for order in ("o-1", "o-2", "o-3")]
    failed = fails(desk, errors.EffectFailed, *charges, (notify, "o-4"))
    voided = [one[1] for one in desk.done if one[0] == "void"]
    assert len(voided) <= index + 1 < 4
    assert (len(voided) == 3) == ("Nothing of this transaction remains in effect" in failed.said)
    desk.face.faults.clear()
    resume(desk.runtime)
    done = list(desk.done)
    assert [one[1] for one in done if one[0] == "void"] == ["c-o-3", "c-o-2", "c-o-1"]
    assert [*states(desk).values()] == ["compensated"] * 3 + ["failed"]
    assert (resume(desk.runtime), desk.done) == ([], done)


def test_scenario_23_a_missing_compensator_waits(desk: Desk, caplog: Any, charge: Any) -> None:
    slow = answering_tool(desk, TimeoutError("slow"), name="slow")
    torn = desk.run((charge, "o-1", 100), (slow, "o-1"), raises=errors.OutcomeUnknown)
    desk.approved("t-2")
    desk.service.settle(torn.txn, torn.effects[1].effect_id, EffectState.FAILED)
    lacking_void = ToolRegistry()
    for one in desk.registry:
        if one.name != "void":
            lacking_void.add(one)
    with make_runtime(desk.runtime.settings, desk.face, lacking_void, desk.clock) as lacking:
        found = {one.run_key: one for one in resume(lacking)}
    assert (found["t-1"].after, found["t-2"].after) == ("unsettled", "settled")
    assert "Still in effect and not undone: charge#1" in found["t-1"].note
    assert "no tool 'void' is registered" in caplog.text
    assert desk.done[2:] == [("refund", "o-t-2", 90_000)]
    (later,) = resume(desk.runtime)
    assert (later.after, desk.done[-1]) == ("settled", ("void", "c-o-1", 100))


@pytest.mark.anyio
async def test_scenario_27_cancellation_frees_locks(desk: Desk, notes: Any, note: Any, refund: Any) -> None:
    locked: list[bool] = []
    begun = asyncio.Event()

    async def step() -> None:
        async with transaction("t-1", runtime=desk.runtime):
            note("o-1", "hello")
            refund("o-1", 100)
            locked.append(not lock_is_free(notes))
            begun.set()
            await asyncio.sleep(30)

    task = asyncio.create_task(step())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (locked, notes_in(notes), lock_is_free(notes), desk.done) == ([True], [], True, [])


def test_scenario_28_of_three_steps_the_last_fails_and_files_and_rows_are_as_before(
    desk: Desk, root: Any, files: Any, notes: Any, note: Any, charge: Any
) -> None:
    (root / "old").write_text("old")
    before, save, notify = notes.read_bytes(), save_tool(desk, files), refusing_tool(desk)
    kept = [(save, "old"), (save, "made"), (note, "o-1", "hello")]
    desk.run(*kept, (charge, "o-1", 100), (charge, "o-2", 200), (notify, "o-1"), raises=errors.EffectFailed)
    assert desk.done[2:] == [("void", "c-o-2", 200), ("void", "c-o-1", 100)]
    assert {path.name: path.read_text() for path in root.iterdir() if path.is_file()} == {"old": "old"}
    assert notes.read_bytes() == before


@pytest.mark.parametrize("at", [0, 1])
def test_scenario_29_what_did_not_happen_is_not_compensated(desk: Desk, at: int, charge: Any) -> None:
    """The step that failed has a compensation of its own, and it is not called: nothing was charged."""

    def refuses(name: str) -> None:
        if name == "charge" and len(desk.done) == at:
            raise errors.NotDone("the card was refused")

    desk.before_fire = refuses
    desk.run((charge, "o-1", 100), (charge, "o-2", 200), raises=errors.EffectFailed)
    assert [one[:2] for one in desk.done] == [("charge", "o-1"), ("void", "c-o-1")][: 2 * at]
    assert [*states(desk).values()] == [["failed", "unused"], ["compensated", "failed"]][at]
    assert [path.endswith("/compensate") for _, path in desk.face.log].count(True) == at  # nor asked for


def test_scenario_61_what_ran_in_blocks_inside_and_at_the_same_time_replays(desk: Desk, refund: Any) -> None:

    def step(txn: Transaction) -> list[Any]:
        kept = [refund("o-1", 100)]
        with transaction():
            kept.append(refund("o-2", 200))
        with pytest.raises(ZeroDivisionError), transaction():
            refund("o-3", 300)
            raise ZeroDivisionError
        with txn.parallel():
            kept += [refund("o-4", 400), refund("o-5", 500)]
        return kept

    with transaction("t-1", runtime=desk.runtime) as txn:
        step(txn)
    done = sorted(desk.done)
    found = replay("t-1", step, runtime=desk.runtime)
    assert (found.status, found.divergences) == ("same", ())
    assert [one.outcome for one in found.value] == ["fired"] * 4
    assert found.value[1].result == {"refund_id": "r-o-2-200"}
    assert sorted(desk.done) == done == [("refund", f"o-{n}", n * 100) for n in (1, 2, 4, 5)]


HOSTILE = {
    "SQL": "o'); DROP TABLE effects; --",
    "a path": "../../../../etc/passwd",
    "a NUL": "a\x00b",
    "not only ASCII": "жñ漢\U0001f4b8 e\u0301 \u202egnp.exe",
    "JSON in JSON": '"},{"amount_cents":1}',
    "what is nearly too much": "x" * 200_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_scenario_64_text_in_an_argument_is_data(desk: Desk, text: str) -> None:
    seen: list[str] = []

    @order_tool(desk)
    def mail(order_id: str, words: str) -> str:
        seen.append(words)
        return words

    run(desk, (mail, "o-1", text))
    with desk.restarted() as later:
        again = run(later, (mail, "o-1", text))
    assert (seen, again.placed[0].result, again.txn.replayed) == ([text], text, True)
    assert json.loads(listed(desk, "args", "true")[0][0]) == {"order_id": "o-1", "words": text}


def test_scenario_64_an_argument_of_a_megabyte_is_refused_as_it_is_staged(desk: Desk, refund: Any) -> None:
    with transaction("t-1", runtime=desk.runtime):
        with pytest.raises(errors.NotStageable, match=r"'refund' .* more than 262144 bytes"):
            refund("o" * 1_000_000, 100)
        refund("o-2", 100)
    assert desk.done == [("refund", "o-2", 100)]
    assert desk.runtime.settings.journal_path.stat().st_size < 1_000_000


def test_w10_a_failed_live_commit_leaves_no_lock_and_nothing_to_recover(
    desk: Desk, notes: Any, note: Any, charge: Any, monkeypatch: Any
) -> None:
    def refuse(session: SQLiteSession, attempt_id: str) -> None:
        """It leaves the database's own transaction open."""
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(SQLiteSession, "commit", refuse)
    calls = (note, "o-1", "hello"), (charge, "o-1", 100)
    failed = fails(desk, errors.LiveCommitFailed, *calls, match="disk is full").error
    assert isinstance(failed.__cause__, sqlite3.OperationalError)
    assert (notes_in(notes), lock_is_free(notes), listed(desk, "state")) == ([], True, [("undone",)])
    fails(desk, errors.AlreadyRedeemed, *calls, match="charge#1 compensated")
    assert (notes_in(notes), lock_is_free(notes)) == ([], True)
    assert [one[0] for one in desk.done] == ["charge", "void"]
    assert ([*states(desk).values()], resume(desk.runtime)) == (["compensated"], [])


def test_w14_uncommitted_writes_are_invisible(desk: Desk, root: Any, files: Any, refund: Any) -> None:
    (root / "state").write_text("old")
    save, seen = save_tool(desk, files), list[Any]()

    def look(_: object = None) -> None:
        seen.append(((root / "state").read_text(), (root / "made").exists()))

    desk.before_fire = look
    desk.run((save, "state", "new"), (save, "made", "new"), (look,), (refund, "o-1", 100))
    look()
    assert seen == [("old", False), ("old", False), ("new", True)]
