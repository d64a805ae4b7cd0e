"""What is true of a call whose tool sends several requests: their keys, and what a refusal of one of them says."""

import contextlib
import contextvars
import re
import threading
from typing import Any

import pytest

from countersign import ProbeAnswer, RestApi, RestUnknown, current_effect, errors, probe
from tests.fakes.desk import Desk
from tests.fakes.running import fails, order_tool, run
from tests.unit.sdk.tools.banks import PATIENCE_S, Bank, charge_tool

UNREACHABLE = RestApi("http://127.0.0.1:9/v1")


def several_tool(desk: Desk, does: Any, **changes: Any) -> tuple[Any, str]:
    """A call of a tool that sends what `does` sends."""

    @order_tool(desk, **changes)
    def several(order_id: str) -> Any:
        return does()

    return several, "o-1"


def sent_keys(bank: Bank) -> list[tuple[str, str | None]]:
    """The path and the key of each request, in order."""
    return [(path.removeprefix("/v1"), headers.get("Idempotency-Key")) for _, path, headers, _ in bank.asked]


def at_place(key: str, place: int) -> str:
    """The key of a later request of the call."""
    return f"{key[:60]}-{place:03}"


SECOND: Any = {
    "a change was refused": lambda api: api.post("/capture"),
    "a reading was refused": lambda api: api.get("/balance"),
    "a change was not sent": lambda _: UNREACHABLE.post("/capture"),
    "a reading was not sent": lambda _: UNREACHABLE.get("/balance"),
    "a search was not sent": lambda _: UNREACHABLE.find("/balance"),
    "a change of another service was refused": lambda api: RestApi(f"{api._url}/mail").post("/letters"),
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND.keys())
@pytest.mark.parametrize("first", [201, 503, 202])
def test_a_no_after_a_change_is_unknown(desk: Desk, bank: Bank, api: Any, first: int, second: Any) -> None:
    def hold_and_capture() -> None:
        with contextlib.suppress(RestUnknown):
            api.post("/hold")
        second(api)

    bank.statuses, bank.status = [first], 422
    unknown = fails(desk, errors.OutcomeUnknown, several_tool(desk, hold_and_capture))
    assert (unknown.txn.state, type(unknown.error.__cause__)) == ("unsettled", RestUnknown)
    assert re.search("422|not sent", unknown.said)
    assert isinstance(unknown.error.__cause__.__cause__, errors.NotDone)


@pytest.mark.parametrize("first", [422, 404, 429])
def test_what_was_refused_after_nothing_is_not_done(desk: Desk, bank: Bank, api: RestApi, first: int) -> None:
    def one_card_after_the_other() -> None:
        with contextlib.suppress(errors.NotDone):
            UNREACHABLE.post("/hold")  # never sent
        with contextlib.suppress(errors.NotDone):
            api.post("/charges", json={"card": 1})
        api.get("/balance")  # only read
        api.post("/charges", json={"card": 2})

    bank.statuses, bank.status = [first, 200], first
    failed = fails(desk, errors.EffectFailed, several_tool(desk, one_card_after_the_other))
    assert (failed.txn.state, len(bank.asked)) == ("ended", 3)


def test_a_refusal_in_a_later_try_is_no_word_about_an_earlier(desk: Desk, bank: Bank, api: RestApi) -> None:
    """A tool that treats a refusal as an answer would have reported a completed charge as one that was declined."""

    def charge_or_declined() -> str:
        try:
            api.post("/charges")
        except errors.NotDone:
            return "declined"
        return "charged"

    bank.statuses, bank.status = [503], 422
    fails(desk, errors.OutcomeUnknown, several_tool(desk, charge_or_declined, idempotent=True, tries=2))
    assert len(bank.asked) == 2


def test_each_request_has_one_key_of_its_own_in_every_try(desk: Desk, bank: Bank, api: RestApi) -> None:
    def three() -> None:
        api.get("/balance")
        api.post("/hold")
        api.post("/lines", json={"n": 1})
        api.get("/balance")
        api.post("/lines", json={"n": 2})

    bank.statuses, bank.status = [200, 201, 503, 200, 201, 201, 200, 503], 201
    left = run(desk, several_tool(desk, three, idempotent=True, tries=3))
    key = left.placed[0].call_key
    first_try = [("/balance", None), ("/hold", key), ("/lines", at_place(key, 2))]
    whole_try = [*first_try, ("/balance", None), ("/lines", at_place(key, 3))]
    assert sent_keys(bank) == [*first_try, *whole_try, *whole_try]
    assert (left.txn.state, len(key), len(at_place(key, 3))) == ("settled", 64, 64)


