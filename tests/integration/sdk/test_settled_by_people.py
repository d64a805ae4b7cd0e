"""Settlements in the web form reach the journal: of the agent, its worker, and a waiting program.

So does what a probe finds out later: it reaches the service as a late report, which ends the task.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from countersign import (
    AlreadyRedeemed,
    DidNotHappen,
    EffectFailed,
    NotDone,
    OutcomeUnknown,
    Transaction,
    resume,
    run_transaction,
    transaction,
)
from countersign.contract import EffectState, TaskAnswer
from countersign.journal import LocalState, LocalTxn
from countersign.journal.export import describe_transaction
from countersign.recovery.recovery import RecoveryResult
from countersign.recovery.worker import run_worker
from examples.person import PageError
from tests.integration.sdk.conftest import Office, until

UNKNOWN, FIRED, FAILED = LocalState.UNKNOWN, LocalState.FIRED, LocalState.FAILED
CHARGED, VOIDED = ("charge", "o-1", 100), ("void", "c-o-1", 100)


def settle(office: Office, answer: str, *, result: str = "", reason: str = "asked the provider") -> None:
    """Maya settles the newest task that is open, in the form of its page."""
    maya = office.person("maya")
    maya.settle(maya.open_tasks()[-1], answer, reason, result)


def local(office: Office, key: str) -> tuple[LocalTxn, list[LocalState], list[LocalState]]:
    """What the journal says of a transaction: itself, its effects, its compensations."""
    (record,) = office.runtime.journal.transactions.find(key)
    rows = office.runtime.journal.transactions.effects(record)
    undone = office.runtime.journal.transactions.effects(record, "compensate")
    return record.state, [row.state for row in rows], [row.state for row in undone]


def resumed(office: Office) -> list[str]:
    return [one.after for one in resume(office.runtime)]


def step(office: Office, key: str, second: str = "notify") -> Transaction:
    """A charge, and a notice or a refund and a notice."""
    with transaction(key, runtime=office.runtime) as txn:
        if second == "refund":
            office.tools.refund("o-1", 100)
        else:
            office.tools.charge("o-1", 100)
        office.tools.notify("o-1")
    return txn


def torn(office: Office, key: str) -> None:
    """A charge that fired, and a notice with an unknown outcome."""
    office.tools.error = TimeoutError("no answer")
    with pytest.raises(OutcomeUnknown):
        step(office, key)


@contextmanager
def acting(office: Office, tool: str, act: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile the tool does this instead."""
    declared = office.tools.registry.require(tool, "a test")
    works = declared.fn
    object.__setattr__(declared, "fn", act)
    try:
        yield
    finally:
        object.__setattr__(declared, "fn", works)


def lost(**_: Any) -> None:
    raise TimeoutError("no answer")


def test_settled_as_not_fired_the_worker_takes_back_what_fired_and_ends(office: Office, key: str) -> None:
    torn(office, key)
    assert resumed(office) == ["unsettled"]
    assert local(office, key) == (LocalTxn.UNSETTLED, [FIRED, UNKNOWN], [])
    settle(office, "not_fired", reason="the mailbox\u202e is empty")
    reported: list[RecoveryResult] = []
    asyncio.run(run_worker(office.runtime, reported.append, every_seconds=None))
    assert ([one.after for one in reported], office.tools.done[-1]) == (["settled"], VOIDED)
    assert local(office, key) == (LocalTxn.SETTLED, [LocalState.COMPENSATED, FAILED], [FIRED])
    before = list(office.tools.done)
    assert (resumed(office), office.tools.done) == ([], before)
    txn = Transaction(office.runtime, key)
    assert office.states(txn) == [EffectState.COMPENSATED, EffectState.FAILED]
    (record,) = office.runtime.journal.transactions.find(key)
    charge, notify, *_ = describe_transaction(office.runtime.journal, record)["effects"]
    assert charge["settled"] is None
    assert notify["settled"].startswith("not fired, says Maya Lindqvist (urn:countersign:dev|maya) at 20")
    # the terminal's writer makes it visible
    assert notify["settled"].endswith(": the mailbox\u202e is empty")


def test_settled_as_fired_everything_is_kept_and_the_agent_continues(office: Office, key: str) -> None:
    torn(office, key)
    settle(office, "fired")
    assert resumed(office) == ["settled"]
    assert [what for what, *_ in office.tools.done] == ["charge", "notify"]
    assert step(office, key).effects[0].result == {"charge_id": "c-o-1"}
    assert len(office.tools.done) == 2


