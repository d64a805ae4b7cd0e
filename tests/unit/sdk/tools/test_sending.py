"""What is true of a call whose tool sends several requests: their keys, and what a refusal of one of them says."""

import contextlib
import contextvars
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from countersign import (
    EffectFailed,
    MisuseError,
    NotDone,
    OutcomeUnknown,
    Placeholder,
    ProbeAnswer,
    RestApi,
    RestUnknown,
    current_effect,
    probe,
    tool,
    transaction,
)
from tests.fakes.desk import Desk
from tests.unit.sdk.tools.banks import PATIENCE_S, Bank, charge_tool


def several_tool(desk: Desk, does: Callable[[], Any], **changes: Any) -> Callable[[str], Placeholder[Any]]:
    """A tool that sends whatever `does` sends."""

    @tool("several", resource=("Order", "order_id"), registry=desk.registry, **changes)
    def several(order_id: str) -> Any:
        """Several requests."""
        return does()

    desk.publish(several)
    return several


def sent_keys(bank: Bank) -> list[tuple[str, str | None]]:
    """The path and the key of each request, in order."""
    return [(path.removeprefix("/v1"), headers.get("Idempotency-Key")) for _, path, headers, _ in bank.asked]


SECOND: dict[str, Callable[[RestApi, RestApi], Any]] = {
    "a change was refused": lambda api, _: api.post("/capture"),
    "a reading was refused": lambda api, _: api.get("/balance"),
    "a change was not sent": lambda _, nobody: nobody.post("/capture"),
    "a reading was not sent": lambda _, nobody: nobody.get("/balance"),
    "a search was not sent": lambda _, nobody: nobody.find("/balance"),
    "a change of another service was refused": lambda api, _: RestApi(f"{api._url}/mail").post("/letters"),
}
NOBODY = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND.keys())
@pytest.mark.parametrize("first", [201, 503, 202])
def test_what_was_refused_after_something_may_have_been_done_is_unknown(
    desk: Desk, bank: Bank, api: RestApi, first: int, second: Callable[[RestApi, RestApi], Any]
) -> None:
    nobody = RestApi(NOBODY)

    def hold_and_capture() -> None:
        with contextlib.suppress(RestUnknown):
            api.post("/hold")
        second(api, nobody)

    several = several_tool(desk, hold_and_capture)
    bank.statuses, bank.status = [first], 422
    with pytest.raises(OutcomeUnknown) as told, transaction("t-1", runtime=desk.runtime) as txn:
        several("o-1")
    assert (txn.state, type(told.value.__cause__)) == ("unsettled", RestUnknown)
    assert re.search("422|not sent", str(told.value))


@pytest.mark.parametrize("first", [422, 404, 429])
def test_what_was_refused_after_nothing_was_done_is_not_done(
    desk: Desk, bank: Bank, api: RestApi, first: int
) -> None:
    def one_card_after_the_other() -> None:
        for card in (1, 2):
            try:
                api.post("/charges", json={"card": card})
            except NotDone:
                if card == 2:
                    raise

    several = several_tool(desk, one_card_after_the_other)
    bank.status = first
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime) as txn:
        several("o-1")
    assert (txn.state, len(bank.asked)) == ("ended", 2)


