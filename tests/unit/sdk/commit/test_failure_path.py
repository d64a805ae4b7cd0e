"""When firing does not end well: what is taken back, what is left alone, and what the caller is told."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from countersign import (
    Denied,
    EffectFailed,
    NotDone,
    OutcomeUnknown,
    PartlyFired,
    Placeholder,
    PlaceholderUsed,
    RegistrationError,
    ReleaseLapsed,
    ReviewPending,
    resume,
    tool,
)
from countersign.commit.raised import MAX_ERROR
from countersign.contract import EffectState, ErrorCode, Outcome, Verdict
from countersign.contract.wire import Reason
from tests.fakes.desk import (
    Desk,
    answering_tool,
    charge_tools,
    charge_undone_by_void,
    effect_rows,
    failing_tool,
    refund_tool,
    service_states,
    states,
)
from tests.fakes.service import Refused
from tests.unit.sdk.full_disk import full_after


def test_what_fired_is_taken_back_newest_first_when_a_later_effect_is_known_not_done(desk: Desk) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, NotDone("mailbox full"), acts=False)
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
        charge("o-1", 100)
        charge("o-2", 200)
        with txn.repeat():
            charge("o-2", 200)
        notify("o-1")
    assert [one[0] for one in desk.done] == ["charge"] * 3 + ["void"] * 3
    assert [one[1] for one in desk.done[3:]] == ["c-o-2", "c-o-2", "c-o-1"]
    assert len(set(desk.keys)) == 6, "each compensation has a call key of its own"
    assert [*states(desk).values()] == ["compensated", "compensated", "compensated", "failed"]
    assert service_states(desk, txn.txn) == [*states(desk).values()]
    assert "Nothing of this transaction stands" in str(failed.value)
    assert isinstance(failed.value.__cause__, NotDone)
    assert txn.state == "settled"


NOT_DONE: dict[str, tuple[Exception, dict[str, Any]]] = {
    "by NotDone": (NotDone("refused"), {}),
    "as it was declared": (ValueError("refused"), {"failure_means": "not_done"}),
}


@pytest.mark.parametrize(("error", "declared"), NOT_DONE.values(), ids=NOT_DONE)
def test_the_first_effect_failing_leaves_nothing_and_says_so(
    desk: Desk, error: Exception, declared: dict[str, Any]
) -> None:
    notify, refund = failing_tool(desk, error, acts=False, **declared), refund_tool(desk)
    with pytest.raises(EffectFailed), desk.step() as txn:
        notify("o-1")
        refund("o-1", 100)
    assert (desk.done, txn.state) == ([], "ended")
    assert states(desk) == {"notify#1": "failed", "refund#2": "unused"}


def test_what_has_no_compensation_stands_and_is_named(desk: Desk) -> None:
    refund, notify = refund_tool(desk), failing_tool(desk, NotDone("no"), acts=False)
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
        refund("o-1", 100)
        notify("o-1")
        notify("o-2")
    assert (desk.done, txn.state) == ([("refund", "o-1", 100)], "unsettled")
    assert "Still standing and not undone: refund#1" in str(failed.value)
    assert str(failed.value).endswith("under another key only what does not stand: notify#2, notify#3.")


def test_an_exception_of_a_tool_means_unknown_and_nothing_is_taken_back(desk: Desk) -> None:
    charge, notify, refund = charge_tools(desk), failing_tool(desk, TimeoutError("slow")), refund_tool(desk)
    with pytest.raises(OutcomeUnknown) as unknown, desk.step() as txn:
        charge("o-1", 100)
        placed = notify("o-1")
        refund("o-1", 100)
    assert desk.done == [("charge", "o-1", 100), ("notify", "o-1")]
    assert states(desk) == {"charge#1": "fired", "notify#2": "unknown", "refund#3": "unused"}
    assert service_states(desk, txn.txn) == ["fired", "unknown", "unused"]
    assert unknown.value.effects == ("notify#2",)
    assert f"settles it first, in the service's queue at {desk.service.iss}/tasks;" in str(unknown.value)
    assert "TimeoutError: slow" in str(unknown.value)
    assert placed.outcome == "unknown"


def test_an_unknown_nobody_has_settled_stays_so_and_whoever_resumes_is_not_told_to_resume(desk: Desk) -> None:
    with pytest.raises(OutcomeUnknown) as unknown, desk.step():
        failing_tool(desk, TimeoutError("slow"))("o-1")
    assert "`countersign resume" in str(unknown.value) and "For its author" in str(unknown.value)
    for _ in range(3):
        (found,) = resume(desk.runtime)
        assert (found.after, desk.done) == ("unsettled", [("notify", "o-1")])
        assert "TimeoutError: slow" in found.note, "the tool raised; its process did not end"
        assert "countersign resume" not in found.note and f"{desk.service.iss}/tasks" in found.note


@pytest.mark.parametrize("settled", [EffectState.FAILED, EffectState.FIRED])
def test_once_an_unknown_is_settled_the_rest_is_taken_back_or_kept(desk: Desk, settled: EffectState) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, TimeoutError("slow"))
    with pytest.raises(OutcomeUnknown), desk.step() as txn:
        charge("o-1", 100)
        notify("o-1")
        if settled is EffectState.FAILED:
            charge("o-2", 200)
    desk.service.settle(txn.txn, txn.effects[1].effect_id, settled)
    (found,) = resume(desk.runtime)
    assert (found.before, found.after) == ("unsettled", "settled")
    assert desk.done[2:] == ([("void", "c-o-1", 100)] if settled is EffectState.FAILED else [])
    assert resume(desk.runtime) == []
    assert len(desk.done) == (3 if settled is EffectState.FAILED else 2)


def test_an_idempotent_tool_is_tried_again_with_the_same_call_key(desk: Desk) -> None:
    upsert = answering_tool(desk, ConnectionError("lost"), ConnectionError("lost"), "ok", idempotent=True)
    with desk.step():
        placed = upsert("o-1")
    assert (placed.result, len(desk.keys), len(set(desk.keys))) == ("ok", 3, 1)


def test_a_retry_is_called_with_the_approved_bytes_whatever_the_first_try_did_to_them(desk: Desk) -> None:
    seen: list[list[str]] = []

    @tool("invite", resource=("Order", "order_id"), idempotent=True, registry=desk.registry)
    def invite(order_id: str, people: list[str]) -> str:
        """Invite people."""
        seen.append(list(people))
        people.append("attacker@evil")
        if len(seen) == 1:
            raise ConnectionError("lost")
        return "ok"

    desk.publish(invite)
    with desk.step():
        invite("o-1", ["a@b"])
    assert seen == [["a@b"], ["a@b"]]


def test_an_idempotent_tool_that_never_answers_is_unknown(desk: Desk) -> None:
    notify = failing_tool(desk, ConnectionError("lost"), idempotent=True)
    with pytest.raises(OutcomeUnknown), desk.step():
        notify("o-1")
    assert len(desk.done) == desk.runtime.settings.idempotent_tries


def test_not_done_after_a_lost_answer_is_still_unknown(desk: Desk) -> None:
    upsert = answering_tool(desk, ConnectionError("lost"), NotDone("refused"), idempotent=True)
    both = "NotDone: refused; an earlier try raised ConnectionError: lost, and may have happened"
    for _ in range(2):
        with pytest.raises(OutcomeUnknown) as unknown, desk.step():
            upsert("o-1")
        assert f"whether upsert#1 happened ({both})" in str(unknown.value)
        assert "For its author" not in str(unknown.value), "it did say so, and that ends the tries"
        assert (states(desk), [row.error for row in effect_rows(desk)]) == ({"upsert#1": "unknown"}, [both])
    assert len(desk.done) == 2


LONG = "x" * 600
DOUBTS = {
    "both are told however long they are": (LONG, {}, "NotDone: xxx", "raised ConnectionError: xxx"),
    "of a secret call the kinds alone": (
        "s3cret",
        {"secret": ("/order_id",)},
        "NotDone;",
        "raised ConnectionError,",
    ),
}


@pytest.mark.parametrize(("text", "options", "last", "before"), DOUBTS.values(), ids=DOUBTS)
def test_both_tries_are_told_in_few_words_and_without_secrets(
    desk: Desk, text: str, options: dict[str, Any], last: str, before: str
) -> None:
    upsert = answering_tool(desk, ConnectionError(text), NotDone(text), idempotent=True, changes=options)
    with pytest.raises(OutcomeUnknown), desk.step():
        upsert("o-1")
    (told,) = [row.error or "" for row in effect_rows(desk)]
    assert (last in told, before in told, "may have happened" in told) == (True, True, True)
    assert (len(told) <= MAX_ERROR, "s3cret" in told) == (True, False)


@pytest.mark.parametrize(("error", "declared"), NOT_DONE.values(), ids=NOT_DONE)
def test_a_try_that_knows_better_than_one_that_was_cut_off_names_that_one(
    desk: Desk, error: Exception, declared: dict[str, Any]
) -> None:
    upsert = answering_tool(desk, "set", error, idempotent=True, **declared)
    with full_after(desk.runtime.journal, 1), pytest.raises(OutcomeUnknown), desk.step():
        upsert("o-1")
    (found,) = resume(desk.runtime)
    assert states(desk) == {"upsert#1": "unknown"}
    assert "refused; an earlier try was cut off, and may have happened" in found.note
    assert "For its author" not in found.note


def test_time_running_out_between_two_effects_is_renewed(desk: Desk) -> None:
    refund = refund_tool(desk)
    desk.before_fire = lambda _: desk.clock.advance(29)
    with desk.step():
        refund("o-1", 100)
        refund("o-2", 100)
    assert len(desk.done) == 2
    assert desk.face.asked("/v1/redemptions/") == 1


NO_LONGER = (Verdict.DENY, Reason(code="no_permit", text="no longer"))


def test_a_refused_renewal_leaves_the_rest_unused_and_takes_back_what_fired(desk: Desk) -> None:
    charge = charge_tools(desk)
    no_more(desk, of_void=Verdict.RELEASE)
    with pytest.raises(ReleaseLapsed) as lapsed, desk.step():
        charge("o-1", 100)
        charge("o-2", 200)
    assert [what for what, *_ in desk.done] == ["charge", "void"]
    assert states(desk) == {"charge#1": "compensated", "charge#2": "unused"}
    assert "Nothing of this transaction stands" in str(lapsed.value)


def no_more(desk: Desk, of_void: Any = NO_LONGER) -> None:
    """From the first fire on, the time to fire is over and the policy gives no more of it."""

    def late(_: str) -> None:
        desk.clock.advance(40)
        desk.service.policy = lambda name, _: of_void if name == "void" else NO_LONGER

    desk.before_fire = late


def test_a_refused_renewal_says_what_fired_and_stands_and_what_may_be_tried_again(desk: Desk) -> None:
    refund = refund_tool(desk)
    no_more(desk)
    with pytest.raises(PartlyFired) as partly, desk.step() as txn:
        refund("o-1", 100)
        refund("o-2", 200)
    assert desk.done == [("refund", "o-1", 100)]
    assert partly.value.outcomes == {"refund#1": "fired", "refund#2": "unused"}
    assert "Still standing and not undone: refund#1" in str(partly.value)
    assert "under another key only what does not stand: refund#2." in str(partly.value)
    assert (partly.value.code, txn.state) == ("partly_fired", "unsettled")


def test_a_charge_nobody_may_take_back_after_a_refused_renewal_stands_and_is_named(desk: Desk) -> None:
    charge = charge_tools(desk)
    no_more(desk)
    with pytest.raises(PartlyFired) as partly, desk.step():
        charge("o-1", 100)
        charge("o-2", 200)
    assert partly.value.outcomes == {"charge#1": "compensation_failed", "charge#2": "unused"}
    assert "Still standing and not undone: charge#1" in str(partly.value)


def test_a_renewal_refused_before_anything_fired_leaves_nothing_and_says_so(desk: Desk) -> None:
    charge = charge_tools(desk, recheck=True)
    renew = desk.service.renew

    def refuse(attempt: str, effect_ids: list[str], kid: str) -> object:
        desk.service.policy = lambda *_: NO_LONGER
        return renew(attempt, effect_ids, kid)

    desk.service.renew = refuse  # type: ignore[assignment,method-assign]
    with pytest.raises(ReleaseLapsed, match="Nothing of this"), desk.step():
        charge("o-1", 100)
    assert desk.done == []


def test_a_manifest_that_says_recheck_asks_before_every_fire(desk: Desk) -> None:
    charge = charge_tools(desk, recheck=True)
    with desk.step():
        charge("o-1", 100)
        charge("o-2", 200)
    assert desk.face.asked("/v1/redemptions/") == 2


def people_allow_void(desk: Desk) -> None:
    desk.service.policy = lambda name, _: Verdict.REVIEW if name == "void" else Verdict.RELEASE


def test_a_compensation_that_people_must_allow_waits_and_resume_finishes_it(desk: Desk) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, NotDone("no"), acts=False)
    people_allow_void(desk)
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
        placed = charge("o-1", 100)
        notify("o-1")
    assert "Still standing" not in str(failed.value)
    (waiting,) = resume(desk.runtime)
    assert (waiting.after, waiting.waiting, waiting.is_kept_up) == ("unsettled", True, False)
    desk.service.approve_compensation(txn.txn, placed.effect_id)
    (found,) = resume(desk.runtime)
    assert found.after == "settled"
    assert [what for what, *_ in desk.done] == ["charge", "void"]


def test_people_asked_to_take_back_are_named_and_nothing_is_to_be_repeated(desk: Desk) -> None:
    """Whoever told the customer again would have told of a charge that is voided a minute later."""
    charge, notify = charge_tools(desk), failing_tool(desk, NotDone("no"), acts=False)
    people_allow_void(desk)
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
        charge("o-1", 100)
        charge("o-2", 200)
        notify("o-1")
    said = str(failed.value)
    for review in failed.value.reviews:
        assert (review.tool, str(review) in said, str(review.url) in said) == ("void", True, True)
    assert len(failed.value.reviews) == 2
    assert "To be taken back, and not yet: charge#1, charge#2" in said
    assert "another key" not in said and "notify#3" not in said
    assert said.endswith("Stage nothing of it again before that is decided.")
    (found,) = resume(desk.runtime)
    assert str(failed.value.reviews[0]) in found.note
    desk.service.approve_compensation(txn.txn, txn.effects[0].effect_id)
    (found,) = resume(desk.runtime)
    assert (found.waiting, "To be taken back, and not yet: charge#2: " in found.note) == (True, True)


@pytest.mark.parametrize("why", ["another stands", "the service could not be asked"])
def test_what_is_kept_up_by_more_than_people_is_not_said_to_wait_for_them(desk: Desk, why: str) -> None:
    charge, notify, refund = (
        charge_tools(desk),
        failing_tool(desk, NotDone("no"), acts=False),
        refund_tool(desk),
    )
    if why == "another stands":
        people_allow_void(desk)
    else:
        desk.face.faults["/v1/redemptions"] = ["lost_request"] * 20
    with pytest.raises(EffectFailed) as failed, desk.step():
        charge("o-1", 100)
        if why == "another stands":
            refund("o-1", 100)
        notify("o-1")
    if why == "another stands":
        assert "Still standing and not undone: refund#2; `countersign resume" in str(failed.value)
        assert "the rest is for a person" in str(failed.value)
    else:
        assert (failed.value.reviews, failed.value.outcomes["charge#1"]) == ((), "compensating")
    assert "another key" not in str(failed.value)
    (found,) = resume(desk.runtime)
    assert (found.waiting, found.is_kept_up) == (False, True)


def test_time_that_ran_out_with_people_asked_tells_them_as_well(desk: Desk) -> None:
    charge = charge_tools(desk)
    no_more(desk, of_void=Verdict.REVIEW)
    with pytest.raises(PartlyFired) as partly, desk.step():
        charge("o-1", 100)
        charge("o-2", 200)
    assert [one.tool for one in partly.value.reviews] == ["void"]
    assert "another key" not in str(partly.value)


def test_a_denied_compensation_is_told_as_failed_not_as_rolled_back(desk: Desk) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, NotDone("no"), acts=False)
    denied = (Verdict.DENY, Reason(code="forbidden_by_policy", text="never void"))
    desk.service.policy = lambda name, _: denied if name == "void" else Verdict.RELEASE
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
        charge("o-1", 100)
        notify("o-1")
    assert (states(desk)["charge#1"], txn.state) == ("compensation_failed", "unsettled")
    assert "charge#1 was not taken back: void is denied: never void. Still" in str(failed.value)


def test_a_compensator_that_raises_does_not_keep_the_others_from_running(desk: Desk) -> None:
    @tool("void", resource=("Charge", "charge_id"), failure_means="not_done", registry=desk.registry)
    def void(charge_id: str) -> None:
        """Take a charge back."""
        if charge_id == "c-o-2":
            raise ValueError("closed")
        desk.act("void", charge_id)

    desk.publish(void)
    charge = charge_undone_by_void(desk)
    notify = failing_tool(desk, NotDone("no"), acts=False)
    with pytest.raises(EffectFailed) as failed, desk.step():
        charge("o-1")
        charge("o-2")
        notify("o-1")
    assert "charge#2 was not taken back: void did not happen: ValueError: closed." in str(failed.value)
    assert desk.done[-1] == ("void", "c-o-1")
    assert states(desk) == {
        "charge#1": "compensated",
        "charge#2": "compensation_failed",
        "notify#3": "failed",
    }


def test_a_compensation_of_unknown_outcome_is_told_as_neither_standing_nor_taken_back(desk: Desk) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, NotDone("no"), acts=False)

    def lost(name: str) -> None:
        if name == "void":
            raise TimeoutError("slow")

    desk.before_fire = lost
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
        charge("o-1", 100)
        notify("o-1")
    assert failed.value.outcomes == {"charge#1": "compensation_unknown", "notify#2": "failed"}
    assert "not known whether this was taken back: charge#1" in str(failed.value)
    assert "Still standing" not in str(failed.value)
    assert "Nothing of this transaction stands" not in str(failed.value)
    for _ in range(2):
        (found,) = resume(desk.runtime)
        assert (found.after, "not known whether" in found.note, len(desk.done)) == ("unsettled", True, 1)
    desk.before_fire = None
    desk.service.settle_compensation(txn.txn, txn.effects[0].effect_id)
    assert resume(desk.runtime)[0].after == "settled"
    assert states(desk)["charge#1"] == "compensated"


def unbuildable(desk: Desk, **options: Any) -> Callable[..., Placeholder[dict[str, str]]]:
    """A charge whose compensation takes an argument from where the charge's result has none."""

    @tool("void", resource=("Charge", "charge_id"), registry=desk.registry)
    def void(charge_id: str) -> None:
        """Take a charge back."""

    @tool(
        "charge",
        resource=("Order", "order_id"),
        compensate="void",
        compensation_map={"charge_id": "result:/no_such"},
        registry=desk.registry,
        **options,
    )
    def charge(order_id: str, pin: str = "") -> dict[str, str]:
        """Charge an order."""
        desk.act("charge", order_id)
        return {"charge_id": f"c-{order_id}"}

    desk.publish(void)
    desk.publish(charge)
    return charge


