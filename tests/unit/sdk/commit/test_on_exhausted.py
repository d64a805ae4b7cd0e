"""`on_exhausted="tool"`: an effect whose reviewed manifest lets it fail without stopping the others. Scenario 39."""

import itertools
import logging

import pytest

from countersign import errors, replay, resume, run_steps
from countersign.contract import EffectState, ToolManifest, Verdict
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, charge_undone_by_void, failing_tool, service_states, states
from tests.fakes.running import fails, order_tool, refusing_tool, run
from tests.unit.sdk.commit.test_time import no_more


def optional_tool(desk: Desk, text: str = "no", **options):
    """A tool that may fail alone, and does."""
    return refusing_tool(desk, text, "mail", on_exhausted="tool", **options)


def test_scenario_39_allowed_failures_stop_nothing(desk: Desk, charge, live_notes, caplog) -> None:
    mail = optional_tool(desk, "mailbox full")
    with caplog.at_level(logging.WARNING, "countersign"):
        left = run(
            desk,
            (charge, "o-1", 100),
            (live_notes.note, "o-1", "charged"),
            (mail, "o-1"),
            (charge, "o-2", 200),
        )
    txn, (first, _, placed, last) = left.txn, left.placed
    assert [what for what, *_ in desk.done] == ["charge", "charge"]
    assert states(desk) == {"charge#1": "fired", "mail#2": "failed", "charge#3": "fired"}
    assert service_states(desk, txn.txn) == ["fired", "failed", "fired"]
    assert (txn.state, desk.service.latest(txn.txn).state.value) == ("settled", "settled")
    assert live_notes.written() == [("o-1", "charged")], "live work is kept"
    assert (first.result, last.result) == ({"charge_id": "c-o-1"}, {"charge_id": "c-o-2"})
    assert [one.effect_id for one in txn.failed] == [placed.effect_id]
    assert (placed.outcome, placed.error) == ("failed", "NotDone: mailbox full")
    with pytest.raises(errors.PlaceholderUsed, match=r"did not happen: NotDone: mailbox full"):
        placed.result  # noqa: B018 - it raises
    assert "mail did not happen" in caplog.text
    assert resume(desk.runtime) == [], "nothing is left to do"


ENDS = [
    ([["may fail", "charge", "may fail"], "charge"], "failed fired failed fired"),
    (["charge", "may fail, lost", "charge"], "fired unknown unused"),
    ([["may fail", "lost"], "charge"], "failed unknown unused"),
    (["charge", "may fail as drafted"], "compensated failed"),
    (["charge", "may fail", "charge", "refused"], "compensated failed compensated failed"),
    (["charge", ["refused", "charge"], "charge"], "compensated failed compensated unused"),
    (["charge", ["lost", "charge"], "charge"], "fired unknown fired unused"),
    (["charge", ["refused", "lost"]], "fired failed unknown"),
]


@pytest.mark.parametrize(("names", "ended"), ENDS)
def test_scenarios_38_and_39_how_each_effect_ends(desk: Desk, charge, names, ended: str) -> None:
    """An inner list is a parallel group. Of what may fail, people have agreed to it, but "as drafted"."""
    may_fail, reviewed = {"on_exhausted": "tool"}, {"on_exhausted": "transaction"}
    tools = {
        "charge": charge,
        "refused": refusing_tool(desk, name="refused"),
        "lost": failing_tool(desk, ValueError("it broke"), "lost"),
        "may fail": refusing_tool(desk, name="may_fail", **may_fail),
        "may fail, lost": failing_tool(desk, TimeoutError("slow"), "may_fail_lost", **may_fail),
        "may fail as drafted": refusing_tool(desk, name="drafted", changes=reviewed, **may_fail),
    }
    orders = map("o-{}".format, itertools.count(1))

    def call(name):
        if isinstance(name, list):
            return [call(one) for one in name]
        return tools[name], next(orders), *[100] * (name == "charge")

    calls, in_doubt, undone = [call(name) for name in names], "unknown" in ended, "compensated" in ended
    error = errors.OutcomeUnknown if in_doubt else errors.EffectFailed if undone else None
    left = fails(desk, error, *calls) if error else run(desk, *calls)
    assert [*states(desk).values()] == ended.split()
    assert left.txn.state == ("unsettled" if in_doubt else "settled")
    assert len(left.txn.failed) == ended.count("failed")
    voided = [one[1] for one in desk.done if one[0] == "void"]
    assert len(voided) == ended.count("compensated") and voided == sorted(voided, reverse=True)
    assert ("Nothing of this transaction remains in effect" in left.said) == undone
    if error:
        fails(desk, errors.AlreadyRedeemed if undone else error, *calls)


