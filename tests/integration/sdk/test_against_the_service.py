"""The SDK and the service keep one promise together: what was countersigned fires once, as it was countersigned."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from countersign import (
    AlreadyRedeemed,
    Asks,
    Denied,
    EffectFailed,
    NotDone,
    OutcomeUnknown,
    ReviewPending,
    ReviewRequired,
    ServiceUnavailable,
    TransactionBusy,
    resume,
    transaction,
)
from countersign.contract import EffectState, TxnState, txn_id
from tests.crash.alone import Life, acts, live
from tests.fakes.desk import notes_in
from tests.integration.sdk.conftest import Office

REFUND = ("refund", "o-1", 90_000)
COMPENSATED, FAILED, FIRED = EffectState.COMPENSATED, EffectState.FAILED, EffectState.FIRED


class Losing(httpx2.HTTPTransport):
    """A network that loses the answers of one path, though the service has acted."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if request.url.path.startswith(self.path):
            response.read()
            response.close()
            raise httpx2.ReadError("the wire was cut")
        return response


def test_a_small_refund_fires_once_and_the_service_knows(office: Office, key: str) -> None:
    with transaction(key, runtime=office.runtime) as txn:
        placed = office.tools.refund("o-1", 4_200)
    assert (placed.result, office.tools.done) == ("r-o-1", [("refund", "o-1", 4_200)])
    view = office.runtime.client().view(txn.txn)
    assert (view.state, [one.state for one in view.effects]) == (TxnState.SETTLED, [FIRED])


def test_one_denied_effect_keeps_its_siblings_from_firing(office: Office, key: str) -> None:
    with pytest.raises(Denied) as denied, transaction(key, runtime=office.runtime):
        office.tools.refund("o-1", 100)
        office.tools.refund("o-2", 900_000)
    assert [reason.policy for reason in denied.value.reasons] == ["never-huge"]
    assert office.tools.done == []


def test_an_approved_refund_fires_once_from_any_process_as_it_was_approved(office: Office, key: str) -> None:
    pending = office.asked(key)
    with office.elsewhere() as other:
        again = office.asked(key, runtime=other)
    assert again.reviews[0].review_id == pending.reviews[0].review_id
    office.approve(pending)
    for _ in range(2):
        with office.elsewhere() as other:
            office.refund(key, runtime=other)
    assert office.tools.done == [REFUND]


def test_what_was_parked_is_fired_by_resume(office: Office, key: str) -> None:
    pending = office.asked(key)
    assert [one.waiting for one in resume(office.runtime)] == [True]
    office.approve(pending)
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert resume(office.runtime) == []
    view = office.runtime.client().view(pending.txn)
    assert (office.tools.done, [one.state for one in view.effects]) == ([REFUND], [FIRED])


def test_a_persons_deny_is_final_and_quoted(office: Office, key: str) -> None:
    office.deny(office.asked(key), "this customer was paid already")
    for _ in range(2):
        with pytest.raises(Denied, match="paid already"):
            office.refund(key)
    assert office.tools.done == []


def test_live_work_is_undone_while_people_decide_and_stands_with_the_refund(office: Office, key: str) -> None:
    def step() -> None:
        with transaction(key, runtime=office.runtime):
            office.tools.note("o-1", "refunded")
            office.tools.refund("o-1", 90_000)

    with pytest.raises(ReviewPending) as pending:
        step()
    assert notes_in(office.tools.notes) == []
    office.approve(pending.value)
    step()
    assert (notes_in(office.tools.notes), office.tools.done) == ([("o-1", "refunded")], [REFUND])


def test_what_fired_is_taken_back_with_releases_of_its_own(office: Office, key: str) -> None:
    office.tools.error = NotDone("the mailbox is full")
    with pytest.raises(EffectFailed, match="Nothing of"), transaction(key, runtime=office.runtime) as txn:
        office.tools.charge("o-1", 100)
        office.tools.charge("o-2", 200)
        office.tools.notify("o-1")
    assert [what for what, *_ in office.tools.done] == ["charge", "charge", "void", "void"]
    assert office.tools.done[2:] == [("void", "c-o-2", 200), ("void", "c-o-1", 100)]
    assert len(set(office.tools.keys)) == 4
    assert office.states(txn) == [COMPENSATED, COMPENSATED, FAILED]


def test_scenario_39_what_may_fail_stays_failed_and_the_rest_goes_on(office: Office, key: str) -> None:
    with pytest.raises(ReviewPending) as pending, transaction(key, runtime=office.runtime):
        office.tools.mail("o-1")
        office.tools.refund("o-1", 90_000)
    office.approve(pending.value)
    for _ in range(2):
        with transaction(key, runtime=office.runtime) as txn:
            office.tools.mail("o-1")
            placed = office.tools.refund("o-1", 90_000)
        assert [one.error for one in txn.failed] == ["NotDone: no mailbox"]
        assert (txn.state, placed.result) == ("settled", "r-o-1")
    assert office.runtime.client().view(txn.txn).state is TxnState.SETTLED
    assert (office.states(txn), office.tools.done) == ([FAILED, FIRED], [REFUND])


