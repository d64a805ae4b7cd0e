"""What `import countersign` offers is one list, however it is asked for."""

import ast
from pathlib import Path

import pytest

import countersign


def test_a_program_a_type_checker_and_a_star_import_see_the_same_names() -> None:
    tree = ast.parse(Path(countersign.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {one.asname or one.name for node in imports for one in node.names} == set(countersign.__all__)
    names = countersign.__all__
    assert names == sorted(set(names), key=lambda name: (not name.isupper(), name))
    assert set(names) == set(countersign._HOME_OF)
    assert all(getattr(countersign, name).__doc__ for name in countersign.__all__)
    assert "tool" in dir(countersign)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = countersign.nothing_of_ours  # type: ignore[attr-defined]
