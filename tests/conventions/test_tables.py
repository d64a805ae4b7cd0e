"""The tables of attacks and of scenarios: complete, and every test and vector they name is there."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from typing import Any

import pytest

from tests.conventions.repository import ROOT

TESTS = ROOT / "tests"
# How many cases each group has; a case is never taken away, it gets a reason.
_ATTACKS = zip("ABCDEFGHIJKNP", (12, 11, 20, 15, 16, 14, 15, 18, 12, 8, 8, 18, 10), strict=True)
GROUPS = {"attacks.toml": dict(_ATTACKS), "scenarios.toml": {"": 67, "W": 26}}
PAGES = {"attacks.toml": "SECURITY.md", "scenarios.toml": "CONTRIBUTING.md"}
TABLES: dict[str, dict[str, dict[str, Any]]] = {
    file: tomllib.loads((TESTS / file).read_text()) for file in GROUPS
}


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of a file's tests; a class is listed by its name, because it may inherit tests."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    nodes = ast.parse(path.read_text()).body
    return frozenset(
        node.name
        for node in nodes
        if (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
    )


def faults(name: str, row: dict[str, Any]) -> list[str]:
    """What is wrong with one case."""
    found = [f"{name}: says no {word}" for word in ("case", "must") if not row.get(word)]
    found += [
        f"{name}: what is {key!r}?" for key in row.keys() - {"case", "must", "tests", "vectors", "open"}
    ]
    if not row.get("tests") and not row.get("open"):
        found.append(f"{name}: neither a test nor a reason")
    if row.get("vectors") and not row.get("tests"):
        found.append(f"{name}: vectors, and no test that runs them")
    for test in row.get("tests", []):
        file, _, function = test.partition("::")
        if function not in names_in(file):
            found.append(f"{name}: there is no test {test}")
    for pattern in row.get("vectors", []):
        if not list((TESTS / "vectors").glob(pattern)):
            found.append(f"{name}: there is no vector {pattern}")
    return found


@pytest.mark.parametrize("file", GROUPS)
def test_every_case_is_in_its_table_in_its_place(file: str) -> None:
    every = [f"{group}{number}" for group, count in GROUPS[file].items() for number in range(1, count + 1)]
    assert list(TABLES[file]) == every


def test_every_case_has_tests_that_exist_or_a_reason() -> None:
    rows = [(name, row) for table in TABLES.values() for name, row in table.items()]
    assert [fault for name, row in rows for fault in faults(name, row)] == []


OF_PEOPLE = re.compile(
    r"approv|people|person|review|decid|deni|deny|\bgated?\b|permission|policy|releases", re.IGNORECASE
)
WITH_THE_SERVICE = ("integration/", "crash/", "e2e/")
# These kill the SDK in front of a small fake, for the sake of every passing of every point.
WITHOUT_IT = ("crash/test_agent_alone.py", "crash/test_rivals.py")


def asks_the_service(test: str) -> bool:
    return test.startswith(WITH_THE_SERVICE) and not test.startswith(WITHOUT_IT)


def test_scenarios_of_approvals_are_tested_against_the_real_service() -> None:
    rows = TABLES["scenarios.toml"].items()
    of_people = {name: row for name, row in rows if OF_PEOPLE.search(f"{row['case']} {row['must']}")}
    assert len(of_people) > 20
    assert [name for name, row in of_people.items() if not any(map(asks_the_service, row["tests"]))] == []


BAD = {
    "no test and no reason": {"case": "c", "must": "m"},
    "a test that is not there": {"case": "c", "must": "m", "tests": ["house/test_craft.py::test_nothing"]},
    "a file that is not there": {"case": "c", "must": "m", "tests": ["house/test_nothing.py::test_x"]},
    "a vector that is not there": {"case": "c", "must": "m", "open": "o", "tests": [], "vectors": ["x/*"]},
    "an unknown key": {"case": "c", "must": "m", "open": "o", "note": "n"},
    "no words": {"case": "", "must": "m", "open": "o"},
}


@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
def test_a_row_that_is_not_true_is_seen(row: dict[str, Any]) -> None:
    assert faults("A1", row)


@pytest.mark.parametrize(("file", "page"), PAGES.items())
def test_a_page_leads_to_each_table(file: str, page: str) -> None:
    assert f"(tests/{file})" in (ROOT / page).read_text()
    assert f"({file})" in (TESTS / "README.md").read_text()
