"""The SDK and the service keep one promise together: what was countersigned fires once, as it was countersigned."""

from __future__ import annotations

from pathlib import Path

import pytest

from countersign import (
    AlreadyRedeemed,
    ApprovalRequirement,
    Denied,
    EffectFailed,
    NotDone,
    OutcomeUnknown,
    ReviewPending,
    ReviewRequired,
    resume,
    transaction,
)
from countersign.contract import EffectState, TxnState
from tests.fakes.desk import notes_in
from tests.integration.sdk.conftest import Office

REFUND = ("refund", "o-1", 90_000)
COMPENSATED, FAILED, FIRED = EffectState.COMPENSATED, EffectState.FAILED, EffectState.FIRED


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


def test_an_unknown_outcome_is_reported_and_not_repeated(office: Office, key: str) -> None:
    office.tools.error = TimeoutError("no answer")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown), transaction(key, runtime=office.runtime) as txn:
            office.tools.charge("o-1", 100)
            office.tools.notify("o-1")
            office.tools.refund("o-1", 100)
    assert office.tools.done == [("charge", "o-1", 100), ("notify", "o-1")]
    assert office.states(txn) == [FIRED, EffectState.UNKNOWN, EffectState.UNUSED]


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


@pytest.mark.anyio
async def test_async_tools_and_transactions(office: Office, key: str) -> None:
    async with transaction(key, runtime=office.runtime) as txn:
        placed = await office.tools.send("o-1")
        office.tools.refund("o-1", 100)
    assert (placed.result, txn.state) == ("sent", "settled")
    assert [what for what, *_ in office.tools.done] == ["send", "refund"]


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
    assert refused.value.asks == (ApprovalRequirement(("finance",), 1),)
