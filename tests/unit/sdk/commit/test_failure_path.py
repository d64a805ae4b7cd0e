"""When firing fails: what is compensated, what is left alone, and which error is raised."""

from typing import Any, NoReturn

import pytest

from countersign import (
    Denied,
    EffectFailed,
    NotDone,
    OutcomeUnknown,
    PlaceholderUsed,
    RegistrationError,
    ReviewPending,
    resume,
    tool,
)
from countersign.commit.attempt import MAX_ERROR
from countersign.contract import EffectState, ErrorCode, Outcome, Verdict
from countersign.contract.wire import Reason
from tests.fakes.desk import (
    Desk,
    answering_tool,
    charge_tools,
    charge_undone_by_void,
    failing_tool,
    refund_tool,
    service_states,
    states,
)
from tests.fakes.running import Left, errors, fails, order_tool, refusing_tool, run
from tests.fakes.service import Refused
from tests.unit.sdk.full_disk import full_after


def acts(desk: Desk) -> list[str]:
    """The names of what was done, in order."""
    return [name for name, *_ in desk.done]


def test_what_fired_is_taken_back_newest_first_when_a_later_effect_is_known_not_done(desk: Desk) -> None:
    charge, notify = charge_tools(desk), refusing_tool(desk, "mailbox full")
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
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
    assert "Nothing of this transaction remains in effect" in str(failed.value)
    assert isinstance(failed.value.__cause__, NotDone)
    assert txn.state == "settled"


NOT_DONE: dict[str, tuple[Exception, dict[str, Any]]] = {
    "by NotDone": (NotDone("refused"), {}),
    "as it was declared": (ValueError("refused"), {"failure_means": "not_done"}),
}
EACH_NOT_DONE = pytest.mark.parametrize(("error", "declared"), NOT_DONE.values(), ids=NOT_DONE)


@EACH_NOT_DONE
def test_the_first_effect_failing_leaves_nothing_and_says_so(desk: Desk, error: Any, declared: Any) -> None:
    notify, refund = failing_tool(desk, error, acts=False, **declared), refund_tool(desk)
    failed = fails(desk, EffectFailed, (notify, "o-1"), (refund, "o-1", 100))
    assert (desk.done, failed.txn.state) == ([], "ended")
    assert states(desk) == {"notify#1": "failed", "refund#2": "unused"}


def test_an_effect_without_compensation_stays_and_is_named(desk: Desk, refund: Any) -> None:
    notify = refusing_tool(desk)
    failed = fails(desk, EffectFailed, (refund, "o-1", 100), (notify, "o-1"), (notify, "o-2"))
    assert (desk.done, failed.txn.state) == ([("refund", "o-1", 100)], "unsettled")
    assert "Still in effect and not undone: refund#1" in failed.said
    assert failed.said.endswith("under another key only what is not in effect: notify#2, notify#3.")


def test_an_exception_of_a_tool_means_unknown_and_nothing_is_taken_back(desk: Desk) -> None:
    charge, notify, refund = charge_tools(desk), failing_tool(desk, TimeoutError("slow")), refund_tool(desk)
    unknown = fails(desk, OutcomeUnknown, (charge, "o-1", 100), (notify, "o-1"), (refund, "o-1", 100))
    assert states(desk) == {"charge#1": "fired", "notify#2": "unknown", "refund#3": "unused"}
    assert service_states(desk, unknown.txn.txn) == ["fired", "unknown", "unused"]
    assert (unknown.error.effects, unknown.placed[1].outcome) == (("notify#2",), "unknown")
    assert f"settles it first, in the service's queue at {desk.service.iss}/tasks;" in unknown.said
    assert "TimeoutError: slow" in unknown.said and "For its author" in unknown.said
    assert "`countersign resume" in unknown.said
    for _ in range(3):  # and the text of a resume does not ask for a resume
        (found,) = resume(desk.runtime)
        assert (found.after, desk.done) == ("unsettled", [("charge", "o-1", 100), ("notify", "o-1")])
        assert "TimeoutError: slow" in found.note, "the tool raised; its process did not end"
        assert "countersign resume" not in found.note and f"{desk.service.iss}/tasks" in found.note


@pytest.mark.parametrize("settled", [EffectState.FAILED, EffectState.FIRED])
def test_once_an_unknown_is_settled_the_rest_is_taken_back_or_kept(desk: Desk, settled: EffectState) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, TimeoutError("slow"))
    rest = [(charge, "o-2", 200)] if settled is EffectState.FAILED else []
    unknown = fails(desk, OutcomeUnknown, (charge, "o-1", 100), (notify, "o-1"), *rest)
    desk.service.settle(unknown.txn.txn, unknown.placed[1].effect_id, settled)
    (found,) = resume(desk.runtime)
    assert (found.before, found.after, resume(desk.runtime)) == ("unsettled", "settled", [])
    assert desk.done[2:] == ([("void", "c-o-1", 100)] if settled is EffectState.FAILED else [])


