"""Compare the cases of two bundles, and run both sets on the new bundle.

A case is identified by its name (`it`), in any file. A removed case, or one changed other than to a stricter outcome,
is a loosening. So is every case of the active bundle that the candidate fails, and every new acknowledgement of an
undetected mutant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.findings import Direction, Finding
from policy_service.pap.folder_reader import MUTANTS_FILE
from policy_service.pap.policy_tests.case import AnyCase, Case, PeopleCase
from policy_service.pap.policy_tests.parser import read_cases
from policy_service.pap.policy_tests.runner import STRICTNESS, run_cases
from policy_service.pap.problems import BundleError

Cases = dict[str, AnyCase]


def case_changes(before: Bundle, after: Bundle) -> Iterator[Finding]:
    """All changes of cases, and the cases that fail."""
    mine, theirs = before.source.files, after.source.files
    yield from _changed(mine, theirs)
    yield from _slips(mine, theirs)
    yield from _run(before, after, mine, theirs)


# -- what is written -------------------------------------------------------------------------------------------------


def _changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Finding]:
    try:
        mine, theirs = _by_name(before), _by_name(after)
    except BundleError as error:
        if _case_files(before) != _case_files(after):
            yield _finding(
                Direction.LOOSENING, "cases", "cases", f"cases that cannot be read changed: {error}"
            )
        return
    for it in sorted(mine.keys() | theirs.keys()):
        old, new = mine.get(it), theirs.get(it)
        if old is None and new is not None:
            yield _finding(Direction.LOOK, "case", it, f"a new case: {_asks(new)}", new)
        elif old is not None and new is None:
            yield _finding(
                Direction.LOOSENING, "case", it, f"the case is gone; it asked for {_asks(old)}", old
            )
        elif old is not None and new is not None and _meaning(old) != _meaning(new):
            yield _changed_case(it, old, new)


def _changed_case(it: str, old: AnyCase, new: AnyCase) -> Finding:
    words = f"the case changed: {_asks(old)} becomes {_asks(new)}"
    if _asks(old) == _asks(new):
        words = f"the case changed in what it is about; it asks for {_asks(old)} as before"
    way = Direction.TIGHTENING if _only_stricter(old, new) else Direction.LOOSENING
    return replace(_finding(way, "case", it, words, new), files=frozenset({old.file, new.file}))


def _only_stricter(old: AnyCase, new: AnyCase) -> bool:
    if isinstance(old, Case) and isinstance(new, Case):
        stricter = STRICTNESS[new.expected.outcome] > STRICTNESS[old.expected.outcome]
        return stricter and _meaning(replace(old, expected=new.expected)) == _meaning(new)
    if isinstance(old, PeopleCase) and isinstance(new, PeopleCase):
        refused = old.allowed and not new.allowed
        return refused and _meaning(replace(old, allowed=False, policies=new.policies)) == _meaning(new)
    return False


def _meaning(case: AnyCase) -> AnyCase:
    return replace(case, file="", line=0)


def _asks(case: AnyCase) -> str:
    if isinstance(case, PeopleCase):
        return f"{case.person} {'may' if case.allowed else 'may not'} {case.action}"
    expected = case.expected
    details = {"gates": expected.gates, "needs": expected.needs, "reasons": expected.reasons}
    shown = [f"{name} {_shown(value)}" for name, value in details.items() if value]
    return f"{expected.outcome} ({'; '.join(shown)})" if shown else expected.outcome


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {value[name]}" for name in sorted(value))
    return ", ".join(sorted(map(str, value))) if isinstance(value, frozenset) else str(value)


def _by_name(files: Mapping[str, bytes]) -> Cases:
    found: Cases = {}
    for case in read_cases(files):
        name, number = case.it, 2
        while name in found:  # a duplicate name is a separate case
            name, number = f"{case.it} (again, {number})", number + 1
        found[name] = case
    return found


def are_same_cases(file: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Whether every case that either bundle has in this file exists in the other, unchanged."""
    try:
        mine, theirs = _by_name(before), _by_name(after)
    except BundleError:
        return False
    held = {it for cases in (mine, theirs) for it, case in cases.items() if case.file == file}
    return all(it in mine and it in theirs and _meaning(mine[it]) == _meaning(theirs[it]) for it in held)


def _case_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: raw for name, raw in files.items() if name.startswith("cases/") and name != MUTANTS_FILE}


def _slips(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Finding]:
    old, new = before.get(MUTANTS_FILE), after.get(MUTANTS_FILE)
    if old != new and new is not None:
        words = "the acknowledged mutants changed; review each reason"
        found = _finding(Direction.LOOSENING, "mutants", MUTANTS_FILE, words)
        yield replace(found, content=new.decode("utf-8", "replace"), files=frozenset({MUTANTS_FILE}))
    elif old != new:
        found = _finding(Direction.TIGHTENING, "mutants", MUTANTS_FILE, "no mutant is acknowledged any more")
        yield replace(found, files=frozenset({MUTANTS_FILE}))


# -- what comes of them ----------------------------------------------------------------------------------------------


def _run(
    before: Bundle, after: Bundle, mine: Mapping[str, bytes], theirs: Mapping[str, bytes]
) -> Iterator[Finding]:
    failed_before, failing, own = _runs(before, mine), _runs(after, mine), _runs(after, theirs)
    for it, (why, is_stricter) in failing.items():
        if it in failed_before:
            words = f"the active bundle does not pass it either: {why}"
            yield _finding(Direction.LOOK, "case-fails-in-both", it, words)
        elif is_stricter and it not in own:
            words = f"answered more strictly, as the new bundle's own case expects: {why}"
            yield _finding(Direction.LOOK, "active-case-stricter", it, words)
        else:
            words = f"a case of the active bundle does not hold: {why}"
            yield _finding(Direction.LOOSENING, "active-case-fails", it, words)
    for it, (why, _) in own.items():
        if it not in failing and it not in failed_before:
            words = f"a case of the new bundle does not hold: {why}"
            yield _finding(Direction.LOOSENING, "own-case-fails", it, words)


def _runs(bundle: Bundle, files: Mapping[str, bytes]) -> dict[str, tuple[str, bool]]:
    """The cases in ``files`` that fail in the bundle: the differences, and whether the answer is stricter."""
    try:
        named = _by_name(files)
        results = zip(named, run_cases(bundle, list(named.values())), strict=True)
    except BundleError as error:
        return {"cases": (str(error), False)}
    return {it: (result.words, result.is_stricter) for it, result in results if not result.holds}


def _finding(way: Direction, kind: str, it: str, words: str, case: AnyCase | None = None) -> Finding:
    if case is None:
        return Finding(way, kind, it, words)
    files = frozenset({case.file})
    return Finding(way, kind, it, words, (f"in {case.place}",), content=_meaning(case), files=files)
