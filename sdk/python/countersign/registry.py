"""Tools by name. A name means one function: another one would be asked for under the first one's rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from countersign.errors import RegistrationError

if TYPE_CHECKING:
    from countersign.tool import Tool


class ToolRegistry:
    """Tools by name. A name is given once; a second tool of that name is refused."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._lock = threading.Lock()

    def add(self, new: Tool) -> None:
        """Register a tool.

        Raises:
            RegistrationError: the name is taken by another function.
        """
        with self._lock:
            old = self._tools.get(new.name)
            if old is not None and not _is_same_code(old.fn, new.fn):
                raise RegistrationError(
                    f"tool {new.name!r} is already {_where(old.fn)}; {_where(new.fn)} needs another name"
                )
            self._tools[new.name] = new

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        return self._tools.get(name)

    def require(self, name: str, why: str) -> Tool:
        """The tool of that name.

        Raises:
            RegistrationError: there is none; `why` says who asked for it.
        """
        found = self._tools.get(name)
        if found is None:
            raise RegistrationError(
                f"no tool {name!r} is registered, but {why}; import the module that defines it"
            )
        return found

    def __iter__(self) -> Iterator[Tool]:
        return iter(sorted(self._tools.values(), key=lambda one: one.name))


default_registry: Final = ToolRegistry()
"""Where `@tool` registers unless told otherwise."""


def _is_same_code(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same function imported twice (as __main__ and by name, or reloaded) is no second tool."""
    mine, theirs = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if mine is None or theirs is None:
        return one is other
    return bool(mine.co_filename == theirs.co_filename and mine.co_qualname == theirs.co_qualname)


def _where(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"