def test_what_was_never_sent_and_what_was_only_read_leave_a_refusal_what_it_is(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    def after_nothing() -> None:
        with contextlib.suppress(NotDone):
            RestApi(NOBODY).post("/hold")
        api.get("/balance")
        api.post("/capture")

    several = several_tool(desk, after_nothing)
    bank.statuses, bank.status = [200], 422
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        several("o-1")


def test_a_tool_finds_the_refusal_as_the_cause_and_may_take_back_what_it_had_done(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    def hold_capture_or_void() -> None:
        api.post("/hold")
        try:
            api.post("/capture")
        except RestUnknown as unknown:
            if isinstance(unknown.__cause__, NotDone):
                api.post("/void")
                raise NotDone("the capture was refused, and the hold is void") from unknown
            raise

    several = several_tool(desk, hold_capture_or_void)
    bank.statuses, bank.status = [201, 422], 201
    with pytest.raises(EffectFailed, match="the hold is void"), transaction("t-1", runtime=desk.runtime):
        several("o-1")


def test_a_refusal_in_a_later_try_is_no_word_about_an_earlier_one(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    """A tool that takes a refusal for an answer would have told of a charge that stands as of one that was declined."""

    def charge_or_declined() -> str:
        try:
            api.post("/charges")
        except NotDone:
            return "declined"
        return "charged"

    several = several_tool(desk, charge_or_declined, idempotent=True, tries=2)
    bank.statuses, bank.status = [503], 422
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        several("o-1")
    assert len(bank.asked) == 2


def test_each_request_of_a_call_has_a_key_of_its_own_and_the_same_in_every_try(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    def three() -> None:
        api.get("/balance")
        api.post("/hold")
        api.post("/lines", json={"n": 1})
        api.get("/balance")
        api.post("/lines", json={"n": 2})

    several = several_tool(desk, three, idempotent=True, tries=3)
    bank.statuses, bank.status = [200, 201, 503, 200, 201, 201, 200, 503], 201
    with transaction("t-1", runtime=desk.runtime) as txn:
        staged = several("o-1")
    key = staged.call_key
    places = {"1": key, "2": f"{key[:60]}-002", "3": f"{key[:60]}-003"}
    first_try = [("/balance", None), ("/hold", places["1"]), ("/lines", places["2"])]
    whole_try = [*first_try, ("/balance", None), ("/lines", places["3"])]
    assert sent_keys(bank) == [*first_try, *whole_try, *whole_try]
    assert (txn.state, {len(one) for one in places.values()}) == ("settled", {64})


@pytest.mark.parametrize("answer", [503, 429, 201])
def test_an_equal_request_is_the_same_one_again_under_the_same_key(
    desk: Desk, bank: Bank, api: RestApi, answer: int
) -> None:
    """A tool that tries again by itself must not charge twice."""

    def again() -> None:
        api.post("/hold")
        for _ in range(2):
            with contextlib.suppress(RestUnknown, NotDone):
                api.post("/charges", json={"cents": 1, "card": 7})

    several = several_tool(desk, again)
    bank.statuses = [201, answer, 201]
    with transaction("t-1", runtime=desk.runtime):
        staged = several("o-1")
    second = f"{staged.call_key[:60]}-002"
    assert sent_keys(bank) == [("/hold", staged.call_key), ("/charges", second), ("/charges", second)]


@pytest.mark.parametrize(
    "other",
    [
        lambda api: api.post("/charges", json={"card": 2}),
        lambda api: api.post("/charges"),
        lambda api: api.put("/charges", json={"card": 1}),
        lambda api: api.post("/charges/{card}", {"card": 1}, json={"card": 1}),
        lambda api: api.request("POST", "/charges", query={"a": "b"}, json={"card": 1}),
        lambda api: RestApi(f"{api._url}/two").post("/charges", json={"card": 1}),
    ],
)
def test_another_body_method_address_or_service_is_another_request(
    desk: Desk, bank: Bank, api: RestApi, other: Callable[[RestApi], Any]
) -> None:
    def both() -> None:
        api.post("/charges", json={"card": 1})
        other(api)

    several = several_tool(desk, both)
    with transaction("t-1", runtime=desk.runtime):
        staged = several("o-1")
    assert [key for _, key in sent_keys(bank)] == [staged.call_key, f"{staged.call_key[:60]}-002"]


def test_two_changes_of_one_call_are_not_under_way_at_once(desk: Desk, bank: Bank, api: RestApi) -> None:
    """Which of them came first nobody could say in the next try."""
    arrived, goes_on = threading.Event(), threading.Event()

    def waits() -> dict[str, str]:
        arrived.set()
        assert goes_on.wait(PATIENCE_S)
        return {}

    slow = RestApi(bank.url, headers=waits)
    refused: list[str] = []

    def both() -> None:
        context = contextvars.copy_context()
        first = threading.Thread(target=context.run, args=(slow.post, "/hold"))
        first.start()
        assert arrived.wait(PATIENCE_S)
        api.get("/balance")  # whoever only reads may
        with pytest.raises(MisuseError, match="one after the other") as told:
            api.post("/capture")
        refused.append(str(told.value))
        goes_on.set()
        first.join()

    several = several_tool(desk, both)
    with transaction("t-1", runtime=desk.runtime):
        staged = several("o-1")
    assert sent_keys(bank) == [("/balance", None), ("/hold", staged.call_key)]
    assert "POST /capture" in refused[0] and "POST /hold" in refused[0]


def test_what_is_read_while_a_change_is_under_way_says_nothing_about_the_call(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    def reads() -> dict[str, str]:
        with pytest.raises(RestUnknown):
            api.get("/balance")
        return {}

    slow = RestApi(bank.url, headers=reads)
    several = several_tool(desk, lambda: slow.post("/hold").json)
    bank.statuses = [404]
    with transaction("t-1", runtime=desk.runtime):
        several("o-1")
    assert [path for path, _ in sent_keys(bank)] == ["/balance", "/hold"]


def test_headers_are_not_made_by_a_change_that_would_take_the_first_place(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    """A token that is renewed now and then would give every other request another key."""
    bearer = RestApi(bank.url, headers=lambda: {"Authorization": api.post("/token").text})
    several = several_tool(desk, lambda: bearer.post("/hold"))
    with pytest.raises(OutcomeUnknown, match="POST /token"), transaction("t-1", runtime=desk.runtime):
        several("o-1")
    assert bank.asked == []


def test_a_compensation_has_keys_and_a_word_of_its_own(desk: Desk, bank: Bank, api: RestApi) -> None:
    @tool("unbook", resource=("Order", "order_id"), registry=desk.registry)
    def unbook(order_id: str) -> None:
        """Take it back."""
        api.post("/release")

    @tool(
        "book",
        resource=("Order", "order_id"),
        compensate="unbook",
        compensation_map={"order_id": "args:/order_id"},
        registry=desk.registry,
    )
    def book(order_id: str) -> None:
        """Book."""
        api.post("/hold")
        api.post("/capture")

    charge = charge_tool(desk, api)
    desk.publish(unbook)
    desk.publish(book)
    bank.statuses, bank.status = [201, 201], 422
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime) as txn:
        booked = book("o-1")
        charge("o-2", 1)
    (_, held), (_, captured), _, (path, released) = sent_keys(bank)
    assert (held, captured, path) == (booked.call_key, f"{booked.call_key[:60]}-002", "/release")
    assert released is not None and released not in {held, captured} and released[:60] != held[:60]
    transactions = desk.runtime.journal.transactions
    rows = transactions.effects(transactions.require(txn.txn), "compensate")
    assert [row.state for row in rows] == ["failed"]


def test_a_probe_may_ask_for_the_last_of_several_requests(desk: Desk, bank: Bank, api: RestApi) -> None:
    def both() -> None:
        api.post("/hold")
        api.post("/capture")

    several = several_tool(desk, both, probe="find_capture")

    @probe("find_capture", registry=desk.registry)
    def find_capture() -> ProbeAnswer:
        return api.find("/captures/{key}", {"key": current_effect().request_key(2)}, found=lambda _: "done")

    bank.statuses, bank.status = [201, 503], 200
    with transaction("t-1", runtime=desk.runtime) as txn:
        staged = several("o-1")
    (_, held), (_, captured), (asked, _) = sent_keys(bank)
    assert (held, asked, txn.state) == (staged.call_key, f"/captures/{captured}", "settled")


@pytest.mark.parametrize("at", [0, -1])
def test_there_is_no_request_before_the_first(desk: Desk, at: int) -> None:
    several = several_tool(desk, lambda: current_effect().request_key(at))
    with pytest.raises(OutcomeUnknown, match="counted from 1"), transaction("t-1", runtime=desk.runtime):
        several("o-1")
