"""Addresses of other people's HTTP services, for `RestApi`: no value makes another path, and no refusal quotes what an
address may hold, as a password or the token of a hook.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from countersign.errors import MisuseError, SettingsError
from countersign.settings import is_loopback

_NAME: Final = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


def filled(path: str, values: Mapping[str, str | int]) -> str:
    """The path with each `{name}` replaced by its value, quoted.

    Raises:
        MisuseError: path and values do not fit, or a value would make it another path.
    """
    named = _NAME.findall(path)
    if not path.startswith("/") or path.startswith("//") or set(named) != set(values):
        raise MisuseError(
            f"the path {path!r} names {sorted(set(named))} and was given {sorted(values)}; it begins with / and each "
            "{name} in it has one value"
        )
    return _NAME.sub(lambda found: _segment(found[1], values[found[1]]), path)


def _segment(name: str, value: str | int) -> str:
    written = str(value)
    if written in {"", ".", ".."}:
        raise MisuseError(f"{name}={written!r} cannot be a part of a path: it would be another path")
    return quote(written, safe="")


def sound(url: str) -> str:
    """The address of a service, as it was given, but for a slash at its end.

    Raises:
        SettingsError: it is none, or plain http to another machine.
    """
    parts = _parts(url)
    host = "" if parts is None else parts.hostname or ""
    if (
        parts is None
        or parts.scheme not in {"http", "https"}
        or not host
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        named = f"{parts.scheme}://{host}" if parts is not None and host else "what was given"
        raise SettingsError(
            f"{named} is not the address of a service; write it like https://bank.example/v1, and credentials as "
            "headers"
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise SettingsError(
            f"http://{host} is plain http to another machine, where anybody on the way could read and change what is "
            "sent"
        )
    return url.rstrip("/")


def _parts(url: str) -> SplitResult | None:
    """None of what cannot be read: the reason would quote it."""
    try:
        return urlsplit(url)
    except ValueError:
        return None
