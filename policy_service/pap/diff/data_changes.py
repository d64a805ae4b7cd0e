"""What changes beside rules: groups and people, facts and their sources, meters.

Rules kept here: a person who enters a group is a loosening; one who leaves it is too where a rule holds its members
back, and every rule that names the group is taken to do so, except a permit that asks for the group and a forbid that
spares it; a name that is, or was, another's is a loosening, because approvers go by names. A fact that is read
elsewhere, otherwise, or older is a loosening, and so is every row of a facts file that differs or is new; one that is
gone is stricter only where a call about it is then denied; every change of a meter but a new one is a loosening.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from cedarpy import policies_to_pst, pst

from policy_service.facts.config import FactsConfig, SourceSpec
from policy_service.facts.groups import GroupDirectory
from policy_service.facts.meters import Meter
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.findings import Direction, Finding, exact_json, short_json
from policy_service.pap.diff.paths import path_of
from policy_service.pap.parts import BundleParts
from policy_service.pap.policies import expressions

_OWN_GROUPS = (("agent",),)
"""In a rule about tools the principal is an agent: its groups are of its key, not of groups.toml."""


def groups_that_restrict(bundles: tuple[Bundle, Bundle]) -> dict[str, list[str]]:
    """The groups whose members some rule holds back, with the ids of those rules."""
    found: dict[str, list[str]] = {}
    for bundle in bundles:
        for name, policy in bundle.policies.items():
            tree: Any = next(iter(policies_to_pst(policy.text).static_policies.values()))
            ignored = () if policy.people_action else _OWN_GROUPS
            for group, asked in _groups(tree, ignored):
                held_back = asked is None or asked is (policy.effect == "forbid")
                if held_back and name not in found.setdefault(group, []):
                    found[group].append(name)
    return {group: names for group, names in found.items() if names}


def _groups(tree: Any, ignored: tuple[Any, ...]) -> Iterator[tuple[str, bool | None]]:
    """Each group a policy names, with whether it holds for its members (True), for others (False), or either."""
    entity = getattr(tree.principal, "entity", None)
    if ("agent",) not in ignored and isinstance(entity, pst.EntityUid) and _is_group(entity):
        yield entity.id, True
    for clause in tree.clauses:
        yield from _in(clause.expr, isinstance(clause, pst.When), ignored)


def _in(expr: Any, holds: bool | None, ignored: tuple[Any, ...]) -> Iterator[tuple[str, bool | None]]:
    match expr:
        case pst.BinaryOp(op="and" | "or", left=left, right=right):
            yield from _in(left, holds, ignored)
            yield from _in(right, holds, ignored)
        case pst.UnaryOp(op="not", arg=arg):
            yield from _in(arg, None if holds is None else not holds, ignored)
        case pst.BinaryOp(op="in", left=left, right=right):
            if path_of(left) not in ignored:
                yield from ((group, holds) for group in _named(right))
        case _:
            yield from ((group, None) for group in _named(expr))


def _named(expr: Any) -> list[str]:
    entities = [each.value for each in expressions(expr) if isinstance(each, pst.EntityLit)]
    return [entity.id for entity in entities if _is_group(entity)]


def _is_group(entity: pst.EntityUid) -> bool:
    return bool(entity.type.basename == "Group")


_FILE = "groups.toml"


def group_changes(
    before: GroupDirectory, after: GroupDirectory, opened: Mapping[str, list[str]]
) -> Iterator[Finding]:
    """Who came into which group, who left, and what people are called. ``opened``: what rules hold whom back."""
    for group in sorted(before.groups | after.groups):
        yield from _group_members(group, before, after, opened.get(group, []))
    yield from _directory_findings(before, after, opened)
    yield from _titles(before, after)
    yield from _names(before, after)


def _group_members(
    group: str, before: GroupDirectory, after: GroupDirectory, opened: list[str]
) -> Iterator[Finding]:
    came = after.members(group) - before.members(group)
    left = before.members(group) - after.members(group)
    if group not in before.groups:
        way = Direction.LOOSENING if came else Direction.LOOK
        yield _group_finding(way, "group", group, f"a new group of {_people(came, after) or 'nobody'}")
        return
    if came:
        yield _group_finding(Direction.LOOSENING, "group", group, f"{_people(came, after)} may now answer")
    if left and opened:
        words = f"{_people(left, before)} left; {', '.join(opened)} held back whoever is in it"
        yield _group_finding(Direction.LOOSENING, "group-left", group, words)
    elif left:
        yield _group_finding(
            Direction.TIGHTENING, "group", group, f"{_people(left, before)} may not any more"
        )
    if group not in after.groups:
        yield _group_finding(Direction.TIGHTENING, "group", group, "the group is gone")


def _directory_findings(
    before: GroupDirectory, after: GroupDirectory, opened: Mapping[str, list[str]]
) -> Iterator[Finding]:
    """Who is in a directory's group is not in the bundle: another name there may be anybody."""
    for group in sorted(before.elsewhere.keys() | after.elsewhere.keys()):
        old, new = before.elsewhere.get(group), after.elsewhere.get(group)
        if old == new:
            continue
        way = Direction.LOOSENING if new is not None or opened.get(group) else Direction.LOOK
        instead = f", not of {old!r}" if old is not None else ""
        words = f"its people are those of the directory's {new!r}{instead}"
        if new is None:
            words = f"its people are no longer those of the directory's {old!r}"
        yield _group_finding(way, "directory-group", group, words)