@pytest.mark.parametrize("answer", [503, 429, 201])
def test_an_equal_request_is_the_same_one_again(desk: Desk, bank: Bank, api: RestApi, answer: int) -> None:
    """A tool that tries again by itself must not charge twice."""

    def again() -> None:
        api.post("/hold")
        for _ in range(2):
            with contextlib.suppress(RestUnknown, errors.NotDone):
                api.post("/charges", json={"cents": 1, "card": 7})

    bank.statuses = [201, answer, 201]
    key = run(desk, several_tool(desk, again)).placed[0].call_key
    assert sent_keys(bank) == [("/hold", key), ("/charges", at_place(key, 2)), ("/charges", at_place(key, 2))]


OTHERS: list[Any] = [
    lambda api: api.post("/charges", json={"card": 2}),
    lambda api: api.post("/charges"),
    lambda api: api.put("/charges", json={"card": 1}),
    lambda api: api.post("/charges/{card}", {"card": 1}, json={"card": 1}),
    lambda api: api.request("POST", "/charges", query={"a": "b"}, json={"card": 1}),
    lambda api: RestApi(f"{api._url}/two").post("/charges", json={"card": 1}),
]


@pytest.mark.parametrize("other", OTHERS)
def test_another_body_method_or_address_is_another(desk: Desk, bank: Bank, api: RestApi, other: Any) -> None:
    call = several_tool(desk, lambda: (api.post("/charges", json={"card": 1}), other(api)))
    key = run(desk, call).placed[0].call_key
    assert [sent for _, sent in sent_keys(bank)] == [key, at_place(key, 2)]


def test_two_changes_of_one_call_are_not_under_way_at_once(desk: Desk, bank: Bank, api: RestApi) -> None:
    """The next try could not determine which came first."""
    arrived = threading.Barrier(2, timeout=PATIENCE_S)

    def waits() -> dict[str, str]:
        arrived.wait()
        arrived.wait()
        return {}

    def both() -> None:
        slow = RestApi(bank.url, headers=waits)
        first = threading.Thread(target=contextvars.copy_context().run, args=(slow.post, "/hold"))
        first.start()
        arrived.wait()
        api.get("/balance")  # reads are allowed
        with pytest.raises(errors.MisuseError, match=r"POST /capture.*POST /hold.*one after the other"):
            api.post("/capture")
        arrived.wait()
        first.join()

    (staged,) = run(desk, several_tool(desk, both)).placed
    assert sent_keys(bank) == [("/balance", None), ("/hold", staged.call_key)]


def test_reads_during_a_change_do_not_count(desk: Desk, bank: Bank, api: RestApi) -> None:
    def reads() -> dict[str, str]:
        with pytest.raises(RestUnknown):
            api.get("/balance")
        return {}

    slow = RestApi(bank.url, headers=reads)
    bank.statuses = [404]
    run(desk, several_tool(desk, lambda: slow.post("/hold").json))
    assert [path for path, _ in sent_keys(bank)] == ["/balance", "/hold"]


def test_headers_are_not_made_by_a_change_of_their_own(desk: Desk, bank: Bank, api: RestApi) -> None:
    """A token that is renewed now and then would give every other request another key."""
    bearer = RestApi(bank.url, headers=lambda: {"Authorization": api.post("/token").text})
    fails(desk, errors.OutcomeUnknown, several_tool(desk, lambda: bearer.post("/hold")), match="POST /token")
    assert bank.asked == []


def test_a_compensation_has_keys_and_a_word_of_its_own(desk: Desk, bank: Bank, api: RestApi) -> None:
    @order_tool(desk)
    def unbook(order_id: str) -> None:
        api.post("/release")

    @order_tool(desk, compensate="unbook", compensation_map={"order_id": "args:/order_id"})
    def book(order_id: str) -> None:
        api.post("/hold")
        api.post("/capture")

    bank.statuses, bank.status = [201, 201], 422
    failed = fails(desk, errors.EffectFailed, (book, "o-1"), (charge_tool(desk, api), "o-2", 1))
    (_, held), (_, captured), _, (path, released) = sent_keys(bank)
    key = failed.placed[0].call_key
    assert (held, captured, path) == (key, at_place(key, 2), "/release")
    assert released is not None and released not in {held, captured} and released[:60] != key[:60]


def test_a_probe_may_ask_for_the_last_of_several_requests(desk: Desk, bank: Bank, api: RestApi) -> None:
    both = several_tool(desk, lambda: (api.post("/hold"), api.post("/capture")), probe="find_capture")

    @probe("find_capture", registry=desk.registry)
    def find_capture() -> ProbeAnswer:
        return api.find("/captures/{key}", {"key": current_effect().request_key(2)}, found=lambda _: "done")

    bank.statuses, bank.status = [201, 503], 200
    left = run(desk, both)
    (_, held), (_, captured), (asked, _) = sent_keys(bank)
    assert (held, asked, left.txn.state) == (left.placed[0].call_key, f"/captures/{captured}", "settled")


@pytest.mark.parametrize("at", [0, -1])
def test_there_is_no_request_before_the_first(desk: Desk, at: int) -> None:
    call = several_tool(desk, lambda: current_effect().request_key(at))
    fails(desk, errors.OutcomeUnknown, call, match="counted from 1")
