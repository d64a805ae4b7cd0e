"""The keys of requests over all tries of one call: each keeps its own, whatever a later try leaves out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from countersign import (
    JournalError,
    OutcomeUnknown,
    Placeholder,
    RestApi,
    RestUnknown,
    resume,
    tool,
    transaction,
)
from tests.fakes.desk import Desk
from tests.unit.sdk.tools.banks import Bank


def onboard_tool(
    desk: Desk, does: Callable[[str], Any], *, idempotent: bool = True
) -> Callable[[str], Placeholder[Any]]:
    """A tool that does what `does` sends."""

    @tool("onboard", resource=("Customer", "customer"), registry=desk.registry)
    def onboard(customer: str) -> Any:
        """Take a customer on."""
        return does(customer)

    desk.publish(onboard, idempotent=idempotent)
    return onboard


def changes(bank: Bank) -> list[tuple[str, str]]:
    """The path and the end of the key of each change, in order."""
    return [
        (path.removeprefix("/v1"), headers["Idempotency-Key"][-4:])
        for method, path, headers, _ in bank.asked
        if method != "GET"
    ]


@contextlib.contextmanager
def dying(desk: Desk) -> Iterator[None]:
    """Inside, a process dies once its tool has been called: its FIRING stays on the disk."""

    def full(*_: Any) -> None:
        raise JournalError("the disk is full")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(desk.runtime.journal.firing, "write", full)
        with pytest.raises(OutcomeUnknown):
            yield
    desk.clock.advance(600)


def onboarding(api: RestApi, exists: Callable[[], bool]) -> Callable[[str], None]:
    """Open the account unless it is there, then give the credit."""

    def does(customer: str) -> None:
        if not exists():
            api.post("/accounts", json={"customer": customer})
        api.post("/credits", json={"customer": customer, "cents": 500})

    return does


def test_a_try_that_leaves_out_what_was_done_sends_the_next_under_its_own_key(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    """Under the first one's key the provider would answer as it did to the first, and nothing would be credited."""
    onboard = onboard_tool(desk, onboarding(api, lambda: bool(bank.asked)))
    bank.statuses = [201, 503]
    with transaction("t-1", runtime=desk.runtime) as txn:
        key = onboard("c-1").call_key
    first, second = key[-4:], "-002"
    assert changes(bank) == [("/accounts", first), ("/credits", second), ("/credits", second)]
    assert txn.state == "settled"


def test_so_does_a_try_of_another_process(desk: Desk, bank: Bank, api: RestApi) -> None:
    onboard = onboard_tool(desk, onboarding(api, lambda: bool(bank.asked)))
    with dying(desk), transaction("t-1", runtime=desk.runtime) as txn:
        key = onboard("c-1").call_key
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
    assert changes(bank) == [("/accounts", key[-4:]), ("/credits", "-002"), ("/credits", "-002")]
    assert (found.after, txn.txn) == ("settled", found.txn)


@pytest.mark.parametrize("process", ["the same", "another"])
def test_what_no_earlier_try_sent_is_not_sent_while_something_is_left_out(
    desk: Desk, bank: Bank, api: RestApi, process: str
) -> None:
    """Nobody can tell which of both it is: the one that was sent, with another body, or one that comes after it."""
    refused = list[str]()

    def does(customer: str) -> None:
        try:
            if not bank.asked:
                api.post("/accounts", json={"customer": customer})
                if process == "another":
                    return
                raise ConnectionError("its process lost something")
            api.post("/credits", json={"customer": customer})
        except RestUnknown as unknown:
            refused.append(str(unknown))
            raise

    onboard = onboard_tool(desk, does)
    if process == "the same":
        with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
            onboard("c-1")
    else:
        with dying(desk), transaction("t-1", runtime=desk.runtime):
            onboard("c-1")
        with desk.restarted() as later:
            (found,) = resume(later.runtime)
        assert found.after == "unsettled"
    assert [path for path, _ in changes(bank)] == ["/accounts"]
    assert "POST /credits was not sent: no earlier try of this call has sent it" in refused[0]
    assert "send the same in every try" in refused[0]


def test_a_body_that_is_another_in_each_try_is_sent_once(desk: Desk, bank: Bank, api: RestApi) -> None:
    """Its key would be refused by some providers, and by others answered as of the first."""
    ticks = itertools.count()
    onboard = onboard_tool(desk, lambda customer: api.post("/accounts", json={"at": next(ticks)}).status)
    bank.status = 503
    with pytest.raises(OutcomeUnknown, match="not sent"), transaction("t-1", runtime=desk.runtime):
        onboard("c-1")
    assert len(changes(bank)) == 1


def test_what_comes_after_all_that_earlier_tries_sent_has_the_next_place(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    def does(customer: str) -> None:
        api.put("/mail", json={"customer": customer})
        api.put("/account", json={"customer": customer})
        api.put("/credit", json={"customer": customer})

    def turned(customer: str) -> None:
        if not bank.asked:
            does(customer)
        api.put("/account", json={"customer": customer})
        api.put("/mail", json={"customer": customer})
        api.put("/credit", json={"customer": customer})

    onboard = onboard_tool(desk, turned)
    bank.statuses = [201, 503]
    with transaction("t-1", runtime=desk.runtime):
        first = onboard("c-1").call_key[-4:]
    assert changes(bank)[2:] == [("/account", "-002"), ("/mail", first), ("/credit", "-003")]


@pytest.mark.parametrize(("idempotent", "kept"), [(True, [1, 2]), (False, [0, 0])])
def test_a_request_is_on_the_disk_before_it_is_sent_where_another_process_may_send_it_again(
    desk: Desk, bank: Bank, idempotent: bool, kept: list[int]
) -> None:
    on_disk = list[int]()

    def look() -> dict[str, str]:
        (txn,) = desk.runtime.journal.transactions.find("t-1")
        (row,) = desk.runtime.journal.transactions.effects(txn)
        on_disk.append(len(desk.runtime.journal.sent.of(txn.txn, row.effect_id)))
        return {}

    api = RestApi(bank.url, headers=look)
    onboard = onboard_tool(desk, onboarding(api, lambda: False), idempotent=idempotent)
    with transaction("t-1", runtime=desk.runtime):
        onboard("c-1")
    assert on_disk == kept


def test_nothing_is_sent_that_the_journal_does_not_take(
    desk: Desk, bank: Bank, api: RestApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise JournalError("the disk is full")

    onboard = onboard_tool(desk, onboarding(api, lambda: False))
    monkeypatch.setattr(desk.runtime.journal.sent, "keep", full)
    with pytest.raises(OutcomeUnknown, match="the disk is full"), transaction("t-1", runtime=desk.runtime):
        onboard("c-1")
    assert bank.asked == []
