"""A support desk in memory: an agent with its key, journal and tools, in front of a fake service.

`Desk` is the world of one test. Its tools write what happened to `done`, so that a test reads the outcome
there and not from what the SDK says of itself.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from countersign import (
    FilesAdapter,
    Placeholder,
    ReviewPending,
    Runtime,
    Settings,
    SQLiteAdapter,
    ToolRegistry,
    current_effect,
    tool,
    transaction,
)
from countersign.contract import PrivateKey, ToolManifest
from countersign.contract.wire import Claimed
from countersign.journal.records import LIVE_LANE, EffectRecord, TransactionRecord
from countersign.tools.tool import tool_of
from tests.fakes.service import FakeService
from tests.fakes.service_http import Face

AGENT = "support"


class TickingClock:
    """Wall and steady time that a test moves, on top of the machine's."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.time = start

    def wall(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time - 1_000_000.0

    def advance(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class Desk:
    """Everything one test needs, joined."""

    folder: Path
    service: FakeService
    face: Face
    runtime: Runtime
    clock: TickingClock
    registry: ToolRegistry
    done: list[tuple[Any, ...]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    before_fire: Callable[[str], None] | None = None

    def act(self, *what: Any) -> None:
        """Something happened in the world."""
        effect = current_effect()
        if self.before_fire is not None:
            self.before_fire(effect.tool)
        self.done.append(what)
        self.keys.append(effect.call_key)

    def publish(self, *fns: Callable[..., Any], **changes: Any) -> None:
        """Have the drafts of these tools reviewed as they are, or with changes."""
        for fn in fns:
            self.service.review([changed(tool_of(fn).draft_manifest(), **changes)])

    def step(self, key: str = "t-1", **options: Any) -> Any:
        """A transaction in this world."""
        return transaction(key, runtime=self.runtime, **options)

    def run(self, *calls: tuple[Any, ...], key: str = "t-1", raises: Any = None, **options: Any) -> Any:
        """The transaction of a step that makes these calls (each a tool and its arguments) and raises this."""
        txn, expected = None, raises or ()
        try:
            with self.step(key, **options) as txn:
                for call, *args in calls:
                    call(*args)
        except expected:
            return txn
        assert not raises, f"it did not raise {raises}"
        return txn

    def approved(self, *keys: str) -> None:
        """Leave refunds that wait for people, and are approved by now."""
        refund = refund_tool(self)
        for key in keys:
            txn = self.run((refund, f"o-{key}", 90_000), key=key, raises=ReviewPending)
            self.service.approve(txn.txn)

    def another_process(self) -> Runtime:
        """A runtime of the same agent with the same journal, as a restarted process has it."""
        return make_runtime(self.runtime.settings, self.face, self.registry, self.clock)

    @contextmanager
    def restarted(self) -> Iterator[Desk]:
        with self.another_process() as runtime:
            yield replace(self, runtime=runtime)


def changed(manifest: ToolManifest, **changes: Any) -> ToolManifest:
    """A manifest with other members."""
    return ToolManifest.model_validate(manifest.model_dump() | changes)


def make_runtime(settings: Settings, face: Face, registry: ToolRegistry, clock: TickingClock) -> Runtime:
    transports: dict[str, Any] = {"transport": face.transport, "async_transport": face.async_transport}
    return Runtime(settings, registry=registry, clock=clock, **transports)


def make_desk(folder: Path, **changes: Any) -> Desk:
    """A fresh world in this folder."""
    clock = TickingClock()
    service = FakeService(now=clock.wall)
    face = Face(service)
    key = PrivateKey.generate()
    service.enroll(AGENT, key.public)
    quick = {"retry_base_seconds": 0.001, "retry_max_seconds": 0.002, "journal_path": folder / "journal.db"}
    settings = Settings(
        url=service.iss, agent=AGENT, key_path=write_key(folder / "agent.pem", key), **quick | changes
    )
    registry = ToolRegistry()
    return Desk(folder, service, face, make_runtime(settings, face, registry, clock), clock, registry)


def write_key(path: Path, key: PrivateKey) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.to_pem())
    return path


def agent_environment(settings: Settings) -> dict[str, str]:
    """The variables of an agent's process that name its service, itself and its key."""
    named = {"COUNTERSIGN_URL": settings.url, "COUNTERSIGN_AGENT": settings.agent}
    return named | {"COUNTERSIGN_KEY": str(settings.key_path)}


def operators_environment(desk: Desk, url: str) -> dict[str, str]:
    """The variables an operator sets for this agent, with its service at an address."""
    journal = desk.runtime.settings.journal_path
    environment = agent_environment(desk.runtime.settings) | {"COUNTERSIGN_URL": url}
    return environment | {"COUNTERSIGN_JOURNAL": getattr(journal, "secret", str(journal))}


def refund_tool(desk: Desk, **options: Any) -> Callable[..., Placeholder[dict[str, str]]]:
    """The tool most tests use: it gives money back and returns a receipt number."""

    @tool("refund", resource=("Order", "order_id"), registry=desk.registry, **options)
    def refund(order_id: str, amount_cents: int, tags: list[str] | None = None) -> dict[str, str]:
        """Give money back for an order."""
        desk.act("refund", order_id, amount_cents, *([tags] if tags is not None else []))
        return {"refund_id": f"r-{order_id}-{amount_cents}"}

    desk.publish(refund)
    return refund


def _of_order(desk: Desk) -> dict[str, Any]:
    return {"resource": ("Order", "order_id"), "registry": desk.registry}


def charge_tools(desk: Desk, **changes: Any) -> Callable[..., Placeholder[dict[str, str]]]:
    """A charge that `void` takes back, with the charge's result."""

    @tool("void", resource=("Charge", "charge_id"), registry=desk.registry)
    def void(charge_id: str, amount_cents: int) -> None:
        """Take a charge back."""
        desk.act("void", charge_id, amount_cents)

    undo: Any = {"charge_id": "result:/charge_id", "amount_cents": "args:/amount_cents"}

    @tool("charge", compensate="void", compensation_map=undo, **_of_order(desk))
    def charge(order_id: str, amount_cents: int) -> dict[str, str]:
        """Charge an order."""
        desk.act("charge", order_id, amount_cents)
        return {"charge_id": f"c-{order_id}"}

    desk.publish(void)
    desk.publish(charge, **changes)
    return charge


def charge_undone_by_void(desk: Desk) -> Callable[[str], Placeholder[dict[str, str]]]:
    """A charge alone: the test's own tool of that name takes it back, with the charge's result."""

    @tool("charge", compensate="void", compensation_map={"charge_id": "result:/charge_id"}, **_of_order(desk))
    def charge(order_id: str) -> dict[str, str]:
        """Charge an order."""
        desk.act("charge", order_id)
        return {"charge_id": f"c-{order_id}"}

    desk.publish(charge)
    return charge


def answering_tool(
    desk: Desk, *answers: Any, name: str = "upsert", acts: bool = True, **options: Any
) -> Callable[..., Placeholder[Any]]:
    """A tool that acts, and then returns or raises the next of these; the last one again and again."""
    left = [*answers]
    manifest = options.pop("changes", {})

    @tool(name, resource=("Order", "order_id"), registry=desk.registry, **options)
    def answer(order_id: str) -> Any:
        """Answer as the test says."""
        if acts:
            desk.act(name, order_id)
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, BaseException):
            raise found
        return found

    desk.publish(answer, **manifest)
    return answer


def failing_tool(
    desk: Desk, error: BaseException, name: str = "notify", **options: Any
) -> Callable[..., Placeholder[None]]:
    """A tool that acts and then raises, or raises without acting if the test says so."""
    return answering_tool(desk, error, name=name, **options)


def asked_of_policy(desk: Desk) -> list[tuple[str, str]]:
    """What the service was asked beyond the manifests of tools."""
    return [one for one in desk.face.log if one[0] != "GET" or not one[1].startswith("/v1/tools/")]


def notes_database(folder: Path) -> Path:
    """A small database for the live lane."""
    path = folder / "notes.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (order_id TEXT PRIMARY KEY, note TEXT)")
    return path


