"""A user's script in a process of its own, forked from this one: it need not import anything again."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from countersign import runtime
from countersign.tools.registry import default_registry


def run_script(
    folder: Path, words: tuple[str, ...], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` does in this folder, where WORDS are a file or `-m MODULE`, and its arguments."""
    said, complained = folder / "stdout", folder / "stderr"
    pid = os.fork()
    if pid == 0:
        with said.open("w") as out, complained.open("w") as err:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
        os._exit(_run(folder, words, environment))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return subprocess.CompletedProcess(words, code, said.read_text(), complained.read_text())


def _run(folder: Path, words: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """The child: as it ends, nothing of the tests is run."""
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        runtime._default = None
        default_registry._tools.clear()
        if words[0] == "-m":
            sys.argv = list(words[1:])
            sys.modules.pop(f"{words[1]}.__main__", None)
            importlib.import_module(f"{words[1]}.__main__")
        else:
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return _code(end)
    except BaseException:  # noqa: BLE001 - as the interpreter tells it
        traceback.print_exc()
        return 1
    else:
        return 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
