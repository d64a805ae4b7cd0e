"""Tools by name, and the probes they name. A name means one function: another one would be asked for under the first
one's rules, and what is asked whether a call has happened must not be what makes it happen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import TypeIs

from countersign.errors import RegistrationError

if TYPE_CHECKING:
    from countersign.tools.probes import Probe
    from countersign.tools.tool import Tool


class ToolRegistry:
    """Tools by name. A name is given once; a second tool of that name is refused."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool | Probe] = {}  # and probes: a name is one function
        self._lock = threading.Lock()

    def add(self, *new: Tool | Probe) -> None:
        """Register tools and probes that belong together: all of them, or none.

        Raises:
            RegistrationError: a name is taken by another function.
        """
        with self._lock:
            for one in new:
                old = self._tools.get(one.name)
                if old is not None and not (type(old) is type(one) and _is_same_code(old.fn, one.fn)):
                    raise RegistrationError(
                        f"{_kind(one)} {one.name!r} is already {_where(old.fn)}; {_where(one.fn)} needs another name"
                    )
            self._tools.update((one.name, one) for one in new)

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        found = self._tools.get(name)
        return found if found is None or _is_tool(found) else None

    def probe(self, name: str) -> Probe | None:
        """The probe of that name, if there is one."""
        found = self._tools.get(name)
        return None if found is None or _is_tool(found) else found

    def require(self, name: str, why: str) -> Tool:
        """The tool of that name.

        Raises:
            RegistrationError: there is none; `why` says who asked for it.
        """
        found = self.get(name)
        if found is None:
            raise RegistrationError(
                f"no tool {name!r} is registered, but {why}; import the module that defines it, or name it in one "
                "more --tools MODULE. A tool of an MCP server is there once gate_mcp has its session: call "
                "resume_async(runtime) in that program"
            )
        return found

    def require_staged(self, name: str, why: str) -> Tool:
        """The staged tool of that name: one that is live now has a function that only its adapter can take back, and is
        called by nobody else.

        Raises:
            RegistrationError: there is none, or it is live; `why` says who asked for it.
        """
        found = self.require(name, why)
        if found.lane != "staged":
            raise RegistrationError(
                f"tool {name!r} is live here, but {why}, which calls a staged one; declare it staged, and a live one "
                "under another name"
            )
        return found

    def unmet(self, one: Tool) -> tuple[str, ...]:
        """What the tool's code counts on and does not say, or names and no code here defines: without it nothing takes
        the effect back, or tells whether it happened.
        """
        back, probe = one.draft.compensate, one.draft.probe
        lacking = []
        if back is not None and self.get(back) is None:
            lacking.append(f"its compensation {back!r} is defined nowhere here; add @tool({back!r})")
        if probe is not None and self.probe(probe) is None:
            lacking.append(f"its probe {probe!r} is defined nowhere here; add @probe({probe!r})")
        if one.tries is not None and one.tries > 1 and not one.draft.idempotent:
            lacking.append(
                f"it says tries={one.tries}, which only an idempotent tool may; add idempotent=True"
            )
        return tuple(lacking)

    def __iter__(self) -> Iterator[Tool]:
        return iter(sorted(filter(_is_tool, self._tools.values()), key=lambda one: one.name))


default_registry: Final = ToolRegistry()
"""Where `@tool` registers unless told otherwise."""


def _is_tool(one: Tool | Probe) -> TypeIs[Tool]:
    return hasattr(one, "lane")


def _kind(one: Tool | Probe) -> str:
    return "tool" if _is_tool(one) else "probe"


def _is_same_code(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same function imported twice (as __main__ and by name, or reloaded) is no second tool."""
    mine, theirs = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if mine is None or theirs is None:
        return one is other
    return bool(mine.co_filename == theirs.co_filename and mine.co_qualname == theirs.co_qualname)


def _where(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"
