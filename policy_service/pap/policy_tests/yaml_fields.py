"""Parse untrusted YAML into plain values with line numbers, and read a mapping key by key.

Size, depth and number of values are bounded before anything is built, against deep nesting and aliases of aliases. No
tag constructs an object. A key occurs once. Only `true`, `false`, `null` and numbers are not text, so `no`, `on`,
`12:30` and `2026-01-31` are text. Every key has a type, and a key that nothing reads is a problem.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

import yaml

from countersign.contract.admission import is_exact
from policy_service.domain.values import parse_duration
from policy_service.facts.config import parse_timestamp
from policy_service.pap.folder_reader import MAX_FILE_BYTES
from policy_service.pap.problems import Problem, did_you_mean

MAX_DEPTH: Final = 40
"""Nested lists and mappings; args of a tool may be 32 deep."""

MAX_VALUES: Final = 100_000
"""Values of one file; values repeated by aliases are counted each time."""

_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})\Z")
_FRACTION: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?\Z")
_HALF: Final = re.compile("[\ud800-\udfff]")
_WORDS: Final[dict[str, Any]] = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


class Table(dict[str, Any]):
    """A mapping with its own line and the line of each key."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def line_of(self, key: str) -> int:
        """The line of one key; the table's line for a missing key."""
        return self.lines.get(key, self.line)


class YamlError(ValueError):
    """The file is not in the supported subset of YAML; `problem` has the line too."""

    def __init__(self, file: str, line: int | None, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(file, line, message)


def read_yaml(file: str, raw: bytes) -> Any:
    """The one document of a file: Table, list, text, number, true, false or null.

    Raises:
        YamlError: it is not YAML, or exceeds a limit.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise YamlError(file, None, f"byte {error.start} is not UTF-8") from error
    if len(raw) > MAX_FILE_BYTES:
        raise YamlError(file, None, f"larger than {MAX_FILE_BYTES} bytes; split it")
    try:
        _require_shallow(file, text)
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(file, mark.line + 1 if mark else None, f"this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:  # a character that YAML forbids
        raise YamlError(file, None, f"this is not YAML: {str(error).splitlines()[0]}") from None
    return None if node is None else _Builder(file).value(node, 0)


def _require_shallow(file: str, text: str) -> None:
    """Check depth and number of values before composing, which recurses for each level."""
    depth = values = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        values += isinstance(event, yaml.ScalarEvent | yaml.AliasEvent | yaml.CollectionStartEvent)
        if values > MAX_VALUES:
            line = event.start_mark.line + 1 if event.start_mark else None
            raise YamlError(file, line, f"more than {MAX_VALUES} values; split it")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else None
            raise YamlError(file, line, f"nested more than {MAX_DEPTH} deep; write it flatter")


class _Builder:
    def __init__(self, file: str) -> None:
        self._file = file
        self._left = MAX_VALUES

    def value(self, node: yaml.Node, depth: int) -> Any:
        self._left -= 1
        # Bounds recursive aliases and exponential expansion.
        if depth > MAX_DEPTH or self._left < 0:
            raise self._error(
                node, f"more than {MAX_DEPTH} levels or {MAX_VALUES} values, aliases counted each time"
            )
        if node.tag not in _PLAIN_TAGS:
            raise self._error(node, f"the tag {node.tag!r} is not read here; write the plain value")
        if isinstance(node, yaml.MappingNode):
            return self._table(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        return self._scalar(node)

    def _table(self, node: yaml.MappingNode, depth: int) -> Table:
        table = Table(node.start_mark.line + 1)
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key is one word here, not a list or a mapping")
            name = str(self.value(key, depth) if key.style else key.value)
            if name == "<<" and key.style is None:
                raise self._error(key, "merge keys are not read here; use `defaults:` or a `matrix:`")
            if name in table:
                raise self._error(key, f"the key {name!r} occurs twice; keep one")
            table[name] = self.value(value, depth + 1)
            table.lines[name] = key.start_mark.line + 1
        return table

    def _error(self, node: yaml.Node, message: str) -> YamlError:
        return YamlError(self._file, node.start_mark.line + 1, message)

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        if _HALF.search(text):
            raise self._error(node, "half a character (a lone surrogate) is no text; write it whole")
        if isinstance(node, yaml.ScalarNode) and node.style is not None:
            return text  # quoted, or a block: always text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.match(text):
            return int(text)
        if not _FRACTION.match(text):
            return text
        value = float(text)
        # An infinite number fits no type; the type check refuses it.
        if math.isfinite(value) and not is_exact(text, value):
            raise self._error(
                node, f"the number {text} cannot be kept exactly; round it, or quote it as text"
            )
        return value


T = TypeVar("T")


class Fields:
    """Reads the keys of one table. A value of the wrong type is reported and replaced by the default."""

    def __init__(self, file: str, table: Table, what: str, problems: list[Problem]) -> None:
        self.table = table
        self._file = file
        self._what = what
        self._problems = problems
        self._known: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Report every key that nothing read: a misspelt expectation must not look like one that holds."""
        for key in () if kind else self.table:
            if key in self._known:
                continue
            hint = did_you_mean(key, self._known, f"known are {', '.join(sorted(self._known))}")
            self.refuse(key, f"{key!r} is not a key of {self._what}; {hint}")

    def know(self, *keys: str) -> None:
        """Accept keys that were read elsewhere."""
        self._known.update(keys)

    def refuse(self, key: str | None, message: str) -> None:
        """Record a problem at the key's line."""
        line = self.table.line if key is None else self.table.line_of(key)
        self._problems.append(Problem(self._file, line, message))

    def take(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """The key's value, parsed by `read`; the default if it is missing or invalid."""
        self._known.add(key)
        if key not in self.table:
            return default
        try:
            return read(self.table[key])
        except ValueError as error:
            self.refuse(key, f"{key}: {error}")
            return default

    def need(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """The same for a required key."""
        if key not in self.table:
            self.refuse(None, f"{self._what} needs `{key}:`")
        return self.take(key, read, default)


def text(value: Any) -> str:
    """A non-empty text."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a text")
    return value


def texts(value: Any) -> frozenset[str]:
    """A list of texts."""
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list; write it like [one, two]")
    return frozenset(text(item) for item in value)


def some_texts(value: Any) -> frozenset[str]:
    """A list of at least one text."""
    found = texts(value)
    if not found:
        raise ValueError("an empty list expects nothing; leave it out")
    return found


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is not true or false")
    return value


def one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            hint = did_you_mean(str(value), words, f"write {' or '.join(words)}")
            raise ValueError(f"{value!r} is none of these; {hint}")
        return str(value)

    return read


def number(least: int) -> Callable[[Any], int]:
    """A whole number, no less than `least`."""

    def read(value: Any) -> int:
        if type(value) is not int or value < least:
            raise ValueError(f"{value!r} is not a whole number from {least}")
        return value

    return read


def moment(value: Any) -> datetime:
    """A time with its zone."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a time with a zone; write it like 2026-01-31T12:00:00Z")
    return parse_timestamp(value)


def duration(value: Any) -> timedelta:
    """A length of time like 30m."""
    return parse_duration(text(value))


def table(value: Any) -> Table:
    if not isinstance(value, Table):
        raise ValueError(f"{value!r} is not a mapping; write it like {{ key: value }}")
    return value


def tables(value: Any) -> list[Table]:
    """A list of at least one mapping."""
    if not isinstance(value, list) or not value:
        raise ValueError("this is not a list of mappings; write one `- ...` for each")
    return [table(item) for item in value]
