"""A read that fired changed nothing, for any result of the others."""

import pytest

from countersign import Serialize, errors, resume, transaction
from countersign.contract.states import EffectState
from countersign.journal.export import describe_transaction
from tests.fakes.desk import Desk, failing_tool
from tests.fakes.running import fails, order_tool, refusing_tool, run


def look_tool(desk: Desk, *, reviewed: bool = True, **options):
    @order_tool(desk, groups=["read"], changes={} if reviewed else {"groups": ()}, **options)
    def look(order_id: str) -> str:
        return f"order {order_id}"

    return look


def test_a_read_next_to_a_failure_leaves_no_effect_and_no_task(desk: Desk) -> None:
    look = look_tool(desk)
    failed = fails(desk, errors.EffectFailed, (look, "o-1"), (refusing_tool(desk), "o-1"))
    assert failed.error.outcomes == {"look#1": "fired", "notify#2": "failed"}
    assert "Nothing of this transaction remains in effect. To try again, use another key." in failed.said
    assert (failed.txn.state, failed.placed[0].result) == ("ended", "order o-1")
    assert "Still in effect" not in fails(desk, errors.AlreadyRedeemed, (look, "o-2")).said


@pytest.mark.parametrize("remaining", [False, True])
def test_others_are_compensated_or_stay(desk: Desk, charge, refund, remaining: bool) -> None:
    others = [(refund, "o-1", 100)] * remaining
    calls = (look_tool(desk), "o-1"), (charge, "o-1", 100), *others, (refusing_tool(desk), "o-1")
    failed = fails(desk, errors.EffectFailed, *calls)
    assert ("Still in effect and not undone: refund#3;" in failed.said) is remaining
    assert [one[0] for one in desk.done if one[0] != "refund"] == ["charge", "void"]
    assert failed.txn.state == ("unsettled" if remaining else "settled")


def test_the_reviewed_manifest_says_whether_it_reads_and_not_the_code(desk: Desk) -> None:
    calls = (look_tool(desk, reviewed=False), "o-1"), (refusing_tool(desk), "o-1")
    failed = fails(desk, errors.EffectFailed, *calls, match="Still in effect and not undone: look#1")
    assert failed.txn.state == "unsettled"


def test_a_read_settled_as_not_fired_needs_no_person(desk: Desk) -> None:
    calls = (look_tool(desk), "o-1"), (failing_tool(desk, TimeoutError("slow")), "o-1")
    unknown = fails(desk, errors.OutcomeUnknown, *calls)
    desk.service.settle(unknown.txn.txn, unknown.placed[1].effect_id, EffectState.FAILED)
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
    assert (found.after, "Still in effect" in found.note) == ("ended", False)


def test_a_live_read_runs_without_an_adapter(desk: Desk, refund, live_notes) -> None:
    look = look_tool(desk, lane="live")
    with desk.step() as txn:
        assert look("o-1") == "order o-1"
        with transaction(runtime=desk.runtime):
            live_notes.note("o-1", look("o-2"))
        refund("o-1", 100)
    assert (txn.state, live_notes.written()) == ("settled", [("o-1", "order o-2")])
    journal = desk.runtime.journal
    rows = describe_transaction(journal, journal.transactions.require(txn.txn))["effects"]
    kept = [("look", "kept"), ("look", "kept"), ("note", "kept")]
    assert [(one["tool"], one["state"]) for one in rows] == [("refund", "fired"), *kept]


def test_live_reads_take_part_in_no_claim(desk: Desk, live_notes) -> None:
    look = look_tool(desk, lane="live")
    for adapters in ((), (live_notes.adapter,)):
        with desk.step(isolation=Serialize(adapters=adapters, timeout_seconds=0)):
            live_notes.note("o-1", look("o-1"))
            (claim,) = desk.runtime.journal.database.rows("SELECT resource FROM claims")
            assert claim["resource"] == live_notes.adapter.name


def test_live_reads_settle_and_a_failure_with_them_leaves_no_effect(desk: Desk) -> None:
    look, nothing = look_tool(desk, lane="live"), "Nothing of this transaction remains in effect"
    assert run(desk, (look, "o-1")).txn.state == "settled"
    calls = (look, "o-1"), (refusing_tool(desk), "o-1")
    assert fails(desk, errors.EffectFailed, *calls, match=nothing, key="t-2").txn.state == "ended"


def test_a_crash_after_the_redemption_rolls_forward_with_a_live_read(desk: Desk, refund) -> None:
    look = look_tool(desk, lane="live")
    desk.face.faults["/v1/redemptions"] = ["lost_answer"] * 9
    with pytest.raises(Exception), desk.step():  # noqa: B017
        refund(look("o-1"), 100)
    desk.face.faults.clear()
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
    assert (found.after, len(desk.done)) == ("settled", 1), found.note


@pytest.mark.parametrize("manifest", ["none", "no group"])
def test_a_live_tool_without_an_adapter_runs_only_if_reviewed_as_a_read(desk: Desk, manifest: str) -> None:
    look = look_tool(desk, lane="live", reviewed=False)
    if manifest == "none":
        desk.service.manifests.clear()
    fails(desk, errors.NotStageable, (look, "o-1"), match="live without an adapter")


def test_a_live_write_still_needs_its_adapter(desk: Desk) -> None:
    with pytest.raises(errors.RegistrationError, match=r"adapter=\.\.\., or groups=\['read'\]"):
        order_tool(desk, "drop", lane="live")(lambda order_id: None)
