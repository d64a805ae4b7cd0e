"""The requests with which one call of a tool changes something: which is which, and whether any may have been done.

Rules: a request has its place in the order in which the tool first sent each, in whichever try, and with it its
idempotency key: it keeps both in every later try, also where that leaves out what came before it; an equal one is that
one again, as calls are (calls.py), so a tool that tries again by itself does nothing twice. A later try sends what none
before it sent only once it has sent all that they did: else it may be one of those with another body, which would be
done twice, or come under the key of another, whose answer would be told of it. Two that differ are never under way at
once, for the next try might send them in the other order. What was begun and not refused may have been done, and then
no later refusal says that nothing happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from countersign.errors import MisuseError, NotDone


class Places:
    """Where the requests of all tries of a call stand, by their digests. `sent` are those of earlier tries, asked for
    once there is one; `keep` writes all of them down before a new one is sent.
    """

    def __init__(
        self,
        sent: Callable[[], Sequence[str]] = tuple,
        keep: Callable[[Sequence[str]], None] = lambda known: None,
    ) -> None:
        self._lock = threading.Lock()
        self._sent, self._keep = sent, keep
        self._known: list[str] | None = None

    def of(self, request: str, what: str, sent: Collection[str]) -> int:
        """Its place, counted from 1. `sent` are those of this try.

        Raises:
            NotDone: it is new, and others of earlier tries have not been sent again.
        """
        with self._lock:
            known = self._known = [*self._sent()] if self._known is None else self._known
            if request not in known:
                if not set(known) <= set(sent):
                    raise NotDone(
                        f"{what} was not sent: no earlier try of this call has sent it (with this body, to this "
                        "address), and not all that was sent then came again; send the same in every try"
                    )
                self._keep([*known, request])
                known.append(request)
            return known.index(request) + 1


class Requests:
    """Those of one try. Any number of threads of the tool may use it."""

    def __init__(self, places: Places | None = None) -> None:
        self._lock = threading.Lock()
        self._places = places or Places()
        self._sent: set[str] = set()
        self._under_way: list[tuple[str, str]] = []
        self._acted = False

    @property
    def may_have_acted(self) -> bool:
        """Whether one of them was not refused, or has no answer yet."""
        with self._lock:
            return self._acted or bool(self._under_way)

    @contextmanager
    def sending(self, request: str, what: str) -> Iterator[int]:
        """While it is made, sent and judged: its place. `NotDone` says that it was refused or not sent; whatever else
        ends it, it may have been done.

        Raises:
            MisuseError: another one is under way.
            NotDone: no earlier try sent it, and this one leaves out what they did.
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

    def _begin(self, request: str, what: str) -> int:
        with self._lock:
            for other, told in self._under_way:
                if other != request:
                    raise MisuseError(
                        f"{what} was not sent: {told} of the same call is under way, and they must come in the same "
                        "order in every try; send them one after the other, or make each a tool of its own"
                    )
            place = self._places.of(request, what, self._sent)
            self._sent.add(request)
            self._under_way.append((request, what))
            return place
