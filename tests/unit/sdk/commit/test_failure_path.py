"""When firing fails: what is compensated, what is left alone, and which error is raised."""

from typing import NoReturn

import pytest

from countersign import errors, resume, tool
from countersign.commit.tool_errors import MAX_ERROR
from countersign.contract import EffectState, ErrorCode, Outcome, Verdict
from countersign.contract.wire import Reason
from tests.fakes import running
from tests.fakes.desk import Desk, answering_tool, charge_undone_by_void, failing_tool, service_states, states
from tests.fakes.running import Left, fails, order_tool, refusing_tool, run
from tests.fakes.service import Refused
from tests.unit.sdk.full_disk import full_after


def acts(desk: Desk) -> list[str]:
    """The names of what was done, in order."""
    return [name for name, *_ in desk.done]


def test_what_fired_is_compensated_newest_first_after_a_known_failure(desk: Desk, charge) -> None:
    notify = refusing_tool(desk, "mailbox full")
    with pytest.raises(errors.EffectFailed) as failed, desk.step() as txn:
        charge("o-1", 100)
        charge("o-2", 200)
        with txn.repeat():
            charge("o-2", 200)
        notify("o-1")
    assert acts(desk) == ["charge"] * 3 + ["void"] * 3
    assert [one[1] for one in desk.done[3:]] == ["c-o-2", "c-o-2", "c-o-1"]
    assert len(set(desk.keys)) == 6, "each compensation has a call key of its own"
    assert [*states(desk).values()] == ["compensated", "compensated", "compensated", "failed"]
    assert service_states(desk, txn.txn) == [*states(desk).values()]
    assert (type(failed.value.__cause__), txn.state) == (errors.NotDone, "settled")


NOT_DONE = [(errors.NotDone("refused"), {}), (ValueError("refused"), {"failure_means": "not_done"})]


@pytest.mark.parametrize(("error", "declared"), NOT_DONE)
def test_a_first_effect_that_fails_leaves_nothing(desk: Desk, refund, error, declared) -> None:
    notify = failing_tool(desk, error, acts=False, **declared)
    failed = fails(desk, errors.EffectFailed, (notify, "o-1"), (refund, "o-1", 100))
    assert (desk.done, failed.txn.state) == ([], "ended")
    assert states(desk) == {"notify#1": "failed", "refund#2": "unused"}


def test_an_effect_without_compensation_stays_and_is_named(desk: Desk, refund) -> None:
    notify = refusing_tool(desk)
    failed = fails(desk, errors.EffectFailed, (refund, "o-1", 100), (notify, "o-1"), (notify, "o-2"))
    assert (desk.done, failed.txn.state) == ([("refund", "o-1", 100)], "unsettled")
    assert "Still in effect and not undone: refund#1" in failed.said
    assert failed.said.endswith("under another key only what is not in effect: notify#2, notify#3.")


def test_an_exception_of_a_tool_means_unknown(desk: Desk, charge, refund) -> None:
    notify, tasks = failing_tool(desk, TimeoutError("slow")), f"{desk.service.iss}/tasks"
    calls = (charge, "o-1", 100), (notify, "o-1"), (refund, "o-1", 100)
    unknown = fails(desk, errors.OutcomeUnknown, *calls)
    assert states(desk) == {"charge#1": "fired", "notify#2": "unknown", "refund#3": "unused"}
    assert service_states(desk, unknown.txn.txn) == ["fired", "unknown", "unused"]
    assert (unknown.error.effects, unknown.placed[1].outcome) == (("notify#2",), "unknown")
    for text in (tasks, "TimeoutError: slow", "For its author", "`countersign resume"):
        assert text in unknown.said
    for _ in range(3):  # and the text of a resume does not ask for a resume
        (found,) = resume(desk.runtime)
        assert (found.after, desk.done) == ("unsettled", [("charge", "o-1", 100), ("notify", "o-1")])
        assert "TimeoutError: slow" in found.note and tasks in found.note
        assert "countersign resume" not in found.note


