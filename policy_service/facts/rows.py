"""The rows of a bundle's fact files, held against what facts.toml declares, before the bundle is in force.

A row that does not fit would deny every call about its entity for as long as the bundle stands; so it is an author's
mistake to be told of at once, and not a doubt to be met at a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from policy_service.facts.attributes import moment_of
from policy_service.facts.config import FactsConfig, SourceSpec

_TOLD: Final = 20
"""Problems named for one file: who generated it wrongly need not read 10,000 lines of it."""


def row_problems(config: FactsConfig, spec: SourceSpec, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with the rows of one source, each with the row and the attribute it is about; the first few."""
    found = (f"row {key!r}: {said}" for key, row in rows.items() for said in _wrong(config, spec, row))
    return list(islice(found, _TOLD))


def _wrong(config: FactsConfig, spec: SourceSpec, row: Mapping[str, Any]) -> Iterator[str]:
    names = config.given_by(spec)
    known = {*names, *([spec.as_of] if spec.as_of is not None else [])}
    if strange := sorted(row.keys() - known):
        yield f"{strange[0]!r} is no attribute that source {spec.name!r} gives; known are {', '.join(sorted(known))}"
    if spec.as_of is not None:
        yield from _fits(spec.as_of, lambda: moment_of(row.get(str(spec.as_of))))
    declared = config.entities[spec.entity].attributes
    for name in names:
        kind, value = declared[name], row.get(name)
        if value is not None:
            yield from _fits(name, lambda kind=kind, value=value: kind.encode(value))
        elif not kind.optional:
            yield f"{name!r} is missing; facts.toml declares it without `?`"


def _fits(name: str, read: Any) -> Iterator[str]:
    try:
        read()
    except (ValueError, ArithmeticError, OSError) as error:  # a time beyond all bounds is no ValueError
        yield f"{name!r}: {error}"