def test_a_compensation_that_cannot_be_built_is_told_at_once_with_the_reason(desk: Desk) -> None:
    charge, notify = unbuildable(desk), failing_tool(desk, NotDone("no"), acts=False)
    with pytest.raises(EffectFailed) as failed, desk.step() as txn:
        placed = charge("o-1")
        notify("o-1")
    why = "the compensation of charge cannot be built: '/no_such' names nothing here: no 'no_such'"
    assert failed.value.outcomes == {"charge#1": "compensation_failed", "notify#2": "failed"}
    assert f"NotDone: no; charge#1 was not taken back: {why}. Still standing and" in str(failed.value)
    assert states(desk) == failed.value.outcomes
    record = desk.runtime.journal.transactions.find("t-1")[0]
    assert (record.state, record.note) == ("unsettled", f"charge#1 was not taken back: {why}")
    assert [row.error for row in effect_rows(desk)] == [why, "NotDone: no"]
    with pytest.raises(PlaceholderUsed, match="it happened, and could not be taken back"):
        placed.result  # noqa: B018 - it raises
    assert service_states(desk, txn.txn) == ["compensation_failed", "failed"]
    (found,) = resume(desk.runtime)
    assert found.note == str(failed.value)


@pytest.mark.parametrize(("secret", "told"), [([], True), (["pin"], False)])
def test_what_may_repeat_a_secret_is_not_told_of_it(
    desk: Desk, caplog: pytest.LogCaptureFixture, secret: list[str], told: bool
) -> None:
    charge, notify = unbuildable(desk, secret=secret), failing_tool(desk, NotDone("no"), acts=False)

    def gives_up(txn: str, effect: str, _: str) -> NoReturn:
        desk.service.give_up(txn, effect)
        raise Refused(409, ErrorCode.ILLEGAL_STATE, "nothing fits 4111")

    desk.service.compensate = gives_up  # type: ignore[method-assign]
    with pytest.raises(EffectFailed) as failed, desk.step():
        charge("o-1", "4111")
        notify("o-1")
    record = desk.runtime.journal.transactions.find("t-1")[0]
    heard = [str(failed.value), record.note, effect_rows(desk)[0].error, caplog.text]
    assert ["4111" in (one or "") for one in heard] == [told] * len(heard)
    assert "charge#1 was not taken back: " in str(failed.value)


