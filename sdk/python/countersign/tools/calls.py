"""Which call is which: within one transaction equal calls are one, unless repeating is meant.

The name of a call (its call key) counts intended repeats with `n`, so the second of two equal refunds is another
call in every rerun, and the first is the same one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from countersign.contract import names
from countersign.contract.admission import load
from countersign.tools.placeholder import Placeholder
from countersign.tools.tool import Tool


class CallNames:
    """The calls of one transaction so far."""

    def __init__(self, agent: str, run_key: str) -> None:
        self._agent = agent
        self._run_key = run_key
        self._first: dict[tuple[str, bytes], Placeholder[Any]] = {}
        self._times: Counter[tuple[str, bytes]] = Counter()
        self._free: dict[tuple[str, bytes], set[int]] = {}  # of live calls that were refused

    def known(self, tool: Tool, raw: bytes, *, repeating: bool) -> Placeholder[Any] | None:
        """The placeholder of an equal call, where this one is not meant as a repeat."""
        return None if tool.repeat or repeating else self._first.get((tool.name, raw))

    def next(self, tool: Tool, raw: bytes) -> tuple[int, str]:
        """`n` and the call key of the next call with these bytes."""
        free = self._free.get((tool.name, raw))
        n = min(free) if free else self._times[(tool.name, raw)]
        key = names.call_key(agent=self._agent, run_key=self._run_key, tool=tool.name, args=load(raw), n=n)
        return n, key

    def staged(self, tool: Tool, raw: bytes, placeholder: Placeholder[Any]) -> None:
        """Remember a call that was staged."""
        self._first.setdefault((tool.name, raw), placeholder)
        self.ran(tool, raw)

    def refused(self, tool: Tool, raw: bytes, n: int) -> None:
        """A live call did not run, so its name is free for the next that does."""
        self._free.setdefault((tool.name, raw), set()).add(n)

    def copy(self) -> CallNames:
        """The calls so far, to go back to when what follows is taken back."""
        other = CallNames(self._agent, self._run_key)
        other._first, other._times = dict(self._first), self._times.copy()
        other._free = {call: set(free) for call, free in self._free.items()}
        return other

    def ran(self, tool: Tool, raw: bytes) -> None:
        """Count a call."""
        free = self._free.get((tool.name, raw))
        if free:
            free.remove(min(free))
            return
        self._times[(tool.name, raw)] += 1
