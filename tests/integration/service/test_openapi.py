"""The document against the running service: schemathesis finds no 5xx and no answer the document does not name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from countersign.contract import ContractError
from tests.fakes.listening import Listening
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal

FOR_AGENTS = "/answers"  # below a path that is for people
FOR_PEOPLE = ("/v1/reviews", "/v1/tasks", "/v1/policies")
STREAMS = ("/v1/events",)  # never ends; tests/integration/service/test_log.py reads it
NOT_APPLICABLE: list[schemathesis.CheckFunction] = [
    positive_data_acceptance  # a well-formed token or id of nothing is refused, as it should be
]
EXAMPLES = 2


class Driven:
    """A service with something in every state, its document, and who asks."""

    def __init__(self, service: Listening) -> None:
        self.service = service
        self.session = requests.Session()
        self.document: dict[str, Any] = self.session.get(service.url + "/v1/openapi.json", timeout=30).json()
        for path, methods in self.document["paths"].items():
            for method in methods:  # schemathesis would otherwise make sign-ins up; ours stand in `auth_for`
                self.document["paths"][path][method].pop("security", None)
        self.operations = [(m.upper(), path) for path, of in self.document["paths"].items() for m in of]
        self.agent, self.person, self.known = service.do(_furnished)

    def auth_for(self, path: str) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
        """The right way in for a path, with a nonce that is fresh."""
        if path.startswith(FOR_PEOPLE) and not path.endswith(FOR_AGENTS):
            return self._as_person
        self.agent.nonce = self.service.world.service.authenticator.current_nonce()
        return self._as_agent

    def _as_agent(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign a request as it goes out: its method, path, query and very bytes."""
        body = request.body if isinstance(request.body, str | bytes) else b""
        raw = body if isinstance(body, bytes) else body.encode()
        with suppress(
            ContractError
        ):  # a query longer than a proof can be goes out without one, and is refused
            proof = self.agent.proof(request.method or "GET", request.path_url or "/", raw)
            request.headers["Agent-Proof"] = proof
        return request

    def _as_person(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Send what our own page would send."""
        own = self.person.headers()
        request.headers.update({name: own[name] for name in own if name != "Content-Type"})
        return request


async def _furnished(bank: Bank) -> tuple[Agent, Visitor, dict[str, list[str]]]:
    robot, maya = await bank.agent("robot"), await bank.person("maya")
    waits = (await robot.submit(await pay(bank, 500), run_key="waits")).json()
    known = [waits["txn"], (await robot.submit(await pay(bank), run_key="ready")).json()["txn"]]
    for n, outcome in enumerate(("fired", "unknown")):
        calls = await pay(bank), await mail(bank)
        view = (await robot.submit(*calls, run_key=f"r{n}", attempt_id=f"a{n}")).json()
        await robot.report(f"a{n}", {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome})
        known.append(view["txn"])
    there = {
        "txn": known,
        "review_id": [waits["effects"][0]["review"]["review_id"]],
        "proposal_id": [await maya.proposed(waits, {"account": "acme", "amount": 300})],
        "attempt_id": ["a0", "a1"],
        "tool": ["pay", "ship"],
        "task_id": [task["task_id"] for task in (await maya.get("/v1/tasks")).json()["tasks"]],
    }
    return robot, maya, there


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    folder = tmp_path_factory.mktemp("driven")
    with Listening(folder / "data", Payments(folder / "bundle").path) as service:
        driven = Driven(service)
        yield driven
        driven.session.close()


NOTHING_TO_GET_WRONG = {
    "/.well-known/jwks.json", "/healthz", "/readyz", "/metrics", "/v1/epoch", "/v1/policies", "/v1/policies/sync",
}  # fmt: skip
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


def drive(driven: Driven, method: str, path: str, examples: int, **how: Any) -> None:
    """Ask one operation many things, signed in as its callers are."""
    operation = schemathesis.openapi.from_dict(driven.document)[path][method]
    auth = driven.auth_for(path)

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(**how))
    def ask(case: schemathesis.Case[Any]) -> None:
        response = case.call(base_url=driven.service.url, session=driven.session, auth=auth, timeout=30)
        case.validate_response(response, excluded_checks=NOT_APPLICABLE)

    ask()


def test_every_answer_is_one_the_document_names(driven: Driven, subtests: pytest.Subtests) -> None:
    """To what it allows, to what it forbids, and about what is there; a route more or less changes the number."""
    assert len(driven.operations) == 34
    for method, path in driven.operations:
        if path in STREAMS:
            continue
        with subtests.test(method=method, path=path):
            drive(driven, method, path, EXAMPLES, generation_mode=POSITIVE)
            if path not in NOTHING_TO_GET_WRONG:
                drive(driven, method, path, EXAMPLES, generation_mode=NEGATIVE)
            name = path.partition("{")[2].partition("}")[0]
            for value in driven.known.get(name, []):
                drive(driven, method, path, 1, path_parameters={name: value})


def test_every_route_refuses_a_stranger(driven: Driven) -> None:
    ids = dict.fromkeys(driven.known, "0" * 64)
    for method, path in driven.operations:
        if not path.startswith("/v1/"):
            continue
        place = driven.service.url + path.format(**ids)
        answer = requests.request(method, place, json={} if method == "POST" else None, timeout=30)
        assert refusal(answer) == (401, "unauthenticated"), path
        documented = driven.document["paths"][path][method.lower()]["responses"]["401"]
        assert [name for name in documented["headers"] if name not in answer.headers] == []
        wrong = requests.request("PATCH", place, timeout=30)
        assert refusal(wrong) == (405, "method_not_allowed"), path
