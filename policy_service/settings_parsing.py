"""Parse settings: the configuration file, validators of URLs, and error texts that never quote a value."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from policy_service.errors import StartError

ENV_PREFIX = "COUNTERSIGN_"
CONFIG_NAME = "countersign.toml"
_POSTGRESQL = "postgresql+psycopg"


def is_loopback(host: str) -> bool:
    """Whether a host is loopback. Names are not resolved: only ``localhost`` counts."""
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def require_origin(value: str) -> str:
    """A ``public_url``, or an empty one.

    Raises:
        ValueError: it is not an origin.
    """
    if not value:
        return value
    parts = urlsplit(value)
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or parts.path
        or parts.query
        or parts.fragment
    ):
        raise ValueError(f"public_url {value!r} is not an origin; write https://host or https://host:port")
    if parts.username is not None or value != value.lower():
        raise ValueError(f"public_url {value!r} must be lower case and name no user")
    return value


def require_proxy(value: str | None) -> str | None:
    """Validate the address of a proxy. It may hold a password, so no message quotes it.

    Raises:
        ValueError: it is not the address of a proxy.
    """
    if not value:
        return None
    try:
        parts = urlsplit(value)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ValueError("it is not the address of a proxy; write it like http://proxy.example:3128")
    return value


def with_driver(value: str) -> str:
    """A database URL, with the driver added to ``postgresql://``.

    Raises:
        ValueError: it is of another database.
    """
    scheme, found, rest = value.partition("://")
    if scheme in {"postgresql", "postgres"}:
        return f"{_POSTGRESQL}://{rest}"
    if scheme not in {"sqlite", _POSTGRESQL}:
        quoted = repr(scheme) if found else "this"  # never the rest, which may hold a password
        raise ValueError(f"{quoted} is not a supported database; write sqlite:///FILE or postgresql://...")
    return value


def without_password(url: str) -> str:
    """A URL without its user and password, for people and logs."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def setting_error(error: Any) -> str:
    """Describe one validation error. The text names the setting, never its value, as the file writes it: ``[slack]:
    team_id``, or ``[[providers]] no. 2: issuer`` for the second table of a list."""
    table, name = _setting_location(error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        see = (
            "docs/reference/settings.md" if table else "`policy-service settings`"
        )  # it does not list members of tables
        return f"{table}{name!r} is not a setting of this service; see {see}"
    if error["type"] == "missing":
        return f"{table}{name} is missing; see docs/reference/settings.md"
    return f"{table}{name}: {message}" if name else f"{table}{message}"


def _setting_location(loc: tuple[str | int, ...]) -> tuple[str, str]:
    """The table of a setting, and its name in that table."""
    match loc:
        case (str(table), int(nth), *rest):
            return f"[[{table}]] no. {nth + 1}: ", ".".join(map(str, rest))
        case (str(table), *rest) if rest:
            return f"[{table}]: ", ".".join(map(str, rest))
    return "", ".".join(map(str, loc))


def config_file(data_dir: Path) -> Path | None:
    """The configuration file: the one the environment names, or the one in the data folder.

    Raises:
        StartError: the environment names a file that does not exist.
    """
    named = os.environ.get(f"{ENV_PREFIX}CONFIG")
    if named:
        if not Path(named).is_file():
            raise StartError(f"{ENV_PREFIX}CONFIG names {named!r}, which is not a file; name one that exists")
        return Path(named)
    default = data_dir.expanduser() / CONFIG_NAME
    return default if default.is_file() else None
