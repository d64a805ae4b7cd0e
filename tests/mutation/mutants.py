"""Every small fault that could be put into the two packages: what is drawn from, and how one is put in.

A mutant is a function, a text that occurs once in it and the text that takes its place, so that it outlives moves of
the function. Faults in texts for people, in logging and in annotations are left out: no test can distinguish them
from a better wording.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conventions.repository import ROOT

PACKAGES = (Path("policy_service"), Path("sdk/python/countersign"))

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_PAIRS = [(ast.Eq, ast.NotEq, "==", "!="), (ast.In, ast.NotIn, " in ", " not in ")]
_PAIRS += [(ast.Is, ast.IsNot, " is ", " is not "), (ast.Lt, ast.LtE, "<", "<=")]
_PAIRS += [(ast.Gt, ast.GtE, ">", ">=")]
_OTHER_COMPARISON = {
    kind: texts for one, two, a, b in _PAIRS for kind, texts in ((one, (a, b)), (two, (b, a)))
}
_LOGGING = {"debug", "info", "warning", "error", "exception", "log", "echo", "print"}


@dataclass(frozen=True)
class Mutant:
    """One fault: in `function` (dotted, within its module) of `file`, `old` becomes `new`."""

    file: str
    function: str
    old: str
    new: str

    @property
    def folder(self) -> str:
        """Where it counts: the two uppermost folders of a package, its own modules under the package's name."""
        inside = Path(self.file).parent
        package = next(one for one in PACKAGES if inside.is_relative_to(one))
        return "/".join((package.name, *inside.relative_to(package).parts[:2]))


class MissingError(LookupError):
    """The function, or the text within it, is not there any more, or not once."""


def put_in(mutant: Mutant, root: Path) -> tuple[Path, str, set[int]]:
    """Where it goes: the file, its text with the fault, and the numbers of the lines that change (before the change).

    The function is looked for in the mutant's own file, then everywhere in the package.

    Raises:
        MissingError: no function of that name has that text exactly once.
    """
    package = next(one for one in PACKAGES if Path(mutant.file).is_relative_to(one))
    others = (path for path in sorted((root / package).rglob("*.py")) if path != root / mutant.file)
    for path in (root / mutant.file, *others):
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        if mutant.function.rpartition(".")[2] not in source:
            continue
        for name, node in functions(ast.parse(source)):
            text = _text(source, node)
            if name == mutant.function and text.count(mutant.old) == 1:
                first = _offset(source, node.lineno, 0) + text.index(mutant.old)
                changed = source[:first] + mutant.new + source[first + len(mutant.old) :]
                line = source.count("\n", 0, first) + 1
                # A function that is switched off whole is reached where its first statement was.
                whole = mutant.old.startswith("def ")
                last = node.body[-1].end_lineno if whole else line + mutant.old.count("\n")
                return path, changed, set(range(line, (last or line) + 1))
    raise MissingError(f"{mutant.function} of {mutant.file} has no such text: {mutant.old!r}")


def functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Every function under its dotted name within the module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode):
            yield f"{above}{node.name}", node
        inner = f"{above}{node.name}." if isinstance(node, FunctionNode | ast.ClassDef) else above
        yield from functions(node, inner)


