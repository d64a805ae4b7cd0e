"""An agent process: its tools, its flows, and the world they act on.

The world is `world.jsonl`: each call of a tool is one line, on the disk before the call returns, with all its
arguments. What the service answered is `answers.jsonl`: one line, on the disk before the SDK sees the answer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countersign import (
    CountersignError,
    DidNotHappen,
    Happened,
    NotDone,
    ProbeAnswer,
    Runtime,
    Settings,
    SQLiteAdapter,
    ToolRegistry,
    current_effect,
    probe,
    resume,
    tool,
    transaction,
)
from countersign.commit.review import open_proposals
from countersign.concurrency import SyncExecutor
from countersign.contract import digests as names
from countersign.http_clients import HttpRequest, HttpResponse
from tests.crash.dying import Death

AGENT = "support"


@dataclass(frozen=True)
class Life:
    """What one agent process is to do, and where it dies."""

    folder: Path
    url: str
    flow: str
    key: str = ""
    wait: float = 0.0
    death: Death | None = None
    gate: Path | None = None  # it begins once this file is there


def live(life: Life) -> None:
    """The child."""
    while life.gate is not None and not life.gate.exists():
        time.sleep(0.01)
    _remember_answers(life.folder)
    registry = ToolRegistry()
    tools = Tools(life.folder, registry)
    quick: dict[str, Any] = {"retries": 1, "retry_base_seconds": 0.001, "retry_max_seconds": 0.002}
    key, journal = life.folder / "agent.pem", life.folder / "journal.db"
    settings = Settings(life.url, AGENT, key, journal, allow_dev=True, connect_seconds=2.0, **quick)
    with Runtime(settings, registry=registry) as runtime:
        said = VERBS[life.flow](runtime, life) if life.flow in VERBS else _step(life, runtime, tools)
    (life.folder / "result.json").write_text(json.dumps(said))


def _step(life: Life, runtime: Runtime, tools: Tools) -> dict[str, Any]:
    raised, words, reviews = None, "", []
    options: dict[str, Any] = {"wait": life.wait, "accept_edits": life.flow == "edited"}
    options["on_question"] = lambda _: "because it came late"
    txn = transaction(life.key, runtime=runtime, **options)
    try:
        with txn:
            for name, *args in FLOWS[life.flow]:
                getattr(tools, name)(*args)
    except CountersignError as error:
        raised, words = type(error).__name__, str(error)
        reviews = [one.url for one in getattr(error, "reviews", [])]
    outcomes = [] if raised == "JournalError" else [one.outcome for one in txn.effects]
    return {"raised": raised, "words": words, "reviews": reviews, "txn": txn.txn, "outcomes": outcomes}


def _resume(runtime: Runtime, life: Life) -> dict[str, Any]:
    try:
        found = resume(runtime)
    except CountersignError as error:
        return {"raised": type(error).__name__, "words": str(error)}
    return {"raised": None, "resumed": [[one.run_key, one.after, one.note, one.waiting] for one in found]}


def _ask(call: Callable[[Runtime, Life], Any]) -> Callable[[Runtime, Life], dict[str, Any]]:
    def asked(runtime: Runtime, life: Life) -> dict[str, Any]:
        try:
            return {"raised": None, "answer": str(call(runtime, life))}
        except CountersignError as error:
            return {"raised": type(error).__name__, "words": str(error)}

    return asked


VERBS: dict[str, Callable[[Runtime, Life], dict[str, Any]]] = {
    "resume": _resume,
    "withdraw": _ask(lambda runtime, life: runtime.client().withdraw(_txn(runtime, life), "not needed")),
    "jwks": _ask(lambda runtime, life: runtime.client().jwks()),
}


def _decline(runtime: Runtime, life: Life) -> int:
    """Decline every proposal."""
    proposals = open_proposals(runtime.client().view(_txn(runtime, life)))
    for proposal in proposals:
        runtime.client().decline_proposal(proposal.proposal_id, "it was all delivered")
    return len(proposals)


VERBS["decline"] = _ask(_decline)


def _txn(runtime: Runtime, life: Life) -> str:
    return names.txn_id(agent=AGENT, run_key=life.key)


def _remember_answers(folder: Path) -> None:
    send = SyncExecutor.send

    async def remembering(self: SyncExecutor, asked: HttpRequest) -> HttpResponse:
        answered = await send(self, asked)
        append(folder / "answers.jsonl", {
            "method": asked.method, "path": asked.target, "key": asked.headers.get("Idempotency-Key"),
            "status": answered.status, "body": _json(answered.body), "asked": _json(asked.body),
        })  # fmt: skip
        return answered

    SyncExecutor.send = remembering  # type: ignore[method-assign]


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def append(path: Path, line: dict[str, Any]) -> None:
    """One line, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last line that a crash cut short was never acknowledged."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


