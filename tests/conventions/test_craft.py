"""Conventions that a reader relies on, measured: small functions, small modules, async routes."""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path
from statistics import median

import pytest

from tests.conventions.imports import imports_of
from tests.conventions.repository import ROOT

PACKAGES = {"service": ROOT / "policy_service", "sdk": ROOT / "sdk/python/countersign"}
LONGEST_MODULE = 400
SECRETS = "secret csrf csrf_token nonce cookie password api_key passphrase state_token".split()
SECRET = re.compile(rf"(?:^|_)(?:{'|'.join(SECRETS)})$")
HTTP_METHODS = {"get", "post", "put", "patch", "delete", "api_route"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if "versions" not in path.parts]


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, Function)]


def body_lines(function: Function) -> int:
    """Lines of code: the signature, the docstring and the decorators are not counted."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]


@pytest.mark.parametrize("folder", PACKAGES.values(), ids=PACKAGES.keys())
def test_most_functions_are_a_handful_of_lines(folder: Path) -> None:
    lengths = sorted(chain.from_iterable(map(body_lines, functions(path)) for path in modules(folder)))
    assert median(lengths) < 10
    assert sum(length <= 40 for length in lengths) / len(lengths) >= 0.95


@pytest.mark.parametrize("folder", PACKAGES.values(), ids=PACKAGES.keys())
def test_no_module_is_a_book(folder: Path) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules(folder)}
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def synchronous_routes(path: Path) -> list[str]:
    """Routes that are `def`: a thread for each request, ten times slower."""
    sync = [one for one in functions(path) if isinstance(one, ast.FunctionDef)]
    return [f"{path.name}:{one.lineno} {one.name}" for one in sync if any(map(_is_route, one.decorator_list))]


def _is_route(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in HTTP_METHODS


def test_every_route_is_async() -> None:
    channels = modules(ROOT / "policy_service/channels")
    assert [route for path in channels for route in synchronous_routes(path)] == []
    assert any(_is_route(one) for path in channels for f in functions(path) for one in f.decorator_list)


def test_a_synchronous_route_is_seen(tmp_path: Path) -> None:
    source = "@router.get('/x')\ndef slow(): ...\n@router.get('/y')\nasync def fast(): ...\n"
    (tmp_path / "x.py").write_text(source)
    assert synchronous_routes(tmp_path / "x.py") == ["x.py:2 slow"]


def test_no_middleware_that_copies_every_body() -> None:
    imports = imports_of(ROOT, "policy_service")
    assert [one.place for one in imports if one.imported.endswith("BaseHTTPMiddleware")] == []


def compared_secrets(path: Path) -> list[str]:
    """Comparisons that take longer the more of a secret is right; hmac.compare_digest, or a look-up by hash, do not."""
    compared = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Compare)]
    return [f"{path.name}:{node.lineno} {ast.unparse(node)}" for node in compared if _compares_secret(node)]


def _compares_secret(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    if any(isinstance(side, ast.Constant) for side in sides):
        return False
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        return _is_secret(node.left)
    return isinstance(node.ops[0], ast.Eq | ast.NotEq) and any(map(_is_secret, sides))


def _is_secret(side: ast.expr) -> bool:
    match side:
        case (
            ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name)))
        ):
            return SECRET.search(name) is not None
        case ast.Call(func=ast.Attribute(value=value, attr="encode")):
            return _is_secret(value)
    return False


def test_no_secret_is_compared_letter_by_letter() -> None:
    paths = [path for folder in PACKAGES.values() for path in modules(folder)]
    assert [one for path in paths for one in compared_secrets(path)] == []


LETTER_BY_LETTER = [
    *("given == session.csrf", "fields['csrf_token'] != token", "self._nonce == nonce"),
    *("password in known", "row.secret.encode() == given"),
]


@pytest.mark.parametrize("line", LETTER_BY_LETTER)
def test_a_secret_compared_letter_by_letter_is_seen(tmp_path: Path, line: str) -> None:
    fine = "if hmac.compare_digest(a.secret, b): ...\nif secret == 'x': ...\n"
    (tmp_path / "x.py").write_text(f"if {line}: ...\n{fine}")
    assert [one.partition(" ")[0] for one in compared_secrets(tmp_path / "x.py")] == ["x.py:1"]
