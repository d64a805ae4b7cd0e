"""P1, P2: submissions over a socket against a FastAPI echo of the same bytes: requests a second and server CPU.

The service is the one an operator starts: its own process, SQLite with every commit on the disk, the shipped
support-desk bundle. Every request is another transaction of one mail that policy lets through at once, signed by an
enrolled key. `submit` is decided and kept; `spend` also names an attempt, so that the answer carries a signed release
and a signed receipt and the effect is redeemed. The echo gets the same bytes, proof and all.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from sqlalchemy import make_url

from countersign.contract import PrivateKey, make_proof
from examples.local_service import LocalService, free_port
from policy_service.pap.bundle import load_bundle
from policy_service.storage.sqlite import open_writer
from tests.bench.load import HOST, cpu_seconds, drive, idle_seconds, request
from tests.bench.measuring import CPU, RATE, BenchError, Case, Group, Row, Sample

REPOSITORY = Path(__file__).parents[2]
BUNDLE = REPOSITORY / "policies"
AGENT = "bench-agent"
PATH = "/v1/transactions"
MAIL_WORDS = 90  # makes a body of about 0.9 KB
LEAST = 4  # requests of each client: with fewer, the last one alone would be what is measured
FULL = 2  # what SQLite answers for synchronous=FULL
SETTLE_S = 0.1  # work the server puts off until after its answer is charged to it too

ROWS = (
    Row("P1", "submit, release, redeem: r/s, 16 clients \N{DIVISION SIGN} echo", "spend@16", "echo@16", RATE,
        "\N{GREATER-THAN OR EQUAL TO} 0.25"),
    Row("P1.1", "the same, 1 client", "spend@1", "echo@1", RATE),
    Row("P1s", "submit only: r/s, 16 clients \N{DIVISION SIGN} echo", "submit@16", "echo@16", RATE),
    Row("P1s.1", "the same, 1 client", "submit@1", "echo@1", RATE),
    Row("P2", "submit, release, redeem: server CPU, 16 clients \N{DIVISION SIGN} echo", "spend@16", "echo@16", CPU,
        "\N{LESS-THAN OR EQUAL TO} 4.5"),
    Row("P2.1", "the same, 1 client", "spend@1", "echo@1", CPU),
    Row("P2s", "submit only: server CPU, 16 clients \N{DIVISION SIGN} echo", "submit@16", "echo@16", CPU),
    Row("P2s.1", "the same, 1 client", "submit@1", "echo@1", CPU),
)  # fmt: skip


class _Measured(LocalService):
    """The service, and which process it is."""

    @property
    def pid(self) -> int:
        """The process."""
        if self._process is None:
            raise BenchError("the service does not run")
        return self._process.pid


@contextmanager
def _echo(port: int) -> Iterator[int]:
    words = [sys.executable, "-m", "tests.bench.echo", str(port)]
    here = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(words, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": here}) as process:
        try:
            _wait_for(port, process)
            yield process.pid
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


class _Signer:
    """Makes requests nobody has seen before."""

    def __init__(self, key: PrivateKey, service_port: int) -> None:
        self._key = key
        self._port = service_port
        self._digest = load_bundle(BUNDLE).manifests["send_mail"].digest

    def requests(self, count: int, port: int, *, spend: bool) -> list[bytes]:
        """So many signed submissions for the server on this port."""
        nonce, now = self._nonce(), int(time.time())
        return [self._request(port, nonce, now, spend) for _ in range(count)]

    def _request(self, port: int, nonce: str, now: int, spend: bool) -> bytes:
        name = secrets.token_hex(12)
        body = json.dumps(self._body(name, spend)).encode()
        proof = make_proof(
            self._key, agent=AGENT, method="POST", url_path=PATH, query="", body=body, nonce=nonce, now=now
        )
        headers = {"Agent-Proof": proof, "Idempotency-Key": name, "Content-Type": "application/json"}
        return request("POST", PATH, port, headers, body)

    def _body(self, name: str, spend: bool) -> dict[str, object]:
        args = {
            "customer": "cus_1001", "to": "ada@example.com", "subject": f"Your order {name}",
            "body": "shipped " * MAIL_WORDS,
        }  # fmt: skip
        effect = {"tool": "send_mail", "tool_digest": self._digest, "args": args}
        return {"run_key": name, "effects": [effect], **({"attempt_id": name} if spend else {})}

    def _nonce(self) -> str:
        connection = HTTPConnection(HOST, self._port, timeout=20)
        connection.request("GET", f"{PATH}/{'0' * 64}")
        nonce = connection.getresponse().getheader("agent-nonce")
        connection.close()
        if nonce is None:
            raise BenchError("the service gave no nonce")
        return nonce


def _case(
    name: str, clients: int, port: int, pid: int, make: Callable[[int], Sequence[bytes]], holding: bytes
) -> Case:
    rate = 20.0 * clients  # a first guess; afterwards the rate that was measured

    def measure(seconds: float) -> Sample:
        nonlocal rate
        requests = make(max(LEAST * clients, int(rate * seconds)))
        server, client, idle = cpu_seconds(pid), time.process_time(), idle_seconds()
        elapsed = drive(port, requests, clients, holding=holding)
        client, idle = time.process_time() - client, idle_seconds() - idle
        time.sleep(SETTLE_S)
        server = cpu_seconds(pid) - server
        rate = len(requests) / elapsed
        return {
            RATE: rate,
            CPU: server / len(requests) * 1e6,
            "server_busy": server / elapsed,
            "client_busy": client / elapsed,
            "machine_idle": idle / elapsed / (os.cpu_count() or 1),
        }

    return Case(f"{name}@{clients}", measure)


def _require_what_is_claimed(port: int, signer: _Signer) -> None:
    """The door is shut to whoever proves nothing, and a body is not another's: authentication is part of the price."""
    honest = signer.requests(1, port, spend=False)[0]
    head, _, body = honest.partition(b"\r\n\r\n")
    unsigned = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Agent-Proof"))
    altered = body.replace(b"cus_1001", b"cus_1002")
    for forged in (unsigned + b"\r\n\r\n" + body, head + b"\r\n\r\n" + altered):
        drive(port, [forged], 1, holding=b"code", status=401)