def test_not_done_after_a_lost_answer_is_still_unknown(desk: Desk) -> None:
    upsert = answering_tool(desk, ConnectionError("lost"), NotDone("refused"), idempotent=True)
    both = "NotDone: refused; an earlier try raised ConnectionError: lost, and may have happened"
    for _ in range(2):
        unknown = fails(desk, OutcomeUnknown, (upsert, "o-1"))
        assert f"whether upsert#1 happened ({both})" in unknown.said
        assert "For its author" not in unknown.said, "it did say so, and that ends the tries"
        assert (states(desk), errors(desk)) == ({"upsert#1": "unknown"}, {"upsert": both})
    assert len(desk.done) == 2


@pytest.mark.parametrize(
    ("text", "options", "last", "before"),
    [
        ("x" * 600, {}, "NotDone: xxx", "raised ConnectionError: xxx"),
        ("s3cret", {"secret": ("/order_id",)}, "NotDone;", "ConnectionError,"),
    ],
)
def test_both_tries_hide_secrets(desk: Desk, text: str, options: Any, last: str, before: str) -> None:
    upsert = answering_tool(desk, ConnectionError(text), NotDone(text), idempotent=True, changes=options)
    fails(desk, OutcomeUnknown, (upsert, "o-1"))
    reported = errors(desk)["upsert"]
    assert (last in reported, before in reported, "may have happened" in reported) == (True, True, True)
    assert (len(reported) <= MAX_ERROR, "s3cret" in reported) == (True, False)


@EACH_NOT_DONE
def test_a_try_that_knows_better_names_the_one_cut_off(desk: Desk, error: Any, declared: Any) -> None:
    upsert = answering_tool(desk, "set", error, idempotent=True, **declared)
    with full_after(desk.runtime.journal, 1):
        fails(desk, OutcomeUnknown, (upsert, "o-1"))
    (found,) = resume(desk.runtime)
    assert states(desk) == {"upsert#1": "unknown"}
    assert "refused; an earlier try was cut off, and may have happened" in found.note
    assert "For its author" not in found.note


# --------------------------------------------------------------------------------- taking back what has fired


def undone(desk: Desk, *calls: Any) -> Left:
    """These calls or a charge, and an effect after them that is known not done."""
    return fails(
        desk, EffectFailed, *(calls or [(charge_tools(desk), "o-1", 100)]), (refusing_tool(desk), "o-1")
    )


def people_allow_void(desk: Desk) -> None:
    desk.service.policy = lambda name, _: Verdict.REVIEW if name == "void" else Verdict.RELEASE


def test_a_compensation_that_people_must_allow_waits_and_resume_finishes_it(desk: Desk) -> None:
    """Notifying the customer again would announce a charge that is voided a minute later."""
    charge = charge_tools(desk)
    people_allow_void(desk)
    failed = undone(desk, (charge, "o-1", 100), (charge, "o-2", 200))
    assert [review.tool for review in failed.error.reviews] == ["void", "void"]
    for review in failed.error.reviews:
        assert str(review) in failed.said and str(review.url) in failed.said
    assert "Compensation pending: charge#1, charge#2" in failed.said
    assert not [
        reported for reported in ("Still in effect", "another key", "notify#3") if reported in failed.said
    ]
    assert failed.said.endswith("Do not repeat any of it before that is decided.")
    (found,) = resume(desk.runtime)
    assert str(failed.error.reviews[0]) in found.note
    assert (found.after, found.waiting, found.needs_attention) == ("unsettled", True, False)
    desk.service.approve_compensation(failed.txn.txn, failed.placed[0].effect_id)
    (found,) = resume(desk.runtime)
    assert (found.waiting, "Compensation pending: charge#2: " in found.note) == (True, True)
    desk.service.approve_compensation(failed.txn.txn, failed.placed[1].effect_id)
    (found,) = resume(desk.runtime)
    assert (found.after, acts(desk)) == ("settled", ["charge", "charge", "void", "void"])


def test_an_uncompensated_effect_does_not_count_as_waiting_for_people(desk: Desk) -> None:
    people_allow_void(desk)
    failed = undone(desk, (charge_tools(desk), "o-1", 100), (refund_tool(desk), "o-1", 100))
    assert "Still in effect and not undone: refund#2; `countersign resume" in failed.said
    assert "a person settles the rest" in failed.said and "another key" not in failed.said
    (found,) = resume(desk.runtime)
    assert (found.waiting, found.needs_attention) == (False, True)


def test_what_a_service_that_is_away_keeps_up_is_not_said_to_wait_for_people(desk: Desk) -> None:
    desk.face.faults["/v1/redemptions"] = ["lost_request"] * 20
    failed = undone(desk)
    assert (failed.error.reviews, failed.error.outcomes["charge#1"]) == ((), "compensating")
    assert "another key" not in failed.said
    (found,) = resume(desk.runtime)
    assert (found.waiting, found.needs_attention) == (False, True)


