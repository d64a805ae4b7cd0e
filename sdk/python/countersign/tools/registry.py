"""Tools and probes by name, and importing the module that defines them without running its agent.

A name refers to one function. Otherwise one function would be decided under the rules of another, and a probe must not
be the tool. A file is imported like any module; what it prints goes to stderr. A step that it would begin is refused:
it belongs below `if __name__ == "__main__":`, or every `countersign resume` would start it again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from countersign.errors import CountersignError, MisuseError, RegistrationError
from countersign.texts import storable
from countersign.tools.context import importing
from countersign.tools.definition import Probe, Tool

if TYPE_CHECKING:
    from countersign.tools.registered_steps import RegisteredStep


class ToolRegistry:
    """Tools and steps by name. A name is used once; a second tool with the same name is refused."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool | Probe] = {}  # and probes, which share the namespace
        self._steps: dict[str, RegisteredStep] = {}
        self._lock = threading.Lock()

    def add(self, *new: Tool | Probe) -> None:
        """Register tools and probes that belong together: all of them, or none.

        Raises:
            RegistrationError: a name is used by another function.
        """
        with self._lock:
            for one in new:
                old = self._tools.get(one.name)
                if old is not None and not (type(old) is type(one) and _is_same_code(old.fn, one.fn)):
                    raise RegistrationError(
                        f"{_kind(one)} {one.name!r} is already {_where(old.fn)}; {_where(one.fn)} needs another name"
                    )
            self._tools.update((one.name, one) for one in new)

    def add_step(self, new: RegisteredStep) -> None:
        """Register a step.

        Raises:
            RegistrationError: the name is used by another function.
        """
        with self._lock:
            old = self._steps.get(new.name)
            if old is not None and not _is_same_code(old.fn, new.fn):
                raise RegistrationError(
                    f"step {new.name!r} is already {_where(old.fn)}; {_where(new.fn)} needs another name"
                )
            self._steps[new.name] = new

    def find_step(self, name: str) -> RegisteredStep | None:
        """The step of that name, if there is one."""
        return self._steps.get(name)

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        found = self._tools.get(name)
        return found if isinstance(found, Tool) else None

    def probe(self, name: str) -> Probe | None:
        """The probe of that name, if there is one."""
        found = self._tools.get(name)
        return found if isinstance(found, Probe) else None

    def require(self, name: str, why: str) -> Tool:
        """The tool of that name.

        Raises:
            RegistrationError: there is none; `why` says what needs it.
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
        """The staged tool of that name. A live tool's function can only be undone by its adapter, so it is refused.

        Raises:
            RegistrationError: there is none, or it is live; `why` says what needs it.
        """
        found = self.require(name, why)
        if found.lane != "staged":
            raise RegistrationError(
                f"tool {name!r} is live here, but {why}, which calls a staged one; declare it staged, and a live one "
                "under another name"
            )
        return found

    def unmet(self, one: Tool) -> tuple[str, ...]:
        """What the tool's code relies on and does not define: without it the effect cannot be compensated or probed."""
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
        lacking += [
            f"its compensation takes {name!r} from the result as an object of free keys, which policy cannot weigh, so "
            "that people are asked before each rollback; annotate it with a TypedDict or a dataclass of its fields, or "
            "take the fields themselves: compensation_map={'id': 'result:/id'}"
            for name in self._free_objects(one)
        ]
        return tuple(lacking)

    def _free_objects(self, one: Tool) -> Iterator[str]:
        """Arguments of its compensation that come from parts of the result with free keys."""
        back = None if one.draft.compensate is None else self.get(one.draft.compensate)
        if back is None:
            return
        properties = back.signature.schema.get("properties")
        for name, source in one.draft.compensation_map.items():
            part = properties.get(name) if isinstance(properties, dict) else None
            if not source.startswith("result:") or not isinstance(part, dict):
                continue
            if part.get("type") == "object" and "properties" not in part:
                yield name

    def __iter__(self) -> Iterator[Tool]:
        tools = [one for one in self._tools.values() if isinstance(one, Tool)]
        return iter(sorted(tools, key=lambda one: one.name))