def _titles(before: GroupDirectory, after: GroupDirectory) -> Iterator[Finding]:
    known = {group: before.title_of(group) for group in before.groups}
    titles = {group: after.title_of(group) for group in after.groups}
    for group in sorted(known.keys() & titles.keys()):
        old, new = known[group], titles[group]
        if old != new:
            pairs = (pair for each in (known, titles) for pair in each.items() if pair[0] != group)
            taken = {_seen(name) for pair in pairs for name in pair}
            words = f"the title {old!r} becomes {new!r}"
            yield _renamed("group-title", group, words, "group", _seen(new) in taken)


def _names(before: GroupDirectory, after: GroupDirectory) -> Iterator[Finding]:
    for person in sorted(before.people.keys() | after.people.keys()):
        old, new = before.name_of(person), after.name_of(person)
        if old == new:
            continue
        words = f"{person} is called {new!r}, before {old!r}" if new else f"{person} has no name any more"
        pairs = (*before.people.items(), *after.people.items())
        others = {_seen(name) for other, name in pairs if other != person}
        yield _renamed("person-name", person, words, "person", new is not None and _seen(new) in others)


def _renamed(kind: str, subject: str, words: str, whose: str, is_taken: bool) -> Finding:
    if is_taken:
        words = f"{words}: the name of another {whose}, before or after"
    return _group_finding(Direction.LOOSENING if is_taken else Direction.LOOK, kind, subject, words)