def test_why_it_is_not_taken_back_yet_is_told_as_well(desk: Desk) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, NotDone("no"), acts=False)

    def away(*_: str) -> NoReturn:
        raise Refused(503, ErrorCode.INTERNAL, "away")

    compensate = desk.service.compensate
    desk.service.compensate = away  # type: ignore[method-assign]
    with (
        pytest.raises(EffectFailed, match="not taken back: the policy service did not") as failed,
        desk.step(),
    ):
        charge("o-1", 100)
        notify("o-1")
    assert failed.value.outcomes["charge#1"] == "fired"
    assert "`countersign resume --tools MODULE` takes back what still can be" in str(failed.value)
    desk.service.compensate = compensate  # type: ignore[method-assign]
    resume(desk.runtime)
    assert [what for what, *_ in desk.done] == ["charge", "void"]


def test_a_compensating_tool_nobody_registered_is_refused_at_staging(desk: Desk) -> None:
    @tool("charge", resource=("Order", "order_id"), compensate="vanished", registry=desk.registry)
    def charge(order_id: str) -> None:
        """Charge an order."""

    with pytest.raises(RegistrationError, match="vanished"), desk.step():
        charge("o-1")
    assert desk.face.log == []


def test_a_result_that_is_no_json_is_fired_all_the_same(desk: Desk) -> None:
    @tool("open_case", resource=("Order", "order_id"), registry=desk.registry)
    def open_case(order_id: str) -> object:
        """Open a case."""
        desk.act("open_case", order_id)
        return object()

    desk.publish(open_case)
    with desk.step() as txn:
        placed = open_case("o-1")
    assert (placed.outcome, txn.state, type(placed.result)) == ("fired", "settled", object)


def test_results_are_reported_only_where_a_compensation_needs_them(desk: Desk) -> None:
    charge, refund = charge_tools(desk), refund_tool(desk)
    with desk.step() as txn:
        charge("o-1", 100)
        refund("o-1", 100)
    first, second = desk.service.latest(txn.txn).held
    assert (first.result, second.result) == ({"charge_id": "c-o-1"}, None)


def test_a_report_that_is_lost_is_sent_again_with_the_next_commit(desk: Desk) -> None:
    refund = refund_tool(desk)
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 4
    with desk.step() as first:
        refund("o-1", 100)
    assert desk.service.latest(first.txn).held[0].outcome is None
    with desk.step("t-2"):
        refund("o-2", 100)
    assert desk.service.latest(first.txn).held[0].outcome is Outcome.FIRED


def test_a_policy_that_changes_its_mind_at_redemption_denies(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step():
        refund("o-1", 90_000)
    desk.service.approve(pending.value.txn)
    desk.service.policy = lambda *_: (Verdict.DENY, Reason(code="forbidden_by_policy", text="frozen account"))
    with pytest.raises(Denied, match="frozen account"), desk.step():
        refund("o-1", 90_000)
    assert desk.done == []
