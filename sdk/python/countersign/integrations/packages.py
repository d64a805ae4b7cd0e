"""Vendors' packages are extras: loaded when a loop is used, and where one is missing, named with what to install."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from countersign.integrations.errors import PackageMissing


def require_package(name: str, extra: str | None = None) -> ModuleType:
    """The package of this name, which is also the name of our extra unless another one brings it.

    Raises:
        PackageMissing: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise PackageMissing(
            f"the package {name!r} is not installed here; install it, as the extra of the SDK: "
            f"countersign-sdk[{extra or name}]"
        ) from error
