"""Reads imports from the source, without running it.

Every import counts: at module level, inside functions, under TYPE_CHECKING, relative or absolute. So does one
that hides in a string (`import_module("...")`): it cannot be used to walk around the arrows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Import:
    """`importer`, a dotted module, names `imported`, as far down as the source says."""

    importer: str
    imported: str
    place: str


def imports_of(root: Path, package: str) -> list[Import]:
    """All imports of every module of `package`, a folder in `root`."""
    paths = [(path, path.relative_to(root)) for path in sorted((root / package).rglob("*.py"))]
    return [one for path, shown in paths for one in _imports_in(path, _module_name(root, path), shown)]


def _module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_in(path: Path, module: str, shown: Path) -> Iterator[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        for name in _names(node, package):
            yield Import(module, name, f"{shown}:{getattr(node, 'lineno', 0)}")


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    kept = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
