"""Changes of groups and people, of facts and their sources, and of meters.

- A person who joins a group is a loosening. One who leaves is too if a rule restricts the group's members. Every rule
  that names the group counts as such, except a permit that requires the group and a forbid that exempts it.
- A name that is, or was, another person's or group's is a loosening, because approvers go by names.
- A changed source of a fact is a loosening, and so is every changed or new row of a facts file. A removed row is
  stricter only if calls about it are then denied.
- Every change of a meter except a new one is a loosening.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final

from cedarpy import policies_to_pst, pst

from policy_service.domain.quorum import GroupDirectory
from policy_service.facts.config import FactsConfig, SourceSpec
from policy_service.facts.meters import Meter
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.findings import Direction, Finding, exact_json, file_finding, short_json
from policy_service.pap.diff.tool_side import path_of
from policy_service.pap.parts import BundleParts
from policy_service.pap.policies import expressions

_LOOSENING, _LOOK, _TIGHTENING = Direction.LOOSENING, Direction.LOOK, Direction.TIGHTENING

_OWN_GROUPS = (("agent",),)
"""In a rule about tools the principal is an agent; its groups come from its key, not from groups.toml."""


def groups_that_restrict(bundles: tuple[Bundle, Bundle]) -> dict[str, list[str]]:
    """The groups whose members a rule restricts, with the ids of those rules."""
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
    """Each group a policy names: True if the policy applies to members, False to others, None to either."""
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


_group_finding = partial(file_finding, files={"groups.toml"})


def group_changes(
    before: GroupDirectory, after: GroupDirectory, opened: Mapping[str, list[str]]
) -> Iterator[Finding]:
    """Changes of members and of names. ``opened``: the rules that restrict members, by group."""
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
        way = _LOOSENING if came else _LOOK
        yield _group_finding(way, "group", group, f"a new group of {_people(came, after) or 'no members'}")
        return
    if came:
        yield _group_finding(_LOOSENING, "group", group, f"{_people(came, after)} may now answer")
    if left and opened:
        words = f"{_people(left, before)} left; {', '.join(opened)} restricted its members"
        yield _group_finding(_LOOSENING, "group-left", group, words)
    elif left:
        yield _group_finding(_TIGHTENING, "group", group, f"{_people(left, before)} may not any more")
    if group not in after.groups:
        yield _group_finding(_TIGHTENING, "group", group, "the group is gone")


def _directory_findings(
    before: GroupDirectory, after: GroupDirectory, opened: Mapping[str, list[str]]
) -> Iterator[Finding]:
    """The bundle does not hold a directory's members, so another directory group may have any members."""
    for group in sorted(before.elsewhere.keys() | after.elsewhere.keys()):
        old, new = before.elsewhere.get(group), after.elsewhere.get(group)
        if old == new:
            continue
        way = _LOOSENING if new is not None or opened.get(group) else _LOOK
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
    return _group_finding(_LOOSENING if is_taken else _LOOK, kind, subject, words)


def _seen(name: str) -> str:
    """A name without differences that are easily overlooked: case, spaces, compatibility characters."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _people(persons: frozenset[str], directory: GroupDirectory) -> str:
    return ", ".join(f"{directory.name_of(each) or 'somebody'} ({each})" for each in sorted(persons))


_MAX_ROWS: Final = 20
"""Rows of a facts file that are listed; the rest is one finding."""


def fact_changes(before: BundleParts, after: BundleParts) -> Iterator[Finding]:
    """Changes of declared facts, of their sources, and of the rows in files."""
    yield from _attributes(before.config, after.config)
    old = {source.name: source for source in before.config.source}
    new = {source.name: source for source in after.config.source}
    for name in sorted(old.keys() | new.keys()):
        if name in old and name in new:
            yield from _source(old[name], new[name])
            continue
        words = "the source is gone" if name in old else f"a new source for {new[name].entity}"
        yield file_finding(_LOOSENING, "fact-source", name, words, {"facts.toml"})
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
            way = _LOOK if name not in mine else _LOOSENING
            yield file_finding(way, "fact-attribute", entity, words, {"facts.toml"})


def _type(kind: tuple[str, bool] | None) -> str:
    return "not declared" if kind is None else kind[0] + ("?" if kind[1] else "")


def _source(old: SourceSpec, new: SourceSpec) -> Iterator[Finding]:
    mine, theirs = old.model_dump(), new.model_dump()
    for name in sorted(mine.keys() | theirs.keys()):
        before, after = mine.get(name), theirs.get(name)
        if before == after:
            continue
        fresher = name == "max_age" and after is not None and (before is None or after < before)
        way = _TIGHTENING if fresher else _LOOSENING
        yield file_finding(
            way, f"fact-source-{name}", old.name, f"{name} {before} becomes {after}", {"facts.toml"}
        )


def _rows(
    file: str, before: Mapping[str, Any], after: Mapping[str, Any], may_miss: bool
) -> Iterator[Finding]:
    keys = sorted(before.keys() | after.keys())
    changed = [key for key in keys if exact_json(before.get(key)) != exact_json(after.get(key))]
    gone = _LOOSENING if may_miss else _TIGHTENING
    for key in changed[:_MAX_ROWS]:
        if key not in after:
            words = "the row is gone: calls about it are denied"
            if may_miss:
                words = "the row is gone: a source of this file is optional, so calls about it are decided without it"
            yield file_finding(gone, "fact-row", f"{file} {key}", words, {file}, before[key])
            continue
        words = f"a new row {short_json(after[key], 200)}"
        if key in before:
            words = f"{short_json(before[key], 200)} becomes {short_json(after[key], 200)}"
        content = [before.get(key), after[key]]
        yield file_finding(_LOOSENING, "fact-row", f"{file} {key}", words, {file}, content)
    if rest := changed[_MAX_ROWS:]:
        both = {key: [before.get(key), after.get(key)] for key in rest}
        way = _LOOSENING if any(key in after for key in rest) else gone
        yield file_finding(way, "fact-rows", file, f"{len(rest)} more rows differ", {file}, both)


def meter_changes(before: BundleParts, after: BundleParts) -> Iterator[Finding]:
    """Changes of meters, compared as resolved: a tool may leave a meter by leaving an action group."""
    finding = partial(file_finding, kind="meter", files={"meters.toml"})
    mine, theirs = meters_by_name(before), meters_by_name(after)
    for name in sorted(mine.keys() | theirs.keys()):
        old, new = mine.get(name), theirs.get(name)
        if new is not None and old is None:
            yield finding(_TIGHTENING, subject=name, sentence="a new meter", content=_members(new))
        elif old is not None and new is None:
            yield finding(_LOOSENING, subject=name, sentence="the meter is gone", content=_members(old))
        elif old is not None and new is not None and old != new:
            way = _LOOK if replace(old, doc="") == replace(new, doc="") else _LOOSENING
            members = [_members(old), _members(new)]
            changed = (key for key in sorted(members[0]) if members[0][key] != members[1][key])
            words = "; ".join(f"{key} {members[0][key]!r} becomes {members[1][key]!r}" for key in changed)
            yield finding(way, subject=name, sentence=words, content=members)


def meters_by_name(parts: BundleParts) -> dict[str, Meter]:
    """Every meter that counts a tool, by name."""
    return {meter.name: meter for counting in parts.meters.values() for meter in counting}


def _members(meter: Meter) -> dict[str, str]:
    values = {each.name: getattr(meter, each.name) for each in fields(meter)}
    values |= {"tools": sorted(meter.tools), "window": f"{meter.window.words} {meter.window}"}
    return {name: str(value) for name, value in values.items()}
