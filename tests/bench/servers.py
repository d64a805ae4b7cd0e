"""The service an operator starts, the echo next to it, and an agent that signs requests before the clock starts."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

from countersign.contract import PrivateKey, make_proof
from examples.local_service import LocalService, free_port
from policy_service.pap.bundle import load_bundle
from tests.bench.load import HOST, request
from tests.bench.measuring import BenchError

REPOSITORY = Path(__file__).parents[2]
BUNDLE = REPOSITORY / "policies"
AGENT = "bench-agent"
PATH = "/v1/transactions"
MAIL_WORDS = 90  # makes a body of about 0.9 KB
REFUND_CENTS = 124_000  # more than the shipped bundle lets through without people


class Measured(LocalService):
    """The service, and which process it is."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def pid(self) -> int:
        """The process."""
        if self._process is None:
            raise BenchError("the service does not run")
        return self._process.pid


Running = TypeVar("Running", bound=Measured)


@contextmanager
def echo() -> Iterator[tuple[int, int]]:
    """The baseline, running: its port and its process."""
    port = free_port()
    words = [sys.executable, "-m", "tests.bench.echo", str(port)]
    here = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(words, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": here}) as process:
        try:
            _wait_for(port, process)
            yield port, process.pid
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise BenchError("the echo did not start")
        try:
            HTTPConnection(HOST, port, timeout=2).connect()
            return
        except OSError:
            time.sleep(0.1)
    raise BenchError("the echo is not ready after a minute")


class Signer:
    """Makes requests that were not sent before."""

    def __init__(self, key: PrivateKey, service_port: int) -> None:
        self._key = key
        self._port = service_port
        manifests = load_bundle(BUNDLE).manifests
        self._digests = {tool: manifests[tool].digest for tool in ("send_mail", "refund")}

    def submissions(self, count: int, *, spend: bool) -> list[bytes]:
        """So many submissions, each of one mail that policy lets through."""
        return self._submissions(count, [self._mail(secrets.token_hex(8)) for _ in range(count)], spend)

    def reviews(self, count: int) -> list[bytes]:
        """So many submissions, each of one refund that waits for people."""
        return self._submissions(count, [self._refund(secrets.token_hex(8)) for _ in range(count)], False)

    def _submissions(self, count: int, effects: list[dict[str, Any]], spend: bool) -> list[bytes]:
        nonce, now, made = self.nonce(), int(time.time()), []
        for effect in effects[:count]:
            name = secrets.token_hex(12)
            body = {"run_key": name, "effects": [effect], **({"attempt_id": name} if spend else {})}
            raw = json.dumps(body).encode()
            made.append(self._signed("POST", PATH, nonce, now, raw, {"Idempotency-Key": name}))
        return made

    def looks(self, count: int, txn: str, wait_s: int) -> list[bytes]:
        """Reads of one transaction's state, each willing to wait."""
        nonce, now = self.nonce(), int(time.time())
        prefer = {"Prefer": f"wait={wait_s}"} if wait_s else {}
        return [self._signed("GET", f"{PATH}/{txn}", nonce, now, b"", prefer) for _ in range(count)]

    def _signed(
        self, method: str, path: str, nonce: str, now: int, body: bytes, headers: dict[str, str]
    ) -> bytes:
        proof = make_proof(
            self._key, agent=AGENT, method=method, url_path=path, query="", body=body, nonce=nonce, now=now
        )
        kind = {"Content-Type": "application/json"} if body else {}
        return request(method, path, self._port, {"Agent-Proof": proof, **headers, **kind}, body)

    def _mail(self, name: str) -> dict[str, Any]:
        args = {
            "customer": "cus_1001", "to": "ada@example.com", "subject": f"Your order {name}",
            "body": "shipped " * MAIL_WORDS,
        }  # fmt: skip
        return {"tool": "send_mail", "tool_digest": self._digests["send_mail"], "args": args}

    def _refund(self, name: str) -> dict[str, Any]:
        args = {
            "payment_id": f"pay_{name}", "amount_cents": REFUND_CENTS, "currency": "USD", "customer": "cus_1001",
            "reason": "a broken machine",
        }  # fmt: skip
        return {"tool": "refund", "tool_digest": self._digests["refund"], "args": args}

    def nonce(self) -> str:
        """The service's nonce of this minute."""
        connection = HTTPConnection(HOST, self._port, timeout=20)
        connection.request("GET", f"{PATH}/{'0' * 64}")
        nonce = connection.getresponse().getheader("agent-nonce")
        connection.close()
        if nonce is None:
            raise BenchError("the service gave no nonce")
        return nonce


_NO_QUOTAS = {  # one agent does here what thousands do together
    "submissions_per_minute": "1000000", "open_reviews_per_agent": "1000000", "waits_per_agent": "1000000",
}  # fmt: skip


@contextmanager
def service(data: Path, **environment: str) -> Iterator[tuple[Measured, Signer]]:
    """A service of its own in this folder, running, and its enrolled agent."""
    with serving(Measured, data, **environment) as found:
        yield found


@contextmanager
def serving(kind: type[Running], data: Path, **environment: str) -> Iterator[tuple[Running, Signer]]:
    """As `service`, started in a way of its own."""
    port = free_port()
    settings = {f"COUNTERSIGN_{name.upper()}": value for name, value in (_NO_QUOTAS | environment).items()}
    with kind(data, BUNDLE, port=port, environment=settings) as running:
        key = data / f"{AGENT}.pem"
        if not key.exists():
            running.enroll(AGENT, "support-agent")
        yield running, Signer(PrivateKey.from_pem(key.read_bytes()), port)