def _seen(name: str) -> str:
    """A name as a hasty reader sees it."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _people(persons: frozenset[str], directory: GroupDirectory) -> str:
    return ", ".join(f"{directory.name_of(each) or 'somebody'} ({each})" for each in sorted(persons))


def _group_finding(way: Direction, kind: str, subject: str, words: str) -> Finding:
    return Finding(way, kind, subject, words, (f"in {_FILE}",), files=frozenset({_FILE}))


_MAX_ROWS: Final = 20
"""Rows of a facts file told one by one; the rest in one line."""


def fact_changes(before: BundleParts, after: BundleParts) -> Iterator[Finding]:
    """What the service knows, and where it learns it."""
    yield from _attributes(before.config, after.config)
    old = {source.name: source for source in before.config.source}
    new = {source.name: source for source in after.config.source}
    for name in sorted(old.keys() | new.keys()):
        if name in old and name in new:
            yield from _source(old[name], new[name])
            continue
        words = "the source is gone" if name in old else f"a new source for {new[name].entity}"
        yield _finding(Direction.LOOSENING, "fact-source", name, words, "facts.toml")
    sources = [*before.config.source, *after.config.source]
    for file in sorted(before.rows.keys() | after.rows.keys()):
        may_miss = any(source.optional for source in sources if source.file == file)
        yield from _rows(file, before.rows.get(file, {}), after.rows.get(file, {}), may_miss)


def _attributes(before: FactsConfig, after: FactsConfig) -> Iterator[Finding]:
    for entity in sorted(before.entities.keys() | after.entities.keys()):
        mine = {name: (t.name, t.optional) for name, t in before.attribute_types(entity).items()}
        theirs = {name: (t.name, t.optional) for name, t in after.attribute_types(entity).items()}
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) == theirs.get(name):
                continue
            words = f"{name} was {_type(mine.get(name))} and is {_type(theirs.get(name))}"
            way = Direction.LOOK if name not in mine else Direction.LOOSENING
            yield _finding(way, "fact-attribute", entity, words, "facts.toml")


def _type(kind: tuple[str, bool] | None) -> str:
    return "not declared" if kind is None else kind[0] + ("?" if kind[1] else "")


def _source(old: SourceSpec, new: SourceSpec) -> Iterator[Finding]:
    mine, theirs = old.model_dump(), new.model_dump()
    for name in sorted(mine.keys() | theirs.keys()):
        before, after = mine.get(name), theirs.get(name)
        if before == after:
            continue
        fresher = name == "max_age" and after is not None and (before is None or after < before)
        way = Direction.TIGHTENING if fresher else Direction.LOOSENING
        yield _finding(way, f"fact-source-{name}", old.name, f"{name} {before} becomes {after}", "facts.toml")


def _rows(
    file: str, before: Mapping[str, Any], after: Mapping[str, Any], may_miss: bool
) -> Iterator[Finding]:
    keys = sorted(before.keys() | after.keys())
    changed = [key for key in keys if exact_json(before.get(key)) != exact_json(after.get(key))]
    gone = Direction.LOOSENING if may_miss else Direction.TIGHTENING
    for key in changed[:_MAX_ROWS]:
        if key not in after:
            words = "the row is gone: calls about it are denied"
            if may_miss:
                words = "the row is gone: a source of this file is optional, so calls about it are decided without it"
            yield _finding(gone, "fact-row", f"{file} {key}", words, file, before[key])
            continue
        words = f"a new row {short_json(after[key], 200)}"
        if key in before:
            words = f"{short_json(before[key], 200)} becomes {short_json(after[key], 200)}"
        content = [before.get(key), after[key]]
        yield _finding(Direction.LOOSENING, "fact-row", f"{file} {key}", words, file, content)
    if rest := changed[_MAX_ROWS:]:
        both = {key: [before.get(key), after.get(key)] for key in rest}
        way = Direction.LOOSENING if any(key in after for key in rest) else gone
        yield _finding(way, "fact-rows", file, f"{len(rest)} more rows differ", file, both)


def meter_changes(before: BundleParts, after: BundleParts) -> Iterator[Finding]:
    """Which budgets are counted, and how: as resolved, because a tool may leave one by leaving an action group."""
    mine, theirs = meters_by_name(before), meters_by_name(after)
    for name in sorted(mine.keys() | theirs.keys()):
        old, new = mine.get(name), theirs.get(name)
        if old == new:
            continue
        if old is None:
            yield _finding(Direction.TIGHTENING, "meter", name, "a new meter", "meters.toml", _told(new))
        elif new is None:
            yield _finding(Direction.LOOSENING, "meter", name, "the meter is gone", "meters.toml", _told(old))
        else:
            way = Direction.LOOK if replace(old, doc="") == replace(new, doc="") else Direction.LOOSENING
            words = "; ".join(_members(_told(old), _told(new)))
            yield _finding(way, "meter", name, words, "meters.toml", [_told(old), _told(new)])


def meters_by_name(parts: BundleParts) -> dict[str, Meter]:
    """Every meter that counts something, by its name."""
    return {meter.name: meter for counting in parts.meters.values() for meter in counting}


def _told(meter: Meter | None) -> dict[str, str]:
    if meter is None:
        return {}
    told = {each.name: getattr(meter, each.name) for each in fields(meter)}
    told |= {"tools": sorted(meter.tools), "window": f"{meter.window.words} {meter.window}"}
    return {name: str(value) for name, value in told.items()}


def _members(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key} {old.get(key)!r} becomes {new.get(key)!r}"


def _finding(way: Direction, kind: str, subject: str, words: str, file: str, content: Any = None) -> Finding:
    return Finding(way, kind, subject, words, (f"in {file}",), content=content, files=frozenset({file}))
