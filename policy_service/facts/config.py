"""facts.toml: the attributes of each entity type, and the source of each attribute.

Unknown members are refused. Every attribute has exactly one source per tool, unless it is optional. A source that is
read only for some tools, or may find nothing, gives optional attributes only. A query is one SELECT with the five
known binds; an HTTP source has a plain address and a bounded timeout. `sources.py` enforces this on every read.

Attribute values are never converted (a text is no number, 2 is no Bool). A missing value is an error unless the type
has `?`. Bool accepts SQLite's 0 and 1, because SQLite has no other; a set may be JSON text, because SQL has no sets.

Rows of a bundle's fact files are checked when the bundle is loaded. An invalid row would deny every call about its
entity while the bundle is active, so it is reported to the author instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from countersign.contract import BUILT_IN_TYPES
from policy_service.domain.policy_request import datetime_value, decimal_value
from policy_service.domain.values import parse_duration
from policy_service.remote_hosts import require_canonical_url

_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class AttributeType:
    """A declared type. `optional`: the attribute may be missing, and policy must test it with `has`."""

    name: str
    cedar_type: Mapping[str, Any]
    optional: bool
    _write: Callable[[Any], Any]

    def encode(self, value: object) -> Any:
        """The value in Cedar's JSON.

        Raises:
            ValueError: the value is not of this type.
        """
        return self._write(value)

    def as_optional(self) -> AttributeType:
        """The same type as an optional one."""
        return AttributeType(self.name, self.cedar_type, True, self._write)


def parse_attribute_type(text: str) -> AttributeType:
    """The type with this name in facts.toml.

    Raises:
        ValueError: unknown type.
    """
    name = text.removesuffix("?")
    if name not in _TYPES:
        raise ValueError(
            f"{text!r} is not an attribute type; known are {', '.join(_TYPES)}, each with ? when optional"
        )
    cedar_type, write = _TYPES[name]
    return AttributeType(name, cedar_type, text.endswith("?"), write)


def parse_timestamp(value: object) -> datetime:
    """A time from a source: an aware datetime, RFC 3339 text, or seconds since 1970.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"{value!r} is not a time with a zone; write it like 2026-01-31T12:00:00Z")
    return moment


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _type_error(value, "a text")
    return value


def _long(value: object) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise _type_error(value, "a whole number of 64 bits")
    return value


def _bool(value: object) -> bool:
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise _type_error(value, "true or false")


def _decimal(value: object) -> dict[str, Any]:
    # A float is read by its shortest digits; more than four decimal places are refused.
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float | str):
        raise _type_error(value, "a decimal")
    try:
        return decimal_value(Decimal(value if isinstance(value, Decimal | int | str) else repr(value)))
    except InvalidOperation as error:
        raise _type_error(value, "a decimal") from error


def _datetime(value: object) -> dict[str, Any]:
    return datetime_value(parse_timestamp(value))


def _set_of_strings(value: object) -> list[str]:
    items = json.loads(value) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise _type_error(value, "a list of texts")
    return [_string(item) for item in items]


def _type_error(value: object, expected: str) -> ValueError:
    return ValueError(f"{value!r} is not {expected}")


_TYPES: Final[Mapping[str, tuple[Mapping[str, Any], Callable[[Any], Any]]]] = {
    "String": ({"type": "String"}, _string),
    "Long": ({"type": "Long"}, _long),
    "Bool": ({"type": "Boolean"}, _bool),
    "decimal": ({"type": "Extension", "name": "decimal"}, _decimal),
    "datetime": ({"type": "Extension", "name": "datetime"}, _datetime),
    "Set<String>": ({"type": "Set", "element": {"type": "String"}}, _set_of_strings),
}


AGENT: Final = "Agent"

BUILT_IN_AGENT_ATTRIBUTES: Final = frozenset({"owner", "proof"})
BINDS: Final = frozenset({"args", "resource_id", "agent", "tool", "now"})
"""The `:name` parameters a query may use."""

DEFAULT_TIMEOUT: Final = timedelta(seconds=2)  # the agent waits for the decision, which waits for this
MAX_HTTP_TIMEOUT: Final = timedelta(seconds=10)
MAX_CACHE: Final = timedelta(minutes=10)  # without max_age
_BIND: Final = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")  # as sqlalchemy.text() finds them
_SELECT: Final = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_BUNDLE_PATH: Final = re.compile(r"facts/[A-Za-z0-9_.-]+\Z")