default_registry: Final = ToolRegistry()
"""Where `@tool` registers by default."""


def _kind(one: Tool | Probe) -> str:
    return "tool" if isinstance(one, Tool) else "probe"


def _is_same_code(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether both are the same function, imported twice (as __main__ and by name, or reloaded)."""
    mine, theirs = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if mine is None or theirs is None:
        return one is other
    return bool(mine.co_filename == theirs.co_filename and mine.co_qualname == theirs.co_qualname)


def _where(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"


GUARD: Final = 'put what it does below `if __name__ == "__main__":`'
_MCP_MODULE: Final = "countersign.integrations.mcp_session"  # loaded by the import of gate_mcp
_SDK_FOLDER: Final = f"{Path(__file__).parents[1]}{os.sep}"
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def load_tools(*names: str, connected: bool = False) -> ToolRegistry:
    """Import the modules or files that define the tools, each as `python NAME` would find it. `connected`: a program
    that imports `gate_mcp` may define no tools yet, because those of an MCP server come with its session.

    Raises:
        MisuseError: there is no such module; it begins a step, exits or raises during the import (with the line); or
            none of them registers a tool.
    """
    for name in names:
        _load(name)
    if not list(default_registry) and not (connected and _MCP_MODULE in sys.modules):
        raise MisuseError(
            f"{' and '.join(map(repr, names))} defines no tools; write @tool(NAME, resource=(TYPE, ARGUMENT)) above "
            "each function that changes something; tools of an MCP server are exported from its listing (--mcp FILE)"
        )
    return default_registry


def _load(name: str) -> None:
    path = Path(name)
    with _importing(name):
        if path.suffix == ".py":
            _import_file(path.resolve())
        else:
            sys.path.insert(0, str(Path.cwd()))
            _import_module(name)


def modules_in_folder(folder: Path) -> list[Path]:
    """The files of imported modules in a folder or below it, except installed packages."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({path for file in files if file and _is_in_folder(path := Path(file).resolve(), folder)})


def _is_in_folder(path: Path, folder: Path) -> bool:
    if not path.is_relative_to(folder) or path.is_relative_to(_SDK_FOLDER):
        return False
    inside = path.relative_to(folder).parts
    return not any(part.startswith(".") or part in {"site-packages", "node_modules"} for part in inside)


@contextmanager
def _importing(name: str) -> Iterator[None]:
    token = importing.set(name)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except SystemExit as ending:
        raise MisuseError(
            f"{name!r} ended (exit status {ending.code}) while it was imported for its tools; {GUARD}"
        ) from ending
    except CountersignError:
        raise
    except Exception as error:
        raise MisuseError(f"{name!r} cannot be imported: {_error_location(error)}") from error
    finally:
        importing.reset(token)


def _error_location(error: Exception) -> str:
    """An import's error in one line, with the line of the author's program that led to it."""
    message = storable("".join(traceback.format_exception_only(error)[-1:])).strip()
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {message}: {(error.text or '').strip()}"
    last = _last_frame(error.__traceback__)
    return f"{last[0]}:{last[1]}: {message}" if last is not None else message


def _last_frame(trace: TracebackType | None) -> tuple[str, int] | None:
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_machinery(frame.filename)]
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else None


def _is_machinery(filename: str) -> bool:
    """Whether a file belongs to Python, a library or the SDK; the author needs the last line of their own code."""
    return filename.startswith(("<", _SDK_FOLDER, *_INSTALLED))


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module exists, something it imports does not
        raise MisuseError(f"no module {name!r} here; name a module or a file ending in .py") from error


def _import_file(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise MisuseError(f"no file {str(path)!r}; name a module or a file ending in .py")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