def test_scenario_39_an_idempotent_tool_fails_after_all_its_tries(desk: Desk, refund) -> None:
    often = {"idempotent": True, "failure_means": "not_done", "tries": 3}
    mail = failing_tool(desk, ConnectionError("refused"), "mail", on_exhausted="tool", **often)
    txn = run(desk, (mail, "o-1"), (refund, "o-1", 100)).txn
    assert [what for what, *_ in desk.done] == ["mail", "mail", "mail", "refund"]
    assert len(set(desk.keys)) == 2, "every try has the same call key"
    assert (states(desk), txn.state) == ({"mail#1": "failed", "refund#2": "fired"}, "settled")


def test_a_later_run_names_the_one_that_had_to_fire(desk: Desk) -> None:
    mail, pay = optional_tool(desk), failing_tool(desk, TimeoutError("slow"), "pay")
    unknown = fails(desk, errors.OutcomeUnknown, (mail, "o-1"), (pay, "o-1"))
    desk.service.settle(unknown.txn.txn, unknown.placed[1].effect_id, EffectState.FAILED)
    fails(desk, errors.EffectFailed, (mail, "o-1"), (pay, "o-1"), match="pay did not happen")


def test_expired_permission_also_stops_what_may_fail(desk: Desk, charge) -> None:
    mail = optional_tool(desk)
    no_more(desk, of_void=Verdict.RELEASE)
    lapsed = fails(desk, errors.ReleaseLapsed, (charge, "o-1", 100), (mail, "o-1"))
    assert (states(desk), lapsed.txn.failed) == ({"charge#1": "compensated", "mail#2": "unused"}, ())


def test_a_failed_compensation_counts_as_failed_despite_its_manifest(desk: Desk) -> None:
    @order_tool(desk, resource=("Charge", "charge_id"), on_exhausted="tool")
    def void(charge_id: str) -> None:
        raise errors.NotDone("too late")

    charge, pay = charge_undone_by_void(desk), refusing_tool(desk, "no money", "pay")
    failed = fails(desk, errors.EffectFailed, (charge, "o-1"), (pay, "o-1"))
    assert states(desk) == {"charge#1": "compensation_failed", "pay#2": "failed"}
    assert failed.txn.state == "unsettled"


def test_if_every_allowed_failure_occurs_only_live_work_is_kept(desk: Desk, live_notes) -> None:
    mail = optional_tool(desk)
    for replayed in (False, True):
        left = run(desk, (mail, "o-1"))
        assert (left.placed[0].outcome, left.txn.state, left.txn.replayed) == ("failed", "ended", replayed)
        assert [one.error for one in left.txn.failed] == ["NotDone: no"]
    assert desk.service.latest(left.txn.txn).state.value == "ended"
    assert run(desk, (live_notes.note, "o-1", "hello"), (mail, "o-1"), key="t-2").txn.state == "settled"
    assert (live_notes.written(), resume(desk.runtime)) == ([("o-1", "hello")], [])


