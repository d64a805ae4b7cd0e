"""Facts: attributes of the resource and the agent, read from the service's own sources before the decision.

A source that fails, is stale, finds no row or more than one ends the evaluation with `failed`, and the decision is a
deny. A value of another type than declared is a failure; values are never converted. Each answer carries its age. A
query or a request receives the canonical arguments as one JSON value, so it can check what Cedar cannot and return a
typed answer. Sources are read concurrently; databases in threads, off the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import structlog

from countersign.contract import Resource
from policy_service import metrics
from policy_service.domain.policy_request import DisplayedFact, FactAge, Facts
from policy_service.facts.config import AGENT, AttributeType, FactsConfig, SourceSpec, parse_timestamp
from policy_service.facts.readers import HttpReader, SourceFailedError, SqlReader
from policy_service.health import Health

log = structlog.get_logger(__name__)

_THREADS: Final = 8  # readers wait for databases, not for the CPU
_CLOCK_SKEW: Final = timedelta(seconds=5)  # a fact from further in the future was dated by a wrong clock


class FileReader:
    """A bundle file: an object of attributes for each id."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]], by: str) -> None:
        self._rows = rows
        self._by = by

    def read(self, values: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        """The row of the resource, or of the agent."""
        row = self._rows.get(values[self._by])
        return [] if row is None else [row]

    def close(self) -> None:
        """Nothing to close."""


class FailedReader:
    """A source that could not be opened when the bundle was loaded; every read fails."""

    def __init__(self, why: str) -> None:
        self._why = why

    def read(self, values: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        """Raises SourceFailedError."""
        raise SourceFailedError(self._why)

    def close(self) -> None:
        """Nothing to close."""


FactReader: TypeAlias = FileReader | FailedReader | SqlReader | HttpReader


@dataclass(frozen=True, slots=True)
class _SourceRows:
    """The rows of one source, the time of the request, and its result label."""

    rows: Sequence[Mapping[str, Any]]
    asked_at: datetime
    result: str


@dataclass
class _EntityFacts:
    attributes: dict[str, Any] = field(default_factory=dict)
    ages: list[FactAge] = field(default_factory=list)
    shown: list[DisplayedFact] = field(default_factory=list)


def sources_for(config: FactsConfig, entity: str, tool: str) -> tuple[SourceSpec, ...]:
    """The sources to read for this entity when this tool is called: those that name the tool, or none."""
    return tuple(
        one for one in config.source if one.entity == entity and (not one.tools or tool in one.tools)
    )


class FactSources:
    """All sources of one bundle, opened once and shared by its evaluations."""

    def __init__(
        self,
        config: FactsConfig,
        readers: Mapping[str, FactReader],
        bundle: str,
        health: Health | None = None,
    ) -> None:
        self._config = config
        self._health = health
        self._readers = dict(readers)
        self._bundle = bundle
        self._excluded: frozenset[str] = frozenset()
        self._pool: ThreadPoolExecutor | None = None
        if any(isinstance(reader, SqlReader) for reader in self._readers.values()):
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="facts")

    async def gather(
        self, tool: str, args_bytes: bytes, resource: Resource, *, agent: str, now: datetime
    ) -> Facts:
        """All facts of one effect. A failing source never raises; `failed` has the reason."""
        values = {
            "args": args_bytes.decode(),
            "resource_id": resource.id,
            "resource_type": resource.type,
            "agent": agent,
            "tool": tool,
            "now": now.isoformat(),
        }
        found, about_agent = _EntityFacts(), _EntityFacts()
        asked = [
            *((spec, found) for spec in sources_for(self._config, resource.type, tool)),
            *((spec, about_agent) for spec in sources_for(self._config, AGENT, tool)),
        ]
        # Wait for all of them even if one failed, so that no read outlives its evaluation.
        answers = await asyncio.gather(
            *(self._read(spec, values, now) for spec, _ in asked), return_exceptions=True
        )
        try:
            for (spec, into), answer in zip(asked, answers, strict=True):
                if isinstance(answer, BaseException):
                    raise answer
                self._take(spec, values, answer, now, into)
        except _FactError as error:
            return Facts(bundle=self._bundle, failed=str(error), alarm=error.detail)
        return Facts(
            bundle=self._bundle,
            resource=found.attributes,
            agent=about_agent.attributes,
            ages=(*found.ages, *about_agent.ages),
            shown=(*found.shown, *about_agent.shown),
        )

    @property
    def config(self) -> FactsConfig:
        """The parsed facts.toml."""
        return self._config

    def restrict_to(self, known: Collection[SourceSpec]) -> None:
        """Only read sources that are also among ``known``. An unreviewed bundle could otherwise send arguments of a
        call anywhere.
        """
        others = (spec for spec in self._config.source if spec.file is None and spec not in known)
        self._excluded = frozenset(spec.name for spec in others)

    def file_attributes(
        self, tool: str, resource: Resource, agent: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Attributes of the resource and of the agent from the bundle's own files, as written; no other source is
        read.
        """
        values = {"resource_id": resource.id, "agent": agent}
        return self._in_files(resource.type, tool, values), self._in_files(AGENT, tool, values)

    def _in_files(self, entity: str, tool: str, values: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for spec in sources_for(self._config, entity, tool):
            reader = self._readers[spec.name]
            if isinstance(reader, FileReader):
                found |= {name: value for row in reader.read(values) for name, value in row.items()}
        return found

    def close(self) -> None:
        """Close databases and caches. The threads end with the last evaluation that holds these sources."""
        for name, reader in self._readers.items():
            reader.close()
            if self._health is not None:
                self._health.good("facts", name)

    def _take(
        self,
        spec: SourceSpec,
        values: Mapping[str, str],
        read: _SourceRows,
        now: datetime,
        found: _EntityFacts,
    ) -> None:
        rows = read.rows
        subject = f"{spec.entity} {values['agent' if spec.entity == AGENT else 'resource_id']!r}"
        if not rows and spec.optional:
            return
        if len(rows) != 1:
            how_many = "nothing" if not rows else "more than one answer"
            raise _FactError(f"source {spec.name!r} knows {how_many} about {subject}; check the id")
        row = dict(rows[0])
        as_of = _as_of(spec, row, read.asked_at, now)
        names = self._config.attributes_of(spec)
        if strange := sorted(set(row) - set(names)):
            raise _FactError(
                _unusable_source(spec), f"source {spec.name!r}: {strange[0]!r} is not a declared attribute"
            )
        for name in names:
            self._keep(spec, name, row.get(name), as_of, found)
        found.ages.append(FactAge(spec.name, as_of))

    async def _read(self, spec: SourceSpec, values: Mapping[str, str], now: datetime) -> _SourceRows:
        began = time.monotonic()
        try:
            read = await self._rows(spec, values, now)
        except SourceFailedError as error:
            metrics.FACT_READS.labels(spec.name, "failed").inc()
            # A database's message may quote values; the errors of HTTP hosts are our own texts.
            why = str(error) if spec.kind == "http" else "see the database's own log"
            log.warning("fact_source_failed", source=spec.name, why=why)
            self._report(spec, "could not be read at the last attempt")
            raise _FactError(_unusable_source(spec), f"source {spec.name!r}: {error}") from error
        metrics.FACT_READS.labels(spec.name, read.result).inc()
        metrics.FACT_TIME.labels(spec.name).observe(time.monotonic() - began)
        self._report(spec, None)
        return read

    async def _rows(self, spec: SourceSpec, values: Mapping[str, str], now: datetime) -> _SourceRows:
        reader = self._readers[spec.name]
        if spec.name in self._excluded:
            raise SourceFailedError(
                "the active bundle does not read it this way, and a candidate may read no other source"
            )
        if isinstance(reader, HttpReader):
            answer, again = await reader.ask(values, now)
            rows = [] if answer.row is None else [answer.row]
            return _SourceRows(rows, answer.asked_at, "kept" if again else "ok" if rows else "nothing")
        if isinstance(reader, SqlReader):
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._pool, reader.read, values)
        else:
            found = reader.read(values)
        return _SourceRows(found, now, "ok" if found else "nothing")

    def _report(self, spec: SourceSpec, fault: str | None) -> None:
        if self._health is not None:
            self._health.say("facts", None if fault is None else f"the source {spec.name} {fault}", spec.name)

    def _keep(self, spec: SourceSpec, name: str, value: object, as_of: datetime, found: _EntityFacts) -> None:
        kind: AttributeType = self._config.entities[spec.entity].attributes[name]
        if value is None:
            if kind.optional:
                return
            raise _FactError(_unusable_source(spec), f"source {spec.name!r}: attribute {name!r} is missing")
        try:
            found.attributes[name] = kind.encode(value)
        except ValueError as error:
            raise _FactError(
                _unusable_source(spec), f"source {spec.name!r}: attribute {name!r}: {error}"
            ) from error
        found.shown.append(DisplayedFact(name, str(value), spec.name, as_of))


class _FactError(Exception):
    """Ends one gathering: a message for the agent, and one for the operator if there is more detail."""

    def __init__(self, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail


def _as_of(spec: SourceSpec, row: dict[str, Any], asked_at: datetime, now: datetime) -> datetime:
    """The time from which the row is true; refuses a stale row. Without `as_of`, it is the time of the request."""
    as_of = asked_at
    if spec.as_of is not None:
        try:
            as_of = parse_timestamp(row.pop(spec.as_of, None))
        except ValueError as error:
            raise _FactError(
                _unusable_source(spec), f"source {spec.name!r}: {spec.as_of!r}: {error}"
            ) from error
    age = now - as_of
    if age < -_CLOCK_SKEW or (spec.max_age is not None and age > spec.max_age):
        raise _FactError(
            f"source {spec.name!r} is stale: its answer is from {as_of.isoformat()}; try again when it is fresh",
            f"source {spec.name!r}: answer from {as_of.isoformat()}, now {now.isoformat()}, max_age {spec.max_age}",
        )
    return as_of


def _unusable_source(spec: SourceSpec) -> str:
    return f"source {spec.name!r} could not be used; the operator is notified, try again later"
