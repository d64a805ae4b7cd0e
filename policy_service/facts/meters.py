"""meters.toml: what is counted, for which tools, per agent or resource, over which window.

Unknown members are refused. A sum is over a non-negative integer input field of every tool it counts. A meter names
tools or action groups of this bundle. Policy sees a meter as `context.history.NAME`, only in the actions it counts.

Reservations are stored by field and tool, not by meter. So a renamed meter, or one with another window, `per` or fewer
tools, is computed from the stored rows. A meter of a field or tool that was not counted before starts at zero.

A rolling window counts reservations younger than its length. A calendar window begins at local midnight (of Monday, of
the first), across changes of the local time. Neither has an end: later times count too, so that setting a clock back
frees no budget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Protocol, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from countersign.contract import JSON, PointerError, ToolManifest, pointer_tokens, resolve_pointer
from policy_service.domain.values import parse_duration

CALENDAR: Final = ("day", "week", "month")
MIN_ROLLING: Final = timedelta(minutes=1)
"""A shorter window limits nothing: a submission takes about as long."""

_TICK: Final = timedelta(microseconds=1)  # the precision of stored times


class Window(Protocol):
    """The time a meter looks back over."""

    def first(self, at: datetime) -> datetime:
        """The first time that counts at the time ``at``; both aware."""

    def ends(self, at: datetime) -> datetime | None:
        """When everything that counts at ``at`` stops counting at once; None for a rolling window."""

    @property
    def words(self) -> str:
        """The window as written in the file."""


@dataclass(frozen=True, slots=True)
class Rolling:
    """The last so long, up to now."""

    length: timedelta
    words: str

    def first(self, at: datetime) -> datetime:
        """A reservation exactly as old as the window no longer counts."""
        return at.astimezone(UTC) - self.length + _TICK

    def ends(self, at: datetime) -> None:
        """Never all at once."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The current day, week or month of a time zone."""

    unit: str
    zone: ZoneInfo

    def first(self, at: datetime) -> datetime:
        """Local midnight. If the clocks skip it, the time of the change; if it occurs twice, the first."""
        return self._midnight(self._first_day(at))

    def ends(self, at: datetime) -> datetime:
        """The start of the next period."""
        first = self._first_day(at)
        if self.unit == "month":
            return self._midnight((first + timedelta(days=31)).replace(day=1))
        return self._midnight(first + timedelta(days=7 if self.unit == "week" else 1))

    def _first_day(self, at: datetime) -> date:
        day = at.astimezone(self.zone).date()
        if self.unit == "week":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self.unit == "month" else day

    def _midnight(self, day: date) -> datetime:
        return datetime(day.year, day.month, day.day, tzinfo=self.zone).astimezone(UTC)

    @property
    def words(self) -> str:
        """The unit and the time zone."""
        return f"{self.unit}, {self.zone.key}"


def parse_window(text: str, timezone: str | None) -> Window:
    """The window of a meter.

    Raises:
        ValueError: malformed, too short or too long; or the time zone is unknown or not applicable.
    """
    if text in CALENDAR:
        return Calendar(text, _zone("UTC" if timezone is None else timezone))
    try:
        length = parse_duration(text)
    except ValueError as error:
        raise ValueError(f'window: {error}; or "day", "week" or "month"') from error
    if length < MIN_ROLLING:
        raise ValueError(f"window: {text!r} is shorter than a minute, and counts next to nothing")
    if timezone is not None:
        raise ValueError(f'timezone belongs to a window of "day", "week" or "month"; {text!r} rolls, drop it')
    return Rolling(length, text)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError, handled below
        raise ValueError(f"timezone: {name!r} is no name of a time zone; {_EXAMPLE}") from error
    except KeyError as error:
        raise ValueError(f"timezone: {name!r} is not known to this host; {_EXAMPLE}") from error


_EXAMPLE: Final = 'write one like "Europe/Berlin"'


COUNT: Final = ""
"""The field of a meter that counts effects: the empty pointer, the whole call."""

MAX_TOTAL: Final = 2**60
"""The maximum value of a meter. An input is below 2**53, so a rule that adds an input or several meters stays within
64 bits, and no agent can cause an overflow by filling a meter.
"""

MAX_METERS: Final = 64  # per bundle; each meter of a tool is a query at every decision

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")
_CEDAR_KEYWORDS: Final = frozenset("else false has if in is like then true".split())


