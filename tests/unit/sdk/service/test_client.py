"""The client: proofs, nonces, retries, limits, and doubt that is a refusal."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest

from countersign import Runtime, errors, resume
from countersign.async_executor import AsyncExecutor
from countersign.concurrency import SyncExecutor, run_sync
from countersign.contract import ErrorCode, KeySet, PrivateKey
from countersign.http_clients import HttpRequest, HttpResponse
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import fails
from tests.fakes.service import Refused

UNKNOWN = "0" * 64
PACKED = {"Content-Encoding": "gzip"}


def client_with(desk: Desk, answer: Any, **changes: Any) -> Any:
    settings = replace(desk.runtime.settings, **changes)
    return Runtime(settings, transport=httpx2.MockTransport(answer), clock=desk.clock).client()


def test_a_first_request_receives_the_nonce_and_is_repeated_once(desk: Desk) -> None:
    with pytest.raises(errors.ServiceRefused):
        desk.runtime.client().view(UNKNOWN)
    assert [path for _, path in desk.face.log] == [f"/v1/transactions/{UNKNOWN}"] * 2
    assert {headers["accept-encoding"] for headers in desk.face.headers} == {"identity"}
    with pytest.raises(errors.ServiceRefused):
        desk.runtime.client().view(UNKNOWN)
    assert len(desk.face.log) == 3


def test_a_nonce_that_went_stale_costs_one_more_round(desk: Desk, refund: Any) -> None:
    desk.run((refund, "o-1", 100))
    before = len(desk.face.log)
    desk.face.nonce = "nonce-2"
    desk.run((refund, "o-1", 100), key="t-2")
    assert len(desk.face.log) - before == 3


def test_a_service_that_never_likes_our_nonce_is_not_asked_for_ever(desk: Desk) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        problem = {"code": "use_nonce", "detail": "another"}
        return httpx2.Response(401, json=problem, headers={"Agent-Nonce": "x"})

    with pytest.raises(errors.ServiceRefused, match="use_nonce"):
        client_with(desk, answer).view(UNKNOWN)
    assert len(asked) == 2


def test_a_lost_answer_is_asked_for_again_under_the_same_idempotency_key(desk: Desk, refund: Any) -> None:
    desk.face.faults["/v1/transactions"] = ["lost_answer"]
    desk.run((refund, "o-1", 100))
    keys = {headers["idempotency-key"] for headers in desk.face.headers if "idempotency-key" in headers}
    assert (desk.face.asked("/v1/transactions"), len(keys), desk.done) == (2, 1, [("refund", "o-1", 100)])


def refunding(desk: Desk) -> Any:
    """A step that gives so much back."""
    refund = refund_tool(desk)
    return lambda amount, **options: desk.run((refund, "o-1", amount), **options)


@pytest.mark.parametrize(("path", "amount"), [("/v1/redemptions", 90_000), ("/v1/transactions", 100)])
@pytest.mark.parametrize("lost", [2, 4])
def test_lost_answers_fire_once(desk: Desk, path: str, amount: int, lost: int) -> None:
    step = refunding(desk)
    if path == "/v1/redemptions":
        desk.service.approve(step(amount, raises=errors.ReviewPending).txn)
    desk.face.faults[path] = ["lost_answer"] * lost
    if lost > desk.runtime.settings.retries:
        with pytest.raises(errors.ServiceUnavailable, match="Nothing was fired"):
            step(amount)
        assert desk.done == []
    step(amount)
    step(amount)
    assert desk.done == [("refund", "o-1", amount)]


def test_a_lost_redemption_is_not_forgotten_when_the_rerun_stages_another_list(desk: Desk) -> None:
    step = refunding(desk)
    desk.face.faults["/v1/transactions"] = ["lost_answer"] * 4
    step(100, raises=errors.ServiceUnavailable)
    with pytest.raises(errors.AlreadyRedeemed, match="another list"):
        step(200)
    assert desk.done == []
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert desk.done == [("refund", "o-1", 100)]


def over(seconds: int) -> Refused:
    more = {"setting": "open_reviews_per_agent", "limit": 200, "retry_after_seconds": seconds}
    return Refused(429, ErrorCode.TOO_MANY_OPEN, "so many", **more)


def test_too_many_requests_are_retried_after_the_given_time(desk: Desk, monkeypatch: Any) -> None:
    slept: list[float] = []
    monkeypatch.setattr("countersign.concurrency.time.sleep", slept.append)
    asked = iter((1, 2))

    def answer(request: httpx2.Request) -> httpx2.Response:
        if (seconds := next(asked, None)) is not None:
            desk.face.faults["/v1/epoch"] = [over(seconds)]
        return desk.face.answer(request)

    client = client_with(desk, answer, retry_max_seconds=2.0)
    assert (client.epoch().epoch, len(slept)) == (1, 2)
    assert all(wanted <= pause <= 1.5 * wanted for wanted, pause in zip((1, 2), slept, strict=True))


def test_what_is_too_much_for_longer_ends_at_once_in_an_error_that_says_so(desk: Desk, refund: Any) -> None:
    desk.face.faults["/v1/transactions"] = [over(60)]
    with pytest.raises(errors.OverQuota) as refused:
        desk.run((refund, "o-1", 100))
    assert (refused.value.problem_code, refused.value.retry_after) == ("too_many_open", 60)
    assert (refused.value.setting, desk.face.asked("/v1/transactions")) == ("open_reviews_per_agent", 1)
    assert desk.done == []
    desk.run((refund, "o-1", 100))  # later, under the same key
    assert desk.done == [("refund", "o-1", 100)]


@pytest.mark.parametrize(("busy", "error"), [(503, errors.ServiceUnavailable), (over(0), errors.OverQuota)])
def test_an_overloaded_service_is_retried(desk: Desk, refund: Any, busy: Any, error: type[Exception]) -> None:
    desk.face.faults["/v1/transactions"] = [busy, busy]
    desk.run((refund, "o-1", 100))
    desk.face.faults["/v1/transactions"] = [busy] * 10
    desk.run((refund, "o-2", 100), key="t-2", raises=error)
    assert desk.done == [("refund", "o-1", 100)]
    assert len(desk.face.faults["/v1/transactions"]) == 10 - 1 - desk.runtime.settings.retries


INVALID: list[Any] = [
    ("a proxy's page", httpx2.Response(200, text="<html>login</html>")),
    ("an empty answer", httpx2.Response(200)),
    ("another shape", httpx2.Response(200, json={"txn": "x"})),
    ("an unknown field", httpx2.Response(200, json={"attempt_id": "a", "redeemed": False, "more": 1})),
    ("a duplicate key", httpx2.Response(200, content=b'{"txn":"a","txn":"b"}')),
    ("a redirect", httpx2.Response(302, headers={"Location": "http://127.0.0.1:1/"})),
    ("an error without a code", httpx2.Response(400, text="no")),
    ("a server error", httpx2.Response(500, json={"code": "internal", "detail": "oops"})),
    ("a flood", httpx2.Response(200, content=b" " * 20_000_000)),
    ("a packed one", httpx2.Response(200, headers=PACKED, stream=httpx2.ByteStream(b"x"))),
    ("a packed problem", httpx2.Response(409, headers=PACKED, stream=httpx2.ByteStream(b"x"))),
]


@pytest.mark.parametrize(("what", "response"), INVALID)
def test_an_invalid_response_is_unavailable(desk: Desk, what: str, response: httpx2.Response) -> None:
    with pytest.raises(errors.ServiceUnavailable, match="Nothing was fired"):
        client_with(desk, lambda _: response).view(UNKNOWN)


def test_a_problem_keeps_its_code_and_its_extras_and_an_endless_text_is_cut(desk: Desk) -> None:
    problem = {"type": "t", "title": "t", "status": 409, "detail": "spent"}
    problem |= {"code": "already_redeemed", "outcome": "fired"}
    with pytest.raises(errors.ServiceRefused) as refused:
        client_with(desk, lambda _: httpx2.Response(409, json=problem)).view(UNKNOWN)
    assert refused.value.problem_code == ErrorCode.ALREADY_REDEEMED
    assert refused.value.extras == {"outcome": "fired"}
    problem["detail"] = "x" * 50_000
    with pytest.raises(errors.ServiceRefused, match=r"50000 characters") as refused:
        client_with(desk, lambda _: httpx2.Response(409, json=problem)).view(UNKNOWN)
    assert len(str(refused.value)) < 3_000


PROOF_REFUSED = {"code": "bad_proof", "detail": "the proof does not hold"}
HINTS = {
    "a clock that is ahead": (-320, "320 s ahead of the service's; set the clock"),
    "a clock that is behind": (320, "320 s behind the service's; set the clock"),
    "a clock that is right": (0, "policy-service agent list"),
    "a service without a time": (None, "policy-service agent list"),
}


@pytest.mark.parametrize(("off", "hint"), HINTS.values(), ids=HINTS)
def test_a_refused_proof_says_what_was_signed_with(desk: Desk, off: int | None, hint: str) -> None:
    headers = {}
    if off is not None:
        headers["Date"] = format_datetime(datetime.fromtimestamp(desk.clock.wall() + off, UTC))
    answer = httpx2.Response(401, json=PROOF_REFUSED, headers=headers)
    with pytest.raises(errors.ServiceRefused) as refused:
        client_with(desk, lambda _: answer).view(UNKNOWN)
    reported = str(refused.value)
    kid = PrivateKey.from_pem(desk.runtime.settings.key_path.read_bytes()).public.kid
    assert hint in reported and kid in reported and "'support'" in reported
    assert ("set the clock" in reported) is bool(off)


A_KEY_SET = KeySet([PrivateKey.generate().public]).to_jwks()
NO_KEY_SETS = {
    "HTML": httpx2.Response(200, text="<html>"),
    "50 MB": httpx2.Response(200, content=b" " * 50_000_000, headers={"Content-Type": "application/json"}),
    "a redirect": httpx2.Response(301, headers={"Location": "http://127.0.0.1:1/keys"}),
    "a sound set, as a page": httpx2.Response(200, json=A_KEY_SET, headers={"Content-Type": "text/html"}),
    "no keys": httpx2.Response(200, json={"keys": "none"}),
    "the same kid twice": httpx2.Response(200, json={"keys": A_KEY_SET["keys"] * 2}),
    "a list": httpx2.Response(200, json=[]),
}


@pytest.mark.parametrize("response", NO_KEY_SETS.values(), ids=NO_KEY_SETS)
def test_keys_that_are_not_a_sound_key_set_are_refused(desk: Desk, response: httpx2.Response) -> None:
    with pytest.raises(errors.ServiceUnavailable):
        client_with(desk, lambda _: response).jwks()


@pytest.mark.anyio
async def test_the_async_client_speaks_the_same(desk: Desk) -> None:
    txn = desk.run((refund_tool(desk), "o-1", 100))
    async with desk.runtime.async_client() as client:
        view = await client.view(txn.txn)
        with pytest.raises(errors.ServiceRefused):
            await client.view(UNKNOWN)
    assert view.state == "settled"


def test_a_proof_covers_the_body(desk: Desk, refund: Any) -> None:
    """A proxy that rewrites a body is refused by the service, and nothing fires."""

    def rewriting(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            body = json.dumps(json.loads(request.content) | {"run_key": "another"})
            headers = {k: v for k, v in request.headers.items() if k.lower() != "content-length"}
            request = httpx2.Request("POST", request.url, headers=headers, content=body)
        return desk.face.answer(request)

    given: Any = {
        "registry": desk.registry,
        "transport": httpx2.MockTransport(rewriting),
        "clock": desk.clock,
    }
    with Runtime(desk.runtime.settings, **given) as runtime:
        fails(replace(desk, runtime=runtime), errors.ServiceRefused, (refund, "o-1", 100), match="wrong_body")
    assert desk.done == []


# ------------------------------------------------------------------ what is read of an answer, by either way to wait

MOST = 100
ASKED = HttpRequest(
    "GET", "http://service/v1/keys", {}, b"", connect_seconds=1, read_seconds=1, max_bytes=MOST
)


def blocking(answer: Any) -> HttpResponse:
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        return run_sync(SyncExecutor(lambda: http).send(ASKED))


def awaiting(answer: Any) -> HttpResponse:
    def client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))

    return asyncio.run(AsyncExecutor(client).send(ASKED))


@pytest.mark.parametrize("send", [blocking, awaiting])
def test_an_answer_is_read_up_to_what_the_request_allows_and_not_unpacked(send: Any) -> None:
    assert send(lambda _: httpx2.Response(200, content=b"x" * MOST)).body == b"x" * MOST
    with pytest.raises(errors.ServiceUnavailable, match="its answer is larger than 100 bytes") as away:
        send(lambda _: httpx2.Response(200, content=b"x" * (MOST + 1)))
    assert "GET http://service/v1/keys" in str(away.value)
    packed = httpx2.Response(200, headers=PACKED, stream=httpx2.ByteStream(b"x"))
    with pytest.raises(errors.ServiceUnavailable, match=r"its answer is compressed \('gzip'\)"):
        send(lambda _: packed)


@pytest.fixture(autouse=True)
def _closed(desk: Desk) -> Any:
    yield
    desk.runtime.close()
