"""cases/mutants.toml: the survivors that no case can notice, each with the reason.

Rules kept here: an acknowledgement names one policy and one mutant and says why; one whose mutant does not survive, or
does not exist any more, is an error, so that the file never excuses what nobody looked at.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from policy_service.pap.cases.mutants import Mutant
from policy_service.pap.files import MUTANTS_FILE
from policy_service.pap.problems import BundleError, Problem, unreadable

_MEMBERS = ("policy", "mutant", "why")

Acknowledged = Mapping[tuple[str, str], str]
"""Why, by policy and mutant."""


def acknowledged_in(files: Mapping[str, bytes]) -> Acknowledged:
    """What the file says; nothing where there is none.

    Raises:
        BundleError: it is not such a file.
    """
    if MUTANTS_FILE not in files:
        return {}
    try:
        table = tomllib.loads(files[MUTANTS_FILE].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleError([unreadable(MUTANTS_FILE, error)]) from None
    problems: list[Problem] = []
    if strange := sorted(table.keys() - {"survives"}):
        problems.append(_problem(f"{strange[0]!r} is nothing this file has; write [[survives]] tables"))
    entries = table.get("survives", [])
    read = [_entry(number, entry, problems) for number, entry in enumerate(_list(entries, problems), 1)]
    if problems:
        raise BundleError(problems)
    return {(policy, mutant): why for policy, mutant, why in read}


def unacknowledged(
    survived: Iterable[Mutant], acknowledged: Acknowledged
) -> tuple[list[Mutant], list[Problem]]:
    """The survivors nobody explained, and the explanations nothing needs."""
    names = {(mutant.of.source.id, mutant.name): mutant for mutant in survived}
    left = [mutant for name, mutant in names.items() if name not in acknowledged]
    return left, [_stale(name, left) for name in acknowledged if name not in names]


def _list(entries: Any, problems: list[Problem]) -> list[Any]:
    if isinstance(entries, list):
        return entries
    problems.append(_problem("write [[survives]], in two brackets, for each mutant"))
    return []


def _entry(number: int, entry: Any, problems: list[Problem]) -> tuple[str, str, str]:
    found = entry if isinstance(entry, dict) else {}
    problems += [
        _problem(f"[[survives]] number {number} needs {name} = a text")
        for name in _MEMBERS
        if not isinstance(found.get(name), str) or not found[name].strip()
    ]
    if strange := sorted(found.keys() - set(_MEMBERS)):
        message = f"[[survives]] number {number}: {strange[0]!r} is unknown; known are {', '.join(_MEMBERS)}"
        problems.append(_problem(message))
    policy, mutant, why = (str(found.get(name)) for name in _MEMBERS)
    return policy, mutant, why


def _stale(name: tuple[str, str], left: Iterable[Mutant]) -> Problem:
    policy, mutant = name
    names = [each.name for each in left if each.of.source.id == policy]
    close = get_close_matches(mutant, names, n=1)
    hint = (
        f"did you mean {close[0]!r}?"
        if close
        else "a case notices it, or the policy has changed; remove the entry"
    )
    return _problem(f"policy {policy!r}: no mutant {mutant!r} survives; {hint}")


def _problem(message: str) -> Problem:
    return Problem(MUTANTS_FILE, None, message)