def test_a_second_run_and_a_replay_answer_the_same_and_fire_nothing(desk: Desk, refund) -> None:
    mail, failed = optional_tool(desk, "mailbox full"), ("failed", "NotDone: mailbox full")
    for replayed in (False, True):
        left = run(desk, (mail, "o-1"), (refund, "o-1", 100))
        mailed, refunded = left.placed
        assert (left.txn.replayed, refunded.result) == (replayed, {"refund_id": "r-o-1-100"})
        assert (mailed.outcome, mailed.error) == failed
        assert [one.effect_id for one in left.txn.failed] == [mailed.effect_id]
    again = replay("t-1", lambda _: (mail("o-1"), refund("o-1", 100)), runtime=desk.runtime)
    assert (again.status, again.value[0].outcome, again.value[0].error) == ("same", *failed)
    assert desk.done == [("refund", "o-1", 100)]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("again", ["resume", "rerun"])
def test_what_a_dead_process_left_is_finished(desk: Desk, refund, monkeypatch, again: str) -> None:
    """On disk: one failed as it may, an idempotent one was firing, one was not begun."""
    mail, dies = optional_tool(desk, "mailbox full"), [Killed()]

    @order_tool(desk, idempotent=True)
    def upsert(order_id: str) -> None:
        desk.act("upsert", order_id)
        if dies:
            raise dies.pop()

    calls = (mail, "o-1"), (upsert, "o-1"), (refund, "o-1", 5)
    with monkeypatch.context() as patched:
        patched.setattr(desk.runtime.journal.effect_log, "write", lambda *_: None)  # the dead write nothing
        patched.setattr(desk.runtime.journal.transactions, "stop", lambda *_: None)
        fails(desk, Killed, *calls)
    assert states(desk) == {"mail#1": "failed", "upsert#2": "firing", "refund#3": "redeemed"}
    with desk.restarted() as later:
        if again == "resume":
            (found,) = resume(later.runtime)
            assert found.after == "settled"
        else:
            left = run(later, *calls)
            assert (left.txn.state, left.placed[0].outcome, len(left.txn.failed)) == ("settled", "failed", 1)
    assert desk.done == [("upsert", "o-1"), ("upsert", "o-1"), ("refund", "o-1", 5)]
    assert states(desk) == {"mail#1": "failed", "upsert#2": "fired", "refund#3": "fired"}
    assert resume(desk.runtime) == []


def test_an_unknown_that_a_person_settles_as_not_done_counts_as_let_fail(desk: Desk, refund) -> None:
    mail = failing_tool(desk, TimeoutError("slow"), "mail", on_exhausted="tool")
    unknown = fails(desk, errors.OutcomeUnknown, (refund, "o-1", 100), (mail, "o-1"))
    desk.service.settle(unknown.txn.txn, unknown.placed[1].effect_id, EffectState.FAILED)
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert (states(desk), len(desk.done)) == ({"refund#1": "fired", "mail#2": "failed"}, 2)


@pytest.mark.usefixtures("refund")
def test_run_steps_answers_the_failed_step_by_its_placeholder(desk: Desk) -> None:
    optional_tool(desk, "mailbox full")
    back = {"tool": "refund", "id": "back", "args": {"order_id": "o-1", "amount_cents": 100, "tags": None}}
    steps = [{"tool": "mail", "id": "mail", "args": {"order_id": "o-1"}}, back]
    answers = run_steps(steps, key="t-1", runtime=desk.runtime)
    assert answers["back"] == {"refund_id": "r-o-1-100"}
    assert (answers["mail"].outcome, answers["mail"].error) == ("failed", "NotDone: mailbox full")


def test_a_draft_leaves_out_the_default(desk: Desk, refund) -> None:
    assert tool_of(optional_tool(desk)).draft_manifest().to_json()["on_exhausted"] == "tool"
    draft = tool_of(refund).draft_manifest()
    assert "on_exhausted" not in draft.to_json()
    for value, same in (("transaction", True), ("tool", False)):
        changed = ToolManifest.model_validate(draft.model_dump() | {"on_exhausted": value})
        assert (changed.digest == draft.digest) is same
