"""A switch for each step of each verification: switched off, the vectors go red; all on, they are green.

The switch is in the suite and nowhere else. The tables of steps are found in the code, so that none is forgotten;
`test_verify.py` takes each step of them out in turn. The forty-line verifier has no table: there each `require` with
a number is taken out of its source.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import countersign.contract
import policy_service
import reference_verifier
from countersign.contract import PROOF_STEPS, RECEIPT_STEPS, STEPS
from countersign.contract.jws import JWS_STEPS, Step
from tests.unit.contract.reading import vectors
from tests.unit.contract.test_reference_verifier import LATER

SOURCE = Path(reference_verifier.__file__).read_text(encoding="utf-8")
IN_A_LOOP = range(22, 28)  # one line for six members


def tables(package: ModuleType) -> dict[str, tuple[Step[Any], ...]]:
    """Every numbered list of steps in a package."""
    folder, found = Path(package.__path__[0]), dict[str, tuple[Step[Any], ...]]()
    for path in folder.rglob("*.py"):
        if "Step(" not in path.read_text(encoding="utf-8"):
            continue
        parts = path.relative_to(folder).with_suffix("").parts
        module = importlib.import_module(".".join([package.__name__, *parts]))
        values = {name: value for name, value in vars(module).items() if isinstance(value, tuple) and value}
        found |= {name: one for name, one in values.items() if all(isinstance(step, Step) for step in one)}
    return found


def test_the_lists_of_steps_are_those_whose_every_step_is_switched_off() -> None:
    """A new list needs vectors and its three lines in test_verify.py, as these have."""
    found = tables(countersign.contract) | tables(policy_service)
    whole = {"STEPS": STEPS, "RECEIPT_STEPS": RECEIPT_STEPS, "PROOF_STEPS": PROOF_STEPS}
    assert found == whole | {"JWS_STEPS": JWS_STEPS}
    assert all(table[: len(JWS_STEPS)] == JWS_STEPS for table in whole.values())


# --- the forty-line verifier


class Without(ast.NodeTransformer):
    """Takes one check out: a `require`, or the refusal a parser's error is turned into."""

    def __init__(self, line: int) -> None:
        self.line = line

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Expr | ast.Raise) and node.lineno == self.line:
            return ast.copy_location(ast.Pass(), node)
        return super().generic_visit(node)


def checks() -> list[tuple[str, int]]:
    """Every check of the program: its step, and the line it begins on."""
    tree = ast.parse(SOURCE)
    (verify,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "verify")
    found = []
    for node in ast.walk(verify):
        called = getattr(node, "exc" if isinstance(node, ast.Raise) else "value", None)
        if (
            isinstance(node, ast.Expr | ast.Raise)
            and isinstance(called, ast.Call)
            and ast.unparse(called.func) in {"require", "RefusedError"}
        ):
            found.append((ast.unparse(called.args[0]), node.lineno))
    return sorted(found, key=lambda one: one[1])


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
    for name, vector in {**vectors("tokens/bad"), **vectors("tokens/good")}.items():
        if _answer(verify, refused, vector) != LATER.get(name, vector["answer"].get("step", "accepted")):
            return name
    return None


def _answer(verify: Callable[..., Any], refused: type[Exception], vector: Any) -> object:
    try:
        verify(vector["token"], vector["expectation"])
    except refused as error:
        return error.args[0]
    except (ValueError, LookupError, TypeError, AttributeError, NameError, RecursionError) as error:
        return type(error).__name__  # it fell over what it should have refused
    return "accepted"


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
