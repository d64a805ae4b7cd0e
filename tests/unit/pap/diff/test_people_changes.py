"""Changes of rules about actions of people other than approving have a direction."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.compare import compare
from policy_service.pap.diff.findings import Direction
from tests.unit.pap.diff.test_compare import RULES, folder

STOPS, OPENS = ("stop", "start_again"), ("break_glass", "break_glass_alone")
NOT_APPROVING = STOPS + OPENS
LOOSER, STRICTER = {Direction.LOOSENING}, {Direction.TIGHTENING}
ANYBODY = "permit (principal, ACTION, resource);"
CFO = ANYBODY.replace("principal", 'principal in Group::"cfo"')


def cfo_when(condition: str) -> str:
    """The rule about the CFO with a condition."""
    return CFO.replace(";", f" when {{ {condition} }};")


OF_TOOL = cfo_when('resource.what == "tool"')
# A rule before and after, about which actions, and which ways the change goes for all of them.
CHANGES: dict[str, tuple[str, str, tuple[str, ...], set[Direction]]] = {
    "first rule: people decide instead of the service": ("", CFO, NOT_APPROVING, LOOSER),
    "last rule: everybody a gate asks may stop again": (CFO, "", ("stop",), LOOSER),
    "last rule: no person may": (CFO, "", ("start_again", *OPENS), STRICTER),
    "more people": (CFO, ANYBODY, NOT_APPROVING, LOOSER),
    "fewer people": (ANYBODY, CFO, NOT_APPROVING, STRICTER),
    "everything instead of a tool": (OF_TOOL, CFO, STOPS, LOOSER),
    "everything in addition to a tool": (OF_TOOL, OF_TOOL.replace('"tool"', '"everything"'), STOPS, LOOSER | STRICTER),
    "any instead of one name": (cfo_when('resource.name == "pay"'), CFO, STOPS, LOOSER),
    "any risk": (cfo_when('!(resource.risk == "high")'), CFO, OPENS, LOOSER),
    "not a high risk": (CFO, cfo_when('!(resource.risk == "high")'), OPENS, STRICTER),
    "the same in other words": (CFO, '@title("Said otherwise") ' + CFO, NOT_APPROVING, set()),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "actions", "ways"), CHANGES.values(), ids=CHANGES)
def test_direction_of_a_change(tmp_path: Path, before: str, after: str, actions: Any, ways: Any) -> None:
    def bundle(name: str, rule: str) -> Bundle:
        rules = [f'@id("{one}") ' + rule.replace("ACTION", f'action == Action::"{one}"') for one in actions]
        return folder(tmp_path / name).policies(RULES + "\n".join(rules if rule else [])).load()

    report = compare(bundle("before", before), bundle("after", after))
    directions = {one: {f.way for f in report.findings if f.kind == f"who-may-{one}"} for one in actions}
    assert directions == dict.fromkeys(actions, ways)
