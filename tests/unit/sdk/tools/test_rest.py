"""What each answer of somebody else's HTTP service says about the world, over a real connection."""

import gzip
import json
import os
import socket
import tracemalloc
from typing import Any

import pytest

from countersign import DidNotHappen, Happened, Unsure, current_effect, errors, probe, resume
from countersign.tools.rest import RestApi, RestUnknown
from tests.fakes.desk import Desk
from tests.fakes.running import fails, order_tool, run
from tests.unit.sdk.tools.banks import SECRET, Bank, charge_tool, head, speaking

CALL = "o-1", 100


@pytest.fixture
def charge(desk: Desk, api: RestApi) -> Any:
    return charge_tool(desk, api)


def test_a_staged_tool_calls_out_once_under_its_call_key(desk: Desk, bank: Bank, charge: Any) -> None:
    with desk.step():
        staged = charge("o/1 ü", 100)
        assert bank.asked == []
    ((method, path, headers, body),) = bank.asked
    assert (method, path) == ("POST", "/v1/orders/o%2F1%20%C3%BC/charges")
    assert (json.loads(body), staged.result) == ({"cents": 100}, {"charge_id": "c-1"})
    assert (headers["Idempotency-Key"], headers["Authorization"]) == (staged.call_key, SECRET)


REFUSALS = dict.fromkeys([400, 404, 425, 429, 499], (errors.EffectFailed, "ended"))
DOUBTS = dict.fromkeys([202, 207, 301, 308, 408, 409, 500, 504], (errors.OutcomeUnknown, "unsettled"))


@pytest.mark.parametrize("status", REFUSALS | DOUBTS)
def test_only_a_refusal_is_not_done(desk: Desk, bank: Bank, charge: Any, status: int) -> None:
    bank.status, bank.body, bank.headers = status, b"no order", {"Location": f"{bank.url}/elsewhere"}
    error, state = (REFUSALS | DOUBTS)[status]
    left = fails(desk, error, (charge, *CALL), match=f"answered {status}: no order")
    assert (left.txn.state, len(bank.asked)) == (state, 1)  # and no redirect is followed


@pytest.mark.parametrize("status", [202, 207])
def test_accepted_counts_as_done_if_declared(desk: Desk, bank: Bank, status: int) -> None:
    bank.status = status
    charge = charge_tool(desk, RestApi(bank.url, accepted_is_done=True))
    assert run(desk, (charge, *CALL)).txn.state == "settled"


def test_scenario_21_a_server_that_hangs_up_is_unknown(desk: Desk, bank: Bank, charge: Any) -> None:
    bank.hang_up = True
    fails(desk, errors.OutcomeUnknown, (charge, *CALL), match="got no response")
    assert len(bank.asked) == 1


