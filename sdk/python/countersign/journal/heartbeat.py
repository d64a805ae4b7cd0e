"""The heartbeat: a lease is renewed for as long as somebody in this process holds it, whatever its body does meanwhile.

Rules: one thread for a journal, begun with the first lease and ended when there is none; it keeps no process alive and
does not outlive one, so the lease of a process that was killed runs its time. A lease is only known here while somebody
else still has it: one that was dropped cannot be written with, and is renewed no more. A lease that was taken over is
left alone, and its owner hears of it at its next write. While the database does not answer, the next beat tries again.

Owners on the same machine see each other live (leases.py); this is for those that cannot: on other hosts, and in other
containers, whose numbers of processes are their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from countersign.errors import JournalError, LeaseLost
from countersign.journal.forking import mind_forks

if TYPE_CHECKING:
    from countersign.journal.leases import Lease

log: Final = logging.getLogger("countersign")

_STOP_SECONDS: Final = 10.0  # a beat that is under way waits for the journal's lock at most half of that


class Heartbeat:
    """Renews leases, every so many seconds."""

    fork_order = 1  # it is told inside units

    def __init__(self, renew: Callable[[Lease], None], every_seconds: float) -> None:
        self._renew = renew
        self._every = every_seconds
        self._lock = threading.RLock()
        self._told = threading.Condition(self._lock)
        self._held: WeakSet[Lease] = WeakSet()
        self._thread: threading.Thread | None = None
        mind_forks(self)

    def begin(self, lease: Lease) -> None:
        """Renew this one, too."""
        with self._lock:
            self._held.add(lease)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="countersign heartbeat", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                log.warning("leases of the journal are renewed by writing only: %s", error)
                return
            self._thread = thread

    def end(self, lease: Lease) -> None:
        """It is given up."""
        with self._lock:
            self._held.discard(lease)

    def stop(self) -> None:
        """Renew nothing more, and wait for a beat that is under way."""
        with self._lock:
            self._held.clear()
            thread = self._thread
            self._told.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            while self._wait():
                self._beat()
        except BaseException:
            with self._lock:
                self._thread = None  # the next lease begins another
            raise

    def _wait(self) -> bool:
        """Until the next beat; false where there is nothing left to renew."""
        with self._lock:
            if self._held:
                self._told.wait(self._every)
            if not self._held:
                self._thread = None
            return bool(self._held)

    def _beat(self) -> None:
        with self._lock:
            held = list(self._held)
        for lease in held:
            try:
                self._renew(lease)
            except LeaseLost as lost:
                log.warning("%s", lost)
                self.end(lease)
            except JournalError as error:
                log.warning("the lease of transaction %s could not be renewed: %s", lease.txn[:12], error)

    # -------------------------------------------------------------------------------------------- at a fork

    def hold(self) -> None:
        """Nothing begins or ends while this process forks."""
        self._lock.acquire()

    def let_go(self) -> None:
        """This is the parent."""
        self._lock.release()

    def begin_anew(self) -> None:
        """This is the child: leases are its parent's, and so is the thread."""
        self._lock = threading.RLock()
        self._told = threading.Condition(self._lock)
        self._held = WeakSet()
        self._thread = None