# --------------------------------------------------------------------------------------------------------- the tools


@dataclass
class Tools:
    """The tools of this agent. `world.jsonl` has their calls."""

    folder: Path
    registry: ToolRegistry

    def __post_init__(self) -> None:
        registry = self.registry

        @tool("refund", resource=("Order", "order_id"), timeout_seconds=1, registry=registry)
        def refund(order_id: str, amount_cents: int) -> str:
            """Give money back."""
            self.act({"order_id": order_id, "amount_cents": amount_cents})
            return f"r-{order_id}"

        more: dict[str, Any] = {"timeout_seconds": 1, "registry": registry}

        @tool("invoice", resource=("Order", "order_id"), idempotent=True, **more)
        def invoice(order_id: str) -> str:
            """Send an invoice; the same call key sends it once."""
            self.act({"order_id": order_id})
            return f"i-{order_id}"

        @tool("void", resource=("Charge", "charge_id"), timeout_seconds=1, registry=registry)
        def void(charge_id: str) -> None:
            """Take a charge back."""
            self.act({"charge_id": charge_id})

        undo: dict[str, Any] = {"compensate": "void", "compensation_map": {"charge_id": "result:/charge_id"}}

        @tool("charge", resource=("Order", "order_id"), timeout_seconds=1, registry=registry, **undo)
        def charge(order_id: str) -> dict[str, str]:
            """Charge an order; the one called odd answers without the number that would take it back."""
            self.act({"order_id": order_id})
            return {} if order_id == "odd" else {"charge_id": f"c-{order_id}"}

        @tool("notify", resource=("Order", "order_id"), timeout_seconds=1, registry=registry)
        def notify(order_id: str) -> None:
            """Tell the customer, whose mailbox is full."""
            raise NotDone("the mailbox is full")

        database = SQLiteAdapter(self.folder / "notes.db", name="notes")

        @tool("note", lane="live", adapter=database, registry=registry)
        def note(order_id: str) -> None:
            """Write a note."""
            database.connection.execute("INSERT INTO notes VALUES (NULL, ?)", (order_id,))

        @probe("find_payment", registry=registry)
        def find_payment() -> ProbeAnswer:
            key = current_effect().call_key
            paid = [one for one in lines(self.folder / "world.jsonl") if one["call_key"] == key]
            return Happened(f"p-{paid[0]['args']['order_id']}") if paid else DidNotHappen()

        @tool("pay", resource=("Order", "order_id"), probe="find_payment", **more)
        def pay(order_id: str) -> str:
            """Pay for an order; the bank can be asked whether it has."""
            self.act({"order_id": order_id})
            return f"p-{order_id}"

        self.pay = pay
        self.refund, self.invoice, self.charge, self.notify, self.note = refund, invoice, charge, notify, note

    def give_up(self) -> None:
        """The body of the step raises."""
        raise _GaveUpError("the agent thought better of it")

    def act(self, args: dict[str, Any]) -> None:
        """Something happened in the world."""
        effect = current_effect()
        append(self.folder / "world.jsonl", {
            "tool": effect.tool, "args_digest": names.args_digest(args=args), "args": args,
            "effect_id": effect.effect_id, "call_key": effect.call_key, "txn": effect.txn,
            "attempt": effect.attempt_id, "at": time.time(),
        })  # fmt: skip


class _GaveUpError(CountersignError):
    """The body of a step raised."""


FLOWS: dict[str, list[tuple[Any, ...]]] = {
    "small": [("refund", "o-1", 4_200)],
    "invoice": [("invoice", "o-1")],
    "two": [("refund", "o-2", 100), ("invoice", "o-2")],
    "large": [("refund", "o-1", 90_000)],
    "edited": [("refund", "o-1", 90_000)],
    "huge": [("refund", "o-1", 300_000)],
    "brief": [("refund", "brief", 90_000)],
    "slow": [("refund", "slow", 100)],
    "hopeless": [("refund", "hopeless", 100)],
    "forbidden": [("refund", "o-1", 900_000)],
    "error": [("refund", "overflow", 100)],
    "with_live": [("note", "o-3"), ("refund", "o-3", 300)],
    "live_large": [("note", "o-4"), ("refund", "o-4", 90_000)],
    "lapsing": [("refund", "lapsing", 100)],
    "lapsing_charge": [("charge", "lapsing"), ("notify", "lapsing")],
    "taken_back": [("charge", "o-5"), ("notify", "o-5")],
    "odd": [("charge", "odd"), ("notify", "odd")],
    "probed": [("charge", "o-7"), ("pay", "o-7")],
    "body": [("refund", "o-6", 100), ("give_up",)],
}
"""The calls of each flow: a tool and its arguments."""
