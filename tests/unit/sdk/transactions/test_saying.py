"""The key of a run, how long it may wait and what it claims are checked before anything of it is begun."""

from typing import Any

import pytest

from countersign import MisuseError, Transaction, run_steps, run_transaction, transaction
from countersign.contract.wire import Claimed
from tests.fakes.desk import Desk, claims_of, refund_tool


def block(desk: Desk, step: Any, **said: Any) -> None:
    with transaction(runtime=desk.runtime, **said) as txn:
        step(txn)


def again(desk: Desk, step: Any, **said: Any) -> None:
    run_transaction(step, runtime=desk.runtime, **said)


def as_data(desk: Desk, _: object, **said: Any) -> None:
    steps = [{"tool": "refund", "args": {"order_id": "o-1", "amount_cents": 5}}]
    run_steps(steps, runtime=desk.runtime, **said)


def begins_nothing(desk: Desk, run: Any, match: str, **said: Any) -> None:
    refund = refund_tool(desk)
    ran: list[int] = []

    def step(_: Transaction) -> None:
        ran.append(1)
        refund("o-1", 5)

    with pytest.raises(MisuseError, match=match):
        run(desk, step, **said)
    assert (ran, desk.done, desk.runtime.journal.transactions.newest_ids(9)) == ([], [], [])


KEYS = [
    (4711, "write key='4711' in place of key=4711"),
    (True, "is text"),
    (b"t", "is text"),
    ("", "1 to 200 characters"),
    ("x" * 201, "this has 201"),
    ("unnamed-refund", "reserved for steps without a key"),
    ("half a \ud800 pair", "written as UTF-8"),
]


EACH_WAY = pytest.mark.parametrize("run", [block, again, as_data])


@EACH_WAY
def test_a_key_is_text_of_some_length_which_what_may_run_again_needs(desk: Desk, run: Any) -> None:
    for key, match in KEYS:
        begins_nothing(desk, run, match, key=key)
    if run is not block:
        begins_nothing(desk, run, "needs a key that is the same at each run", key=None)
    if run is again:
        begins_nothing(desk, run, "write key='4711'", key=4711, dry_run=True)
    if run is as_data:
        begins_nothing(desk, run, "on_question", key="t-1", on_question="ask me")


@EACH_WAY
def test_wait_is_a_number_of_seconds(desk: Desk, run: Any) -> None:
    for wait in ("10m", None, -1, True, float("nan"), float("inf")):
        begins_nothing(desk, run, "is no number of seconds; ten minutes are wait=600", key="t-1", wait=wait)


NO_TEXTS = [(4711, "valid string"), (b"a refund", "valid string")]
CLAIMS = [*NO_TEXTS, ("x" * 4001, "at most"), ("half a \ud800 pair", "written as UTF-8")]


@EACH_WAY
@pytest.mark.parametrize("claim", ["purpose", "reasoning", "on_behalf_of"])
def test_a_claim_is_text_that_people_can_be_shown(desk: Desk, run: Any, claim: str) -> None:
    for said, match in CLAIMS:
        begins_nothing(desk, run, f"{claim}.*{match}", key="t-1", **{claim: said})


WHOLE = {"purpose": "ticket 4711", "reasoning": "it came broken", "on_behalf_of": "mia"}


@EACH_WAY
@pytest.mark.parametrize(
    ("said", "reported"), [(WHOLE, Claimed(**WHOLE)), ({"purpose": "", "reasoning": None}, None)]
)
def test_claims_are_passed_on(desk: Desk, run: Any, said: Any, reported: Any, refund: Any) -> None:
    claims = claims_of(desk)
    run(desk, lambda _: refund("o-1", 5), key="t-1", **said)
    assert claims == [reported]
