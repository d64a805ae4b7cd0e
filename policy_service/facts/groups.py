"""groups.toml: the members of each group by (issuer, subject), with display names.

A person is `iss|sub`, never an email, because an address can be reassigned and a subject cannot. A member that is
neither an alias nor such a pair is refused, so a typo never empties a group silently. A group that is not in the file
has no members. A group is either in the file or in the directory, never in both. Members from the directory count
while they are fresh, which is checked at each look-up; afterwards its groups are empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_GROUP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_PERSON: Final = re.compile(r"[^|\s]+\|[^\s]+\Z")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Person(_Table):
    id: str
    name: str = Field(min_length=1, max_length=200)


class _Group(_Table):
    title: str = ""
    members: tuple[str, ...] = ()


class _DirectoryTable(_Table):
    groups: dict[str, Annotated[str, Field(min_length=1, max_length=256)]] = Field(min_length=1)


class _GroupsFile(_Table):
    directory: _DirectoryTable | None = None
    people: dict[str, _Person] = Field(default_factory=dict)
    groups: dict[str, _Group] = Field(default_factory=dict)


class GroupDirectory:
    """The bundle's groups and people. Immutable, except that members from the directory expire."""

    def __init__(
        self,
        members: Mapping[str, frozenset[str]],
        titles: Mapping[str, str],
        people: Mapping[str, str],
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        """``elsewhere``: groups of the external directory, with its own names for them."""
        self._members = dict(members)
        self._titles = dict(titles)
        self._people = dict(people)
        self._groups_of = _by_person(self._members)
        self.elsewhere: Mapping[str, str] = dict(elsewhere or {})
        self._read: dict[str, frozenset[str]] = {}
        self._read_of: dict[str, frozenset[str]] = {}
        self._fresh: Callable[[], bool] = _never

    def with_directory(self, said: Mapping[str, frozenset[str]], fresh: Callable[[], bool]) -> GroupDirectory:
        """A copy with the members read from the directory, by its names; ``fresh`` is called at every look-up."""
        new = GroupDirectory(self._members, self._titles, self._people, self.elsewhere)
        new._read = {group: said.get(name, frozenset()) for group, name in self.elsewhere.items()}
        new._read_of = _by_person(new._read)
        new._fresh = fresh
        return new

    @property
    def groups(self) -> frozenset[str]:
        """Every known group."""
        return frozenset(self._members) | frozenset(self.elsewhere)

    @property
    def people(self) -> Mapping[str, str]:
        """Display names by person, for those in the file."""
        return dict(self._people)

    def members(self, group: str) -> frozenset[str]:
        """The members of a group; an unknown group has none."""
        if group in self.elsewhere:
            return self._read.get(group, frozenset()) if self._fresh() else frozenset()
        return self._members.get(group, frozenset())

    def groups_of(self, person: str) -> frozenset[str]:
        """The groups a person is in."""
        there = self._read_of.get(person)
        here = self._groups_of.get(person, frozenset())
        return here | there if there is not None and self._fresh() else here

    def name_of(self, person: str) -> str | None:
        """The display name of a person, if the file has one."""
        return self._people.get(person)

    def title_of(self, group: str) -> str:
        """A group's title, or its name."""
        return self._titles.get(group) or self.elsewhere.get(group) or group


def _never() -> bool:  # a function, because the loader process pickles the directory
    return False


def _by_person(members: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for group, persons in members.items():
        for person in persons:
            found.setdefault(person, set()).add(group)
    return {person: frozenset(groups) for person, groups in found.items()}


def parse_groups(table: Mapping[str, Any]) -> GroupDirectory:
    """Parse groups.toml.

    Raises:
        ValueError: the file is invalid; the message names the place.
    """
    try:
        file = _GroupsFile.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
    aliases = {alias: _require_person(person.id) for alias, person in file.people.items()}
    _require_once(aliases)
    elsewhere = {} if file.directory is None else file.directory.groups
    _require_one_source(frozenset(file.groups), elsewhere)
    return GroupDirectory(
        members={_require_group(name): _resolve(name, group, aliases) for name, group in file.groups.items()},
        titles={name: group.title for name, group in file.groups.items()},
        people={aliases[alias]: person.name for alias, person in file.people.items()},
        elsewhere={_require_group(name): there for name, there in elsewhere.items()},
    )


def _require_one_source(here: frozenset[str], elsewhere: Mapping[str, str]) -> None:
    if twice := sorted(here & elsewhere.keys()):
        raise ValueError(
            f"group {twice[0]!r} is under [groups] and under [directory.groups]; keep one of them"
        )


def _resolve(name: str, group: _Group, aliases: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        aliases.get(member) or _require_person(member, f"member of {name!r}") for member in group.members
    )


def _require_person(text: str, what: str = "id") -> str:
    if not _PERSON.match(text):
        raise ValueError(f'{what} {text!r} is neither a name under [people] nor a pair "issuer|subject"')
    return text


def _require_group(name: str) -> str:
    if not _GROUP.match(name):
        raise ValueError(f"group {name!r} may hold letters, digits, dot, dash and underscore only")
    return name


def _require_once(aliases: Mapping[str, str]) -> None:
    for alias, person in aliases.items():
        if twin := next(
            (other for other, same in aliases.items() if same == person and other != alias), None
        ):
            raise ValueError(f"people.{alias} and people.{twin} are the same person {person!r}; keep one")
