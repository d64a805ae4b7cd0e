"""The page about errors tells of every error there is, below the one it is a kind of; each has a code of its own."""

from __future__ import annotations

import importlib
import pkgutil
import re

import countersign
from countersign import errors
from countersign.errors import CountersignError

WITHIN = {"TooLateError"}  # raised and caught between our own modules


def every_error() -> list[type[CountersignError]]:
    """The SDK's own, whatever module they stand in."""
    for module in pkgutil.walk_packages(countersign.__path__, "countersign."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[CountersignError]] = []
    waiting = [CountersignError]
    while waiting:
        kinds = [
            kind for kind in waiting.pop().__subclasses__() if kind.__module__.startswith("countersign.")
        ]
        found += [kind for kind in kinds if kind.__name__ not in WITHIN]
        waiting += kinds
    return found


def told_below() -> dict[str, str]:
    """Name by name, the error that the page shows it below."""
    told: dict[str, str] = {}
    above: list[tuple[int, str]] = [(0, "")]
    for spaces, name in re.findall(r"(?m)^( {4,})([A-Z]\w+)", errors.__doc__ or ""):
        while above[-1][0] >= len(spaces):
            above.pop()
        told[name] = above[-1][1]
        above.append((len(spaces), name))
    return told


def test_the_page_tells_of_every_error_below_the_one_it_is_a_kind_of() -> None:
    kinds = {kind.__name__: kind.__base__ for kind in every_error()}
    parents = {name: base.__name__ for name, base in kinds.items() if base is not None}
    assert told_below() == parents | {"CountersignError": "", "IndependentFailures": ""}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in every_error()]
    assert sorted(set(codes)) == sorted(codes)
