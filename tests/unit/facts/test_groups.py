"""groups.toml: people by (issuer, subject)."""

import tomllib

import pytest

from policy_service.facts.groups import Directory, parse_groups

PEOPLE = '[people.maya]\nid = "urn:test|maya"\nname = "Maya"\n[people.tomas]\nid = "urn:test|tomas"\nname = "Tomas"\n'


def parse(text: str) -> Directory:
    return parse_groups(tomllib.loads(text))


def test_members_are_aliases_or_pairs() -> None:
    it = parse(PEOPLE + '[groups.finance]\ntitle = "Finance"\nmembers = ["maya", "urn:other|x|y"]\n')
    assert it.members("finance") == {"urn:test|maya", "urn:other|x|y"}
    assert it.groups_of("urn:test|maya") == {"finance"}
    assert it.groups_of("urn:other|x|y") == {"finance"}
    assert (it.name_of("urn:test|maya"), it.name_of("urn:other|x|y")) == ("Maya", None)
    assert (it.title_of("finance"), it.title_of("other")) == ("Finance", "other")
    assert it.people == {"urn:test|maya": "Maya", "urn:test|tomas": "Tomas"}


def test_nobody_is_in_a_group_that_does_not_exist_or_is_empty() -> None:
    it = parse("[groups.empty]\nmembers = []\n")
    assert it.groups == {"empty"}
    assert it.members("empty") == it.members("gone") == frozenset()
    assert it.groups_of("urn:test|maya") == frozenset()
    assert parse("").groups == frozenset()


def test_the_same_subject_of_another_issuer_is_another_person() -> None:
    it = parse('[groups.g]\nmembers = ["https://a|1"]\n')
    assert it.groups_of("https://b|1") == frozenset()


WRONG = {
    "an email": ('[groups.g]\nmembers = ["maya@example.com"]\n', "neither"),
    "an alias nobody has": (PEOPLE + '[groups.g]\nmembers = ["myaa"]\n', "neither"),
    "no subject": ('[groups.g]\nmembers = ["urn:test|"]\n', "neither"),
    "no issuer": ('[groups.g]\nmembers = ["|maya"]\n', "neither"),
    "a person without a pair": ('[people.m]\nid = "maya"\nname = "M"\n', "neither"),
    "a person without a name": ('[people.m]\nid = "u|m"\n', "name"),
    "one person under two names": (PEOPLE + '[people.m]\nid = "urn:test|maya"\nname = "M"\n', "same person"),
    "a group name with a bar": ('[groups."a|b"]\nmembers = []\n', "letters"),
    "a group name with a space": ('[groups."a b"]\nmembers = []\n', "letters"),
    "an unknown member": ("[groups.g]\nmember = []\n", "member"),
    "an unknown table": ("[teams.g]\n", "teams"),
    "members that are no list": ('[groups.g]\nmembers = "maya"\n', "members"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_slip_never_leaves_a_group_quietly_empty(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)
