"""One trace from the agent's step to the fire, across the processes that decide, approve, resume and fire."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from countersign import Runtime, Settings, resume, tracing
from examples.local_service import LocalService
from tests.fakes.collector import Collector, Received, provider
from tests.integration.sdk.conftest import ROLE, Office, Tools, serving

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as opened:
        yield opened


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[LocalService]:
    """A service that exports because its environment says so, as every OpenTelemetry program does."""
    with serving(tmp_path_factory.mktemp("traced"), collector.environment) as served:
        yield served


@pytest.fixture(scope="module")
def enrolled(service: LocalService) -> Settings:
    return service.enroll("support", ROLE)


@pytest.fixture
def traced(collector: Collector) -> Iterator[trace.Tracer]:
    """An agent's program that traces."""
    of_the_agent = provider(collector.url, "agent")
    with tracing.use_provider(of_the_agent):
        yield of_the_agent.get_tracer("agent")


def resume_there(settings: Settings, notes: Path, endpoint: str) -> None:
    """What another process of the agent does."""
    of_the_worker = provider(endpoint, "worker")
    with (
        tracing.use_provider(of_the_worker),
        of_the_worker.get_tracer("worker").start_as_current_span("a worker's round"),
        Runtime(settings, registry=Tools(notes).registry) as runtime,
    ):
        assert [one.after for one in resume(runtime)] == ["settled"]


def of_transaction(spans: list[Received], txn: str) -> list[Received]:
    return [one for one in spans if one.facts.get("countersign.txn") == txn]


def has(txn: str, *names: str) -> Any:
    """Whether these spans of a transaction have arrived."""
    return lambda spans: set(names) <= {one.name for one in of_transaction(spans, txn)}


def test_decision_redemption_fire_and_outcome_are_one_trace(
    office: Office, key: str, collector: Collector, traced: trace.Tracer
) -> None:
    with traced.start_as_current_span("the agent thinks") as outer:
        txn = office.refund(key, 4_200)
    steps = ("transaction", "decision_made", "effect_redeemed", "fire", "effect_fired")
    names = [f"countersign {one}" for one in steps]
    spans = collector.wait_for(has(txn.txn, *names))
    found = {one.name: one for one in of_transaction(spans, txn.txn)}
    mine = f"{outer.get_span_context().trace_id:032x}"
    assert {found[name].trace for name in names} == {mine}
    assert {found[name].service for name in names} == {"agent", "countersign"}
    requests = [one for one in spans if one.trace == mine and one.name == "POST /v1/transactions"]
    assert [one.parent for one in requests] == [found["countersign transaction"].span]
    assert found["countersign decision_made"].parent == requests[0].span
    assert found["countersign decision_made"].facts["countersign.outcome"] == "release"
    assert found["countersign transaction"].facts["countersign.state"] == "settled"
    assert found["countersign fire"].facts["countersign.tool"] == "refund"


def test_what_a_worker_fires_after_an_approval_is_in_the_trace_of_its_staging(
    office: Office, key: str, collector: Collector, traced: trace.Tracer
) -> None:
    with traced.start_as_current_span("the agent thinks") as outer:
        pending = office.asked(key)
    office.approve(pending)
    args = (office.settings, office.tools.notes, collector.url)
    process = SPAWN.Process(target=resume_there, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    names = [f"countersign {one}" for one in ("resume", "fire", "effect_redeemed", "effect_fired")]
    spans = collector.wait_for(has(pending.txn, *names, "countersign vote_recorded"))
    mine = f"{outer.get_span_context().trace_id:032x}"
    found = {one.name: one for one in of_transaction(spans, pending.txn)}
    assert {found[name].trace for name in names} == {mine}
    assert found["countersign fire"].service == "worker"
    (round_,) = [one for one in spans if one.name == "a worker's round"]
    assert found["countersign resume"].links == ((round_.trace, round_.span),)
    vote = found["countersign vote_recorded"]
    submitted = next(one for one in spans if one.trace == mine and one.name == "POST /v1/transactions")
    assert vote.trace != mine, "a person's browser has a trace of its own"
    assert vote.links == ((mine, submitted.span),)
