"""The HTTP face of the fake service: proofs with nonces, problem details, long polls, and faults on demand.

`face.transport` serves httpx2 clients in this process, blocking and async; `serving(face)` serves other
processes over a loopback socket. `face.faults` maps a path's beginning to what goes wrong there:
"lost_request", "lost_answer", a status, a refusal with its seconds, an interrupt that comes before the request has
arrived, or a callable, which runs before the answer leaves.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from countersign.contract import (
    ContractError,
    ErrorCode,
    KeySet,
    VerificationError,
    open_token,
    verify_proof,
    wire,
)
from countersign.contract.jws import TYP_RELEASE
from tests.fakes.http_server import Quiet, served
from tests.fakes.service import FakeService, Refused

Fault = str | int | Refused | BaseException | Callable[[], object]


class Face:
    """Turns requests into verbs of the fake service."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.faults: dict[str, list[Fault]] = {}
        self.log: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.evaluated: list[wire.EvaluationRequest] = []
        self.nonce = "nonce-1"
        self.lock = threading.RLock()
        self.transport = httpx2.MockTransport(self.answer)
        self.async_transport = httpx2.MockTransport(self.answer)

    def asked(self, path: str) -> int:
        """How often something was asked that begins like this."""
        return sum(1 for _, one in self.log if one.startswith(path))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """One request, one answer."""
        path = request.url.raw_path.decode().partition("?")[0]
        self.log.append((request.method, path))
        self.headers.append(dict(request.headers))
        fault = self._fault(path)
        if fault == "lost_request":
            raise httpx2.ConnectError("the wire was cut")
        if isinstance(fault, Refused):
            return self._refused(fault, {"Retry-After": str(fault.extras["retry_after_seconds"])})
        if isinstance(fault, BaseException):
            raise fault
        if isinstance(fault, int):
            body = {"code": "storage_unavailable", "detail": "disk full"}
            return httpx2.Response(fault, json=body, headers=self._problem())
        response = self._guarded(request, path)
        if callable(fault):
            fault()
        if fault == "lost_answer":
            raise httpx2.ReadError("the wire was cut")
        return response

    def _fault(self, path: str) -> Fault | None:
        for beginning, waiting in self.faults.items():
            if path.startswith(beginning) and waiting:
                return waiting.pop(0)
        return None

    def _guarded(self, request: httpx2.Request, path: str) -> httpx2.Response:
        try:
            return self._route(request, path)
        except Refused as refused:
            return self._refused(refused, {})
        except ContractError as error:
            return self._refused(Refused(422, ErrorCode.INVALID_REQUEST, str(error)), {})

    def _refused(self, refused: Refused, headers: dict[str, str]) -> httpx2.Response:
        kind = f"urn:countersign:problem:{refused.code}"
        body = {"type": kind, "title": refused.code, "code": refused.code}
        body |= {"status": refused.status, "detail": refused.detail, **refused.extras}
        return httpx2.Response(refused.status, content=json.dumps(body), headers=self._problem() | headers)

    def _problem(self) -> dict[str, str]:
        return {"Content-Type": "application/problem+json", "Agent-Nonce": self.nonce}

    def _route(self, request: httpx2.Request, path: str) -> httpx2.Response:
        body = request.read()
        if path == "/.well-known/jwks.json":
            return httpx2.Response(200, json=KeySet(self.service.published).to_jwks())
        agent, kid = self._caller(request, path, body)
        wait = request.headers.get("Prefer", "").removeprefix("wait=")
        parts = path.removeprefix("/v1/").split("/")
        if request.method == "GET" and parts[0] == "transactions":
            return self._json(self.service.wait(parts[1], float(wait or 0)))
        with self.lock:
            if request.method == "GET" and parts == ["epoch"]:
                return self._json(wire.EpochView(epoch=self.service.epoch))
            if request.method == "GET":
                return self._manifest(parts[1])
            return self._json(self._post(agent, kid, parts, body, request.headers.get("Idempotency-Key")))

    def _caller(self, request: httpx2.Request, path: str, body: bytes) -> tuple[str, str]:
        known: dict[str, Any] = {
            "accept_nonce": lambda nonce: nonce == self.nonce,
            "now": int(self.service._now()),
        }
        known["key_for"] = lambda kid: self.service.agents.get(kid, (None, None))[1]
        known |= {"method": request.method, "url_path": path, "query": request.url.query.decode()}
        try:
            proof = verify_proof(request.headers.get("Agent-Proof", ""), body=body, **known)
        except VerificationError as error:
            code = ErrorCode.USE_NONCE if error.code == "use_nonce" else ErrorCode.BAD_PROOF
            raise Refused(401, code, f"step {error.step}: {error.code}") from error
        if self.service.agents[proof.kid][0] != proof.agent:
            raise Refused(401, ErrorCode.BAD_PROOF, "that key is another agent's")
        return proof.agent, proof.kid

    def _manifest(self, tool: str) -> httpx2.Response:
        manifest = self.service.manifests.get(tool)
        if manifest is None:
            raise Refused(404, ErrorCode.NOT_FOUND, f"no tool {tool}")
        return httpx2.Response(200, json=manifest.to_json(), headers={"Agent-Nonce": self.nonce})

    def _post(self, agent: str, kid: str, parts: list[str], body: bytes, key: str | None) -> wire.WireModel:
        service = self.service
        match parts:
            case ["transactions"]:
                if key is None:
                    raise Refused(400, ErrorCode.IDEMPOTENCY_KEY_REQUIRED)
                return service.submit(agent, kid, wire.parse(wire.SubmitRequest, body), key, body)
            case ["transactions", txn, "release"]:
                return service.release(txn, wire.parse(wire.ReleaseRequest, body).rev, kid)
            case ["transactions", txn, "withdraw"]:
                return service.withdraw(txn)
            case ["transactions", txn, "compensate"]:
                return service.compensate(txn, wire.parse(wire.CompensateRequest, body).effect_id, kid)
            case ["redemptions"]:
                redeem = wire.parse(wire.RedeemRequest, body)
                return service.redeem([self._jti(token) for token in redeem.tokens], redeem.attempt_id, kid)
            case ["redemptions", attempt, "renew"]:
                return service.renew(attempt, list(wire.parse(wire.RenewRequest, body).effect_ids), kid)
            case ["outcomes"]:
                report = wire.parse(wire.ReportRequest, body)
                return service.report(report.attempt_id, report.outcomes)
            case ["evaluations"]:
                asked = wire.parse(wire.EvaluationRequest, body)
                self.evaluated.append(asked)
                return service.evaluate(asked.effects)
        raise Refused(404, ErrorCode.NOT_FOUND)

    def _jti(self, token: str) -> str:
        opened = open_token(token, typ=TYP_RELEASE, key_for=KeySet(self.service.published).get)
        return str(opened.claims["jti"])

    def _json(self, model: wire.WireModel) -> httpx2.Response:
        headers = {"Content-Type": "application/json", "Agent-Nonce": self.nonce}
        return httpx2.Response(200, content=wire.dump(model), headers=headers)


@contextmanager
def serving(face: Face, certificate: Path | None = None) -> Iterator[str]:
    """Serve other processes on loopback; gives the address. Takes what clients send to a proxy, too."""

    class Handler(Quiet):
        protocol_version = "HTTP/1.0"  # a server that is gone keeps no connection

        def respond(self) -> None:
            path = self.path.removeprefix("http://").partition("/")[2]
            request = httpx2.Request(
                self.command, f"http://127.0.0.1/{path}", headers=dict(self.headers), content=self.body()
            )
            try:
                response = face.answer(request)
            except httpx2.TransportError:
                self.close_connection = True
                return
            self.answer(response.status_code, response.content, dict(response.headers))

    with served(Handler, certificate) as url:
        yield url
