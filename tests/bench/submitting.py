"""P1 to P6: submissions over a socket against a FastAPI echo of the same bytes.

The service is the one an operator starts: its own process, SQLite with every commit on the disk, the shipped
support-desk bundle. Every request is another transaction of one mail that policy lets through at once, signed by an
enrolled key. It names an attempt, so that the answer carries a signed release and a signed receipt and the effect is
redeemed. The echo gets the same bytes, proof and all.

P5 is the same service with a PostgreSQL of its own that forces its log to the disk; P9 two processes on that database,
each with half of the clients; P6 the same as P1 with the setting `durability = normal`, which production refuses.

After each measurement, the database must have a decision and the audit rows of every request.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sqlalchemy import make_url

from policy_service.storage.sqlite import open_writer
from tests.bench.kept import SPENT, Count, counting, require_kept
from tests.bench.load import cpu_seconds, drive, idle_seconds
from tests.bench.measuring import CPU, P50, RATE, BenchError, Case, Group, Row, Sample, wall_case
from tests.bench.servers import Signer, echo, service
from tests.counterparts import postgres

LEAST_REQUESTS = 4  # of each client: with fewer, the last one alone would be what is measured
FULL = 2  # what SQLite answers for synchronous=FULL
SETTLE_S = 0.1  # work the server puts off until after its answer is charged to it too
PAGE = bytes(4096)
RECEIPT = b'"receipt":"ey'
LEAST, MOST = "\N{GREATER-THAN OR EQUAL TO} ", "\N{LESS-THAN OR EQUAL TO} "
OVER = " \N{DIVISION SIGN} "


def _at_64(one: Mapping[str, Sample]) -> float:
    of = {clients: one[f"spend@{clients}"][RATE] / one[f"echo@{clients}"][RATE] for clients in (16, 64)}
    return of[64] / of[16]


def _alone(one: Mapping[str, Sample]) -> float:
    return one["spend@1"][P50] / (3 * one["echo@1"][P50] + 2 * one["fdatasync"][P50])


ROWS = (
    Row("P1", f"submit, release, redeem: r/s, 16 clients{OVER}echo", "spend@16", "echo@16", RATE, LEAST + "0.12"),
    Row("P2", f"submit, release, redeem: server CPU, 16 clients{OVER}echo", "spend@16", "echo@16", CPU, MOST + "9"),
    Row("P3", f"P1 with 64 clients{OVER}P1 with 16: no collapse", "spend@64", "echo@64", RATE, LEAST + "0.7",
        of=_at_64, more=("spend@16", "echo@16")),
    Row("P4", f"one client: p50{OVER}(3 echo p50 + 2 fdatasync)", "spend@1", "echo@1", P50, MOST + "3",
        of=_alone, more=("fdatasync",)),
    Row("P5", f"PostgreSQL: r/s, 64 clients{OVER}SQLite FULL", "spend, PostgreSQL@64", "spend@64", RATE, LEAST + "0.7"),
    Row("P9", f"PostgreSQL, two processes: server CPU, 64 clients{OVER}one process", "spend, two processes@64",
        "spend, PostgreSQL@64", CPU, MOST + "1.1"),
    Row("P6", f"r/s, 16 clients, durability full{OVER}normal", "spend@16", "spend, normal@16", RATE, LEAST + "0.8"),
)  # fmt: skip


class Server(NamedTuple):
    """One process, and how to make requests for it."""

    port: int
    pid: int
    make: Callable[[int], Sequence[bytes]]


def _case(
    seen: set[int],
    name: str,
    clients: int,
    servers: Sequence[Server],
    holding: bytes,
    kept: tuple[Count, Sequence[str]] | None = None,
) -> Case:
    """Clients share the servers; each answer has `holding`, and each request's rows are `kept`."""
    rate = 20.0 * clients  # a first guess; afterwards the rate that was measured

    def measure(seconds: float) -> Sample:
        nonlocal rate
        share = max(LEAST_REQUESTS * clients, int(rate * seconds)) // len(servers)
        requests, total = [server.make(share) for server in servers], share * len(servers)
        require_different(itertools.chain(*requests), seen)
        rows = kept[0]() if kept else Counter()
        server, client, idle = _cpu(servers), time.process_time(), idle_seconds()
        took: list[float] = []
        elapsed = _drive(servers, requests, clients // len(servers), holding, took)
        client, idle = time.process_time() - client, idle_seconds() - idle
        time.sleep(SETTLE_S)
        server = _cpu(servers) - server
        if kept:
            require_kept(rows, kept[0](), kept[1], total)
        rate = total / elapsed
        return {
            RATE: rate,
            P50: median(took) * 1e6,
            CPU: server / total * 1e6,
            "server_busy": server / elapsed,
            "client_busy": client / elapsed,
            "machine_idle": idle / elapsed / (os.cpu_count() or 1),
        }

    return Case(f"{name}@{clients}", measure, reference=kept is None)


def _cpu(servers: Sequence[Server]) -> float:
    return sum(cpu_seconds(server.pid) for server in servers)


def _drive(
    servers: Sequence[Server],
    requests: Sequence[Sequence[bytes]],
    clients: int,
    holding: bytes,
    took: list[float],
) -> float:
    def one(server: Server, sent: Sequence[bytes]) -> float:
        return drive(server.port, sent, clients, holding=holding, took=took)

    with ThreadPoolExecutor(len(servers)) as threads:
        return max(threads.map(one, servers, requests))


def require_different(requests: Iterable[bytes], seen: set[int]) -> None:
    """Require a run key and arguments that no request before had: a server can gain nothing by remembering.

    Raises:
        BenchError: two are alike.
    """
    for request in requests:
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        for part in (body["run_key"], json.dumps([effect["args"] for effect in body["effects"]])):
            if hash(part) in seen:
                raise BenchError(f"two requests have the same run key or arguments: {part[:100]}")
            seen.add(hash(part))


def require_authentication(port: int, signer: Signer) -> None:
    """A request without a proof or with another's body is refused: authentication is part of the cost."""
    honest = signer.submissions(1, spend=False)[0]
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
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """The servers that are wanted, running, and what is asked of them."""
    with ExitStack() as running:
        made: list[Case] = [_fdatasync(folder)]
        case = partial(_case, set())  # no two requests of any case are alike
        plain, signer = running.enter_context(service(folder / "service"))
        require_authentication(plain.port, signer)
        rows = counting(f"sqlite:///{folder}/service/countersign.db")
        echo_port, echo_pid = running.enter_context(echo())
        spends = partial(signer.submissions, spend=True)
        for clients in (1, 16, 64):
            made += [
                case("echo", clients, [Server(echo_port, echo_pid, spends)], b'"run_key":'),
                case("spend", clients, [Server(plain.port, plain.pid, spends)], RECEIPT, (rows, SPENT)),
            ]
        if "spend, normal@16" in wanted:
            lax = _server(running, folder / "normal", durability="normal", environment="dev")
            rows = counting(f"sqlite:///{folder}/normal/countersign.db")
            made.append(case("spend, normal", 16, [lax], RECEIPT, (rows, SPENT)))
        if wanted & {"spend, PostgreSQL@64", "spend, two processes@64"} and postgres.is_at_hand():
            url = running.enter_context(
                postgres.database(running.enter_context(postgres.server(durable=True)))
            )
            one = _server(running, folder / "postgres", database_url=url)
            made.append(case("spend, PostgreSQL", 64, [one], RECEIPT, (counting(url), SPENT)))
            if "spend, two processes@64" in wanted:
                shutil.copytree(folder / "postgres", folder / "postgres-2")  # a replica has the same keys
                both = [one, _server(running, folder / "postgres-2", database_url=url)]
                made.append(case("spend, two processes", 64, both, RECEIPT, (counting(url), SPENT)))
        yield made


def _server(running: ExitStack, data: Path, **environment: str) -> Server:
    started, signer = running.enter_context(service(data, **environment))
    return Server(started.port, started.pid, partial(signer.submissions, spend=True))


def _fdatasync(folder: Path) -> Case:
    """One page written and forced to the disk, in place: the least a durable commit can cost."""
    file = os.open(folder / "page", os.O_RDWR | os.O_CREAT, 0o600)

    def write() -> None:
        os.pwrite(file, PAGE, 0)
        os.fdatasync(file)

    return wall_case("fdatasync", lambda count: [write] * count, reference=True)


def _absent() -> str:
    return postgres.WAY_TO_GET


GROUP = Group(ROWS, cases, dict.fromkeys(("spend, PostgreSQL@64", "spend, two processes@64"), _absent))
