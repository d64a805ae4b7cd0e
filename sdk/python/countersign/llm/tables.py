"""Reads the two TOML files of this room, prices and budgets: numbers as decimals, nothing that is not understood."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from countersign.errors import SettingsError

MAX_FILE_BYTES: Final = 1024 * 1024


def load_tables(path: Path, name: str, known: frozenset[str]) -> list[dict[str, Any]]:
    """The tables `[[name]]` of a file.

    Raises:
        SettingsError: it cannot be read, is no TOML, or has a member nobody knows.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise SettingsError(f"{str(path)!r} is larger than {MAX_FILE_BYTES} bytes")
        document = tomllib.loads(text.decode(), parse_float=Decimal)
    except OSError as error:
        raise SettingsError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{str(path)!r} is no TOML: {error}") from error
    rows = document.pop(name, [])
    if document or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SettingsError(f"{str(path)!r} may hold tables [[{name}]] and nothing else")
    for row in rows:
        unknown = sorted(row.keys() - known)
        if unknown:
            raise SettingsError(
                f"{str(path)!r}: [[{name}]] has no {unknown[0]!r}; it has {', '.join(sorted(known))}"
            )
    return rows


def require(row: Mapping[str, Any], key: str, kind: type, place: str) -> Any:
    """A member that must be there.

    Raises:
        SettingsError: it is missing or of another kind.
    """
    value = row.get(key)
    if type(value) is not kind:
        raise SettingsError(f"{place}: {key!r} must be {_KINDS[kind]}, not {value!r}")
    return value


_KINDS: Final[dict[type, str]] = {str: "text", list: "a list", dict: "a table"}


def exact(value: object, what: str, *, places: int, most: int) -> Decimal:
    """A number that is not negative, as a decimal. A float is refused: nobody knows which decimal it was meant to be.

    Raises:
        SettingsError: it is none, negative, too fine or too large.
    """
    if type(value) not in {int, str, Decimal}:
        raise SettingsError(f"{what} must be a whole number, text or Decimal like '12.50', not {value!r}")
    try:
        number = Decimal(value)  # type: ignore[arg-type]
    except InvalidOperation as error:
        raise SettingsError(f"{what}: {value!r} is no number") from error
    if not number.is_finite() or not 0 <= number <= most:
        raise SettingsError(f"{what}: {value!r} must be from 0 to {most}")
    if number != round(number, places):
        raise SettingsError(f"{what}: {value!r} has more than {places} decimal places")
    return number


def currency_code(value: object, what: str) -> str:
    """A currency as three capital letters.

    Raises:
        SettingsError: it is none.
    """
    if not (
        isinstance(value, str) and len(value) == 3 and value.isascii() and value.isalpha() and value.isupper()
    ):
        raise SettingsError(f"{what}: currency {value!r} is not a code of three capital letters like USD")
    return value


def is_name(value: object, most: int) -> bool:
    """Whether it is a text of 1 to so many characters."""
    return isinstance(value, str) and 0 < len(value) <= most