def durability() -> str:
    """How the service opens its database, in SQLite's own words.

    Raises:
        BenchError: an acknowledged commit could be lost; such a run would be compared with nothing.
    """
    with tempfile.TemporaryDirectory(prefix="countersign-bench-") as folder:
        engine = open_writer(make_url(f"sqlite:///{folder}/asked.db"), busy_timeout_ms=1_000)
        with engine.connect() as conn:
            mode = conn.exec_driver_sql("PRAGMA journal_mode").scalar_one()
            level = conn.exec_driver_sql("PRAGMA synchronous").scalar_one()
    if level != FULL:
        raise BenchError(f"the service would lose acknowledged commits (synchronous = {level})")
    return f"sqlite, journal_mode={mode}, synchronous=full"


@contextmanager
def cases(folder: Path) -> Iterator[list[Case]]:
    """Both servers, running, and what is asked of them."""
    port, echo_port = free_port(), free_port()
    with _Measured(folder / "service", BUNDLE, port=port) as service, _echo(echo_port) as echo_pid:
        settings = service.enroll(AGENT, "support-agent")
        signer = _Signer(PrivateKey.from_pem(Path(settings.key_path).read_bytes()), port)
        _require_what_is_claimed(port, signer)
        asked = (
            ("echo", echo_port, echo_pid, True, b'"run_key":'),
            ("submit", port, service.pid, False, b'"state":"ready"'),
            ("spend", port, service.pid, True, b'"receipt":"ey'),
        )
        yield [
            _case(name, clients, to, pid, partial(signer.requests, port=to, spend=spend), holding)
            for clients in (1, 16)
            for name, to, pid, spend, holding in asked
        ]


GROUP = Group(ROWS, cases)
