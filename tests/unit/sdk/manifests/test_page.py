"""The SDK's README says of each member of a manifest what it is, and with which default."""

import re
from pathlib import Path

from countersign.contract.manifest import ToolManifest
from countersign.tools.declaring import Draft

PAGE = Path(__file__).resolve().parents[4] / "sdk/python/README.md"


def rows() -> dict[str, list[str]]:
    """Member -> default, meaning, what `@tool` takes."""
    table = PAGE.read_text().partition("### What a manifest holds")[2].partition("\n### ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {member: row[1:] for row in cells for member in re.findall(r"`(\w+)`", row[0])}


def test_every_member_is_told_and_no_other() -> None:
    assert rows().keys() == ToolManifest.model_fields.keys()


def test_the_defaults_are_those_of_the_manifest() -> None:
    for member, field in ToolManifest.model_fields.items():
        told = rows()[member][0]
        if field.default in (None, ()):
            assert told in {"none", "the agent"}, member
        elif not field.is_required() and member != "description":
            plain = field.default if isinstance(field.default, str) else str(field.default).lower()
            assert told.strip("`") == plain, member


def test_everything_a_decorator_takes_for_the_draft_is_told() -> None:
    told = " ".join(row[2] for row in rows().values() if len(row) > 2)
    assert [name for name in Draft.__dataclass_fields__ if f"{name}=" not in told] == []