def test_an_unknown_outcome_is_unknown_to_the_service_too_and_is_not_repeated(
    office: Office, key: str
) -> None:
    office.tools.error = TimeoutError("no answer")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown), transaction(key, runtime=office.runtime) as txn:
            office.tools.charge("o-1", 100)
            office.tools.notify("o-1")
            office.tools.refund("o-1", 100)
    assert office.tools.done == [("charge", "o-1", 100), ("notify", "o-1")]
    assert office.states(txn) == [FIRED, EffectState.UNKNOWN, EffectState.UNUSED]


def test_a_lost_redemption_is_found_again_by_its_attempt(office: Office, key: str) -> None:
    office.approve(office.asked(key))
    with office.through(Losing("/v1/redemptions")) as losing, pytest.raises(ServiceUnavailable):
        office.refund(key, runtime=losing)
    assert office.tools.done == []
    office.refund(key)
    assert office.tools.done == [REFUND]


def test_another_host_with_the_same_key_fires_nothing(office: Office, key: str, tmp_path: Path) -> None:
    office.refund(key, 4_200)
    with office.elsewhere(journal_path=tmp_path / "another.db") as other:
        for amount in (4_200, 4_300):
            with pytest.raises(AlreadyRedeemed):
                office.refund(key, amount, other)
    assert len(office.tools.done) == 1


def test_another_list_under_the_same_key_voids_the_approval(office: Office, key: str) -> None:
    pending = office.asked(key)
    office.approve(pending)
    assert office.asked(key, 95_000).reviews[0].review_id != pending.reviews[0].review_id
    assert office.tools.done == []


def test_scenario_42_of_two_processes_with_one_key_one_fires_and_the_other_gets_its_result(
    office: Office, key: str
) -> None:
    office.runtime.close()  # the child has a runtime of its own
    context = multiprocessing.get_context("fork")
    is_under_way, may_end = context.Event(), context.Event()

    def hold() -> None:
        is_under_way.set()
        may_end.wait(30)

    def first() -> None:
        office.tools.before_label = hold
        with office.elsewhere() as runtime, transaction(key, runtime=runtime):
            office.tools.label("o-1")

    process = context.Process(target=first)
    process.start()
    assert is_under_way.wait(30)
    with office.elsewhere(lease_wait_seconds=0.1) as impatient, pytest.raises(TransactionBusy, match=key):  # noqa: SIM117
        with transaction(key, runtime=impatient):
            office.tools.label("o-1")
    with office.elsewhere(lease_wait_seconds=30.0) as patient:
        threading.Timer(0.1, may_end.set).start()
        with transaction(key, runtime=patient) as txn:
            placed = office.tools.label("o-1")
    process.join(30)
    assert (process.exitcode, placed.outcome, txn.replayed) == (0, "fired", True)
    assert office.tools.done == [], "what was done was done in the other process"


@pytest.mark.anyio
async def test_async_tools_and_transactions(office: Office, key: str) -> None:
    async with transaction(key, runtime=office.runtime) as txn:
        placed = await office.tools.send("o-1")
        office.tools.refund("o-1", 100)
    assert (placed.result, txn.state) == ("sent", "settled")
    assert [what for what, *_ in office.tools.done] == ["send", "refund"]


DEATHS = {
    "with the attempt on disk": ("after durable commit #1", None, FIRED),
    "with the redemption's answer just read": ("after POST /v1/transactions #1", None, FIRED),
    "with FIRING on disk": ("before refund:o-1 acts #1", "OutcomeUnknown", EffectState.UNKNOWN),
    "after the act": ("after refund:o-1 acted #1", "OutcomeUnknown", EffectState.UNKNOWN),
    "with the outcome on disk": ("after durable commit #4", None, FIRED),
}


@pytest.mark.parametrize("death", DEATHS)
def test_killed_in_front_of_the_real_service(office: Office, tmp_path: Path, death: str) -> None:
    dies_at, raises, state = DEATHS[death]
    (tmp_path / "agent.pem").write_bytes(office.settings.key_path.read_bytes())
    (tmp_path / "agent.pem").chmod(0o600)
    life = Life(tmp_path, office.service.url, "one", key=f"killed {death}")
    assert live(replace(life, dies_at=dies_at))["raised"] == "killed"
    for _ in range(2):
        assert live(life)["raised"] == raises
    assert len(acts(tmp_path)) == (0 if dies_at.startswith("before") else 1)
    with office.elsewhere() as runtime:
        view = runtime.client().view(txn_id(agent=office.settings.agent, run_key=life.key))
    assert [one.state for one in view.effects] == [state]


def test_a_manifest_comes_from_the_service_and_is_the_bundles(office: Office) -> None:
    manifest = office.runtime.client().manifest("refund")
    mine = office.tools.registry.require("refund", "a test asks")
    assert manifest.digest == mine.draft_manifest().digest


def test_a_live_tool_that_asks_runs_only_when_it_is_released(office: Office, key: str) -> None:
    with transaction(key, runtime=office.runtime) as txn:
        office.tools.memo("o-1", "hello")
        with pytest.raises(Denied) as denied, transaction():
            office.tools.memo("o-2", "Ada called")
        with pytest.raises(ReviewRequired) as refused, transaction():
            office.tools.memo("o-3", "a long story")
    assert (notes_in(office.tools.notes), txn.state) == ([("o-1", "hello")], "settled")
    (reason,) = denied.value.reasons
    assert (reason.policy, reason.code) == ("no-names", "forbidden_by_policy")
    assert "Write the customer's number." in reason.text
    assert refused.value.asks == (Asks(("finance",), 1),)
