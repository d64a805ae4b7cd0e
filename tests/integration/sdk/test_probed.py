"""What a probe finds out later reaches the service as a late report: tasks end, and what is due is done."""

from __future__ import annotations

import pytest

from countersign import DidNotHappen, Happened, OutcomeUnknown, Transaction, Unsure, resume, transaction
from countersign.contract import EffectState
from tests.integration.sdk.conftest import Office
from tests.integration.sdk.test_against_the_service import states
from tests.integration.sdk.test_settled_by_people import signed_in

FIRED, FAILED, COMPENSATED = EffectState.FIRED, EffectState.FAILED, EffectState.COMPENSATED


def doubted(office: Office, key: str, *more: str) -> Transaction:
    """A charge that fired and a payment of which nobody knows: a task."""
    with pytest.raises(OutcomeUnknown), transaction(key, runtime=office.runtime) as txn:
        office.tools.charge("o-1", 100)
        office.tools.pay("o-1", 200)
        for order in more:
            office.tools.notify(order)
    assert states(office, txn)[:2] == [FIRED, EffectState.UNKNOWN]
    assert tasks(office)
    return txn


def tasks(office: Office) -> list[str]:
    with signed_in(office) as maya:
        return maya.open_tasks()


def test_found_later_it_stands_and_nobody_is_asked_any_more(office: Office, key: str) -> None:
    before = tasks(office)
    txn = doubted(office, key)
    assert [one.after for one in resume(office.runtime)] == ["unsettled"]
    office.tools.found = Happened({"charge_id": "c-9"})
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert (states(office, txn), tasks(office)) == ([FIRED, FIRED], before)
    done = list(office.tools.done)
    assert (resume(office.runtime), office.tools.done) == ([], done)
    with transaction(key, runtime=office.runtime):
        office.tools.charge("o-1", 100)
        paid = office.tools.pay("o-1", 200)
    assert (paid.result, office.tools.done) == ({"charge_id": "c-9"}, done)


def test_known_later_not_to_have_happened_what_fired_is_taken_back(office: Office, key: str) -> None:
    before = tasks(office)
    txn = doubted(office, key)
    office.tools.found = DidNotHappen()
    assert [one.after for one in resume(office.runtime)] == ["unsettled"], "it may be on its way for a minute"
    assert [one[0] for one in office.tools.done] == ["charge", "pay"]
    office.tools.found = DidNotHappen(final=True)
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert states(office, txn) == [COMPENSATED, FAILED]
    assert (office.tools.done[2:], tasks(office)) == ([("void", "c-o-1", 100)], before)
    assert (resume(office.runtime), len(office.tools.done)) == ([], 3)


def test_what_turns_out_to_have_fired_is_itself_taken_back_with_the_result_the_probe_told(
    office: Office, key: str
) -> None:
    txn = doubted(office, key, "o-2")
    office.tools.found = Happened({"charge_id": "c-9"})
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert states(office, txn) == [COMPENSATED, COMPENSATED, EffectState.UNUSED]
    assert office.tools.done[2:] == [("void", "c-9", 200), ("void", "c-o-1", 100)]
    assert (resume(office.runtime), len(office.tools.done)) == ([], 4)


def test_what_a_person_has_said_first_stands(office: Office, key: str) -> None:
    txn = doubted(office, key)
    with signed_in(office) as maya:
        maya.settle(maya.open_tasks()[-1], "not_fired", "asked the bank", "")
    office.tools.found = Happened({"charge_id": "c-9"})
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert states(office, txn) == [COMPENSATED, FAILED]
    office.tools.found = Unsure()
    assert resume(office.runtime) == []