Duration = Annotated[
    timedelta, BeforeValidator(lambda value: parse_duration(value) if isinstance(value, str) else value)
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class EntitySpec(_Table):
    """One entity type and its declared attributes."""

    attributes: dict[str, Annotated[AttributeType, BeforeValidator(parse_attribute_type)]] = Field(
        min_length=1
    )


class SourceSpec(_Table):
    """One source of facts."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    kind: Literal["file", "sql", "http"]
    entity: str
    tools: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    optional: bool = False
    max_age: Duration | None = None
    as_of: str | None = None
    file: str | None = None
    url_env: str | None = Field(default=None, pattern=r"^[A-Z][A-Z0-9_]*$")
    path: str | None = None
    query: str | None = None
    timeout: Duration = DEFAULT_TIMEOUT
    url: str | None = None
    send: tuple[Literal["args", "resource", "agent", "tool"], ...] = ("args", "resource", "agent", "tool")
    cache: Duration = timedelta()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.kind == "http":
            _require_http_source(self)
            return self
        _require_age_is_known(self)
        _require_no_http(self)
        if self.kind == "file":
            _require_file_source(self)
        else:
            _require_sql_source(self)
        return self


class FactsConfig(_Table):
    """The whole file."""

    entities: dict[str, EntitySpec] = Field(default_factory=dict)
    source: tuple[SourceSpec, ...] = ()

    @model_validator(mode="after")
    def _sources_give_what_is_declared(self) -> Self:
        names = [source.name for source in self.source]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"source {repeated[0]!r} appears twice; give each its own name")
        for source in self.source:
            if source.entity not in self.entities:
                raise ValueError(
                    f"source {source.name!r}: declare [entities.{source.entity}.attributes] first"
                )
        for entity, spec in self.entities.items():
            _require_entity(entity, spec, [source for source in self.source if source.entity == entity])
        return self

    def attributes_of(self, source: SourceSpec) -> tuple[str, ...]:
        """The attributes a source gives: the listed ones, or all of its entity."""
        return source.attributes or tuple(self.entities[source.entity].attributes)

    def attribute_types(self, entity: str) -> Mapping[str, AttributeType]:
        """The attributes of an entity type as policy sees them; optional if some tool's effects lack them."""
        spec = self.entities.get(entity)
        if spec is None:
            return {}
        always = {
            name
            for source in self.source
            if source.entity == entity and not source.tools and not source.optional
            for name in self.attributes_of(source)
        }
        return {
            name: kind if name in always else kind.as_optional() for name, kind in spec.attributes.items()
        }


def parse_facts_config(table: Mapping[str, Any]) -> FactsConfig:
    """Validate a parsed facts.toml.

    Raises:
        ValueError: all problems, each with its path.
    """
    try:
        return FactsConfig.model_validate(table)
    except ValidationError as error:
        raise ValueError(
            "; ".join(
                f"{'.'.join(str(part) for part in item['loc']) or 'facts.toml'}: {item['msg']}"
                for item in error.errors(include_url=False, include_context=False)
            )
        ) from error


def _require_age_is_known(source: SourceSpec) -> None:
    if source.max_age is not None and source.as_of is None:
        raise ValueError(
            f"source {source.name!r} has max_age but no as_of; name the field that holds the fact's time"
        )


def _require_file_source(source: SourceSpec) -> None:
    if source.file is None or not _BUNDLE_PATH.match(source.file) or not source.file.endswith(".json"):
        raise ValueError(f'source {source.name!r} needs file = "facts/NAME.json"')
    if source.query or source.path or source.url_env:
        raise ValueError(f'source {source.name!r} is a file; query, path and url_env belong to kind = "sql"')


def _require_sql_source(source: SourceSpec) -> None:
    if source.file is not None:
        raise ValueError(f'source {source.name!r} is sql; file belongs to kind = "file"')
    if (source.url_env is None) is (source.path is None):
        raise ValueError(f"source {source.name!r} needs either url_env (an environment variable) or path")
    if source.path is not None and not _BUNDLE_PATH.match(source.path):
        raise ValueError(
            f'source {source.name!r}: path {source.path!r} must be inside the bundle: "facts/NAME.sqlite"'
        )
    if source.query is None or not _SELECT.match(source.query):
        raise ValueError(f"source {source.name!r} needs a query that starts with SELECT or WITH")
    if strange := sorted(set(_BIND.findall(source.query)) - BINDS):
        raise ValueError(f"source {source.name!r} binds :{strange[0]}; known are {', '.join(sorted(BINDS))}")


def _require_http_source(source: SourceSpec) -> None:
    if source.file or source.query or source.path or source.url_env:
        raise ValueError(f"source {source.name!r} is http; file, query, path and url_env belong to others")
    try:
        require_canonical_url(source.url or "")
    except ValueError as error:
        raise ValueError(f'source {source.name!r} needs url = "https://host/path": {error}') from error
    if not timedelta() < source.timeout <= MAX_HTTP_TIMEOUT:
        raise ValueError(
            f"source {source.name!r}: timeout may be at most {MAX_HTTP_TIMEOUT.seconds}s; an agent waits for it"
        )
    if not source.send:
        raise ValueError(f'source {source.name!r} sends nothing; write send = ["resource"]')
    if source.cache > (source.max_age or MAX_CACHE):
        raise ValueError(
            f"source {source.name!r}: an answer may not be kept for longer than max_age, nor than "
            f"{MAX_CACHE.seconds // 60}m; lower cache"
        )


def _require_no_http(source: SourceSpec) -> None:
    if strange := [name for name in ("url", "send", "cache") if name in source.model_fields_set]:
        raise ValueError(f'source {source.name!r} is {source.kind}; {strange[0]} belongs to kind = "http"')


def _require_entity(entity: str, spec: EntitySpec, sources: list[SourceSpec]) -> None:
    if entity in BUILT_IN_TYPES - {AGENT}:
        raise ValueError(f"entity {entity!r} belongs to the service; call the resource something else")
    if entity == AGENT and (taken := sorted(BUILT_IN_AGENT_ATTRIBUTES.intersection(spec.attributes))):
        raise ValueError(f"attribute {taken[0]!r} of Agent belongs to the service; call it something else")
    if len(sources) > 1 and (silent := next((each.name for each in sources if not each.attributes), None)):
        raise ValueError(
            f"source {silent!r} must list its attributes, because {entity!r} has several sources"
        )
    given = [name for source in sources for name in source.attributes or spec.attributes]
    for name in given:
        if name not in spec.attributes:
            raise ValueError(f"attribute {name!r} of {entity!r} has a source but no type; declare it")
    for name in spec.attributes:
        _require_one_source(
            entity, name, [each for each in sources if name in (each.attributes or spec.attributes)]
        )


def _require_one_source(entity: str, name: str, sources: list[SourceSpec]) -> None:
    if not sources:
        raise ValueError(f"attribute {name!r} of {entity!r} has no source; add one or drop the attribute")
    for index, source in enumerate(sources):
        for other in sources[index + 1 :]:
            if not source.tools or not other.tools or set(source.tools) & set(other.tools):
                raise ValueError(
                    f"attribute {name!r} of {entity!r} comes from {source.name!r} and {other.name!r}; keep one"
                )


_MAX_PROBLEMS: Final = 20
"""Problems reported per file; a generated file may have thousands."""


def row_problems(config: FactsConfig, spec: SourceSpec, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The first problems of the rows of one source, each with its row and attribute."""
    found = (f"row {key!r}: {fault}" for key, row in rows.items() for fault in _row_faults(config, spec, row))
    return list(islice(found, _MAX_PROBLEMS))


def _row_faults(config: FactsConfig, spec: SourceSpec, row: Mapping[str, Any]) -> Iterator[str]:
    names = config.attributes_of(spec)
    known = {*names, *([spec.as_of] if spec.as_of is not None else [])}
    if strange := sorted(row.keys() - known):
        yield f"{strange[0]!r} is no attribute that source {spec.name!r} gives; known are {', '.join(sorted(known))}"
    if spec.as_of is not None:
        yield from _value_fault(spec.as_of, lambda: parse_timestamp(row.get(str(spec.as_of))))
    declared = config.entities[spec.entity].attributes
    for name in names:
        kind, value = declared[name], row.get(name)
        if value is not None:
            yield from _value_fault(name, lambda kind=kind, value=value: kind.encode(value))
        elif not kind.optional:
            yield f"{name!r} is missing; facts.toml declares it without `?`"


def _value_fault(name: str, read: Any) -> Iterator[str]:
    try:
        read()
    except (ValueError, ArithmeticError, OSError) as error:  # a time out of range is no ValueError
        yield f"{name!r}: {error}"