def test_a_denied_compensation_is_reported_as_failed(desk: Desk) -> None:
    denied = (Verdict.DENY, Reason(code="forbidden_by_policy", text="never void"))
    desk.service.policy = lambda name, _: denied if name == "void" else Verdict.RELEASE
    failed = undone(desk)
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


def test_a_compensation_with_unknown_outcome_is_reported_as_unknown(desk: Desk) -> None:
    def lost(name: str) -> None:
        if name == "void":
            raise TimeoutError("slow")

    desk.before_fire = lost
    failed = undone(desk)
    assert failed.error.outcomes == {"charge#1": "compensation_unknown", "notify#2": "failed"}
    assert "not known whether this was compensated: charge#1" in failed.said
    assert (
        "Still in effect" not in failed.said
        and "Nothing of this transaction remains in effect" not in failed.said
    )
    for _ in range(2):
        (found,) = resume(desk.runtime)
        assert (found.after, "not known whether" in found.note, len(desk.done)) == ("unsettled", True, 1)
    desk.before_fire = None
    desk.service.settle_compensation(failed.txn.txn, failed.placed[0].effect_id)
    assert resume(desk.runtime)[0].after == "settled"
    assert states(desk)["charge#1"] == "compensated"


def unbuildable(desk: Desk, **options: Any) -> Any:
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
    assert errors(desk) == {"charge": why, "notify": "NotDone: no"}
    with pytest.raises(PlaceholderUsed, match="it happened, and could not be compensated"):
        failed.placed[0].result  # noqa: B018 - it raises
    assert service_states(desk, failed.txn.txn) == ["compensation_failed", "failed"]
    (found,) = resume(desk.runtime)
    assert found.note == failed.said


@pytest.mark.parametrize(("secret", "reported"), [([], True), (["pin"], False)])
def test_text_that_may_quote_a_secret_is_hidden(
    desk: Desk, caplog: Any, secret: list[str], reported: bool
) -> None:
    def gives_up(txn: str, effect: str, _: str) -> NoReturn:
        desk.service.give_up(txn, effect)
        raise Refused(409, ErrorCode.ILLEGAL_STATE, "nothing fits 4111")

    desk.service.compensate = gives_up  # type: ignore[method-assign]
    failed = undone(desk, (unbuildable(desk, secret=secret), "o-1", "4111"))
    record = desk.runtime.journal.transactions.find("t-1")[0]
    heard = [failed.said, record.note, errors(desk)["charge"], caplog.text]
    assert ["4111" in (one or "") for one in heard] == [reported] * 4
    assert "charge#1 was not compensated: " in failed.said


def test_the_reason_for_a_pending_compensation_is_reported(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: str) -> NoReturn:
        raise Refused(503, ErrorCode.INTERNAL, "away")

    with monkeypatch.context() as patch:
        patch.setattr(desk.service, "compensate", away)
        failed = undone(desk)
    assert "not compensated: the policy service did not" in failed.said
    assert failed.error.outcomes["charge#1"] == "fired"
    assert "`countersign resume --tools MODULE` compensates what it can" in failed.said
    resume(desk.runtime)
    assert acts(desk) == ["charge", "void"]


def test_an_unregistered_compensating_tool_is_refused_at_staging(desk: Desk) -> None:
    @tool("charge", resource=("Order", "order_id"), compensate="vanished", registry=desk.registry)
    def charge(order_id: str) -> None: ...

    fails(desk, RegistrationError, (charge, "o-1"), match="vanished")
    assert desk.face.log == []


# ---------------------------------------------------------------------------------------- results and reports


def test_results_are_reported_only_where_a_compensation_needs_them(desk: Desk) -> None:
    left = run(desk, (charge_tools(desk), "o-1", 100), (refund_tool(desk), "o-1", 100))
    first, second = desk.service.latest(left.txn.txn).held
    assert (first.result, second.result) == ({"charge_id": "c-o-1"}, None)


def test_a_report_that_is_lost_is_sent_again_with_the_next_commit(desk: Desk, refund: Any) -> None:
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 4
    first = run(desk, (refund, "o-1", 100)).txn
    assert desk.service.latest(first.txn).held[0].outcome is None
    run(desk, (refund, "o-2", 100), key="t-2")
    assert desk.service.latest(first.txn).held[0].outcome is Outcome.FIRED


def test_a_policy_that_changes_its_mind_at_redemption_denies(desk: Desk, refund: Any) -> None:
    desk.service.approve(fails(desk, ReviewPending, (refund, "o-1", 90_000)).error.txn)
    desk.service.policy = lambda *_: (Verdict.DENY, Reason(code="forbidden_by_policy", text="frozen account"))
    fails(desk, Denied, (refund, "o-1", 90_000), match="frozen account")
    assert desk.done == []
