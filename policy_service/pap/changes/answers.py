"""What changes in a review that the rules about people look at: the ids of the gates that ask, and the tool's risk.

Rules kept here: a rule about people names gates by id and risks by word, so a gate of a named id that changed, and any
other risk, may let somebody answer whom those rules kept out; nobody has proved that it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from policy_service.pap.bundle import Bundle
from policy_service.pap.changes.findings import Finding, Way
from policy_service.pap.changes.reading import Read, read_policy
from policy_service.pap.changes.slices_of_both import meaning
from policy_service.pap.changes.versions import Versions

_GATES, _RISK = ("fact", "gates"), ("fact", "risk")


def answer_findings(before: Bundle, after: Bundle, versions: Iterable[Versions]) -> Iterator[Finding]:
    """What of a review changed that a rule about people reads."""
    read = _read_of_people((before, after))
    named = _named(read)
    for name in sorted(before.policies.keys() | after.policies.keys()):
        old, new = before.policies.get(name), after.policies.get(name)
        held = [each for each in (old, new) if each is not None]
        asks = any(each.gate is not None for each in held)
        if not asks or (named is not None and name not in named):
            continue
        if old is not None and new is not None and meaning(old) == meaning(new):
            continue
        words = f"the gate {name} changed, and rules about who answers read `resource.gates`"
        content = [None if each is None else str(meaning(each)) for each in (old, new)]
        files = frozenset(each.file for each in held)
        lines = tuple(f"in {each.place}" for each in held)
        yield Finding(Way.LOOSENING, "gate-id", name, words, lines, (name,), content, files)
    if _RISK in read.literals:
        yield from _risks(versions)


def _risks(versions: Iterable[Versions]) -> Iterator[Finding]:
    for pair in versions:
        if pair.before is None or pair.after is None:
            continue
        old, new = pair.before.manifest.risk, pair.after.manifest.risk
        if old is not new:
            words = f"the risk {old} becomes {new}, and rules about who answers read `resource.risk`"
            yield Finding(Way.LOOSENING, "risk-read", pair.name, words, files=pair.files)


def _read_of_people(bundles: tuple[Bundle, Bundle]) -> Read:
    read = Read()
    for bundle in bundles:
        for rules in bundle.rules.people.values():
            for tree in rules.policies.to_pst().static_policies.values():
                read.add(read_policy(tree))
    return read


def _named(read: Read) -> frozenset[Any] | None:
    """The gates that rules about people name; None where they may mean any."""
    literals = read.literals.get(_GATES)
    if literals is None:
        return frozenset()
    if frozenset() in literals or any("resource.gates" in why for why in read.inexact):
        return None
    return frozenset(
        each for value in literals for each in (value if isinstance(value, frozenset) else (value,))
    )
