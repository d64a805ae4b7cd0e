"""What people may do beside approving: a rule that begins, ends, widens or narrows it is told with its direction."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.compare import compare
from policy_service.pap.diff.findings import Direction
from tests.unit.pap.diff.test_comparing import RULES, folder

STOPS, OPENS = ("stop", "start_again"), ("break_glass", "break_glass_alone")
BESIDE = STOPS + OPENS
LOOSER, STRICTER = {Direction.LOOSENING}, {Direction.TIGHTENING}
CFO, ANYBODY = (
    'permit (principal in Group::"cfo", ACTION, resource);',
    "permit (principal, ACTION, resource);",
)


def cfo_when(condition: str) -> str:
    """The rule about the CFO with a condition."""
    return CFO.replace(";", f" when {{ {condition} }};")


# A rule before and after, about which actions, and which ways the change goes for all of them.
CHANGES: dict[str, tuple[str, str, tuple[str, ...], set[Direction]]] = {
    "begins: people say what the service said, or what nobody might": ("", CFO, BESIDE, LOOSER),
    "ends: whoever a gate asks may stop again": (CFO, "", ("stop",), LOOSER),
    "ends: nobody may": (CFO, "", ("start_again", *OPENS), STRICTER),
    "more people": (CFO, ANYBODY, BESIDE, LOOSER),
    "fewer people": (ANYBODY, CFO, BESIDE, STRICTER),
    "everything instead of a tool": (cfo_when('resource.what == "tool"'), CFO, STOPS, LOOSER),
    "everything beside a tool": (
        cfo_when('resource.what == "tool"'), cfo_when('resource.what == "everything"'), STOPS, LOOSER | STRICTER),
    "any instead of one name": (cfo_when('resource.name == "pay"'), CFO, STOPS, LOOSER),
    "any risk": (cfo_when('!(resource.risk == "high")'), CFO, OPENS, LOOSER),
    "not a high risk": (CFO, cfo_when('!(resource.risk == "high")'), OPENS, STRICTER),
    "the same in other words": (CFO, '@title("Said otherwise") ' + CFO, BESIDE, set()),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "actions", "ways"), CHANGES.values(), ids=CHANGES)
def test_a_change_has_its_direction(tmp_path: Path, before: str, after: str, actions: Any, ways: Any) -> None:
    def bundle(name: str, rule: str) -> Bundle:
        rules = [f'@id("{one}") ' + rule.replace("ACTION", f'action == Action::"{one}"') for one in actions]
        return folder(tmp_path / name).policies(RULES + "\n".join(rules if rule else [])).load()

    report = compare(bundle("before", before), bundle("after", after))
    told = {one: {f.way for f in report.findings if f.kind == f"who-may-{one}"} for one in actions}
    assert told == dict.fromkeys(actions, ways)
