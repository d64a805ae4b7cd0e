"""What people settle in the web form comes back to the journal: the agent, its worker, and whoever waits."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from countersign import (
    AlreadyRedeemed,
    EffectFailed,
    NotDone,
    OutcomeUnknown,
    Transaction,
    resume,
    run_transaction,
    transaction,
)
from countersign.contract import TaskAnswer
from countersign.journal import LocalState, LocalTxn
from countersign.journal.telling import describe
from countersign.recovery.recovery import Resumed
from countersign.recovery.worker import work
from examples.person import PageError, Person
from tests.integration.sdk.conftest import Office
from tests.integration.sdk.test_against_the_service import states


@contextmanager
def signed_in(office: Office) -> Iterator[Person]:
    yield office.person("maya")


def settle(office: Office, answer: str, *, result: str = "", reason: str = "asked the provider") -> None:
    """Maya settles the newest task that is open, in the form of its page."""
    with signed_in(office) as maya:
        maya.settle(maya.open_tasks()[-1], answer, reason, result)


def local(office: Office, key: str) -> tuple[LocalTxn, list[LocalState], list[LocalState]]:
    """What the journal says of a transaction: itself, its effects, its compensations."""
    (record,) = office.runtime.journal.transactions.find(key)
    rows = office.runtime.journal.transactions.effects(record)
    undone = office.runtime.journal.transactions.effects(record, "compensate")
    return record.state, [row.state for row in rows], [row.state for row in undone]


def torn(office: Office, key: str) -> Transaction:
    """A charge that fired, and a notice of which nobody knows."""
    office.tools.error = TimeoutError("no answer")
    with pytest.raises(OutcomeUnknown), transaction(key, runtime=office.runtime) as txn:
        office.tools.charge("o-1", 100)
        office.tools.notify("o-1")
    return txn


UNKNOWN, FIRED, FAILED = LocalState.UNKNOWN, LocalState.FIRED, LocalState.FAILED


def test_settled_as_not_fired_the_worker_takes_back_what_fired_and_ends(office: Office, key: str) -> None:
    txn = torn(office, key)
    (waits,) = resume(office.runtime)
    assert waits.after == "unsettled" and local(office, key) == (LocalTxn.UNSETTLED, [FIRED, UNKNOWN], [])
    settle(office, "not_fired")
    told: list[Resumed] = []
    asyncio.run(work(office.runtime, told.append, every_seconds=None))
    assert ([one.after for one in told], office.tools.done[-1]) == (["settled"], ("void", "c-o-1", 100))
    assert local(office, key) == (LocalTxn.SETTLED, [LocalState.COMPENSATED, FAILED], [FIRED])
    before = list(office.tools.done)
    assert resume(office.runtime) == [] and office.tools.done == before
    assert [one.value for one in states(office, txn)] == ["compensated", "failed"]


def test_settled_as_fired_everything_stands_and_the_agent_goes_on(office: Office, key: str) -> None:
    torn(office, key)
    settle(office, "fired")
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert [what for what, *_ in office.tools.done] == ["charge", "notify"]
    with transaction(key, runtime=office.runtime):
        placed = office.tools.charge("o-1", 100)
        office.tools.notify("o-1")
    assert placed.result == {"charge_id": "c-o-1"}
    assert len(office.tools.done) == 2


def test_an_unknown_that_fired_is_itself_taken_back_with_the_result_a_person_told(
    office: Office, key: str
) -> None:
    def lost(order_id: str, amount_cents: int) -> None:
        raise TimeoutError("no answer")

    charge = office.tools.registry.require("charge", "a test")
    works = charge.fn
    object.__setattr__(charge, "fn", lost)
    try:
        with pytest.raises(OutcomeUnknown), transaction(key, runtime=office.runtime):
            office.tools.charge("o-9", 100)
            office.tools.notify("o-9")
    finally:
        object.__setattr__(charge, "fn", works)
    settle(office, "fired", result=json.dumps({"charge_id": "c-told"}))
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert office.tools.done == [("void", "c-told", 100)]
    assert resume(office.runtime) == []


def test_the_journal_says_who_settled_it_and_why(office: Office, key: str) -> None:
    torn(office, key)
    settle(office, "not_fired", reason="the mailbox\u202e is empty")
    resume(office.runtime)
    (record,) = office.runtime.journal.transactions.find(key)
    charge, notify, *_ = describe(office.runtime.journal, record)["effects"]
    assert charge["settled"] is None
    assert notify["settled"].startswith("not fired, says Maya Lindqvist (urn:countersign:dev|maya) at 20")
    # the terminal's writer makes it visible
    assert notify["settled"].endswith(": the mailbox\u202e is empty")


def test_a_compensation_nobody_knows_of_is_settled_too(office: Office, key: str) -> None:
    void = office.tools.registry.require("void", "a test")
    works = void.fn

    def lost(charge_id: str, amount_cents: int) -> None:
        works(charge_id=charge_id, amount_cents=amount_cents)
        raise TimeoutError("no answer")

    office.tools.error = NotDone("the mailbox is full")
    object.__setattr__(void, "fn", lost)
    try:
        with pytest.raises(EffectFailed), transaction(key, runtime=office.runtime):
            office.tools.charge("o-1", 100)
            office.tools.notify("o-1")
    finally:
        object.__setattr__(void, "fn", works)
    assert local(office, key)[2] == [UNKNOWN]
    settle(office, "not_fired")
    resume(office.runtime)
    stuck = local(office, key)
    assert stuck == (LocalTxn.UNSETTLED, [LocalState.COMPENSATION_FAILED, FAILED], [FAILED])
    settle(office, "compensated")
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert local(office, key)[1] == [LocalState.COMPENSATED, FAILED]
    assert resume(office.runtime) == [] and [what for what, *_ in office.tools.done] == ["charge", "void"]


def test_what_a_person_leaves_standing_ends_and_is_not_taken_back(office: Office, key: str) -> None:
    office.tools.error = NotDone("the mailbox is full")
    with pytest.raises(EffectFailed), transaction(key, runtime=office.runtime):
        office.tools.refund("o-1", 100)
        office.tools.notify("o-1")
    assert local(office, key)[0] is LocalTxn.UNSETTLED
    settle(office, "left_standing")
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert local(office, key)[1] == [FIRED, FAILED]
    (record,) = office.runtime.journal.transactions.find(key)
    (refund, _) = office.runtime.journal.transactions.effects(record)
    assert refund.left_standing and refund.said[0]["answer"] == TaskAnswer.LEFT_STANDING.value
    assert resume(office.runtime) == []
    with pytest.raises(AlreadyRedeemed), transaction(key, runtime=office.runtime):
        office.tools.refund("o-1", 100)
        office.tools.notify("o-1")


def test_whoever_waits_hears_of_it_and_goes_on(office: Office, key: str) -> None:
    office.tools.error = TimeoutError("no answer")
    others = set(office.person("maya").open_tasks())

    def later() -> None:
        deadline = time.monotonic() + 60
        with signed_in(office) as maya:
            while time.monotonic() < deadline:
                for task in [one for one in maya.open_tasks() if one not in others]:
                    try:
                        maya.settle(task, "fired", "seen it arrive")
                        return
                    except PageError:
                        continue
                time.sleep(0.1)

    def step(_: Transaction) -> str:
        office.tools.notify("o-1")
        return "done"

    person = threading.Thread(target=later)
    person.start()
    assert run_transaction(step, key=key, wait=60, runtime=office.runtime) == "done"
    person.join()
    assert office.tools.done == [("notify", "o-1")]


def test_nobody_waits_for_what_nobody_can_settle(office: Office, key: str) -> None:
    torn(office, key)
    office.tools.error = None
    with pytest.raises(OutcomeUnknown):
        run_transaction(
            lambda _: (office.tools.charge("o-1", 100), office.tools.notify("o-1")),
            key=key,
            wait=1,
            runtime=office.runtime,
        )
    assert [what for what, *_ in office.tools.done] == ["charge", "notify"]
    settle(office, "fired")


def test_a_compensation_that_cannot_be_built_is_known_before_anybody_resumes(
    office: Office, key: str
) -> None:
    charge = office.tools.registry.require("charge", "a test")
    works = charge.fn
    office.tools.error = NotDone("the mailbox is full")
    object.__setattr__(charge, "fn", lambda order_id, amount_cents: {"other": order_id})
    try:
        with pytest.raises(EffectFailed) as failed, transaction(key, runtime=office.runtime):
            office.tools.charge("o-1", 100)
            office.tools.notify("o-1")
    finally:
        object.__setattr__(charge, "fn", works)
    assert "charge#1 was not taken back: the compensation of charge cannot be built: '/charge_id'" in str(
        failed.value
    )
    stuck = (LocalTxn.UNSETTLED, [LocalState.COMPENSATION_FAILED, FAILED], [])
    assert local(office, key) == stuck
    (found,) = resume(office.runtime)
    assert (found.note, local(office, key)) == (str(failed.value), stuck)
    settle(office, "compensated")
    assert [one.after for one in resume(office.runtime)] == ["settled"]
    assert local(office, key)[1] == [LocalState.COMPENSATED, FAILED]
