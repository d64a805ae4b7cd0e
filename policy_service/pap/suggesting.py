"""Did you mean: what the validator does not know, beside the names there are.

The engine's own words name only what is wrong. An author wants the name that is meant: an attribute of the manifest's
args, an action, an entity type, a meter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from policy_service.pap.problems import Problem


@dataclass(frozen=True, slots=True)
class Names:
    """What a schema knows, by what it is."""

    attributes: frozenset[str]
    actions: frozenset[str]
    types: frozenset[str]


_UNKNOWN: Final[tuple[tuple[re.Pattern[str], Callable[[Names], frozenset[str]]], ...]] = (
    (re.compile(r"attribute `([^`]+)` .*not found"), lambda names: names.attributes),
    (re.compile(r'unrecognized action `Action::"([^"]+)"`'), lambda names: names.actions),
    (re.compile(r"unrecognized entity type `([^`]+)`"), lambda names: names.types),
)
_METERS: Final = "history."


def suggested(problems: Iterable[Problem], schema: Mapping[str, Any]) -> list[Problem]:
    """The same problems; those about an unknown name say which one is near, or where such names come from."""
    names = _names(schema)
    return [replace(problem, message=problem.message + _hint(problem.message, names)) for problem in problems]


def _hint(message: str, names: Names) -> str:
    for pattern, known_of in _UNKNOWN:
        found = pattern.search(message)
        if found is None:
            continue
        word = found.group(1)
        close = get_close_matches(word.rpartition(".")[2], known_of(names), n=1)
        if close:
            return f"; did you mean {close[0]!r}?"
        if word.startswith(_METERS):
            return "; meters.toml names the meters of each tool"
    return ""


def _names(schema: Mapping[str, Any]) -> Names:
    (space,) = schema.values()
    return Names(
        frozenset(_attributes(space)),
        frozenset(space.get("actions", ())),
        frozenset(space.get("entityTypes", ())),
    )


def _attributes(part: Any) -> Iterator[str]:
    """Every attribute's name, however deep."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key == "attributes" and isinstance(value, Mapping):
                yield from value
            yield from _attributes(value)
