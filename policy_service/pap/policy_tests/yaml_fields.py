"""YAML into plain values that know their lines, and one mapping of it read key by key; a stranger may have written it.

Rules kept here: size, depth and the number of values are bounded before anything is built, so that neither deep nesting
nor aliases of aliases can hurt; no tag makes an object; a key appears once. Only `true`, `false`, `null` and numbers
are not text, so `no`, `on`, `12:30` and `2026-01-31` are. Every key has a kind, and one that nothing reads is a
problem.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import yaml

from countersign.contract.admission import is_exact
from policy_service.domain.values import parse_duration
from policy_service.facts.config import parse_timestamp
from policy_service.pap.folder_reader import MAX_FILE_BYTES
from policy_service.pap.problems import Problem

MAX_DEPTH: Final = 40
"""Lists and mappings within each other; args of a tool may be 32 deep."""

MAX_VALUES: Final = 100_000
"""Values of one file, those that aliases repeat counted each time."""

_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})\Z")
_FRACTION: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?\Z")
_HALF: Final = re.compile("[\ud800-\udfff]")
_WORDS: Final[dict[str, Any]] = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


class Table(dict[str, Any]):
    """A mapping that knows on which line it begins, and each of its keys."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def line_of(self, key: str) -> int:
        """The line of one key; that of the table for a key it does not have."""
        return self.lines.get(key, self.line)


class YamlError(ValueError):
    """The file is not YAML as we read it; the text names the problem, `problem` its line too."""

    def __init__(self, file: str, line: int | None, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(file, line, message)


def read_yaml(file: str, raw: bytes) -> Any:
    """The one document of a file: Table, list, text, number, true, false or null.

    Raises:
        YamlError: it is not YAML, or larger, deeper or more than is read.
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
    except yaml.YAMLError as error:  # a character that no YAML may hold
        raise YamlError(file, None, f"this is not YAML: {str(error).splitlines()[0]}") from None
    return None if node is None else _Builder(file).value(node, 0)


def _require_shallow(file: str, text: str) -> None:
    """Count before composing: that step calls itself for each level, and takes as long as there are values."""
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
        # an alias of itself never ends, aliases of aliases hardly ever
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
                raise self._error(key, f"the key {name!r} stands twice; keep one")
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
            return text  # in quotes, or a block: whatever it looks like
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.match(text):
            return int(text)
        if not _FRACTION.match(text):
            return text
        value = float(text)
        # What is infinite fits no type, and is refused where that is looked at.
        if math.isfinite(value) and not is_exact(text, value):
            raise self._error(
                node, f"the number {text} cannot be kept exactly; round it, or quote it as text"
            )
        return value


T = TypeVar("T")


class Fields:
    """The keys of one table. A value of the wrong kind is told and read as the default."""

    def __init__(self, file: str, table: Table, what: str, problems: list[Problem]) -> None:
        self.table = table
        self._file = file
        self._what = what
        self._problems = problems
        self._known: set[str] = set()

    def refuse(self, key: str | None, message: str) -> None:
        """Put a problem on record, at the key's line."""
        line = self.table.line if key is None else self.table.line_of(key)
        self._problems.append(Problem(self._file, line, message))

    def take(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """The key's value as `read` makes it; the default where it is missing or wrong."""
        self._known.add(key)
        if key not in self.table:
            return default
        try:
            return read(self.table[key])
        except ValueError as error:
            self.refuse(key, f"{key}: {error}")
            return default

    def need(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """The same for a key that must be there."""
        if key not in self.table:
            self.refuse(None, f"{self._what} needs `{key}:`")
        return self.take(key, read, default)

    def finish(self) -> None:
        """Name every key that nothing reads: a misspelt one must not look like an expectation that holds."""
        for key in self.table:
            if key in self._known:
                continue
            close = get_close_matches(key, self._known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(self._known))}"
            self.refuse(key, f"{key!r} is nothing {self._what} has; {hint}")


def text(value: Any) -> str:
    """A text that is not empty."""
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
    """True or false."""
    if type(value) is not bool:
        raise ValueError(f"{value!r} is not true or false")
    return value


def one_of(*words: str) -> Callable[[Any], str]:
    """One of these words."""

    def read(value: Any) -> str:
        if value not in words:
            close = get_close_matches(str(value), words, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"write {' or '.join(words)}"
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
    """A mapping."""
    if not isinstance(value, Table):
        raise ValueError(f"{value!r} is not a mapping; write it like {{ key: value }}")
    return value


def tables(value: Any) -> list[Table]:
    """A list of at least one mapping."""
    if not isinstance(value, list) or not value:
        raise ValueError("this is not a list of mappings; write one `- ...` for each")
    return [table(item) for item in value]
