"""An agent process that dies at a given point: `kill -9` before or after every journal commit and every request.

`run` is what the child does; it is imported by a fork server, so that a hundred deaths take seconds. Points are counted
as they are passed ("commit 3 begins", "POST /v1/redemptions answered", "refund acted"), so a list of all of them comes
from a run that survives, and none is forgotten when the code changes. What happened to the world is in `world.log`,
written with fsync by the tools themselves.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from countersign import (
    CountersignError,
    DidNotHappen,
    FilesAdapter,
    Happened,
    NotDone,
    PostgresAdapter,
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
from countersign.contract import canonicalize
from countersign.journal.location import JournalLocation, JournalUrl
from tests.crash.forking import forked
from tests.crash.in_a_task import Run, run_in_tasks, what_it_says
from tests.crash.passing import Points, passing, watch
from tests.crash.programs import calls_in, program_in

SECONDS = 30


@dataclass(frozen=True)
class Life:
    """What one process is to do, and where it dies."""

    folder: Path
    url: str
    flow: str
    key: str = "t-1"
    dies_at: str | None = None
    dies_after: int | None = None  # so many points
    cancelled_after: int | None = None  # the same of its task, where it has one
    cancelled_at: str | None = None  # or at the first point with that in its name
    resumes: bool = False  # recover what others left instead of running the step
    rivals: tuple[Run, ...] = ()  # instead of one key: several, in tasks
    name: str = "told"  # of what it says, where two live at once


def live(life: Life) -> dict[str, Any]:
    """Run a process to its end; what it could still say, and the points it passed."""
    return ended(life, forked(run, life))


def ended(life: Life, process: BaseProcess) -> dict[str, Any]:
    """The same of one that was started."""
    process.join(SECONDS)
    assert process.exitcode in {0, -signal.SIGKILL}, f"{life} ended with {process.exitcode}"
    report = life.folder / f"{life.name}.json"
    said: dict[str, Any] = json.loads(report.read_text()) if process.exitcode == 0 else {"raised": "killed"}
    said["points"] = (life.folder / f"{life.name}.log").read_text().splitlines()
    process.close()
    return said


def place_in(folder: Path) -> JournalLocation:
    """Where the agent's journal lies: in its folder, unless the folder says where else."""
    elsewhere = folder / "journal.url"
    return JournalUrl(elsewhere.read_text()) if elsewhere.exists() else folder / "journal.db"


def acts(folder: Path) -> list[str]:
    """What happened to the world, in order."""
    return [what for what, _ in _world(folder)]


def fired(folder: Path) -> dict[str, bytes]:
    """What refunds were called with, by the id of the effect, as the tool itself wrote it down."""
    calls = [json.loads(given) for _, given in _world(folder) if given]
    return {one["effect_id"]: canonicalize(one["args"]) for one in calls}


def _world(folder: Path) -> list[tuple[str, str]]:
    path = folder / "world.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(what, given) for what, _, given in (line.partition(" ") for line in lines)]


def run(life: Life) -> None:
    """The child."""
    points = Points(life.folder / f"{life.name}.log", life)
    watch(points)
    registry = ToolRegistry()
    flow = _flow(life, registry)
    quick: dict[str, Any] = {"retry_base_seconds": 0.001, "retry_max_seconds": 0.002}
    settings = Settings(life.url, "support", life.folder / "agent.pem", place_in(life.folder), **quick)
    with Runtime(settings, registry=registry) as runtime:
        if life.resumes:
            said = {"resumed": [one.after for one in resume(runtime)]}
        elif life.rivals:
            said = {"rivals": run_in_tasks(flow, points, life.rivals, runtime)}
        else:
            said = _step(life, runtime, flow)
    (life.folder / f"{life.name}.json").write_text(json.dumps(said))


def _step(life: Life, runtime: Runtime, flow: Callable[[], None]) -> dict[str, Any]:
    raised: str | None = None
    txn = transaction(life.key, runtime=runtime)
    try:
        with txn:
            flow()
    except CountersignError as error:
        raised = type(error).__name__
    return {"raised": raised} | what_it_says(txn)


# --------------------------------------------------------------------------------------------------- what to do

FLOWS: dict[str, list[tuple[Any, ...]]] = {
    "one": [("refund", "o-1", 4_200)],
    "large": [("refund", "o-1", 90_000)],
    "probed": [("refund", "o-1", 100), ("refund", "o-2", 200)],
    "probed_final": [("refund", "o-1", 100), ("refund", "o-2", 200)],
    "idempotent": [("refund", "o-1", 4_200)],
    "two": [("refund", "o-1", 100), ("refund", "o-2", 200)],
    "taken_back": [("charge", "o-1"), ("notify", "o-1")],
    "with_files": [("save", "o-1"), ("refund", "o-1", 4_200)],
    "with_both": [("save", "o-1"), ("note", "o-1"), ("refund", "o-1", 4_200)],
    "wide": [("note", "o-1"), ("book", "o-1"), *(("refund", f"o-{n}", 100 * n) for n in (1, 2, 3))],
}
"""The calls of each flow: a tool and its arguments."""


