"""groups.toml: people by (issuer, subject)."""

import tomllib
from typing import Any

import pytest

from policy_service.domain.quorum import GroupDirectory
from policy_service.facts.groups import parse_groups

PEOPLE = '[people.maya]\nid = "urn:test|maya"\nname = "Maya"\n[people.tomas]\nid = "urn:test|tomas"\nname = "Tomas"\n'


def parse(text: str) -> GroupDirectory:
    return parse_groups(tomllib.loads(text))


def test_members_are_aliases_or_pairs() -> None:
    it = parse(PEOPLE + '[groups.finance]\ntitle = "Finance"\nmembers = ["maya", "urn:other|x|y"]\n')
    assert it.members("finance") == {"urn:test|maya", "urn:other|x|y"}
    assert (it.groups_of("urn:test|maya"), it.groups_of("urn:other|x|y")) == ({"finance"}, {"finance"})
    assert (it.name_of("urn:test|maya"), it.name_of("urn:other|x|y")) == ("Maya", None)
    assert (it.title_of("finance"), it.title_of("other")) == ("Finance", "other")
    assert it.people == {"urn:test|maya": "Maya", "urn:test|tomas": "Tomas"}


def test_an_unknown_or_empty_group_has_no_members() -> None:
    it = parse("[groups.empty]\nmembers = []\n")
    assert it.groups == {"empty"}
    empty = (it.members("empty"), it.members("gone"), it.groups_of("urn:test|maya"), parse("").groups)
    assert set(empty) == {frozenset()}


def test_the_same_subject_of_another_issuer_is_another_person() -> None:
    assert parse('[groups.g]\nmembers = ["https://a|1"]\n').groups_of("https://b|1") == frozenset()


NO_MEMBERS = ("maya@example.com", "urn:test|", "|maya")
WRONG = [
    *((f'[groups.g]\nmembers = ["{member}"]\n', "neither") for member in NO_MEMBERS),
    (PEOPLE + '[groups.g]\nmembers = ["myaa"]\n', "neither"),
    ('[people.m]\nid = "m"\nname = "M"\n', "neither"),
    ('[people.m]\nid = "u|m"\n', "name"),
    (PEOPLE + '[people.m]\nid = "urn:test|maya"\nname = "M"\n', "same person"),
    *((f'[groups."a{separator}b"]\nmembers = []\n', "letters") for separator in "| "),
    *(("[groups.g]\nmember = []\n", "member"), ('[groups.g]\nmembers = "maya"\n', "members")),
    ("[teams.g]\n", "teams"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_slip_never_leaves_a_group_quietly_empty(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


ELSEWHERE = {"directory": {"groups": {"finance": "Finance & Tax"}}}


def test_a_group_of_the_directory_is_a_group_and_empty_until_it_was_read() -> None:
    directory = parse_groups(ELSEWHERE)
    assert (directory.groups, directory.title_of("finance")) == ({"finance"}, "Finance & Tax")
    assert (directory.members("finance"), directory.groups_of("i|maya")) == (frozenset(), frozenset())


def test_what_the_directory_said_counts_while_it_is_fresh() -> None:
    fresh = [True]
    here = parse_groups({"groups": {"legal": {"members": ["i|maya"]}}, **ELSEWHERE})
    directory = here.with_directory({"Finance & Tax": frozenset({"i|maya"}), "finance": frozenset({"i|mallory"})},
                             lambda: fresh[0])  # fmt: skip
    assert directory.groups_of("i|maya") == {"legal", "finance"}
    assert directory.groups_of("i|mallory") == frozenset(), "a group is named as the directory names it"
    assert directory.members("finance") == {"i|maya"}
    assert here.members("finance") == frozenset(), "what was there before is as it was"
    fresh[0] = False
    assert (directory.groups_of("i|maya"), directory.members("finance")) == ({"legal"}, frozenset())


ELSEWHERE_WRONG = {
    "in both": ({"groups": {"finance": {"members": []}}, **ELSEWHERE}, "keep one of them"),
    "no groups": ({"directory": {"groups": {}}}, "directory.groups"),
    "a name that is none": ({"directory": {"groups": {"fin ance": "F"}}}, "may hold letters"),
    "no name there": ({"directory": {"groups": {"finance": ""}}}, "directory.groups.finance"),
    "a place, which is the service's": ({"directory": {"url": "https://x", "groups": {"a": "A"}}}, "url"),
}


@pytest.mark.parametrize(("table", "message"), ELSEWHERE_WRONG.values(), ids=ELSEWHERE_WRONG)
def test_a_mistake_about_the_directory_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_groups(table)
