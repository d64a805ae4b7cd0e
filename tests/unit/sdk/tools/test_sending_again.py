"""The keys of requests over all tries of one call: each keeps its own, even if a later try omits some."""

import contextlib
import itertools
from typing import Any

import pytest

from countersign import OutcomeUnknown, RestApi, resume
from tests.fakes.desk import Desk
from tests.fakes.running import fails, order_tool, run
from tests.unit.sdk.full_disk import full
from tests.unit.sdk.tools.banks import Bank


def onboard_tool(desk: Desk, does: Any, *, idempotent: bool = True) -> tuple[Any, str]:
    """A call of a tool that sends what `does` sends."""

    @order_tool(desk, resource=("Customer", "customer"), changes={"idempotent": idempotent})
    def onboard(customer: str) -> Any:
        return does(customer)

    return onboard, "c-1"


def changes(bank: Bank) -> list[tuple[str, str]]:
    """The path and the end of the key of each change, in order."""
    return [
        (path.removeprefix("/v1"), headers["Idempotency-Key"][-4:])
        for method, path, headers, _ in bank.asked
        if method != "GET"
    ]


@contextlib.contextmanager
def dying(desk: Desk) -> Any:
    """Inside, a process dies once its tool has been called: its FIRING stays on the disk."""
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(desk.runtime.journal.effect_log, "write", full)
        yield
    desk.clock.advance(600)


def onboarding(api: RestApi, exists: Any) -> Any:
    """Open the account unless it is there, then give the credit."""

    def does(customer: str) -> None:
        if not exists():
            api.post("/accounts", json={"customer": customer})
        api.post("/credits", json={"customer": customer, "cents": 500})

    return does


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_try_that_leaves_one_out_keeps_the_keys(desk: Desk, bank: Bank, api: RestApi, process: str) -> None:
    """Under the first one's key the provider would answer as it did to the first, and nothing would be credited."""
    call = onboard_tool(desk, onboarding(api, lambda: bool(bank.asked)))
    if process == "the same":
        bank.statuses = [201, 503]
        left = run(desk, call)
        assert left.txn.state == "settled"
    else:
        with dying(desk):
            left = fails(desk, OutcomeUnknown, call)
        with desk.restarted() as later:
            (found,) = resume(later.runtime)
        assert (found.after, left.txn.txn) == ("settled", found.txn)
    first = left.placed[0].call_key[-4:]
    assert changes(bank) == [("/accounts", first), ("/credits", "-002"), ("/credits", "-002")]


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_new_request_waits_for_one_left_out(desk: Desk, bank: Bank, api: RestApi, process: str) -> None:
    """It is ambiguous which of both it is: the one that was sent, with another body, or one that comes after it."""
    dies = process == "another"

    def does(customer: str) -> None:
        if not bank.asked:
            api.post("/accounts", json={"customer": customer})
            if dies:
                return
            raise ConnectionError("its process lost something")
        api.post("/credits", json={"customer": customer})

    call, refused = (
        onboard_tool(desk, does),
        "POST /credits was not sent: no earlier try of this call has sent",
    )
    with dying(desk) if dies else contextlib.nullcontext():
        fails(desk, OutcomeUnknown, call, match="the disk is full" if dies else refused)
    if dies:
        with desk.restarted() as later:
            (found,) = resume(later.runtime)
        assert found.after == "unsettled" and refused in found.note
    assert [path for path, _ in changes(bank)] == ["/accounts"]


def test_a_body_that_is_another_in_each_try_is_sent_once(desk: Desk, bank: Bank, api: RestApi) -> None:
    """Its key would be refused by some providers, and by others answered as of the first."""
    ticks = itertools.count()
    call = onboard_tool(desk, lambda customer: api.post("/accounts", json={"at": next(ticks)}).status)
    bank.status = 503
    fails(desk, OutcomeUnknown, call, match="not sent")
    assert len(changes(bank)) == 1


def test_what_comes_after_all_of_them_has_the_next_place(desk: Desk, bank: Bank, api: RestApi) -> None:
    def turned(customer: str) -> None:
        for name in ("mail", "account", "credit") if not bank.asked else ("account", "mail", "credit"):
            api.put(f"/{name}", json={"customer": customer})

    bank.statuses = [201, 503]
    first = run(desk, onboard_tool(desk, turned)).placed[0].call_key[-4:]
    assert changes(bank)[2:] == [("/account", "-002"), ("/mail", first), ("/credit", "-003")]


@pytest.mark.parametrize(("idempotent", "kept"), [(True, [1, 2]), (False, [0, 0])])
def test_a_request_is_kept_before_sending(desk: Desk, bank: Bank, idempotent: bool, kept: list[int]) -> None:
    on_disk = list[int]()

    def look() -> dict[str, str]:
        (txn,) = desk.runtime.journal.transactions.find("t-1")
        (row,) = desk.runtime.journal.transactions.effects(txn)
        on_disk.append(len(desk.runtime.journal.request_log.of(txn.txn, row.effect_id)))
        return {}

    api = RestApi(bank.url, headers=look)
    run(desk, onboard_tool(desk, onboarding(api, lambda: False), idempotent=idempotent))
    assert on_disk == kept


def test_nothing_is_sent_that_the_journal_does_not_take(desk: Desk, bank: Bank, api: RestApi) -> None:
    call = onboard_tool(desk, onboarding(api, lambda: False))
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(desk.runtime.journal.request_log, "keep", full)
        fails(desk, OutcomeUnknown, call, match="the disk is full")
    assert bank.asked == []