@pytest.mark.parametrize("settled", [EffectState.FAILED, EffectState.FIRED])
def test_a_settled_unknown_decides_what_is_compensated(desk: Desk, charge, settled: EffectState) -> None:
    notify, is_failed = failing_tool(desk, TimeoutError("slow")), settled is EffectState.FAILED
    calls = [(charge, "o-1", 100), (notify, "o-1"), *[(charge, "o-2", 200)] * is_failed]
    unknown = fails(desk, errors.OutcomeUnknown, *calls)
    desk.service.settle(unknown.txn.txn, unknown.placed[1].effect_id, settled)
    (found,) = resume(desk.runtime)
    assert (found.before, found.after, resume(desk.runtime)) == ("unsettled", "settled", [])
    assert desk.done[2:] == [("void", "c-o-1", 100)] * is_failed


def test_not_done_after_a_lost_answer_is_still_unknown(desk: Desk) -> None:
    raised = ConnectionError("lost"), errors.NotDone("refused")
    upsert = answering_tool(desk, *raised, idempotent=True)
    both = "NotDone: refused; an earlier try raised ConnectionError: lost, and may have happened"
    for _ in range(2):
        unknown = fails(desk, errors.OutcomeUnknown, (upsert, "o-1"))
        assert f"whether upsert#1 happened ({both})" in unknown.said
        assert (states(desk), running.errors(desk)) == ({"upsert#1": "unknown"}, {"upsert": both})
    assert len(desk.done) == 2


@pytest.mark.parametrize(("text", "secret"), [("x" * 600, ()), ("s3cret", ("/order_id",))])
def test_the_texts_of_both_tries_are_bounded_and_hide_secrets(desk: Desk, text: str, secret) -> None:
    raised = ConnectionError(text), errors.NotDone(text)
    upsert = answering_tool(desk, *raised, idempotent=True, changes={"secret": secret})
    fails(desk, errors.OutcomeUnknown, (upsert, "o-1"))
    reported = running.errors(desk)["upsert"]
    assert reported.startswith("NotDone;" if secret else "NotDone: xxx")
    assert ("raised ConnectionError," if secret else "raised ConnectionError: xxx") in reported
    assert (len(reported) <= MAX_ERROR, "s3cret" in reported) == (True, False)


@pytest.mark.parametrize(("error", "declared"), NOT_DONE)
def test_a_try_that_was_cut_off_stays_in_doubt(desk: Desk, error, declared) -> None:
    upsert = answering_tool(desk, "set", error, idempotent=True, **declared)
    with full_after(desk.runtime.journal, 1):
        fails(desk, errors.OutcomeUnknown, (upsert, "o-1"))
    (found,) = resume(desk.runtime)
    assert states(desk) == {"upsert#1": "unknown"}
    assert "refused; an earlier try was cut off, and may have happened" in found.note


# --------------------------------------------------------------------------------- taking back what has fired


def undone(desk: Desk, *calls) -> Left:
    """These calls, and an effect after them that is known not done."""
    return fails(desk, errors.EffectFailed, *calls, (refusing_tool(desk), "o-1"))


def people_allow_void(desk: Desk) -> None:
    desk.service.policy = lambda name, _: Verdict.REVIEW if name == "void" else Verdict.RELEASE