def test_an_answer_that_takes_too_long_is_unknown(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = RestApi(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.1)
        fails(desk, errors.OutcomeUnknown, (charge_tool(desk, api), *CALL), match="ReadTimeout")


def test_what_could_not_be_sent_is_not_done(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        api = RestApi(f"http://127.0.0.1:{taken.getsockname()[1]}")
    fails(desk, errors.EffectFailed, (charge_tool(desk, api), *CALL), match="not sent: ConnectError")


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_w4_outside_an_effect_nothing_that_changes_is_sent(bank: Bank, api: RestApi, method: str) -> None:
    with pytest.raises(errors.OutsideTransaction):
        getattr(api, method)("/orders")
    assert bank.asked == []


def test_reading_needs_no_effect(bank: Bank, api: RestApi) -> None:
    bank.status = 200
    answer = api.get("/orders/{order_id}", {"order_id": "o-1"}, query={"full": "yes & no"})
    assert (answer.status, answer.json) == (200, {"charge_id": "c-1"})
    assert bank.asked[0][:2] == ("GET", "/v1/orders/o-1?full=yes+%26+no")
    assert "Idempotency-Key" not in bank.asked[0][2]


NO_PATHS: list[tuple[str, dict[str, str]]] = [
    *(("orders", {}), ("//evil.example/x", {}), ("/orders/{order_id}", {}), ("/orders", {"order_id": "o-1"})),
    *(("/orders/{order_id}/x", {"order_id": value}) for value in ("", ".", "..")),
]


@pytest.mark.parametrize(("path", "values"), NO_PATHS)
def test_scenario_64_no_value_makes_another_path(bank: Bank, api: RestApi, path: str, values: Any) -> None:
    with pytest.raises(errors.MisuseError):
        api.get(path, values)
    assert bank.asked == []


@pytest.mark.parametrize("value", ["../../admin", "a/b", "a?b=c", "a#b", "%2e%2e", "a\r\nX: y", "\0"])
def test_any_value_is_a_single_path_segment(bank: Bank, api: RestApi, value: str) -> None:
    bank.status = 200
    api.get("/orders/{order_id}/lines", {"order_id": value})
    path = bank.asked[0][1]
    assert (path.count("/"), path.startswith("/v1/orders/"), path.endswith("/lines")) == (4, True, True)


BIG = 12345678901234567890
BODIES = [(b"", None), (b"done", None), (b"[1, 2.5]", [1, 2.5]), (b'{"n": %d}' % BIG, {"n": BIG})]


@pytest.mark.parametrize(("body", "read"), BODIES)
def test_a_body_that_is_no_json_is_done_as_well(bank: Bank, api: RestApi, body: bytes, read: Any) -> None:
    bank.status, bank.body = 200, body
    answer = api.get("/orders")
    assert (answer.json, answer.text, answer.whole) == (read, body.decode(), True)


CHUNKED = "Transfer-Encoding: chunked"
BROKEN: dict[str, tuple[bytes, ...]] = {
    "shorter than it said": (b"Content-Length: 100", b'{"charge_id": "c-1"}'),
    "a chunk that is none": (CHUNKED.encode(), b"3\r\n123\r\nxyz\r\n"),
    "no end of the chunks": (CHUNKED.encode(), b"3\r\n123\r\n"),
    "packed, and no such packing": (b"Content-Encoding: gzip\r\nContent-Length: 3", b"123"),
}


@pytest.mark.parametrize(("line", "body"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("resets", [False, True])
def test_a_body_that_breaks_off_undoes_nothing(desk: Desk, line: bytes, body: bytes, resets: bool) -> None:
    answers: list[Any] = []
    with speaking(head(201, line.decode()), body, resets=resets) as (url, asked), RestApi(url) as api:

        @order_tool(desk)
        def charge(order_id: str) -> str:
            answers.append(api.post("/charges"))
            return "charged"

        assert run(desk, (charge, "o-1")).txn.state == "settled"
    (answer,) = answers
    assert (answer.status, answer.json, answer.whole, len(asked)) == (201, None, False, 1)


@pytest.mark.parametrize(("status", "means"), [(404, errors.NotDone), (500, RestUnknown), (202, RestUnknown)])
def test_a_refusal_and_a_doubt_that_break_off_are_that_as_well(status: int, means: type[Exception]) -> None:
    expected = pytest.raises(means, match=f"answered {status}: no")
    with speaking(head(status, "Content-Length: 100"), b"no") as (url, _), RestApi(url) as api, expected:
        api.get("/orders")


def test_a_status_that_breaks_off_is_unknown(desk: Desk) -> None:
    with speaking(b"HTTP/1.1 201 Crea") as (url, _), RestApi(url) as api:
        fails(desk, errors.OutcomeUnknown, (charge_tool(desk, api), *CALL), match="got no response")


def test_a_body_that_drips_without_end_is_left_in_time(desk: Desk) -> None:
    """Each byte comes well within the time of silence."""
    drips = speaking(head(201, CHUNKED), drips=b"1\r\nx\r\n")
    with drips as (url, asked), RestApi(url, timeout_seconds=0.15, max_answer_bytes=1 << 40) as api:
        assert run(desk, (charge_tool(desk, api), *CALL)).txn.state == "settled"
    assert asked[1:] == [b"hung up"]


def test_compression_is_not_requested_and_is_bounded_if_used() -> None:
    bomb = gzip.compress(gzip.compress(b"\0" * (1 << 26)))  # 64 MiB in some hundred bytes
    lines = ("Content-Encoding: gzip, gzip", f"Content-Length: {len(bomb)}")
    with speaking(head(200, *lines), bomb) as (url, asked), RestApi(url, max_answer_bytes=1000) as api:
        tracemalloc.start()
        try:
            answer = api.get("/orders")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (len(answer.text), answer.whole, answer.json) == (1000, False, None)
    assert most < 8 << 20
    assert b"accept-encoding: identity" in asked[0].lower()


@pytest.mark.parametrize(("body", "read"), [(b"12345", None), (b"1234", 1234)])
def test_of_a_number_that_was_cut_no_other_number_is_made(bank: Bank, body: bytes, read: Any) -> None:
    bank.status, bank.body = 200, body
    with RestApi(bank.url, max_answer_bytes=4) as api:
        answer = api.get("/orders")
    assert (answer.text, answer.json, answer.whole) == ("1234", read, read is not None)


def test_a_forked_child_has_connections_of_its_own(bank: Bank, api: RestApi) -> None:
    bank.status, bank.keeps_connections = 200, True
    api.get("/parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            api.get("/child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    api.get("/parent-again")
    ports = [port for port, *_ in bank.connections]
    assert [path for _, path in bank.connections] == ["/v1/parent", "/v1/child", "/v1/parent-again"]
    assert ports[0] == ports[2] != ports[1]


# --------------------------------------------------------------------------------------------------- probes


def found_first(says: Any) -> Any:
    """The first of a list, of a service that answers one."""
    return next(iter(says["data"]), None)


def no_charge(says: Any) -> bool:
    """What this bank says of a charge it has not, and of nothing else."""
    return bool(says["code"] == "charge_missing")


ANSWERS: list[Any] = [
    (200, b'{"charge_id": "c-1"}', {}, Happened({"charge_id": "c-1"})),
    (200, b'{"data": [{"id": 7}]}', {"found": found_first}, Happened({"id": 7})),
    (200, b'{"data": []}', {"found": found_first}, DidNotHappen()),
    (200, b'{"code": "charge_missing"}', {"missing": no_charge}, Happened({"code": "charge_missing"})),
    (404, b'{"code": "charge_missing"}', {"missing": no_charge}, DidNotHappen()),
    (404, b'{"code": "charge_missing"}', {}, Unsure),
    (404, b'{"code": "no_route"}', {"missing": no_charge}, Unsure),
    (404, b'{"data": []}', {"found": found_first}, Unsure),
    (404, b"<h1>Not Found</h1>", {"missing": lambda says: True}, Unsure),
    (404, b"null", {"missing": lambda says: True}, Unsure),
    (404, b'{"code": "charge_missi', {"missing": lambda says: True}, Unsure),
    (403, b'{"code": "charge_missing"}', {"missing": no_charge}, Unsure),
    (200, b"<h1>Please sign in</h1>", {}, Unsure),
    (200, b"null", {}, Unsure),
    (202, b'{"state": "queued"}', {}, Unsure),
    (302, b"{}", {}, Unsure),
    (500, b'{"error": "later"}', {}, Unsure),
]


@pytest.mark.parametrize(("status", "body", "options", "answer"), ANSWERS)
def test_how_find_reads_an_answer(bank: Bank, status: int, body: bytes, options: Any, answer: Any) -> None:
    bank.status, bank.body = status, body
    with RestApi(bank.url, headers={"Authorization": SECRET}) as api:
        expected = api.find("/charges/{key}", {"key": "k-1"}, **options)
    assert type(expected) is answer if isinstance(answer, type) else expected == answer
    method, path, headers, _ = bank.asked[0]
    assert (method, path, headers["Authorization"]) == ("GET", "/v1/charges/k-1", SECRET)


@pytest.fixture
def probed(desk: Desk, bank: Bank) -> Any:
    """A call whose probe asks the bank for it."""
    with RestApi(bank.url) as api:

        @order_tool(desk, probe="find_charge")
        def charge(order_id: str) -> Any:
            return api.post("/charges", json={}).json

        @probe("find_charge", registry=desk.registry)
        def find_charge() -> Any:
            return api.find("/charges/{key}", {"key": current_effect().call_key}, missing=no_charge)

        yield charge, "o-1"


def test_a_dropped_connection_leaves_a_probe_unsure(desk: Desk, bank: Bank, probed: Any) -> None:
    bank.hang_up = True
    fails(desk, errors.OutcomeUnknown, probed, match=r"cannot tell .it raised RestUnknown")
    bank.hang_up, bank.body = False, b'{"charge_id": "c-1"}'
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    (posted, *_, found) = bank.asked
    assert found[1] == f"/v1/charges/{posted[2]['Idempotency-Key']}"
