"""What changes beside rules and people: facts and their sources, meters.

Rules kept here: a fact that is read elsewhere, otherwise, or older is a loosening, and so is every row of a facts file
that differs or is new; one that is gone is stricter only where a call about it is then denied, not where a source may
find nothing; every change of a meter but a new one is a loosening, because nobody can prove the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from policy_service.facts.config import FactsConfig, SourceSpec
from policy_service.facts.meters import Meter
from policy_service.pap.changes.findings import Finding, Way
from policy_service.pap.parts import Parts

_MAX_ROWS: Final = 20
"""Rows of a facts file told one by one; the rest in one line."""


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
        may_miss = any(
            source.optional
            for parts in (before, after)
            for source in parts.config.source
            if source.file == file
        )
        yield from _rows(file, before.rows.get(file, {}), after.rows.get(file, {}), may_miss)


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


def _rows(
    file: str, before: Mapping[str, Any], after: Mapping[str, Any], may_miss: bool
) -> Iterator[Finding]:
    keys = sorted(before.keys() | after.keys())
    changed = [key for key in keys if _whole(before.get(key)) != _whole(after.get(key))]
    gone = Way.LOOSENING if may_miss else Way.TIGHTENING
    for key in changed[:_MAX_ROWS]:
        if key not in after:
            what = (
                "a source of this file is optional, so calls about it are decided without it"
                if may_miss
                else "calls about it are denied"
            )
            words = f"the row is gone: {what}"
            yield _finding(gone, "fact-row", f"{file} {key}", words, file, before[key])
            continue
        words = (
            f"{_json(before.get(key))} becomes {_json(after[key])}"
            if key in before
            else f"a new row {_json(after[key])}"
        )
        content = [before.get(key), after[key]]
        yield _finding(Way.LOOSENING, "fact-row", f"{file} {key}", words, file, content)
    if rest := changed[_MAX_ROWS:]:
        both = {key: [before.get(key), after.get(key)] for key in rest}
        way = Way.LOOSENING if any(key in after for key in rest) else gone
        yield _finding(way, "fact-rows", file, f"{len(rest)} more rows differ", file, both)


def _whole(value: Any) -> str:
    """A row to compare: Python calls `1` and `true` equal, and policy does not."""
    return json.dumps(value, sort_keys=True)


def _json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 200 else f"{text[:197]}..."


def meter_findings(before: Parts, after: Parts) -> Iterator[Finding]:
    """Which budgets are counted, and how: as resolved, because a tool may leave one by leaving an action group."""
    mine, theirs = meters_of(before), meters_of(after)
    for name in sorted(mine.keys() | theirs.keys()):
        old, new = mine.get(name), theirs.get(name)
        if old == new:
            continue
        if old is None:
            yield _finding(Way.TIGHTENING, "meter", name, "a new meter", "meters.toml", _told(new))
        elif new is None:
            yield _finding(Way.LOOSENING, "meter", name, "the meter is gone", "meters.toml", _told(old))
        else:
            way = Way.LOOK if replace(old, doc="") == replace(new, doc="") else Way.LOOSENING
            words = "; ".join(_members(_told(old), _told(new)))
            yield _finding(way, "meter", name, words, "meters.toml", [_told(old), _told(new)])


def meters_of(parts: Parts) -> dict[str, Meter]:
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


def _finding(way: Way, kind: str, subject: str, words: str, file: str, content: Any = None) -> Finding:
    return Finding(way, kind, subject, words, (f"in {file}",), content=content, files=frozenset({file}))