def test_a_compensation_that_people_must_allow_waits_and_resume_finishes_it(desk: Desk, charge) -> None:
    """Notifying the customer again would announce a charge that is voided a minute later."""
    people_allow_void(desk)
    failed = undone(desk, (charge, "o-1", 100), (charge, "o-2", 200))
    assert [review.tool for review in failed.error.reviews] == ["void", "void"]
    reviews = [text for review in failed.error.reviews for text in (str(review), str(review.url))]
    for text in (*reviews, "Compensation pending: charge#1, charge#2", "Do not repeat any of it before"):
        assert text in failed.said
    for text in ("Still in effect", "another key", "notify#3"):
        assert text not in failed.said
    (found,) = resume(desk.runtime)
    assert str(failed.error.reviews[0]) in found.note
    assert (found.after, found.waiting, found.needs_attention) == ("unsettled", True, False)
    desk.service.approve_compensation(failed.txn.txn, failed.placed[0].effect_id)
    (found,) = resume(desk.runtime)
    assert (found.waiting, "Compensation pending: charge#2: " in found.note) == (True, True)
    desk.service.approve_compensation(failed.txn.txn, failed.placed[1].effect_id)
    (found,) = resume(desk.runtime)
    assert (found.after, acts(desk)) == ("settled", ["charge", "charge", "void", "void"])


def test_effects_without_compensation_do_not_wait_for_people(desk: Desk, charge, refund) -> None:
    people_allow_void(desk)
    failed = undone(desk, (charge, "o-1", 100), (refund, "o-1", 100))
    assert "Still in effect and not undone: refund#2; `countersign resume" in failed.said
    assert "a person settles the rest" in failed.said and "another key" not in failed.said
    (found,) = resume(desk.runtime)
    assert (found.waiting, found.needs_attention) == (False, True)


def test_a_compensation_delayed_by_the_service_does_not_wait_for_people(desk: Desk, charge) -> None:
    desk.face.faults["/v1/redemptions"] = ["lost_request"] * 20
    failed = undone(desk, (charge, "o-1", 100))
    assert (failed.error.reviews, failed.error.outcomes["charge#1"]) == ((), "compensating")
    assert "another key" not in failed.said
    (found,) = resume(desk.runtime)
    assert (found.waiting, found.needs_attention) == (False, True)


def test_a_denied_compensation_is_reported_as_failed(desk: Desk, charge) -> None:
    denied = (Verdict.DENY, Reason(code="forbidden_by_policy", text="never void"))
    desk.service.policy = lambda name, _: denied if name == "void" else Verdict.RELEASE
    failed = undone(desk, (charge, "o-1", 100))
    assert (states(desk)["charge#1"], failed.txn.state) == ("compensation_failed", "unsettled")
    assert "charge#1 was not compensated: void is denied: never void. Still" in failed.said


def test_a_compensator_that_raises_does_not_keep_the_others_from_running(desk: Desk) -> None:
    @order_tool(desk, resource=("Charge", "charge_id"), failure_means="not_done")
    def void(charge_id: str) -> None:
        if charge_id == "c-o-2":
            raise ValueError("closed")
        desk.act("void", charge_id)

    charge = charge_undone_by_void(desk)
    failed = undone(desk, (charge, "o-1"), (charge, "o-2"))
    assert "charge#2 was not compensated: void did not happen: ValueError: closed." in failed.said
    assert desk.done[-1] == ("void", "c-o-1")
    assert [*states(desk).values()] == ["compensated", "compensation_failed", "failed"]


def test_a_compensation_with_unknown_outcome_is_reported_as_unknown(desk: Desk, charge) -> None:
    def lost(name: str) -> None:
        if name == "void":
            raise TimeoutError("slow")

    desk.before_fire = lost
    failed = undone(desk, (charge, "o-1", 100))
    assert failed.error.outcomes == {"charge#1": "compensation_unknown", "notify#2": "failed"}
    assert "not known whether this was compensated: charge#1" in failed.said
    for text in ("Still in effect", "Nothing of this transaction remains in effect"):
        assert text not in failed.said
    for _ in range(2):
        (found,) = resume(desk.runtime)
        assert (found.after, "not known whether" in found.note, len(desk.done)) == ("unsettled", True, 1)
    desk.before_fire = None
    desk.service.settle_compensation(failed.txn.txn, failed.placed[0].effect_id)
    assert (resume(desk.runtime)[0].after, states(desk)["charge#1"]) == ("settled", "compensated")


