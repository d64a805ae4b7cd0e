"""What `import countersign` offers is one list, however it is asked for."""

from __future__ import annotations

import ast
from pathlib import Path

import countersign


def imported_for_type_checkers() -> set[str]:
    tree = ast.parse(Path(countersign.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        name.asname or name.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def test_a_program_a_type_checker_and_a_star_import_see_the_same_names() -> None:
    assert imported_for_type_checkers() == set(countersign.__all__)
    assert countersign.__all__ == sorted(
        set(countersign.__all__), key=lambda name: (not name.isupper(), name)
    )
