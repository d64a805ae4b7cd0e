"""The step a command is asked for, as `my_agent:close_ticket` or `./my_agent.py:close_ticket`.

It is a function that takes the transaction. Its module is imported as `--tools` imports one, so what the file would
begin on the way is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from countersign.errors import MisuseError
from countersign.tools.registry import load_tools
from countersign.transactions.rerun import require_step
from countersign.transactions.transaction import Transaction


def load_step(target: str) -> Callable[[Transaction], Any]:
    """Import the module or file, and answer its function.

    Raises:
        MisuseError: it names no function, the module cannot be imported, or has none of that name.
    """
    name, _, function = target.rpartition(":")
    if not name or not function.isidentifier():
        raise MisuseError(
            f"{target!r} names no step; write MODULE:FUNCTION or FILE.py:FUNCTION, like my_agent:close_ticket"
        )
    load_tools(name)
    module = sys.modules[Path(name).stem if name.endswith(".py") else name]
    found = getattr(module, function, None)
    if found is None:
        raise MisuseError(f"{name!r} has no {function!r}; name a function in it that takes the transaction")
    return require_step(found, f"what runs {target!r}", f"`def {function}(txn):` in {name}")


def run_step(call: Callable[[], Any]) -> Any:
    """Call what runs a step; an async one on an event loop. What it prints goes to stderr, for a document goes to
    stdout.
    """
    with contextlib.redirect_stdout(sys.stderr):
        answer = call()
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
