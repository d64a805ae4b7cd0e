"""Random steps of an agent: what a process is to do, as data, and what of it has to stand when all of it went well.

A program is a list of acts. `refund` and `charge` are staged, and a charge can be taken back; `note` is live, in a
database, and `line` in a file; `refuse` and `doubt` are staged tools that fail, knowing that they did nothing or not
knowing it; `block` is a nested transaction that may raise, `parallel` a group; `raise` and `interrupt` end the body.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from countersign import FilesAdapter, NotDone, SQLiteAdapter, ToolRegistry, tool, transaction
from countersign.tools.current import current_transaction
from tests.crash.passing import passing

Act = dict[str, Any]
SMALL, ASKED, NEVER = 100, 90_000, 900_000
FAILING = frozenset({"refuse", "doubt"})
FILE, BOOKS, LEDGER = "program.json", "books.db", "ledger"
BUSY_SECONDS = 0.3  # a task that waits for another's database keeps the event loop

_numbers = st.integers(0, 4)
_cents = st.sampled_from([SMALL] * 6 + [ASKED, NEVER])
_staged = st.one_of(
    st.builds(lambda n, cents: {"do": "refund", "n": n, "cents": cents}, _numbers, _cents),
    st.builds(lambda n: {"do": "charge", "n": n}, _numbers),
    st.builds(lambda n, how: {"do": how, "n": n}, _numbers, st.sampled_from(["refuse", "doubt"])),
)
_note = st.builds(lambda n: {"do": "note", "n": n}, _numbers)
_end = st.sampled_from([{"do": "raise"}, {"do": "interrupt"}])
_group = st.builds(lambda acts: {"do": "parallel", "acts": acts}, st.lists(_staged, min_size=1, max_size=3))
_plain = st.one_of(_staged, _staged, _note, _note, _group)
_block = st.builds(
    lambda acts, raises: {"do": "block", "acts": acts, "raises": raises},
    st.lists(_plain, min_size=1, max_size=3),
    st.booleans(),
)
PROGRAMS = st.builds(
    lambda acts, end: [*acts, *end],
    st.lists(st.one_of(_plain, _plain, _plain, _block), min_size=1, max_size=5),
    st.one_of(*[st.just([])] * 8, st.lists(_end, min_size=1, max_size=1)),
)


def booking(number: int) -> st.SearchStrategy[list[Act]]:
    """A program that shares its resources with others, and whose acts are none of theirs."""
    acts: list[Act] = [{"do": what, "n": number} for what in ("note", "line", "charge")]
    acts.append({"do": "refund", "n": number, "cents": SMALL})
    return st.lists(st.sampled_from(acts), min_size=2, max_size=4, unique_by=lambda act: act["do"]).filter(
        lambda drawn: {"note", "line"} & {act["do"] for act in drawn}
    )


@dataclass
class Meant:
    """What a program asks for, if nobody dies: staged calls in order (an equal one is the same), and rows."""

    staged: list[tuple[str, int]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    ends: bool = False  # the body raises

    @property
    def acts(self) -> set[str]:
        """What the world's log holds if all of it has happened."""
        return {f"{what}:{n}" for what, n in self.staged if what not in FAILING}

    @property
    def asks(self) -> bool:
        """Whether people are asked about one of them."""
        return (f"refund/{ASKED}") in {what for what, _ in self.staged}

    @property
    def is_denied(self) -> bool:
        """Whether the policy never lets one of them go."""
        return (f"refund/{NEVER}") in {what for what, _ in self.staged}

    @property
    def fails(self) -> bool:
        """Whether one of its tools does."""
        return any(what in FAILING for what, _ in self.staged)

    @property
    def goes_through(self) -> bool:
        """Whether all of it happens at once where nobody dies."""
        return not (self.ends or self.asks or self.is_denied or self.fails)


def meant(program: list[Act]) -> Meant:
    """By the words of the documents, not by the code."""
    told = Meant()
    for act in program:
        match act["do"]:
            case "raise" | "interrupt":
                told.ends = True
            case "note":
                told.rows.append(act["n"])
            case "line":
                told.lines.append(act["n"])
            case "block" | "parallel":
                inner = meant(act["acts"])
                if not act.get("raises"):
                    told.staged += [one for one in inner.staged if one not in told.staged]
                    told.rows += inner.rows
            case what:
                call = (what if what != "refund" else f"refund/{act['cents']}", act["n"])
                if call not in told.staged:
                    told.staged.append(call)
    return told


