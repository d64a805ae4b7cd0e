"""Who owns a live transaction: a lease with a generation.

Every write of the owner names its generation, and the journal refuses one that is no longer current; whoever takes a
lease over raises the generation first, so the former owner cannot mark anything FIRING any more, however late it wakes
up. A lease is renewed by every write and by a heartbeat, and a fire extends it past `fire_by` and the
tool's timeout. The time of a lease decides only about owners we cannot see: one that lives on this machine is left
alone, one that is gone is succeeded at once. Hosts that share a journal need clocks that agree within a third of it.
One that could not be given up, for the journal was away, is given up by the heartbeat as soon as that answers again.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal
from weakref import WeakSet, WeakValueDictionary

from countersign.clock import Clock
from countersign.errors import JournalError, LeaseLost
from countersign.journal.chain import Change, record_changes
from countersign.journal.database import Database, Unit, register_fork_aware

log: Final = logging.getLogger("countersign")

_STOP_SECONDS: Final = 10.0  # a beat that is under way waits for the journal's lock at most half of that
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD: Final = (
    19  # of /proc/PID/stat, counted after the command's closing bracket: start time in ticks
)
_BEAT: Final = 1 / 3  # of a lease's time, so that two beats may fail
_GONE: Final = frozenset({"Z", "X"})  # killed, its parent has not looked yet


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Lease:
    """Proof that this process owned a transaction when it took it."""

    txn: str
    holder: str
    generation: int


_OWN_HOLDERS: Final[WeakValueDictionary[str, Lease]] = WeakValueDictionary()
"""The leases that somebody in this process has."""


class Heartbeat:
    """Renews a lease for as long as somebody in this process holds it: for owners that other hosts and containers
    cannot see live.

    One thread for a journal, begun with the first lease and ended when there is none; it keeps no process alive and
    does not outlive one, so the lease of a process that was killed runs its time. A lease is only known here while
    somebody else still has it: one that was dropped cannot be written with, and is renewed no more. A lease that was
    taken over is left alone, and its owner hears of it at its next write. While the database does not answer, the next
    beat tries again.
    """

    fork_order = 1  # it is told inside units

    def __init__(self, renew: Callable[[Lease], None], every_seconds: float) -> None:
        self._renew = renew
        self._every = every_seconds
        self._lock = threading.RLock()
        self._told = threading.Condition(self._lock)
        self._held: WeakSet[Lease] = WeakSet()
        self._thread: threading.Thread | None = None
        register_fork_aware(self)

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


class Leases:
    """Taking, renewing and giving up leases."""

    def __init__(self, database: Database, clock: Clock, seconds: float) -> None:
        self._database = database
        self._clock = clock
        self._heart = Heartbeat(self._keep, seconds * _BEAT)
        self._give_up_retrying: set[Lease] = set()  # and the journal does not know it yet
        self._closed = False
        self.seconds = seconds

    def acquire(self, txn: str) -> Lease | str:
        """Take the lease, or answer who holds it. The transaction must exist."""
        with self._database.unit(durable=False) as unit:
            row = unit.execute(
                "SELECT holder, generation, lease_until FROM transactions WHERE txn = ?", (txn,)
            ).fetchone()
            if row["holder"] is not None and self.holds(row["holder"], row["lease_until"]):
                return str(row["holder"])
            lease = Lease(txn, new_holder(), row["generation"] + 1)
            # Before it is written: another thread of this process may read the row as soon as it is.
            _OWN_HOLDERS[lease.holder] = lease
            self._database.at_end(
                lambda: self._heart.begin(lease), lambda: _OWN_HOLDERS.pop(lease.holder, None)
            )
            unit.execute(
                "UPDATE transactions SET holder = ?, generation = ?, lease_until = ? WHERE txn = ?",
                (lease.holder, lease.generation, self._clock.wall() + self.seconds, txn),
            )
            return lease

    def holds(self, holder: str, until: float) -> bool:
        """A process known to live keeps its lease past its time (its body may think for an hour); a dead one none. Nor
        does this process one that nothing in it has: it was dropped, or the answer to taking it was lost.
        """
        if is_of_this_process(holder):
            return holder in _OWN_HOLDERS
        fate = is_alive(holder)
        return fate == "alive" or (fate == "unknown" and until > self._clock.wall())

    def release(self, lease: Lease) -> None:
        """Give it up. Somebody else's lease is left alone.

        Raises:
            JournalError: the journal does not know it yet. Nothing is renewed any more, this process may take it
            again, and the others may once the heartbeat could write it.
        """
        self._heart.end(lease)
        _OWN_HOLDERS.pop(lease.holder, None)
        try:
            with self._database.unit(durable=False) as unit:
                unit.execute(
                    "UPDATE transactions SET holder = NULL, lease_until = 0 WHERE txn = ? AND generation = ?",
                    (lease.txn, lease.generation),
                )
        except JournalError:
            if not self._closed:
                self._give_up_retrying.add(lease)
                self._heart.begin(lease)
            raise
        self._give_up_retrying.discard(lease)

    def close(self) -> None:
        """Renew nothing more in the background."""
        self._closed = True
        self._heart.stop()

    def _keep(self, lease: Lease) -> None:
        """One beat."""
        if lease in self._give_up_retrying:
            self.release(lease)
        else:
            self.renew(lease)

    def renew(self, lease: Lease, *, at_least: float = 0.0) -> None:
        """Keep it for another while, or for `at_least` seconds if that is longer.

        Raises:
            LeaseLost: it is not ours any more.
        """
        with self._database.unit(durable=False) as unit:
            self.require(unit, lease, at_least=at_least)

    def require(self, unit: Unit, lease: Lease, *, at_least: float = 0.0) -> None:
        """Inside a unit: go on only as the current owner; this also renews the lease.

        Raises:
            LeaseLost: it is not ours any more; nothing of the unit is written.
        """
        now = self._clock.wall()
        until = now + max(self.seconds, at_least)
        moved = unit.execute(
            "UPDATE transactions "
            "SET lease_until = CASE WHEN lease_until > ? THEN lease_until ELSE ? END, updated_at = ? "
            "WHERE txn = ? AND generation = ? AND holder = ?",
            (until, until, now, lease.txn, lease.generation, lease.holder),
        )
        if moved.rowcount != 1:
            raise LeaseLost(
                f"transaction {lease.txn[:12]} is not this run's any more: another process took it over, or the "
                "journal lost what it was told last, as a server may that was restarted or restored. This run fires "
                "nothing more. Run it again under its key"
            )

    @contextmanager
    def unit(self, lease: Lease, kind: str, *, durable: bool, at_least: float = 0.0) -> Iterator[Change]:
        """A unit of the journal: what the current owner changes in it becomes one line of the transaction's chain.

        Raises:
            LeaseLost: it is not ours any more; nothing of the unit is written.
        """
        with self._database.unit(durable=durable) as unit:
            self.require(unit, lease, at_least=at_least)
            with record_changes(unit, lease.txn, kind, self._clock.wall()) as change:
                yield change


def new_holder() -> str:
    """A name for this owner that tells others whether it still lives."""
    return f"{_process_id(os.getpid())}/{secrets.token_hex(4)}"


def is_of_this_process(holder: str) -> bool:
    """Whether this very process took that name."""
    return holder.rpartition("/")[0] == _process_id(os.getpid())


@cache
def _process_id(pid: int) -> str:
    """This process, as it stays as long as it lives."""
    return "/".join((socket.gethostname(), _boot_id(), str(pid), _start_ticks(pid)))


# A number may come back: a child must not take an ancestor's start for its own.
os.register_at_fork(after_in_child=_process_id.cache_clear)


def is_alive(holder: str) -> Literal["alive", "dead", "unknown"]:
    """Whether that owner lives. Unknown is an owner on another machine or boot: its lease runs its time."""
    host, _, rest = holder.rpartition("/")[0].partition("/")
    boot, _, process = rest.partition("/")
    pid, _, started = process.partition("/")
    if host != socket.gethostname() or not boot or boot != _boot_id() or not started or not pid.isdigit():
        return "unknown"
    return "alive" if _start_ticks(int(pid)) == started else "dead"


@cache
def _boot_id() -> str:
    """This boot of this machine, and this namespace of process numbers; empty where the system does not tell."""
    try:
        return f"{_BOOT.read_text('ascii').strip()}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """When that process started, in ticks; a number that is used again later belongs to another start."""
    try:
        after_command = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return "" if after_command[0] in _GONE else after_command[_START_FIELD]
    except (OSError, IndexError):
        return ""
