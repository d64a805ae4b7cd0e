"""What the service puts into spans and takes from a `traceparent`, and that it traces nothing by default."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, TraceFlags

from policy_service import tracing
from policy_service.errors import StartError
from policy_service.sampling import RateLimitedSampler
from tests.fakes.world import Agent
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

CALLER = f"00-{TRACE}-{SPAN}-01"

BAD = (
    "", "00", "nonsense", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01",
    f"01-{TRACE}-{SPAN}-01-more", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\u00e9",
    f"{CALLER},{CALLER}", "0" * 60_000, f"00-{TRACE}-{SPAN}-\u0660\u0661",
)  # fmt: skip


def requests_of(exporter: InMemorySpanExporter) -> list[tuple[str, int, int | None]]:
    return [
        (one.name, one.context.trace_id, one.parent.span_id if one.parent is not None else None)
        for one in exporter.get_finished_spans()
        if one.name.startswith("POST ")
    ]


async def test_a_request_joins_its_trace(bank: Bank, robot: Agent, exported: InMemorySpanExporter) -> None:
    exported.clear()
    extra = ((b"traceparent", CALLER.encode()), (b"tracestate", b"x=hunter2"), (b"baggage", b"y=hunter2"))
    assert await submitted(bank, robot, *extra) == 201
    assert set(requests_of(exported)) == {("POST /v1/transactions", int(TRACE, 16), int(SPAN, 16))}
    assert "hunter2" not in "".join(one.to_json() for one in exported.get_finished_spans())


@pytest.fixture
def exported(bank: Bank) -> Iterator[InMemorySpanExporter]:
    """What the service exports from now on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    end = tracing.start(provider)
    yield exporter
    end()
    assert not tracing.enabled()


async def submitted(bank: Bank, robot: Agent, *headers: tuple[bytes, bytes]) -> int:
    """Submit with raw headers of this request alone; its status."""

    async def add(request: object) -> None:
        request.headers = type(request.headers)([*request.headers.raw, *headers])  # type: ignore[attr-defined]

    hooks = bank.http.event_hooks
    bank.http.event_hooks = {"request": [add]}
    try:
        return (await robot.submit(await pay(bank))).status_code
    finally:
        bank.http.event_hooks = hooks


async def test_a_bad_traceparent_is_ignored(bank: Bank, robot: Agent, exported: InMemorySpanExporter) -> None:
    for value in BAD:
        assert await submitted(bank, robot, (b"traceparent", value.encode())) in {200, 201}, value[:60]
    assert await submitted(bank, robot, *((b"traceparent", CALLER.encode()),) * 2) == 200
    found = {(name, parent) for name, _, parent in requests_of(exported)}
    assert found == {("POST /v1/transactions", None)}


async def test_a_span_holds_no_values(bank: Bank, exported: InMemorySpanExporter) -> None:
    await bank.http.get("/sign-in/dev?token=hunter2", headers={"Cookie": "a=hunter2"})
    await bank.http.get("/sign-in/corp/callback?code=hunter2&state=hunter2")
    await bank.http.get("/hunter2")
    await bank.http.request("HUNTER2", "/v1/audit")
    spans = exported.get_finished_spans()
    names = {"GET /sign-in/dev", "GET /sign-in/{name}/callback", "GET (none)", "(other) /v1/audit"}
    assert {one.name for one in spans} == names
    assert "hunter2" not in "".join(one.to_json() for one in spans).lower()


async def test_nothing_is_traced_by_default(bank: Bank, robot: Agent) -> None:
    """Nor by FastAPI's own telemetry, when the program has a provider."""
    assert not tracing.enabled()
    view = (await robot.submit(await pay(bank))).json()
    assert "trace" not in dict(await bank.log(view["txn"]))["transaction_submitted"]
    config = bank.app._native_telemetry.config
    assert not (config["tracing"] or config["metrics"] or config["logs"])


async def test_a_redemption_links_its_trace(bank: Bank, robot: Agent, exported: InMemorySpanExporter) -> None:
    tokens = (await robot.release((await robot.submit(await pay(bank))).json())).json()["releases"]
    bank.service.db.set_listener(type(bank.service.db._listener)(lambda: ()))  # one that remembers nothing
    assert (await robot.redeem(tokens)).json()["redeemed"] is True
    spans = exported.get_finished_spans()
    spent = next(one for one in spans if one.name == "countersign effect_redeemed")
    posts = [one for one in spans if one.name == "POST /v1/transactions"]
    (began,) = [one for one in posts if (one.attributes or {})["http.response.status_code"] == 201]
    assert [link.context.span_id for link in spent.links] == [began.context.span_id]


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


# -- on and off --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
async def test_variables_switch_it_on(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], wanted: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    end = tracing.start()
    assert tracing.enabled() is wanted
    end()
    assert not tracing.enabled()


async def test_an_endpoint_without_the_exporter_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*next(iter(ENDPOINT.items())))
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartError, match=r"install countersign-service\[otel\]"):
        tracing.start()


async def test_recorded_traces_are_limited() -> None:
    now = [0.0]
    sampler = RateLimitedSampler(3, lambda: now[0])

    def sampled(flags: int | None = None, *, remote: bool = True) -> bool:
        """Whether a request of a caller with those flags (or without a trace) is recorded."""
        context = None
        if flags is not None:
            ids = int(TRACE, 16), int(SPAN, 16)
            parent = SpanContext(*ids, is_remote=remote, trace_flags=TraceFlags(flags))
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        return sampler.should_sample(context, 1, "POST").decision.is_sampled()

    assert [sampled(one) for one in (1, None, 1, 1, None)] == [True, True, True, False, False]
    assert sampled(1, remote=False), "what belongs to a recorded request is recorded"
    assert not sampled(0, remote=False)
    assert not sampled(0), "a caller that records nothing"
    now[0] = 1 / 3
    assert [sampled(1), sampled(1)] == [True, False]
    now[0] = 1_000.0
    assert [sampled() for _ in range(4)] == [True, True, True, False], "nothing is saved up"