def programs_in(folder: Path) -> dict[str, list[Act]]:
    """Those that lie in this folder, by the keys of their steps."""
    programs: dict[str, list[Act]] = json.loads((folder / FILE).read_text())
    return programs


def calls_in(
    folder: Path,
    registry: ToolRegistry,
    act: Callable[[str], None],
    made: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[Act], Any]:
    """The tools of a program, each `made` plain or async but for two that stay plain; what does one of its acts."""
    books = SQLiteAdapter(folder / BOOKS, name="books", busy_seconds=BUSY_SECONDS)
    ledger = FilesAdapter(folder / "files", name="ledger")

    @tool("refund", resource=("Order", "order_id"), registry=registry)
    @made
    def refund(order_id: str, amount_cents: int) -> None:
        """Give money back."""
        act(f"refund/{amount_cents}:{order_id}")

    @tool("void", resource=("Order", "order_id"), registry=registry)
    def void(order_id: str) -> None:
        """Take a charge back."""
        act(f"void:{order_id}")

    compensation = {"compensate": "void", "compensation_map": {"order_id": "args:/order_id"}}

    @tool("charge", resource=("Order", "order_id"), registry=registry, **compensation)
    @made
    def charge(order_id: str) -> None:
        """Charge."""
        act(f"charge:{order_id}")

    @tool("refuse", resource=("Order", "order_id"), registry=registry)
    def refuse(order_id: str) -> None:
        """Know that nothing happened."""
        raise NotDone("no")

    @tool("doubt", resource=("Order", "order_id"), registry=registry)
    @made
    def doubt(order_id: str) -> None:
        """Not know it."""
        raise ConnectionError("gone")

    @tool("note", lane="live", adapter=books, registry=registry)
    @made
    def note(order_id: str, key: str) -> None:
        """Write a row."""
        books.connection.execute("INSERT INTO books VALUES (?, ?)", (key, order_id))
        passing("after note wrote")

    @tool("line", lane="live", adapter=ledger, registry=registry)
    @made
    def line(order_id: str) -> None:
        """Write a line below those that are there."""
        before = ledger.read(LEDGER) if ledger.exists(LEDGER) else b""
        ledger.write(LEDGER, before + f"{order_id}\n".encode())
        passing("after line wrote")

    def keep(n: str) -> Any:
        return note(n, watching().key)

    calls = {"charge": charge, "refuse": refuse, "doubt": doubt, "note": keep, "line": line}

    def one_of(one: Act) -> Any:
        if one["do"] == "refund":
            return refund(str(one["n"]), one["cents"])
        return calls[one["do"]](str(one["n"]))

    return one_of


def run_acts(acts: list[Act], one_of: Callable[[Act], None]) -> None:
    for one in acts:
        match one["do"]:
            case "parallel":
                with watching().parallel():
                    run_acts(one["acts"], one_of)
            case "block":
                with suppress(LookupError), transaction(runtime=watching()._runtime):
                    run_acts(one["acts"], one_of)
                    if one["raises"]:
                        raise LookupError
            case "raise":
                raise ValueError("the body raised")
            case "interrupt":
                raise KeyboardInterrupt
            case _:
                one_of(one)


def watching() -> Any:
    """The transaction that is open here."""
    return current_transaction.get()


def empty_books(folder: Path) -> None:
    """Books with nothing in them."""
    with closing(sqlite3.connect(folder / BOOKS)) as books:
        books.execute("DROP TABLE IF EXISTS books")
        books.execute("CREATE TABLE books (step TEXT, order_id TEXT)")
        books.commit()


def lines_in(folder: Path) -> list[int]:
    """What stands in the ledger."""
    ledger = folder / "files" / LEDGER
    return [int(n) for n in ledger.read_text().split()] if ledger.exists() else []


def rows_in(folder: Path, key: str) -> Iterator[int]:
    """What stands in the books for one step."""
    with closing(sqlite3.connect(folder / BOOKS)) as books:
        yield from (int(n) for (n,) in books.execute("SELECT order_id FROM books WHERE step = ?", (key,)))