def _flow(life: Life, registry: ToolRegistry) -> Callable[[], Any]:
    """The body of the step; the program of its key where the flow is `program`."""
    if life.flow == "program":
        return program_in(life.folder, calls_in(life.folder, registry, lambda what: _act(life, what)))
    calls = FLOWS[life.flow]
    tools = {name: MAKERS[name](life, registry) for name in dict.fromkeys(name for name, *_ in calls)}

    def flow() -> None:
        for name, *args in calls:
            tools[name](*args)

    return flow


def _act(life: Life, what: str, **args: Any) -> None:
    passing(f"before {what} acts")
    given = f" {json.dumps({'effect_id': current_effect().effect_id, 'args': args})}" if args else ""
    with (life.folder / "world.log").open("a") as world:
        world.write(f"{what}{given}\n")
        world.flush()
        os.fsync(world.fileno())
    passing(f"after {what} acted")


def _refund(life: Life, registry: ToolRegistry) -> Callable[..., Any]:
    options: dict[str, Any] = {"idempotent": True} if life.flow == "idempotent" else {}
    if life.flow.startswith("probed"):
        options = {"probe": "find_refund", "timeout_seconds": 1}

        @probe("find_refund", registry=registry)
        def find_refund(order_id: str) -> ProbeAnswer:
            """Looks at the world; what is not there may still be on its way, unless the answer is final."""
            if f"refund:{order_id}" in acts(life.folder):
                return Happened(f"r-{order_id}")
            return DidNotHappen(final=life.flow == "probed_final")

    @tool("refund", resource=("Order", "order_id"), registry=registry, **options)
    def refund(order_id: str, amount_cents: int) -> str:
        """Give money back."""
        _act(life, f"refund:{order_id}", order_id=order_id, amount_cents=amount_cents)
        return f"r-{order_id}"

    return refund


def _charge(life: Life, registry: ToolRegistry) -> Callable[..., Any]:
    undo: dict[str, Any] = {"compensate": "void", "compensation_map": {"order_id": "args:/order_id"}}

    @tool("void", resource=("Order", "order_id"), registry=registry)
    def void(order_id: str) -> None:
        """Take a charge back."""
        _act(life, f"void:{order_id}")

    @tool("charge", resource=("Order", "order_id"), registry=registry, **undo)
    def charge(order_id: str) -> None:
        """Charge."""
        _act(life, f"charge:{order_id}")

    return charge


def _notify(_: Life, registry: ToolRegistry) -> Callable[..., Any]:
    @tool("notify", resource=("Order", "order_id"), registry=registry)
    def notify(order_id: str) -> None:
        """Tell the customer."""
        raise NotDone("the mailbox is full")

    return notify


def _note(life: Life, registry: ToolRegistry) -> Callable[..., Any]:
    notes = SQLiteAdapter(life.folder / "notes.db", name="notes")

    @tool("note", lane="live", adapter=notes, registry=registry)
    def note(order_id: str) -> None:
        """Write a note."""
        notes.connection.execute("INSERT INTO notes VALUES (NULL, ?)", (order_id,))

    return note


def _book(life: Life, registry: ToolRegistry) -> Callable[..., Any]:
    place = place_in(life.folder)
    if isinstance(place, JournalUrl):
        books: Any = PostgresAdapter(place.secret, name="books")
    else:
        books = SQLiteAdapter(life.folder / "books.db", name="books")

    @tool("book", lane="live", adapter=books, registry=registry)
    def book(order_id: str) -> None:
        """Write into the books, in the database where the journal is."""
        if isinstance(books, PostgresAdapter):
            books.execute("INSERT INTO public.books VALUES (%s)", (life.folder.name,))
        else:
            books.connection.execute("INSERT INTO books VALUES (?)", (life.folder.name,))

    return book


def _save(life: Life, registry: ToolRegistry) -> Callable[..., Any]:
    files = FilesAdapter(life.folder / "files", name="files")

    @tool("save", lane="live", adapter=files, registry=registry)
    def save(order_id: str) -> None:
        """Replace a file, remove one and make one."""
        files.write("state", files.read("state").replace(b"old", b"new"))
        if files.exists("draft"):  # a rerun may find what its first run has finished
            files.remove("draft")
        files.write(f"orders/{order_id}", "refunded")
        passing("after save wrote")

    return save


MAKERS: dict[str, Callable[[Life, ToolRegistry], Callable[..., Any]]] = {
    "refund": _refund, "charge": _charge, "notify": _notify, "note": _note, "book": _book, "save": _save,
}  # fmt: skip


def manifests_of(flow: str, folder: Path) -> list[Any]:
    """The reviewed manifests of a flow's tools."""
    registry = ToolRegistry()
    _flow(Life(folder, "http://127.0.0.1:1", flow), registry)
    return [one.draft_manifest() for one in registry if one.lane == "staged"]
