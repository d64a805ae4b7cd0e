"""Random steps of an agent: what a process is to do, as data, and what of it has to stand when all of it went well.

A program is a list of acts. `refund` and `charge` are staged, and a charge can be taken back; `note` is live, in a
database, and `line` in a file; `refuse` and `doubt` are staged tools that fail, knowing that they did nothing or not
knowing it. Its tools are async but for those that only fail or take back: they let the event loop go round before they
act and after, so a cancellation that was asked for at a point (passing.py) comes before an act, amid it or after it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from countersign import FilesAdapter, NotDone, SQLiteAdapter, ToolRegistry, tool
from countersign.tools.context import current_transaction
from tests.crash.passing import passing

Act = dict[str, Any]
FAILING = {"refuse", "doubt"}
FILE, BOOKS, LEDGER = "program.json", "books.db", "ledger"
BUSY_SECONDS = 0.3  # a task that waits for another's database keeps the event loop


def booking(number: int) -> st.SearchStrategy[list[Act]]:
    """A program that shares its resources with others, and whose acts are none of theirs; one in four fails."""
    acts = st.sampled_from(["note", "line", "charge", "refund"])
    some = st.lists(acts, min_size=2, max_size=4, unique=True).filter({"note", "line"}.intersection)
    end = st.sampled_from([[], [], [], [], [], [], ["refuse"], ["doubt"]])
    return st.builds(lambda drawn, end: [{"do": what, "n": number} for what in [*drawn, *end]], some, end)


@dataclass(frozen=True)
class Meant:
    """The effects of a program that is not killed, by the documents and not by the code."""

    program: list[Act]

    def of(self, *whats: str) -> list[int]:
        """The numbers of these acts."""
        return [act["n"] for act in self.program if act["do"] in whats]

    @property
    def acts(self) -> set[str]:
        """What the world's log holds if all of it has happened."""
        names = {"refund": "refund/100", "charge": "charge"}
        return {f"{names[act['do']]}:{act['n']}" for act in self.program if act["do"] in names}


def calls_in(folder: Path, registry: ToolRegistry, act: Callable[[str], None]) -> Callable[[Act], Any]:
    """The tools of a program; what does one of its acts."""
    books = SQLiteAdapter(folder / BOOKS, name="books", busy_seconds=BUSY_SECONDS)
    ledger = FilesAdapter(folder / "files", name="ledger")
    staged: Any = functools.partial(tool, resource=("Order", "order_id"), registry=registry)

    @staged("refund")
    @_slowly
    def refund(order_id: str, amount_cents: int) -> None:
        """Give money back."""
        act(f"refund/{amount_cents}:{order_id}")

    @staged("void")
    def void(order_id: str) -> None:
        """Take a charge back."""
        act(f"void:{order_id}")

    @staged("charge", compensate="void", compensation_map={"order_id": "args:/order_id"})
    @_slowly
    def charge(order_id: str) -> None:
        """Charge."""
        act(f"charge:{order_id}")

    @staged("refuse")
    def refuse(order_id: str) -> None:
        """Know that nothing happened."""
        raise NotDone("no")

    @staged("doubt")
    @_slowly
    def doubt(order_id: str) -> None:
        """Not know it."""
        raise ConnectionError("gone")

    @tool("note", lane="live", adapter=books, registry=registry)
    @_slowly
    def note(order_id: str, key: str) -> None:
        """Write a row."""
        books.connection.execute("INSERT INTO books VALUES (?, ?)", (key, order_id))
        passing("after note wrote")

    @tool("line", lane="live", adapter=ledger, registry=registry)
    @_slowly
    def line(order_id: str) -> None:
        """Write a line below those that are there."""
        before = ledger.read(LEDGER) if ledger.exists(LEDGER) else b""
        ledger.write(LEDGER, before + f"{order_id}\n".encode())
        passing("after line wrote")

    calls: dict[str, Callable[..., Any]] = {
        "charge": charge, "refuse": refuse, "doubt": doubt, "line": line,
        "refund": lambda n: refund(n, 100), "note": lambda n: note(n, _key()),
    }  # fmt: skip
    return lambda one: calls[one["do"]](str(one["n"]))


def program_in(folder: Path, one_of: Callable[[Act], Any]) -> Callable[[], Coroutine[Any, Any, None]]:
    """A body that does what the program of its key says."""

    async def body() -> None:
        for one in json.loads((folder / FILE).read_text())[_key()]:
            answer = one_of(one)
            if inspect.isawaitable(answer):
                await answer
            await asyncio.sleep(0)

    return body


def _slowly(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, async."""

    @functools.wraps(fn)
    async def slow(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        answer = fn(*args, **kwargs)
        await asyncio.sleep(0)
        return answer

    return slow


def _key() -> str:
    """That of the transaction that is open here."""
    open_here: Any = current_transaction.get()
    return str(open_here.key)


def empty_books(folder: Path) -> None:
    """Books with nothing in them."""
    with closing(sqlite3.connect(folder / BOOKS)) as books:
        books.execute("DROP TABLE IF EXISTS books")
        books.execute("CREATE TABLE books (step TEXT, order_id TEXT)")
        books.commit()


def lines_in(folder: Path) -> list[int]:
    """The lines of the ledger."""
    ledger = folder / "files" / LEDGER
    return [int(n) for n in ledger.read_text().split()] if ledger.exists() else []


def rows_in(folder: Path, key: str) -> list[int]:
    """The rows of one step in the books."""
    with closing(sqlite3.connect(folder / BOOKS)) as books:
        found = books.execute("SELECT order_id FROM books WHERE step = ?", (key,)).fetchall()
    return [int(n) for (n,) in found]
