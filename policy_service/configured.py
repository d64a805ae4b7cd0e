"""Where settings are read from, and how a wrong one is told."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any

from policy_service.errors import StartError

ENV_PREFIX = "COUNTERSIGN_"
CONFIG_NAME = "countersign.toml"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and nothing else. Names are not resolved: only ``localhost`` counts."""
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def fault(error: Any) -> str:
    """One fault, in words that name the setting and never its value."""
    name = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{name!r} is no setting of this service; see `policy-service settings`"
    return f"{name}: {message}" if name else message


def config_file(data_dir: Path) -> Path | None:
    """The file that holds settings: the one the environment names, or the one in the data folder.

    Raises:
        StartError: the environment names none that is there.
    """
    named = os.environ.get(f"{ENV_PREFIX}CONFIG")
    if named:
        if not Path(named).is_file():
            raise StartError(f"{ENV_PREFIX}CONFIG names {named!r}, which is no file")
        return Path(named)
    beside = data_dir.expanduser() / CONFIG_NAME
    return beside if beside.is_file() else None
