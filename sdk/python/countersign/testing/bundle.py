"""A copy of a bundle with people in it who can sign in to a test.

The people of a real bundle sign in at an identity provider, which no test can reach. So each group gets three members
of the development sign-in, `GROUP-1` to `GROUP-3`, beside its own; groups that a directory would answer for are read
from the file. Nothing else of the copy differs, and the bundle itself is not touched.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from countersign.errors import MisuseError

PEOPLE_IN_A_GROUP: Final = 3
"""How many can decide for a group in a test: enough for a quorum of three."""

_ISSUER: Final = "urn:countersign:dev"
_FILE: Final = "groups.toml"
_LEFT_OUT: Final = shutil.ignore_patterns(".git", ".countersign", "__pycache__")


def copy_for_test(bundle: Path, copy: Path) -> dict[str, tuple[str, ...]]:
    """Make the copy; gives the subjects of the people who were added, by group.

    Raises:
        MisuseError: there is no such folder, or its groups.toml cannot be read.
    """
    if not bundle.is_dir():
        raise MisuseError(f"there is no bundle at {str(bundle)!r}; name the folder of your policies")
    shutil.copytree(bundle, copy, ignore=_LEFT_OUT)
    file = copy / _FILE
    try:
        table = tomllib.loads(file.read_text()) if file.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MisuseError(f"{_FILE} of the bundle cannot be read: {error}") from error
    elsewhere: dict[str, Any] = {name: {} for name in table.get("directory", {}).get("groups", {})}
    groups = elsewhere | table.get("groups", {})
    added = {name: tuple(f"{name}-{n + 1}" for n in range(PEOPLE_IN_A_GROUP)) for name in groups}
    file.write_text("".join(_written(table.get("people", {}), groups, added)))
    return added


def _written(
    people: Mapping[str, Any], groups: Mapping[str, Any], added: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    subjects = [subject for of_group in added.values() for subject in of_group]
    here = {
        subject: {"id": f"{_ISSUER}|{subject}", "name": f"{subject} (of the test)"} for subject in subjects
    }
    for alias, person in {**people, **here}.items():
        yield _table("people", alias, person)
    for name, group in groups.items():
        yield _table("groups", name, {**group, "members": [*group.get("members", ()), *added[name]]})


def _table(kind: str, name: str, members: Mapping[str, Any]) -> str:
    lines = "".join(f"{key} = {_text(value)}\n" for key, value in members.items())
    return f"[{kind}.{_text(name)}]\n{lines}\n"


def _text(value: object) -> str:
    """A text or a list of texts: JSON's form is TOML's, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
