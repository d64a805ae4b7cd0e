"""Recovery of a transaction that was not redeemed: who it waits for, and what ends it."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from countersign import FilesAdapter, MemoryAdapter, errors, resume, tool, transaction
from countersign.contract import EffectState, Verdict
from tests.fakes.desk import Desk, answering_tool, charge_tools, make_runtime, refund_tool, save_tool
from tests.fakes.running import fails, refusing_tool
from tests.unit.sdk.transactions.looks import TXN


@pytest.fixture
def step(desk: Desk, files: FilesAdapter, refund: Callable[..., object]) -> Callable[..., Any]:
    """A step with a live effect, which waits for people and is therefore never parked."""
    save = save_tool(desk, files)
    return lambda **options: desk.run((save, "a", "new"), (refund, "o-1", 90_000), **options)


def waits(step: Callable[..., Any]) -> str:
    return str(step(raises=errors.ReviewPending).txn)


def reported(found: Any) -> list[tuple[str, bool, bool]]:
    return [(one.after, one.waiting, one.needs_attention) for one in found]


def test_a_step_with_live_work_says_what_it_waits_for(desk: Desk, step: Callable[..., Any]) -> None:
    waits(step)
    for _ in range(2):
        found = resume(desk.runtime)
        assert reported(found) == [("review", True, False)]
        assert found[0].note.startswith("not done yet: refund waits for")
        assert "run the same transaction again under key 't-1'" in found[0].note
    assert not (desk.folder / "root" / "a").exists()


def test_once_it_is_approved_its_own_program_is_what_is_missing(desk: Desk, step: Callable[..., Any]) -> None:
    desk.service.approve(waits(step))
    for _ in range(2):
        found = resume(desk.runtime)
        assert reported(found) == [("ready", False, True)]
        assert "approved" in found[0].note and "run it again under key 't-1'" in found[0].note
    assert (desk.runtime.journal.transactions.require(found[0].txn).note, desk.done) == (found[0].note, [])
    step()
    assert (len(desk.done), (desk.folder / "root" / "a").read_text()) == (1, "new")
    assert resume(desk.runtime) == []


@pytest.mark.parametrize("parked", [True, False], ids=["parked", "with live work"])
def test_what_the_service_ended_has_ended_here(desk: Desk, refund: Any, step: Any, parked: bool) -> None:
    txn = desk.run((refund, "o-1", 90_000), raises=errors.ReviewPending).txn if parked else waits(step)
    desk.publish(refund, title="New")
    with desk.another_process() as runtime:
        if parked:
            found = resume(runtime)
            assert reported(found) == [("review", False, True)]
            assert "has changed since it was staged" in found[0].note
            assert "run it again" in found[0].note.lower() and "operator" not in found[0].note
        desk.service.deny(txn, "refund is another one now")
        found = resume(runtime)
        assert reported(found) == [("ended", False, False)]
        assert "refund is another one now" in found[0].note
        assert resume(runtime) == []
    assert desk.done == []


def test_redeemed_elsewhere(desk: Desk, refund: Callable[..., object], step: Callable[..., Any]) -> None:
    """A redemption by another journal of the same agent is reported as such."""
    desk.service.approve(waits(step))
    settings = replace(desk.runtime.settings, journal_path=desk.folder / "other.db")
    with make_runtime(settings, desk.face, desk.registry, desk.clock) as elsewhere:
        replace(desk, runtime=elsewhere).run((refund, "o-1", 90_000))
    assert len(desk.done) == 1
    found = resume(desk.runtime)
    assert reported(found) == [("ended", False, False)]
    assert "already redeemed" in found[0].note


def test_a_step_without_a_key_ends(desk: Desk, files: FilesAdapter, refund: Callable[..., object]) -> None:
    save = save_tool(desk, files)
    with pytest.raises(errors.ReviewPending), transaction(runtime=desk.runtime):
        save("b")
        refund("o-1", 90_000)
    found = resume(desk.runtime)
    assert reported(found) == [("ended", False, False)]
    assert "without a key" in found[0].note


def test_after_a_crash_while_submitting_the_services_state_counts(desk: Desk, refund: Any) -> None:
    """Its program stages nothing the next time: what people are asked is taken back."""
    desk.face.faults["/v1/transactions"] = ["lost_answer"] * 10
    desk.run((refund, "o-1", 90000), raises=errors.ServiceUnavailable)
    desk.face.faults.clear()
    assert reported(resume(desk.runtime)) == [("review", True, False)]
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state, record.parked) == ("review", False)
    desk.run()
    assert (desk.service.latest(record.txn).state, resume(desk.runtime), desk.done) == ("ended", [], [])


# ----------------------------------------------------------------------------------- a look that finds nothing new


def written(desk: Desk) -> list[tuple[object, ...]]:
    rows = desk.runtime.journal.database.rows
    asked = "SELECT id, kind FROM chain ORDER BY id", "SELECT state, note FROM transactions"
    return [tuple(row) for query in asked for row in rows(query)]


def unknown(desk: Desk) -> None:
    answering_tool(desk, TimeoutError("slow"), name="notify")("o-1")


def parked(desk: Desk) -> None:
    refund_tool(desk)("o-1", 90_000)


def with_live_work(desk: Desk) -> None:
    memory = MemoryAdapter()
    tool("keep", lane="live", adapter=memory, registry=desk.registry)(lambda: memory.__setitem__("a", 1))()
    refund_tool(desk)("o-1", 90_000)


def not_taken_back(desk: Desk) -> None:
    answering_tool(desk, ValueError("refused"), name="void")
    refunded: dict[str, Any] = {"compensate": "void", "compensation_map": {"order_id": "args:/order_id"}}
    answering_tool(desk, None, name="charge", **refunded)("o-1")
    refusing_tool(desk)("o-1")


def not_to_be_taken_back(desk: Desk) -> None:
    charge_tools(desk)("o-1", 100)
    desk.service.policy = lambda name, _: Verdict.DENY if name == "void" else Verdict.RELEASE
    refusing_tool(desk)("o-1")


@pytest.mark.parametrize("body", [unknown, parked, with_live_work, not_taken_back, not_to_be_taken_back])
def test_looking_again_writes_nothing(desk: Desk, body: Callable[[Desk], None]) -> None:
    desk.run((body, desk), raises=errors.CountersignError)
    first = resume(desk.runtime)
    before = written(desk)
    for _ in range(3):
        assert resume(desk.runtime) == first
    assert (len(first), written(desk)) == (1, before)


def test_a_note_that_no_longer_holds_is_dropped(desk: Desk) -> None:
    desk.run((with_live_work, desk), raises=errors.ReviewPending)
    desk.service.approve(TXN)
    first, before = resume(desk.runtime)[0].note, written(desk)
    assert (resume(desk.runtime)[0].note, written(desk)) == (first, before)
    (held,) = desk.service.latest(TXN).held
    held.state, held.votes = EffectState.REVIEW, ()  # the rules ask once more
    assert reported(resume(desk.runtime)) == [("review", True, False)]
    assert desk.runtime.journal.transactions.require(TXN).note is None


def test_an_unknown_outcome_is_noted_with_its_original_error(desk: Desk) -> None:
    desk.run((unknown, desk), raises=errors.OutcomeUnknown)
    (found,) = resume(desk.runtime)
    assert desk.runtime.journal.transactions.require(TXN).note == "TimeoutError: slow"
    assert "is not known whether notify#1 happened (TimeoutError: slow)" in found.note


# ------------------------------------------------------------------------- what a key reports that an earlier run spent


def test_a_failure_is_reported_again_while_effects_remain(desk: Desk, refund: Any) -> None:
    calls = (refund, "o-1", 100), (refusing_tool(desk, "no address"), "o-1")
    failed, again = (fails(desk, errors.EffectFailed, *calls).said for _ in range(2))
    assert again == failed and len(desk.done) == 1
    assert "NotDone: no address. Still in effect and not undone: refund#1" in again


PARTLY = {"refund#1": "fired", "notify#2": "failed"}
REMAINING: list[Any] = [
    (
        PARTLY,
        False,
        False,
        r"refund#1 fired, notify#2 failed.*not undone: refund#1.*not in effect: notify#2\.",
    ),
    ({"notify#1": "failed"}, False, True, r"Its live effects are kept\. To try again, stage under"),
    ({"refund#1": "fired"}, True, False, "outcome refund#1 fired.*act once more, use another key"),
]


@pytest.mark.parametrize(("outcomes", "well", "kept", "says"), REMAINING)
def test_remaining_effects_are_not_offered_again(outcomes: Any, well: bool, kept: bool, says: Any) -> None:
    reported = str(errors.AlreadyRedeemed.here("t-1", "1" * 64, outcomes, "settled", well=well, kept=kept))
    assert re.search(says, reported), reported
    assert "Nothing of this transaction remains in effect" not in reported
