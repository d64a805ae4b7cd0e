"""An argument that may hold anything, or has a part that may, is never drafted: people could not review it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, StringConstraints
from typing_extensions import TypedDict

from countersign import RegistrationError, ToolRegistry, tool
from countersign.contract.manifest import ToolManifest
from countersign.tools.declaration import Draft
from countersign.tools.tool import tool_of


class Line(TypedDict):
    """An open member, below."""

    sku: str
    more: list[Any]


def drafted(hint: object) -> Any:
    def send(what: Any) -> None:
        """Send it."""

    send.__annotations__["what"] = hint
    made = tool("send", resource=("Box", "const:one"), registry=ToolRegistry())(send)
    schema: Any = tool_of(made).draft_manifest().args
    return schema["properties"]["what"]


OPEN: list[Any] = [
    (list, "/what/items"),
    (list[Any], "/what/items"),
    (tuple, "/what/items"),
    (tuple[int, Any], "/what/prefixItems/1"),
    (Sequence, "/what/items"),
    (dict, "/what/additionalProperties"),
    (dict[str, Any], "/what/additionalProperties"),
    (dict[str, list[Any]], "/what/additionalProperties/items"),
    (list[Line], "/what/items/properties/more/items"),
    (list[str | list[Any]], "/what/items/anyOf/1/items"),
    (Any | None, "/what/anyOf/0"),
    (Annotated[Any, Field(description="anything")], "/what"),
    (list[Annotated[Any, Field(examples=[1])]], "/what/items"),
    (dict[Annotated[str, StringConstraints(pattern="^a")], Any], r"/what/patternProperties/\^a"),
]


@pytest.mark.parametrize(("hint", "place"), OPEN)
def test_a_part_that_may_hold_anything_is_named(hint: object, place: str) -> None:
    with pytest.raises(RegistrationError, match=f"tool 'send': {place} may hold anything"):
        drafted(hint)


@pytest.mark.parametrize("hint", [Callable[[int], int], type])
def test_an_argument_without_a_schema_is_reported_with_its_tool(hint: object) -> None:
    with pytest.raises(RegistrationError, match="tool 'send' has an argument that no schema describes"):
        drafted(hint)


SAID = [list[str], tuple[int, str], tuple[()], Sequence[int], dict[str, list[int]], Literal["a"], str | None]


@pytest.mark.parametrize("hint", SAID)
def test_typed_arguments_are_drafted(hint: object) -> None:
    assert drafted(hint)


PAGE = Path(__file__).resolve().parents[4] / "docs/reference/manifest.md"


def test_the_page_documents_every_member_default_and_option() -> None:
    table = PAGE.read_text().partition("## Members")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    rows = {member: row[1:] for row in cells for member in re.findall(r"`(\w+)`", row[0])}
    assert rows.keys() == ToolManifest.model_fields.keys()
    for member, field in ToolManifest.model_fields.items():
        if field.default in (None, ()):
            assert rows[member][0] in {"none", "the agent"}, member
        elif not field.is_required() and member != "description":
            plain = field.default if isinstance(field.default, str) else str(field.default).lower()
            assert rows[member][0].strip("`") == plain, member
    documented = " ".join(row[2] for row in rows.values() if len(row) > 2)
    assert [name for name in Draft.__dataclass_fields__ if f"{name}=" not in documented] == []
