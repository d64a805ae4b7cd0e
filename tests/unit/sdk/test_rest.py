"""What each answer of somebody else's HTTP service says about the world, over a real connection."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from countersign import (
    EffectFailed,
    MisuseError,
    NotDone,
    OutcomeUnknown,
    OutsideTransaction,
    Placeholder,
    RestApi,
    RestUnknown,
    SettingsError,
    tool,
    transaction,
)
from tests.fakes.desk import Desk, refund_tool

SECRET = "Bearer s3cr3t-t0ken"


@dataclass
class Bank:
    """A server that answers what it is told to."""

    url: str = ""
    status: int = 201
    statuses: list[int] = field(default_factory=list)  # of the first answers
    body: bytes = b'{"charge_id": "c-1"}'
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def bank() -> Iterator[Bank]:
    world = Bank()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            world.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
            if world.hang_up:
                self.close_connection = True
                return
            self.send_response(world.statuses.pop(0) if world.statuses else world.status)
            for name, value in world.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(world.body)))
            self.end_headers()
            self.wfile.write(world.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - the names of http.server

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    world.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield world
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(bank: Bank) -> Iterator[RestApi]:
    with RestApi(bank.url, headers=lambda: {"Authorization": SECRET}) as opened:
        yield opened


def charge_tool(desk: Desk, api: RestApi, **changes: Any) -> Callable[[str, int], Placeholder[Any]]:
    @tool("charge", resource=("Order", "order_id"), registry=desk.registry, **changes)
    def charge(order_id: str, amount_cents: int) -> Any:
        """Charge an order."""
        return api.post(
            "/orders/{order_id}/charges", {"order_id": order_id}, json={"cents": amount_cents}
        ).json

    desk.publish(charge)
    return charge


def test_a_staged_tool_calls_out_once_under_its_call_key(desk: Desk, bank: Bank, api: RestApi) -> None:
    charge = charge_tool(desk, api)
    with transaction("t-1", runtime=desk.runtime):
        staged = charge("o/1 ü", 100)
        assert bank.asked == []
    (method, path, headers, body), *more = bank.asked
    assert (method, path, json.loads(body), more) == (
        "POST",
        "/v1/orders/o%2F1%20%C3%BC/charges",
        {"cents": 100},
        [],
    )
    assert (headers["Idempotency-Key"], headers["Authorization"]) == (staged.call_key, SECRET)
    assert staged.result == {"charge_id": "c-1"}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422, 425, 429, 499])
def test_what_was_refused_is_not_done(desk: Desk, bank: Bank, api: RestApi, status: int) -> None:
    bank.status, bank.body = status, b"no such order"
    charge = charge_tool(desk, api)
    with (
        pytest.raises(EffectFailed, match=f"answered {status}: no such order"),
        transaction("t-1", runtime=desk.runtime) as txn,
    ):
        charge("o-1", 100)
    assert txn.state == "ended"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 408, 409, 500, 502, 503, 504])
def test_what_does_not_say_is_unknown_and_no_redirect_is_followed(
    desk: Desk, bank: Bank, api: RestApi, status: int
) -> None:
    bank.status, bank.headers = status, {"Location": f"{bank.url}/elsewhere"}
    charge = charge_tool(desk, api)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime) as txn:
        charge("o-1", 100)
    assert (txn.state, len(bank.asked)) == ("unsettled", 1)


def test_scenario_21_a_server_that_hangs_up_after_it_was_asked_leaves_it_unknown(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    bank.hang_up = True
    charge = charge_tool(desk, api)
    with pytest.raises(OutcomeUnknown, match="not answered"), transaction("t-1", runtime=desk.runtime):
        charge("o-1", 100)
    assert len(bank.asked) == 1


def test_an_answer_that_takes_too_long_is_unknown(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = RestApi(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.1)
        charge = charge_tool(desk, api)
        with pytest.raises(OutcomeUnknown, match="ReadTimeout"), transaction("t-1", runtime=desk.runtime):
            charge("o-1", 100)


def test_what_could_not_be_sent_is_not_done(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    charge = charge_tool(desk, RestApi(f"http://127.0.0.1:{port}"))
    with (
        pytest.raises(EffectFailed, match="not sent: ConnectError"),
        transaction("t-1", runtime=desk.runtime),
    ):
        charge("o-1", 100)


def test_an_idempotent_one_is_sent_again_under_the_same_key_and_a_later_no_proves_nothing(
    desk: Desk, bank: Bank, api: RestApi
) -> None:
    charge = charge_tool(desk, api, idempotent=True, tries=3)
    bank.statuses, bank.status = [503], 404
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        charge("o-1", 100)
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in bank.asked}) == 1
    assert len(bank.asked) == 2


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_w4_outside_an_effect_nothing_that_changes_anything_is_sent(
    bank: Bank, api: RestApi, method: str
) -> None:
    with pytest.raises(OutsideTransaction):
        getattr(api, method)("/orders")
    assert bank.asked == []


def test_reading_needs_no_effect(bank: Bank, api: RestApi) -> None:
    bank.status = 200
    answer = api.get("/orders/{order_id}", {"order_id": "o-1"}, query={"full": "yes & no"})
    assert (answer.status, answer.json) == (200, {"charge_id": "c-1"})
    assert bank.asked[0][:2] == ("GET", "/v1/orders/o-1?full=yes+%26+no")
    assert "Idempotency-Key" not in bank.asked[0][2]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("orders", {}),
        ("//evil.example/x", {}),
        ("/orders/{order_id}", {}),
        ("/orders", {"order_id": "o-1"}),
        ("/orders/{order_id}", {"order_id": ""}),
        ("/orders/{order_id}/x", {"order_id": ".."}),
        ("/orders/{order_id}/x", {"order_id": "."}),
    ],
)
def test_scenario_64_no_value_makes_another_path(bank: Bank, api: RestApi, path: str, values: Any) -> None:
    with pytest.raises(MisuseError):
        api.get(path, values)
    assert bank.asked == []


@pytest.mark.parametrize("value", ["../../admin", "a/b", "a?b=c", "a#b", "%2e%2e", "a\r\nX: y", "\0"])
def test_whatever_a_value_holds_it_is_one_part_of_the_path(bank: Bank, api: RestApi, value: str) -> None:
    bank.status = 200
    api.get("/orders/{order_id}/lines", {"order_id": value})
    path = bank.asked[0][1]
    assert (path.count("/"), path.startswith("/v1/orders/"), path.endswith("/lines")) == (4, True, True)


@pytest.mark.parametrize(
    "url",
    [
        "bank.example",
        "ftp://bank.example",
        "http://bank.example",
        "https://me:pw@bank.example",
        "https://b.example/?a",
    ],
)
def test_an_address_that_is_none_is_refused_without_telling_a_password(url: str) -> None:
    with pytest.raises(SettingsError) as told:
        RestApi(url)
    assert "pw" not in str(told.value)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b"", None),
        (b"done", None),
        (b"[1, 2.5]", [1, 2.5]),
        (b'{"n": 12345678901234567890}', {"n": 12345678901234567890}),
    ],
)
def test_a_body_that_is_no_json_of_ours_is_done_all_the_same(
    bank: Bank, api: RestApi, body: bytes, read: Any
) -> None:
    bank.status, bank.body = 200, body
    assert (api.get("/orders").json, api.get("/orders").text) == (read, body.decode())


def test_a_body_without_an_end_is_cut_and_the_effect_has_fired(desk: Desk, bank: Bank) -> None:
    bank.body = b"x" * 100_000
    charge = charge_tool(desk, RestApi(bank.url, max_answer_bytes=1000))
    with transaction("t-1", runtime=desk.runtime) as txn:
        charge("o-1", 100)
    assert txn.state == "settled"


def test_scenario_63_credentials_stand_in_no_journal_and_in_no_error(
    desk: Desk, bank: Bank, api: RestApi, caplog: pytest.LogCaptureFixture
) -> None:
    bank.status, bank.body = 500, b"broken"
    charge, refund = charge_tool(desk, api), refund_tool(desk)
    with pytest.raises(OutcomeUnknown) as told, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 1)
        charge("o-1", 100)
    kept = b"".join(path.read_bytes() for path in desk.folder.iterdir() if path.name.startswith("journal.db"))
    assert b"o-1" in kept
    told_all = f"{told.value!r} {told.value.__cause__!r} {caplog.text}"
    assert not [where for where in (kept, told_all.encode()) if b"s3cr3t" in where]


def test_the_two_answers_of_a_refusal_are_their_own_types(bank: Bank, api: RestApi) -> None:
    bank.status = 404
    with pytest.raises(NotDone):
        api.get("/orders")
    bank.status = 500
    with pytest.raises(RestUnknown):
        api.get("/orders")
