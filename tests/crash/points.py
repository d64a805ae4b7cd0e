"""The fault points of both sides, read from the code: every place where something durable or outside happens.

Nothing is built into the product for this. A point is a call in the source, found in its syntax tree and named after
its module and the function it runs:

* service: each unit of work (`db.write`, `db.write_sync`), and each durable act on files (`DURABLE`);
* agent: each journal transaction (`database.unit`, and `leases.unit` for the owner's), each request to the service,
  each call of a tool, each move of the live lane.

One call that serves many things (the operator's verbs, the sweeps) is as many points as there are things, read from the
same table or the same calls as the product reads.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from policy_service.channels.admin.commands import COMMANDS
from tests.conventions.repository import ROOT

SERVICE, SDK = ROOT / "policy_service", ROOT / "sdk/python/countersign"
PHASES = ("before", "after")

WRITES = frozenset({"write", "write_sync"})
DATABASES = frozenset({"db", "_db"})
JOURNALS = frozenset({"database", "_database", "_leases"})
PASSED_THROUGH = frozenset({"Leases.unit"})  # its callers are the points
DURABLE = frozenset(
    {"append_lines", "create_secret", "migrate", "replace_secret", "sync_folder", "write_mark"}
)
LIVE_MOVES = frozenset({"run", "prepare", "commit", "undo"})


@dataclass(frozen=True)
class Site:
    """One call in the source that is a fault point, or several where the local variable `many` distinguishes them."""

    name: str
    file: Path
    first: int
    last: int
    many: str | None = None
    values: tuple[str, ...] = ()

    @property
    def points(self) -> tuple[str, ...]:
        """The points of this call."""
        return tuple(f"{self.name}[{value}]" for value in self.values) if self.many else (self.name,)


@cache
def service_sites() -> tuple[Site, ...]:
    """Every call of the service that commits a unit of work or makes a file durable."""
    writes = [(module, file, call) for file, module, _, call in _calls(SERVICE, WRITES) if _is_write(call)]
    found = [(_named(module, _unit_of(call)), file, call) for module, file, call in writes]
    found += [
        (_named(module, f"{function}>{call.func.id}"), file, call)
        for file, module, function, call in _calls(SERVICE, DURABLE)
        if isinstance(call.func, ast.Name) and call.func.id in DURABLE
    ]
    return _distinct(found)


@cache
def agent_sites() -> tuple[Site, ...]:
    """Every call of the SDK that commits to the journal or calls a tool."""
    journal = [
        (_named(module, function), file, call)
        for file, module, function, call in _calls(SDK, ["unit"])
        if isinstance(call.func, ast.Attribute) and call.func.attr == "unit" and _ends(call.func) in JOURNALS
        if function not in PASSED_THROUGH
    ]
    tools = [
        (_named(module, function), file, call)
        for file, module, function, call in _calls(SDK, ["call"])
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "call"
        and _ends(call.func) == "executor"
    ]
    return _distinct(journal + tools)


@cache
def service_points() -> tuple[str, ...]:
    """The names of all fault points of the service."""
    return tuple(sorted(point for site in service_sites() for point in site.points))


@cache
def agent_points() -> tuple[str, ...]:
    """The names of all fault points of the SDK."""
    sites = [point for site in agent_sites() for point in site.points]
    return tuple(sorted([*sites, *requests(), *live_moves()]))


@cache
def requests() -> tuple[str, ...]:
    """The SDK's requests: the public methods of its one implementation of the API."""
    return _methods(SDK / "service" / "client.py", "Service", lambda name: not name.startswith("_"))


@cache
def live_moves() -> tuple[str, ...]:
    """What the live lane does to adapters."""
    return _methods(SDK / "live" / "work.py", "LiveWork", LIVE_MOVES.__contains__)


def _methods(file: Path, owner: str, wanted: object) -> tuple[str, ...]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    names = [node.name for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert callable(wanted)
    module = ".".join(file.relative_to(SDK).with_suffix("").parts)
    return tuple(f"{module}.{owner}.{name}" for name in names if wanted(name))


# ------------------------------------------------------------------------------------------------- reading the code


def _calls(package: Path, names: Iterable[str]) -> Iterator[tuple[Path, str, str, ast.Call]]:
    """Every call in the files of a package that call one of these names: its file, its module, the function
    around it, itself.
    """
    called = re.compile(rf"\b({'|'.join(names)})\(")
    for file in sorted(package.rglob("*.py")):
        if file.name == "__main__.py":
            continue  # for those who develop it; nothing that runs at a user's
        text = file.read_text(encoding="utf-8")
        if not called.search(text):
            continue
        module = ".".join(file.relative_to(package).with_suffix("").parts)
        tree = ast.parse(text)
        yield from ((file, module, function, call) for function, call in _within(tree, ()))


def _within(node: ast.AST, inside: tuple[str, ...]) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        here = (*inside, child.name) if named else inside  # type: ignore[attr-defined]
        if isinstance(child, ast.Call):
            yield ".".join(here), child
        yield from _within(child, here)


def _is_write(call: ast.Call) -> bool:
    func = call.func
    return isinstance(func, ast.Attribute) and func.attr in WRITES and _ends(func) in DATABASES


def _ends(func: ast.Attribute) -> str:
    """The last name of what a method is called on: ``_db`` of ``self._db.write``."""
    owner = func.value
    if isinstance(owner, ast.Attribute):
        return owner.attr
    return owner.id if isinstance(owner, ast.Name) else ""


def _unit_of(call: ast.Call) -> str:
    """What the unit of work is called: the first function its lambda calls, or its own name."""
    unit = call.args[0]
    if isinstance(unit, ast.Lambda):
        unit = next(node for node in ast.walk(unit.body) if isinstance(node, ast.Call)).func
    if isinstance(unit, ast.Call):  # partial(unit, ...)
        unit = unit.args[0]
    while isinstance(unit, ast.Subscript):
        unit = unit.value
    return unit.attr if isinstance(unit, ast.Attribute) else unit.id if isinstance(unit, ast.Name) else "?"


def _named(module: str, what: str) -> str:
    return f"{module}:{what}"


# One call, many points: the local variable of the caller that distinguishes them, and all its values.
def _many() -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        "channels.admin.socket:verb": ("verb", tuple(COMMANDS)),
        "channels.admin.socket:COMMANDS": ("name", tuple(COMMANDS)),
        "workflow.expiry.sweep:_move": ("queue", _queues()),
    }


def _queues() -> tuple[str, ...]:
    """The queues that are swept: the second argument of each call of `_each`."""
    swept = _calls(SERVICE / "workflow" / "expiry", ["_each"])
    calls = (call for *_, call in swept if getattr(call.func, "id", "") == "_each")
    return tuple(call.args[1].id for call in calls if isinstance(call.args[1], ast.Name))


def _distinct(found: list[tuple[str, Path, ast.Call]]) -> tuple[Site, ...]:
    """Sites by name, those of one name numbered in the order of the code."""
    total, seen, many = Counter(name for name, *_ in found), Counter[str](), _many()
    sites = []
    for name, file, call in found:
        seen[name] += 1
        number = f"#{seen[name]}" if total[name] > 1 else ""
        local, values = many.get(name, (None, ()))
        sites.append(Site(name + number, file, call.lineno, call.end_lineno or call.lineno, local, values))
    return tuple(sites)
