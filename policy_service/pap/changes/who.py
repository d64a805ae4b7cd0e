"""What changes about people: who is in which group, and what people and groups are called.

Rules kept here: a person who enters a group is a loosening; one who leaves it is too where a rule holds its members
back; a name that is, or was, another's is a loosening, because whoever approves goes by names.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

from policy_service.facts.groups import Directory
from policy_service.pap.changes.findings import Finding, Way

_FILE = "groups.toml"


def group_findings(before: Directory, after: Directory, opened: Mapping[str, list[str]]) -> Iterator[Finding]:
    """Who came into which group, who left, and what people are called. ``opened``: what rules hold whom back."""
    for group in sorted(before.groups | after.groups):
        yield from _members(group, before, after, opened.get(group, []))
    yield from _directory_findings(before, after, opened)
    yield from _titles(before, after)
    yield from _names(before, after)


def _members(group: str, before: Directory, after: Directory, opened: list[str]) -> Iterator[Finding]:
    came = after.members(group) - before.members(group)
    left = before.members(group) - after.members(group)
    if group not in before.groups:
        way = Way.LOOSENING if came else Way.LOOK
        yield _finding(way, "group", group, f"a new group of {_people(came, after) or 'nobody'}")
        return
    if came:
        yield _finding(Way.LOOSENING, "group", group, f"{_people(came, after)} may now answer")
    if left and opened:
        words = f"{_people(left, before)} left; {', '.join(opened)} held back whoever is in it"
        yield _finding(Way.LOOSENING, "group-left", group, words)
    elif left:
        yield _finding(Way.TIGHTENING, "group", group, f"{_people(left, before)} may not any more")
    if group not in after.groups:
        yield _finding(Way.TIGHTENING, "group", group, "the group is gone")


def _directory_findings(
    before: Directory, after: Directory, opened: Mapping[str, list[str]]
) -> Iterator[Finding]:
    """Who is in a directory's group is not in the bundle: another name there may be anybody."""
    for group in sorted(before.elsewhere.keys() | after.elsewhere.keys()):
        old, new = before.elsewhere.get(group), after.elsewhere.get(group)
        if old == new:
            continue
        if new is None:
            words = f"its people are no longer those of the directory's {old!r}"
            way = Way.LOOSENING if opened.get(group) else Way.LOOK
            yield _finding(way, "directory-group", group, words)
        else:
            instead = f", not of {old!r}" if old is not None else ""
            words = f"its people are those of the directory's {new!r}{instead}"
            yield _finding(Way.LOOSENING, "directory-group", group, words)


def _titles(before: Directory, after: Directory) -> Iterator[Finding]:
    known = {group: before.title_of(group) for group in before.groups}
    titles = {group: after.title_of(group) for group in after.groups}
    for group in sorted(known.keys() & titles.keys()):
        old, new = known[group], titles[group]
        if old != new:
            taken = {
                _seen(name)
                for each in (known, titles)
                for g, t in each.items()
                if g != group
                for name in (g, t)
            }
            words = f"the title {old!r} becomes {new!r}"
            yield _renamed("group-title", group, words, "group", _seen(new) in taken)


def _names(before: Directory, after: Directory) -> Iterator[Finding]:
    for person in sorted(before.people.keys() | after.people.keys()):
        old, new = before.name_of(person), after.name_of(person)
        if old == new:
            continue
        words = f"{person} is called {new!r}, before {old!r}" if new else f"{person} has no name any more"
        others = {
            _seen(name)
            for people in (before.people, after.people)
            for other, name in people.items()
            if other != person
        }
        yield _renamed("person-name", person, words, "person", new is not None and _seen(new) in others)


def _renamed(kind: str, subject: str, words: str, whose: str, is_taken: bool) -> Finding:
    if is_taken:
        return _finding(
            Way.LOOSENING, kind, subject, f"{words}: the name of another {whose}, before or after"
        )
    return _finding(Way.LOOK, kind, subject, words)


def _seen(name: str) -> str:
    """A name as a hasty reader sees it."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _people(persons: frozenset[str], directory: Directory) -> str:
    return ", ".join(f"{directory.name_of(each) or 'somebody'} ({each})" for each in sorted(persons))


def _finding(way: Way, kind: str, subject: str, words: str) -> Finding:
    return Finding(way, kind, subject, words, (f"in {_FILE}",), files=frozenset({_FILE}))
