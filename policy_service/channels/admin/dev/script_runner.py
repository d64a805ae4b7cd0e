"""Run a script as `python SCRIPT` does, but print an uncaught `ReviewPending` without a traceback.

Started by path (`python script_runner.py SCRIPT ...`) in the script's own interpreter, without importing the service. A
pending review is not an error of the script. The exit status, other errors and the script's own `excepthook` are
unchanged.
"""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType


def main() -> None:
    """Run the script whose path is the first argument as `__main__`."""
    del sys.argv[0]
    script = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)
    sys.excepthook = _excepthook
    module = ModuleType("__main__")
    # The dunder names of this module are those of any script, except the ones that name the file.
    given = {name: value for name, value in globals().items() if name.startswith("__")}
    module.__dict__.update(
        given, __doc__=None, __file__=script, __loader__=SourceFileLoader("__main__", script)
    )
    sys.modules["__main__"] = module
    code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the developer's own script


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if _is_review_pending(error):
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        return
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _is_review_pending(error: BaseException) -> bool:
    """Whether it is a `ReviewPending` without another exception behind it."""
    pending = getattr(sys.modules.get("countersign"), "ReviewPending", None)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return pending is not None and isinstance(error, pending) and cause is None


if __name__ == "__main__":
    main()
