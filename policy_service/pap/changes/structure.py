"""What changes beside the rules: groups, facts and their sources, meters.

Rules kept here: a person who enters a group is a loosening, whoever leaves one is not; a fact that is read elsewhere,
otherwise, or older is a loosening, and so is every row of a facts file that differs or is new (a call about what the
file does not hold is denied); every change of a meter but a new one is a loosening, because nobody can prove the rest.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from policy_service.facts.config import FactsConfig, SourceSpec
from policy_service.facts.groups import Directory
from policy_service.pap.changes.findings import Finding, Way
from policy_service.pap.parts import Parts

_MAX_ROWS: Final = 20
"""Rows of a facts file told one by one; the rest in one line."""


def group_findings(before: Directory, after: Directory) -> Iterator[Finding]:
    """Who came into which group, who left, and what people are called."""
    for group in sorted(before.groups | after.groups):
        came, left = (
            after.members(group) - before.members(group),
            before.members(group) - after.members(group),
        )
        if group not in before.groups:
            way = Way.LOOSENING if came else Way.LOOK
            yield _finding(
                way, "group", group, f"a new group of {_people(came, after) or 'nobody'}", "groups.toml"
            )
            continue
        if came:
            yield _finding(
                Way.LOOSENING, "group", group, f"{_people(came, after)} may now answer", "groups.toml"
            )
        if left:
            yield _finding(
                Way.TIGHTENING, "group", group, f"{_people(left, before)} may not any more", "groups.toml"
            )
        if group not in after.groups:
            yield _finding(Way.TIGHTENING, "group", group, "the group is gone", "groups.toml")
        elif before.title_of(group) != after.title_of(group):
            words = f"the title {before.title_of(group)!r} becomes {after.title_of(group)!r}"
            yield _finding(Way.LOOK, "group-title", group, words, "groups.toml")
    yield from _directory_findings(before, after)
    for person in sorted(before.people.keys() | after.people.keys()):
        old, new = before.name_of(person), after.name_of(person)
        if old != new:
            words = f"{person} is called {new!r}, before {old!r}" if new else f"{person} has no name any more"
            yield _finding(Way.LOOK, "person-name", person, words, "groups.toml")


def _directory_findings(before: Directory, after: Directory) -> Iterator[Finding]:
    """Who is in a directory's group is not in the bundle: another name there may be anybody."""
    for group in sorted(before.elsewhere.keys() | after.elsewhere.keys()):
        old, new = before.elsewhere.get(group), after.elsewhere.get(group)
        if old == new:
            continue
        if new is None:
            words = f"its people are no longer those of the directory's {old!r}"
            yield _finding(Way.LOOK, "directory-group", group, words, "groups.toml")
        else:
            instead = f", not of {old!r}" if old is not None else ""
            words = f"its people are those of the directory's {new!r}{instead}"
            yield _finding(Way.LOOSENING, "directory-group", group, words, "groups.toml")


def _people(persons: frozenset[str], directory: Directory) -> str:
    return ", ".join(f"{directory.name_of(each) or 'somebody'} ({each})" for each in sorted(persons))


def fact_findings(before: Parts, after: Parts) -> Iterator[Finding]:
    """What the service knows, and where it learns it."""
    yield from _attributes(before.config, after.config)
    old = {source.name: source for source in before.config.source}
    new = {source.name: source for source in after.config.source}
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield _finding(
                Way.LOOSENING, "fact-source", name, f"a new source for {new[name].entity}", "facts.toml"
            )
        elif name not in new:
            yield _finding(Way.LOOSENING, "fact-source", name, "the source is gone", "facts.toml")
        else:
            yield from _source(old[name], new[name])
    for file in sorted(before.rows.keys() | after.rows.keys()):
        yield from _rows(file, before.rows.get(file, {}), after.rows.get(file, {}))


def _attributes(before: FactsConfig, after: FactsConfig) -> Iterator[Finding]:
    for entity in sorted(before.entities.keys() | after.entities.keys()):
        mine = {name: (t.name, t.optional) for name, t in before.attribute_types(entity).items()}
        theirs = {name: (t.name, t.optional) for name, t in after.attribute_types(entity).items()}
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) == theirs.get(name):
                continue
            words = f"{name} was {_type(mine.get(name))} and is {_type(theirs.get(name))}"
            way = Way.LOOK if name not in mine else Way.LOOSENING
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
        way = Way.TIGHTENING if fresher else Way.LOOSENING
        yield _finding(way, f"fact-source-{name}", old.name, f"{name} {before} becomes {after}", "facts.toml")


def _rows(file: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Finding]:
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    for key in changed[:_MAX_ROWS]:
        if key not in after:
            yield _finding(
                Way.TIGHTENING,
                "fact-row",
                f"{file} {key}",
                "the row is gone: calls about it are denied",
                file,
            )
            continue
        words = (
            f"{_json(before.get(key))} becomes {_json(after[key])}"
            if key in before
            else f"a new row {_json(after[key])}"
        )
        yield _finding(Way.LOOSENING, "fact-row", f"{file} {key}", words, file)
    if rest := changed[_MAX_ROWS:]:
        content = {key: [before.get(key), after.get(key)] for key in rest}
        way = Way.LOOSENING if any(key in after for key in rest) else Way.TIGHTENING
        yield _finding(way, "fact-rows", file, f"{len(rest)} more rows differ", file, content)


def _json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 200 else f"{text[:197]}..."


def meter_findings(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Finding]:
    """Which budgets are counted, and how."""
    mine, theirs = _meters(before), _meters(after)
    for name in sorted(mine.keys() | theirs.keys()):
        old, new = mine.get(name), theirs.get(name)
        if old == new:
            continue
        if old is None:
            yield _finding(Way.TIGHTENING, "meter", name, "a new meter", "meters.toml", new)
        elif new is None:
            yield _finding(Way.LOOSENING, "meter", name, "the meter is gone", "meters.toml", old)
        else:
            words = "; ".join(_members(old, new))
            yield _finding(Way.LOOSENING, "meter", name, words, "meters.toml", [old, new])


def _members(old: Any, new: Any) -> Iterator[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield f"{old!r} becomes {new!r}"
        return
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key} {old.get(key)!r} becomes {new.get(key)!r}"


def _meters(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Meters by name, whether the file holds a table of them or a list with names."""
    found: dict[str, Any] = {}
    for head, value in tomllib.loads(files.get("meters.toml", b"").decode("utf-8")).items():
        if isinstance(value, dict) and all(isinstance(each, dict) for each in value.values()):
            found |= {f"{head}.{name}": each for name, each in value.items()}
        elif isinstance(value, list):
            named = [
                each.get("name", index) if isinstance(each, dict) else index
                for index, each in enumerate(value)
            ]
            found |= {f"{head}.{name}": each for name, each in zip(named, value, strict=True)}
        else:
            found[head] = value
    return found


def _finding(way: Way, kind: str, subject: str, words: str, file: str, content: Any = None) -> Finding:
    return Finding(way, kind, subject, words, (f"in {file}",), content=content, files=frozenset({file}))