class _MeterTable(BaseModel):
    """One table of the file, as written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    count: Literal[True] | None = None
    sum: Annotated[str, StringConstraints(pattern=r"^/", max_length=200)] | None = None
    of: list[str] = Field(min_length=1)
    per: Literal["principal", "resource"]
    window: str
    timezone: str | None = None
    doc: str = Field(default="", max_length=2_000)

    @model_validator(mode="after")
    def _counts_one_thing(self) -> Self:
        if (self.count is None) is (self.sum is None):
            raise ValueError('write either count = true or sum = "/FIELD"')
        return self


@dataclass(frozen=True, slots=True)
class Meter:
    """One meter, checked against the tools it counts."""

    name: str
    field: str  # pointer into the args, or COUNT
    tools: frozenset[str]
    per: Literal["principal", "resource"]
    window: Window
    doc: str = ""
    currency: str | None = None  # if its field is money in one fixed currency

    @property
    def words(self) -> str:
        """A short description."""
        return f"{self.name} (per {self.per}, {self.window.words})"

    def incompatibility(self, manifest: ToolManifest) -> str | None:
        """Why it cannot count a tool with this manifest; None if it can."""
        try:
            if self.field != COUNT:
                _require_whole_number(manifest, self.field)
        except ValueError as error:
            return str(error)
        return None

    def amount(self, args: JSON) -> int:
        """What one call adds. A missing field adds nothing; so does one the manifest refuses anyway."""
        if self.field == COUNT:
            return 1
        try:
            value = resolve_pointer(args, self.field)
        except PointerError:
            return 0
        return value if type(value) is int and value >= 0 else 0


Meters = Mapping[str, Meter]


def parse_meters(table: Mapping[str, Any], manifests: Mapping[str, ToolManifest]) -> tuple[Meters, list[str]]:
    """The meters of a parsed meters.toml by name, and the problems of the file."""
    if strange := sorted(table.keys() - {"meters"}):
        return {}, [f"{strange[0]!r} is no member of this file; write [meters.NAME]"]
    tables = table.get("meters", {})
    if not isinstance(tables, dict):
        return {}, ["meters: write a table for each meter: [meters.NAME]"]
    if len(tables) > MAX_METERS:
        return {}, [f"there are {len(tables)} meters; a bundle has at most {MAX_METERS}"]
    meters: dict[str, Meter] = {}
    problems: list[str] = []
    for name, content in tables.items():
        try:
            meters[name] = _meter(name, content, manifests)
        except ValidationError as error:
            problems += [
                f"meter {name!r}: {_describe_error(item)}" for item in error.errors(include_url=False)
            ]
        except ValueError as error:
            problems.append(f"meter {name!r}: {error}")
    return meters, problems


def by_tool(meters: Iterable[Meter]) -> dict[str, tuple[Meter, ...]]:
    """The meters of each tool, in the order of the file; tools without meters are left out."""
    found: dict[str, tuple[Meter, ...]] = {}
    for meter in meters:
        for tool in meter.tools:
            found[tool] = (*found.get(tool, ()), meter)
    return found


def _describe_error(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    said = item["msg"].removeprefix("Value error, ")
    quoted = "" if item["type"] in {"missing", "value_error"} else f" (it is {item['input']!r})"
    return f"{place}: {said}{quoted}" if place else f"{said}{quoted}"


def _meter(name: str, content: Any, manifests: Mapping[str, ToolManifest]) -> Meter:
    _require_name(name)
    table = _MeterTable.model_validate(content)
    tools = _tools(table.of, manifests)
    field = COUNT if table.sum is None else table.sum
    if field != COUNT:
        for tool in sorted(tools):
            _require_whole_number(manifests[tool], field)
    window = parse_window(table.window, table.timezone)
    return Meter(name, field, tools, table.per, window, table.doc, _currency(field, tools, manifests))


def _require_name(name: str) -> None:
    if not _NAME.match(name):
        raise ValueError("its name is lower-case letters, digits and _, like refunded_today")
    if name in _CEDAR_KEYWORDS:
        raise ValueError("its name is a word of Cedar's own; call it something else")


def _tools(of: list[str], manifests: Mapping[str, ToolManifest]) -> frozenset[str]:
    found: set[str] = set()
    for name in of:
        in_group = {tool for tool, manifest in manifests.items() if name in manifest.groups}
        if not in_group and name not in manifests:
            known = sorted({*manifests, *(group for one in manifests.values() for group in one.groups)})
            raise ValueError(
                f"of: {name!r} is neither a tool of this bundle nor an action group with tools in it; known are "
                f"{', '.join(known) or 'none'}"
            )
        found |= in_group or {name}
    return frozenset(found)


def _require_whole_number(manifest: ToolManifest, field: str) -> None:
    node: Any = manifest.args
    where = f"sum: {field!r} of {manifest.tool!r}"
    for token in _tokens(field):
        properties = node.get("properties") if isinstance(node, dict) else None
        if not isinstance(properties, dict) or token not in properties:
            known = ", ".join(sorted(properties)) if isinstance(properties, dict) else "none"
            raise ValueError(f"{where} is not declared in its manifest; fields there are {known}")
        node = properties[token]
    if not isinstance(node, dict) or node.get("type") != "integer":
        raise ValueError(f'{where} is not a whole number: its manifest must say "type": "integer" of it')
    least = node.get("minimum", node.get("exclusiveMinimum"))
    if not isinstance(least, int) or least < 0:
        raise ValueError(
            f'{where} may be negative, and would give a budget back; let its manifest say "minimum": 0 or more'
        )


def _tokens(field: str) -> list[str]:
    try:
        return list(pointer_tokens(field))
    except PointerError as error:
        raise ValueError(f"sum: {field!r} is no pointer to a field: {error}") from error


def _currency(field: str, tools: Iterable[str], manifests: Mapping[str, ToolManifest]) -> str | None:
    """The single currency of the field in all manifests; else None, and the number is shown without one."""
    said = {
        next((money.currency for money in manifests[tool].money if money.amount == field), "")
        for tool in tools
    }
    currency = said.pop() if len(said) == 1 else ""
    return currency.removeprefix("const:") if currency.startswith("const:") else None