def test_an_effect_settled_as_fired_is_compensated_with_the_entered_result(office: Office, key: str) -> None:
    with acting(office, "charge", lost), pytest.raises(OutcomeUnknown):
        step(office, key)
    settle(office, "fired", result=json.dumps({"charge_id": "c-given"}))
    assert resumed(office) == ["settled"]
    assert office.tools.done == [("void", "c-given", 100)]
    assert resumed(office) == []


def test_a_compensation_with_unknown_outcome_is_settled_too(office: Office, key: str) -> None:
    void = office.tools.registry.require("void", "a test").fn

    def void_lost(**args: Any) -> None:
        void(**args)
        raise TimeoutError("no answer")

    office.tools.error = NotDone("the mailbox is full")
    with acting(office, "void", void_lost), pytest.raises(EffectFailed):
        step(office, key)
    assert local(office, key)[2] == [UNKNOWN]
    settle(office, "not_fired")
    resume(office.runtime)
    assert local(office, key) == (LocalTxn.UNSETTLED, [LocalState.COMPENSATION_FAILED, FAILED], [FAILED])
    settle(office, "compensated")
    assert resumed(office) == ["settled"]
    assert local(office, key)[1] == [LocalState.COMPENSATED, FAILED]
    assert (resumed(office), office.tools.done) == ([], [CHARGED, VOIDED])


def test_scenario_23_a_failed_compensation_waits_for_a_person(office: Office, key: str) -> None:
    def closed(**_: Any) -> None:
        raise NotDone("it is closed")

    torn(office, key)
    office.approve(office.asked(f"{key}-2"))
    settle(office, "not_fired")
    with acting(office, "void", closed):
        found = {one.run_key: one for one in resume(office.runtime)}
    assert (found[key].after, found[f"{key}-2"].after) == ("unsettled", "settled")
    assert "Still in effect and not undone: charge#1" in found[key].note
    for _ in range(2):  # it is not called again
        assert resumed(office) == ["unsettled"]
    settle(office, "compensated")
    assert resumed(office) == ["settled"]
    assert office.tools.done == [CHARGED, ("notify", "o-1"), ("refund", "o-1", 90_000)]


def test_an_effect_that_a_person_leaves_ends_without_compensation(office: Office, key: str) -> None:
    office.tools.error = NotDone("the mailbox is full")
    with pytest.raises(EffectFailed):
        step(office, key, "refund")
    assert local(office, key)[0] is LocalTxn.UNSETTLED
    settle(office, "left_standing")
    assert (resumed(office), local(office, key)[1]) == (["settled"], [FIRED, FAILED])
    (record,) = office.runtime.journal.transactions.find(key)
    (refund, _) = office.runtime.journal.transactions.effects(record)
    assert refund.kept_by_person and refund.parsed_settlements[0]["answer"] == TaskAnswer.LEFT_STANDING.value
    assert resumed(office) == []
    with pytest.raises(AlreadyRedeemed):
        step(office, key, "refund")


def test_a_waiting_program_is_notified_and_continues(office: Office, key: str) -> None:
    office.tools.error = TimeoutError("no answer")
    others = set(office.person("maya").open_tasks())

    def found_and_settled() -> bool:
        for task in set(office.person("maya").open_tasks()) - others:
            try:
                office.person("maya").settle(task, "fired", "seen it arrive")
            except PageError:
                continue
            return True
        return False

    def notify(_: Transaction) -> str:
        office.tools.notify("o-1")
        return "done"

    person = threading.Thread(target=until, args=(found_and_settled,))
    person.start()
    assert run_transaction(notify, key=key, wait=60, runtime=office.runtime) == "done"
    person.join()
    assert office.tools.done == [("notify", "o-1")]


def test_known_later_not_to_have_happened_what_fired_is_taken_back(office: Office, key: str) -> None:
    """A charge that fired, and a payment with an unknown outcome, though it has a probe."""
    before = office.person("maya").open_tasks()
    with pytest.raises(OutcomeUnknown), transaction(key, runtime=office.runtime) as txn:
        office.tools.charge("o-1", 100)
        office.tools.pay("o-1", 200)
    assert office.states(txn) == [EffectState.FIRED, EffectState.UNKNOWN]
    assert office.person("maya").open_tasks()
    office.tools.found = DidNotHappen()
    assert resumed(office) == ["unsettled"], "it may be on its way for a minute"
    assert [one[0] for one in office.tools.done] == ["charge", "pay"]
    office.tools.found = DidNotHappen(final=True)
    assert resumed(office) == ["settled"]
    assert office.states(txn) == [EffectState.COMPENSATED, EffectState.FAILED]
    assert (office.tools.done[2:], office.person("maya").open_tasks()) == ([VOIDED], before)
    assert (resumed(office), len(office.tools.done)) == ([], 3)
