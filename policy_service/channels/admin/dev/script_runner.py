"""Runs one script as `python SCRIPT` would, but an uncaught question to people is told without a traceback.

Run by path (`python runner.py SCRIPT ...`) in an interpreter of its own, which is the script's: nothing of the service
is imported. That people are asked is no fault of the script, and the first thing its author sees. Everything else is as
it is anywhere: the exit status, other errors, and a script with an `excepthook` of its own keeps that.
"""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType


def main() -> None:
    """Be the script whose path stands first among the arguments."""
    del sys.argv[0]
    script = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)
    sys.excepthook = _excepthook
    module = ModuleType("__main__")
    # What this module was given is what Python gives a script: only what names it is another's.
    given = {name: value for name, value in globals().items() if name.startswith("__")}
    module.__dict__.update(
        given, __doc__=None, __file__=script, __loader__=SourceFileLoader("__main__", script)
    )
    sys.modules["__main__"] = module
    code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - it is what whoever sits here has asked to be run


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if _is_review_pending(error):
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        return
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _is_review_pending(error: BaseException) -> bool:
    """Whether it is a `ReviewPending`, and nothing else is hidden with its traceback."""
    asked = getattr(sys.modules.get("countersign"), "ReviewPending", None)
    beside = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return asked is not None and isinstance(error, asked) and beside is None


if __name__ == "__main__":
    main()
