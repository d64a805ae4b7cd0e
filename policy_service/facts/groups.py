"""groups.toml: the members of each group by (issuer, subject), with display names.

A person is `iss|sub`, never an email, because an address can be reassigned and a subject cannot. A member that is
neither an alias nor such a pair is refused, so a typo never empties a group silently. A group that is not in the file
has no members. A group is either in the file or in the directory, never in both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policy_service.domain.quorum import GroupDirectory

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