def unbuildable(desk: Desk, **options):
    """A charge whose compensation takes an argument from where the charge's result has none."""

    @order_tool(desk, resource=("Charge", "charge_id"))
    def void(charge_id: str) -> None: ...
    @order_tool(desk, compensate="void", compensation_map={"charge_id": "result:/no_such"}, **options)
    def charge(order_id: str, pin: str = "") -> dict[str, str]:
        desk.act("charge", order_id)
        return {"charge_id": f"c-{order_id}"}

    return charge


def test_a_compensation_that_cannot_be_built_is_reported_with_the_reason(desk: Desk) -> None:
    failed = undone(desk, (unbuildable(desk), "o-1"))
    why = "the compensation of charge cannot be built: '/no_such' names nothing here: no 'no_such'"
    assert failed.error.outcomes == {"charge#1": "compensation_failed", "notify#2": "failed"} == states(desk)
    assert f"NotDone: no; charge#1 was not compensated: {why}. Still in effect and" in failed.said
    record = desk.runtime.journal.transactions.find("t-1")[0]
    assert (record.state, record.note) == ("unsettled", f"charge#1 was not compensated: {why}")
    assert running.errors(desk) == {"charge": why, "notify": "NotDone: no"}
    with pytest.raises(errors.PlaceholderUsed, match="it happened, and could not be compensated"):
        failed.placed[0].result  # noqa: B018 - it raises
    assert service_states(desk, failed.txn.txn) == ["compensation_failed", "failed"]
    assert [one.note for one in resume(desk.runtime)] == [failed.said]


@pytest.mark.parametrize(("secret", "reported"), [([], True), (["pin"], False)])
def test_text_that_may_quote_a_secret_is_hidden(desk: Desk, caplog, secret, reported: bool) -> None:
    def gives_up(txn: str, effect: str, _: str) -> NoReturn:
        desk.service.give_up(txn, effect)
        raise Refused(409, ErrorCode.ILLEGAL_STATE, "nothing fits 4111")

    desk.service.compensate = gives_up  # type: ignore[method-assign]
    failed = undone(desk, (unbuildable(desk, secret=secret), "o-1", "4111"))
    record = desk.runtime.journal.transactions.find("t-1")[0]
    texts = [failed.said, record.note, running.errors(desk)["charge"], caplog.text]
    assert ["4111" in (one or "") for one in texts] == [reported] * 4


def test_an_unregistered_compensating_tool_is_refused_at_staging(desk: Desk) -> None:
    options = {"resource": ("Order", "order_id"), "compensate": "vanished", "registry": desk.registry}
    charge = tool("charge", **options)(lambda order_id: None)
    fails(desk, errors.RegistrationError, (charge, "o-1"), match="vanished")
    assert desk.face.log == []


# ---------------------------------------------------------------------------------------- results and reports


def test_results_are_reported_only_for_a_compensation(desk: Desk, charge, refund) -> None:
    left = run(desk, (charge, "o-1", 100), (refund, "o-1", 100))
    assert [one.result for one in desk.service.latest(left.txn.txn).held] == [{"charge_id": "c-o-1"}, None]


def test_a_report_that_is_lost_is_sent_again_with_the_next_commit(desk: Desk, refund) -> None:
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 4
    first = run(desk, (refund, "o-1", 100)).txn
    assert desk.service.latest(first.txn).held[0].outcome is None
    run(desk, (refund, "o-2", 100), key="t-2")
    assert desk.service.latest(first.txn).held[0].outcome is Outcome.FIRED


def test_a_policy_that_changes_its_mind_at_redemption_denies(desk: Desk, refund) -> None:
    desk.service.approve(fails(desk, errors.ReviewPending, (refund, "o-1", 90_000)).error.txn)
    desk.service.policy = lambda *_: (Verdict.DENY, Reason(code="forbidden_by_policy", text="frozen account"))
    fails(desk, errors.Denied, (refund, "o-1", 90_000), match="frozen account")
    assert desk.done == []
