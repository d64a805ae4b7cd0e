"""Importing the module or file that defines an agent's tools, without running the agent.

Whoever drafts manifests, resumes or works needs the functions and nothing else of a script. So a file is imported like
any module, what it prints on the way goes to stderr, and a step it would begin on the way is refused: it belongs below
`if __name__ == "__main__":`, or every `countersign resume` would begin it anew.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from countersign.errors import CountersignError, MisuseError
from countersign.texts import storable
from countersign.tools.current import importing
from countersign.tools.registry import ToolRegistry, default_registry

GUARD: Final = 'put what it does below `if __name__ == "__main__":`'
_GATES_MCP: Final = "countersign.integrations.mcp_session"  # loaded by the import of gate_mcp
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def load_tools(*names: str, connected: bool = False) -> ToolRegistry:
    """Import the modules or files that define the tools, each as `python NAME` would find it. `connected`: a program
    that imports `gate_mcp` may have none yet, for those of an MCP server come with its session.

    Raises:
        MisuseError: there is no such module, it begins a step, ends or raises meanwhile (with the line of it), or none
            of them registers a tool.
    """
    for name in names:
        _load(name)
    if not list(default_registry) and not (connected and _GATES_MCP in sys.modules):
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


def files_beside(folder: Path) -> list[Path]:
    """The imported modules' files that lie in a folder or below it, and are not installed there."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({path for file in files if file and _is_beside(path := Path(file).resolve(), folder)})


def _is_beside(path: Path, folder: Path) -> bool:
    if not path.is_relative_to(folder) or path.is_relative_to(_OURS):
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
        raise MisuseError(f"{name!r} cannot be imported: {_where(error)}") from error
    finally:
        importing.reset(token)


def _where(error: Exception) -> str:
    """An import's error in one line, with the line of the program it came from, as its author would look for it."""
    said = storable("".join(traceback.format_exception_only(error)[-1:])).strip()
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {said}: {(error.text or '').strip()}"
    last = _last_frame(error.__traceback__)
    return f"{last[0]}:{last[1]}: {said}" if last is not None else said


def _last_frame(trace: TracebackType | None) -> tuple[str, int] | None:
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_machinery(frame.filename)]
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else None


def _is_machinery(filename: str) -> bool:
    """Whether a file is Python's, a library's or ours: the author looks for the line of their own that led there."""
    return filename.startswith(("<", _OURS, *_INSTALLED))


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module is there, something it imports is not
        raise MisuseError(f"no module {name!r} here; name a module or a file ending in .py") from error


def _import_file(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise MisuseError(f"no file {str(path)!r}; name a module or a file ending in .py")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
