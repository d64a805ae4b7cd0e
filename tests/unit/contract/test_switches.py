"""A switch for each step of each verification: switched off, the vectors go red; all on, they are green.

The switch is in the suite and nowhere else. The tables of steps are found in the code, so that none is forgotten;
`test_verify.py` takes each step of them out in turn. The forty-line verifier has no table: there each `require` with
a number is taken out of its source.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import countersign.contract
import policy_service
import reference_verifier
from countersign.contract import PROOF_STEPS, RECEIPT_STEPS, STEPS
from countersign.contract.jws import GATE
from countersign.contract.steps import Step
from tests.unit.contract.reading import vectors
from tests.unit.contract.test_reference_verifier import LATER

SOURCE = Path(reference_verifier.__file__).read_text(encoding="utf-8")
IN_A_LOOP = range(22, 28)  # one line for six members
BAD, GOOD = vectors("tokens/bad"), vectors("tokens/good")


def tables(package: ModuleType) -> dict[str, tuple[Step[Any], ...]]:
    """Every numbered list of steps in a package."""
    modules = (one.name for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    found = {
        name: value
        for module in modules
        if not module.endswith("__main__") and ".migrations." not in module
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, tuple) and value and all(isinstance(one, Step) for one in value)
    }
    return found


def test_the_lists_of_steps_are_those_whose_every_step_is_switched_off() -> None:
    """A new list needs vectors and its three lines in test_verify.py, as these have."""
    found = tables(countersign.contract) | tables(policy_service)
    assert found == {"GATE": GATE, "STEPS": STEPS, "RECEIPT_STEPS": RECEIPT_STEPS, "PROOF_STEPS": PROOF_STEPS}
    assert all(table[: len(GATE)] == GATE for table in (STEPS, RECEIPT_STEPS, PROOF_STEPS))


# --- the forty-line verifier


class Without(ast.NodeTransformer):
    """Takes one check out: a `require`, or the refusal a parser's error is turned into."""

    def __init__(self, line: int) -> None:
        self.line = line

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if node.lineno == self.line else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if node.lineno == self.line else node


def _verify_of(tree: ast.Module) -> ast.FunctionDef:
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "verify")
    return function


def checks() -> list[tuple[str, int]]:
    """Every check of the program: its step, and the line it begins on."""
    found = []
    for node in ast.walk(_verify_of(ast.parse(SOURCE))):
        if isinstance(node, ast.Expr) and _called(node.value) == "require":
            found.append((ast.unparse(node.value.args[0]), node.lineno))  # type: ignore[attr-defined]
        elif isinstance(node, ast.Raise) and _called(node.exc) == "RefusedError":
            found.append((ast.unparse(node.exc.args[0]), node.lineno))  # type: ignore[union-attr]
    return sorted(found, key=lambda one: one[1])


def _called(node: ast.AST | None) -> str | None:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def program(line: int | None, off: int | None) -> tuple[Callable[..., Any], type[Exception]]:
    """The verifier, without the check on that line, or without what `require` checks under that number."""
    tree = ast.parse(SOURCE)
    if line is not None:
        tree = ast.fix_missing_locations(Without(line).visit(tree))
    names: dict[str, Any] = {"__name__": "scratch"}
    exec(compile(tree, "scratch", "exec"), names)
    require = names["require"]
    names["require"] = lambda step, held: None if step == off else require(step, held)
    return names["verify"], names["RefusedError"]


def red(line: int | None = None, *, off: int | None = None) -> str | None:
    """A vector that is answered otherwise than it should be, if there is one."""
    verify, refused = program(line, off)
    every = {**BAD, **GOOD}.items()
    return next((name for name, vector in every if _answer(verify, refused, vector) != _right(name)), None)


def _answer(verify: Callable[..., Any], refused: type[Exception], vector: Any) -> object:
    try:
        verify(vector["token"], vector["expectation"])
    except refused as error:
        return error.args[0]
    except (ValueError, LookupError, TypeError, AttributeError, NameError, RecursionError) as error:
        return type(error).__name__  # it fell over what it should have refused
    return "accepted"


def _right(name: str) -> object:
    return LATER.get(name, BAD[name]["answer"]["step"]) if name in BAD else "accepted"


def test_the_program_with_all_its_checks_is_green() -> None:
    assert red() is None


def test_the_program_has_a_check_for_each_step() -> None:
    numbers = {int(step) for step, _ in checks() if step.isdigit()}
    assert numbers | set(IN_A_LOOP) == {step.number for step in STEPS}


@pytest.mark.parametrize(("step", "line"), checks(), ids=str)
def test_without_one_check_of_the_program_some_vector_is_red(step: str, line: int) -> None:
    assert red(line), f"the check of step {step} on line {line} can be left out, and no vector notices"


@pytest.mark.parametrize("number", IN_A_LOOP)
def test_without_one_turn_of_its_loop_some_vector_is_red(number: int) -> None:
    assert red(off=number)
