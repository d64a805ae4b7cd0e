"""What people may do beside approving: a rule that begins, ends, widens or narrows it is told with its direction."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy_service.pap.changes.comparing import compare
from policy_service.pap.changes.findings import Way
from tests.unit.pap.changes.test_comparing import RULES, folder

BESIDE = ("stop", "start_again", "break_glass", "break_glass_alone")
LOOSER, STRICTER = Way.LOOSENING, Way.TIGHTENING

BEGINS = dict.fromkeys(BESIDE, LOOSER)
"""Who stops is then said by the bundle instead of by the service; the others nobody might do before."""

ENDS = {"stop": LOOSER, "start_again": STRICTER, "break_glass": STRICTER, "break_glass_alone": STRICTER}
"""Without a rule whoever a gate asks may stop; the others nobody may."""


def permit(action: str, who: str = 'principal in Group::"cfo"', when: str = "") -> str:
    return f'@id("rule") permit ({who}, action == Action::"{action}", resource){when};\n'


def told(path: Path, action: str, before: str, after: str) -> set[Way]:
    """Which ways a change of the one rule goes, as far as it is about this."""
    old, new = (folder(path / name).policies(RULES + text) for name, text in (("a", before), ("b", after)))
    report = compare(old.load(), new.load())
    return {way for way in Way for finding in report.of_way(way) if finding.kind == f"who-may-{action}"}


@pytest.mark.parametrize("action", BESIDE)
def test_the_first_rule_and_the_last_one_are_told(tmp_path: Path, action: str) -> None:
    assert told(tmp_path / "begins", action, "", permit(action)) == {BEGINS[action]}
    assert told(tmp_path / "ends", action, permit(action), "") == {ENDS[action]}


@pytest.mark.parametrize("action", BESIDE)
def test_more_people_are_a_loosening_and_fewer_are_none(tmp_path: Path, action: str) -> None:
    assert told(tmp_path / "wide", action, permit(action), permit(action, "principal")) == {LOOSER}
    assert told(tmp_path / "narrow", action, permit(action, "principal"), permit(action)) == {STRICTER}


@pytest.mark.parametrize("action", ["stop", "start_again"])
def test_what_is_stopped_is_tried_as_well(tmp_path: Path, action: str) -> None:
    tools = permit(action, when=' when { resource.what == "tool" }')
    assert told(tmp_path / "wide", action, tools, permit(action)) == {LOOSER}
    everything = permit(action, when=' when { resource.what == "everything" }')
    assert told(tmp_path / "other", action, tools, everything) == {LOOSER, STRICTER}
    named = permit(action, when=' when { resource.name == "pay" }')
    assert told(tmp_path / "named", action, named, permit(action)) == {LOOSER}


@pytest.mark.parametrize("action", ["break_glass", "break_glass_alone"])
def test_which_effect_is_opened_is_tried_as_well(tmp_path: Path, action: str) -> None:
    small = permit(action, when=' unless { resource.risk == "high" }')
    assert told(tmp_path / "wide", action, small, permit(action)) == {LOOSER}
    assert told(tmp_path / "narrow", action, permit(action), small) == {STRICTER}


@pytest.mark.parametrize("action", BESIDE)
def test_the_same_rule_in_other_words_is_no_change(tmp_path: Path, action: str) -> None:
    titled = permit(action).replace('@id("rule")', '@id("rule") @title("Said otherwise")')
    assert told(tmp_path, action, permit(action), titled) == set()