def notes_in(path: Path) -> list[tuple[str, str]]:
    """Its rows, read through a connection of our own."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT order_id, note FROM notes ORDER BY order_id").fetchall()


def note_tool(desk: Desk, database: SQLiteAdapter, name: str = "note") -> Callable[[str, str], int]:
    """A live tool: it writes to the database and answers at once."""

    @tool(name, lane="live", adapter=database, registry=desk.registry)
    def note(order_id: str, text: str) -> int:
        """Write a note."""
        if text == "bad":
            database.connection.execute("INSERT INTO notes VALUES ('half', 'done')")
            raise ValueError("bad note")
        written = database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))
        return written.rowcount

    return note


def save_tool(desk: Desk, files: FilesAdapter, **options: Any) -> Callable[..., None]:
    """A live tool on files."""
    live: dict[str, Any] = {"lane": "live", "adapter": files, "resource": ("File", "name"), **options}

    @tool("save", registry=desk.registry, **live)
    def save(name: str, text: str = "new") -> None:
        """Save a file."""
        files.write(name, text)

    return save


def claims_of(desk: Desk) -> list[Claimed | None]:
    """What is claimed of each list that the service is given from now on."""
    claims: list[Claimed | None] = []
    submit = desk.service.submit

    def listen(*given: Any) -> Any:
        claims.append(given[2].claimed)
        return submit(*given)

    desk.service.submit = listen  # type: ignore[method-assign]
    return claims


def states(desk: Desk, key: str = "t-1") -> dict[str, str]:
    """What the journal says of each staged effect."""
    return {f"{row.tool}#{row.seq}": row.state.value for row in effect_rows(desk, key)}


def effect_rows(desk: Desk, key: str = "t-1") -> tuple[EffectRecord, ...]:
    """The journal's rows of the staged effects."""
    journal = desk.runtime.journal.transactions
    return journal.effects(journal.find(key)[0])


def record_of(desk: Desk, key: str = "t-1") -> TransactionRecord:
    """The journal's row of a transaction."""
    (record,) = desk.runtime.journal.transactions.find(key)
    return record


def listed(desk: Desk, columns: str, where: str = "lane = 'live'") -> list[tuple[Any, ...]]:
    """These columns of the journal's rows of effects, list by list."""
    query = f"SELECT {columns} FROM effects WHERE {where} ORDER BY staging, lane, seq"
    return [tuple(row) for row in desk.runtime.journal.database.rows(query)]


def service_states(desk: Desk, txn: str) -> list[str]:
    """What the service says of each effect."""
    return [one.state.value for one in desk.service.latest(txn).held]


def live_states(desk: Desk, key: str = "t-1") -> list[str]:
    """What the journal says of each live effect of the list in force."""
    journal = desk.runtime.journal.transactions
    (record,) = journal.find(key)
    return [row.state.value for row in journal.shown(record, LIVE_LANE)]