def switches(root: Path = ROOT) -> list[Mutant]:
    """Each check of the numbered verifications switched off: it finds nothing wrong."""
    found = []
    for path in sorted((root / "sdk/python/countersign/contract").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        steps = [node for node in calls if ast.unparse(node.func) == "Step"]
        checks = {node.args[3].id for node in steps if isinstance(node.args[3], ast.Name)}
        for name, node in functions(tree):
            if name in checks:
                head = source.splitlines()[node.lineno - 1]
                file = path.relative_to(root).as_posix()
                found.append(Mutant(file, name, head, f"{head}\n    return None"))
    return found


def candidates(root: Path = ROOT) -> list[Mutant]:
    """All mutants, in the order of files and lines."""
    found: dict[Mutant, None] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if "migrations" in path.parts:
                continue
            source = path.read_text(encoding="utf-8")
            file = path.relative_to(root).as_posix()
            for name, node in functions(ast.parse(source)):
                text = _text(source, node)
                for old, new in _faults(source, node):
                    if old != new and text.count(old) == 1:
                        found[Mutant(file, name, old, new)] = None
    return list(found)


def _faults(source: str, function: FunctionNode) -> Iterator[tuple[str, str]]:
    for statement in _statements(function.body):
        whole = _Part(source, statement)
        if isinstance(statement, ast.Raise):
            yield whole.text, "pass"
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await):
            if not _is_log(statement.value):
                yield whole.text, "pass"
            continue  # arguments of a call are not changed
        if isinstance(statement, ast.Return) and not _is_none(statement.value):
            yield whole.text, "return None"
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add | ast.Sub):
            signs = ("+=", "-=") if isinstance(statement.op, ast.Add) else ("-=", "+=")
            yield whole.text, whole.text.replace(*signs, 1)
        for head in _heads(statement):
            part = _Part(source, statement, last=head)
            if isinstance(statement, ast.If | ast.While) and not isinstance(head, ast.Compare | ast.BoolOp):
                yield part.replaced(
                    head, lambda text: text[4:] if text.startswith("not ") else f"not ({text})"
                )
            for node in ast.walk(head):
                yield from _in_expression(part, node)


def _in_expression(part: _Part, node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OTHER_COMPARISON:
            yield part.between(left, right, *_OTHER_COMPARISON[type(op)])
        case ast.BoolOp(op=op, values=[left, right]):
            words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            yield part.between(left, right, *words)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            signs = ("+", "-") if isinstance(op, ast.Add) else ("-", "+")
            yield part.between(left, right, *signs)
        case ast.Constant(value=bool() as value):
            yield part.replaced(node, lambda _: str(not value))
        case ast.Constant(value=int() as value):
            yield part.replaced(node, lambda _: str(value + 1))
        case ast.IfExp(test=ast.Name() | ast.Call() | ast.Attribute() as test):
            yield part.replaced(test, lambda text: f"(not {text})")


class _Part:
    """A statement's own text: all of it, or a compound statement's up to the end of its head."""

    def __init__(self, source: str, statement: ast.stmt, last: ast.expr | None = None) -> None:
        end = last if last is not None and hasattr(statement, "body") else statement
        self.source = source
        self.first = _offset(source, statement.lineno, statement.col_offset)
        self.text = source[self.first : _end(source, end)]

    def replaced(self, node: ast.expr, change: Callable[[str], str]) -> tuple[str, str]:
        first, last = self._span(node)
        return self.text, self.text[:first] + change(self.text[first:last]) + self.text[last:]

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> tuple[str, str]:
        first, last = self._span(left)[1], self._span(right)[0]
        gap = self.text[first:last].replace(old, new, 1)
        return self.text, self.text[:first] + gap + self.text[last:]

    def _span(self, node: ast.expr) -> tuple[int, int]:
        first = _offset(self.source, node.lineno, node.col_offset)
        return first - self.first, _end(self.source, node) - self.first


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of one function, without those of functions and classes within it."""
    for statement in body:
        if isinstance(statement, FunctionNode | ast.ClassDef):
            continue
        yield statement
        for block in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)
        for case in getattr(statement, "cases", []):
            yield from _statements(case.body)


def _heads(statement: ast.stmt) -> list[ast.expr]:
    """The expressions of a statement that decide something."""
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            return [test]
        case ast.For(iter=of):
            return [of]
        case ast.Return(value=ast.expr() as value) | ast.Assign(value=value) | ast.AugAssign(value=value):
            return [value]
        case ast.AnnAssign(value=ast.expr() as value):
            return [value]
    return []


def _is_log(node: ast.expr) -> bool:
    call = node.value if isinstance(node, ast.Await) else node
    func = getattr(call, "func", None)
    return getattr(func, "attr", getattr(func, "id", "")) in _LOGGING


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _text(source: str, node: FunctionNode) -> str:
    return source[_offset(source, node.lineno, 0) : _end(source, node)]


def _end(source: str, node: ast.stmt | ast.expr) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _offset(source, node.end_lineno, node.end_col_offset)


def _offset(source: str, line: int, column: int) -> int:
    """The place in the text of a line (from 1) and a column, which `ast` counts in bytes of UTF-8."""
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())
