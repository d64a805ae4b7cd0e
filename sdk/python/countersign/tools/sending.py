"""The requests with which one call of a tool changes something: which is which, and whether any may have been done.

Rules: a request has its place in the order in which the tool first sends each, so that it has the same one, and with it
the same idempotency key, in every try that sends them in the same order; an equal one is that one again, as calls are
(calls.py), so a tool that tries again by itself does nothing twice; two that differ are never under way at once, for in
the next try they might come in the other order. What was begun and not refused may have been done, and then no later
refusal says that nothing happened.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from countersign.errors import MisuseError, NotDone


class Requests:
    """Those of one try. Any number of threads of the tool may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[Hashable, int] = {}
        self._under_way: list[tuple[Hashable, str]] = []
        self._acted = False

    @property
    def may_have_acted(self) -> bool:
        """Whether one of them was not refused, or has no answer yet."""
        with self._lock:
            return self._acted or bool(self._under_way)

    @contextmanager
    def sending(self, request: Hashable, what: str) -> Iterator[int]:
        """While it is made, sent and judged: its place. `NotDone` says that it was refused or not sent; whatever else
        ends it, it may have been done.

        Raises:
            MisuseError: another one is under way.
        """
        place = self._begin(request, what)
        acted = True
        try:
            yield place
        except NotDone:
            acted = False
            raise
        finally:
            with self._lock:
                self._under_way.remove((request, what))
                self._acted = self._acted or acted

    def _begin(self, request: Hashable, what: str) -> int:
        with self._lock:
            for other, told in self._under_way:
                if other != request:
                    raise MisuseError(
                        f"{what} was not sent: {told} of the same call is under way, and they must come in the same "
                        "order in every try; send them one after the other, or make each a tool of its own"
                    )
            self._under_way.append((request, what))
            return self._places.setdefault(request, len(self._places) + 1)
