"""The ownership of a live transaction: a lease with a generation.

Every write of the owner names its generation, and the journal refuses an outdated one. A process that takes a lease
over first raises the generation, so the former owner cannot mark anything FIRING, however late it wakes up. A lease is
renewed by every write and by a heartbeat; a fire extends it past `fire_by` and the tool's timeout. Expiry decides only
about owners on other machines: a living process on this machine keeps its lease, a dead one loses it at once. Hosts
that share a journal need clocks that agree within a third of the lease time. A lease that could not be released,
because the journal was unavailable, is released by the heartbeat as soon as the journal answers again.
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
from countersign.journal.chain import Change
from countersign.journal.database import Database, Unit
from countersign.journal.forks import register_fork_aware

log: Final = logging.getLogger("countersign")

_STOP_SECONDS: Final = 10.0  # a beat in progress waits for the journal's lock at most half as long
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
# of /proc/PID/stat, counted after the command's closing bracket: start time in ticks
_START_FIELD: Final = 19
_BEAT: Final = 1 / 3  # of the lease time, so that two beats may fail
_GONE: Final = frozenset({"Z", "X"})  # killed, and not reaped yet


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Lease:
    """Proof that this process owned a transaction when it acquired it."""

    txn: str
    holder: str
    generation: int


_OWN_HOLDERS: Final[WeakValueDictionary[str, Lease]] = WeakValueDictionary()
"""The leases held in this process, by holder."""


class Heartbeat:
    """Renews leases as long as this process holds them, for owners that other hosts and containers cannot observe.

    One thread for each journal, started with the first lease and ended after the last. It keeps no process alive and
    does not outlive one, so the lease of a killed process expires. A lease is tracked only while other code holds
    it: a dropped lease cannot be used to write, and is renewed no more. A lease that was taken over is left alone;
    its owner learns of that at its next write. If the database does not answer, the next beat tries again.
    """

    fork_order = 1  # it is called inside units

    def __init__(self, renew: Callable[[Lease], None], every_seconds: float) -> None:
        self._renew = renew
        self._every = every_seconds
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._held: WeakSet[Lease] = WeakSet()
        self._thread: threading.Thread | None = None
        register_fork_aware(self)

    def begin(self, lease: Lease) -> None:
        """Renew this lease too."""
        with self._lock:
            self._held.add(lease)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="countersign heartbeat", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                log.warning(
                    "leases are renewed by writes only, because the heartbeat could not start: %s", error
                )
                return
            self._thread = thread

    def end(self, lease: Lease) -> None:
        """Stop renewing it."""
        with self._lock:
            self._held.discard(lease)

    def stop(self) -> None:
        """Renew nothing more, and wait for a beat in progress."""
        with self._lock:
            self._held.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            while self._wait():
                self._beat()
        except BaseException:
            with self._lock:
                self._thread = None  # the next lease starts another
            raise

    def _wait(self) -> bool:
        """Wait for the next beat. False if nothing is left to renew."""
        with self._lock:
            if self._held:
                self._changed.wait(self._every)
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

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """The leases and the thread belong to the parent."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._held = WeakSet()
        self._thread = None


class Leases:
    """Acquires, renews and releases leases."""

    def __init__(self, database: Database, clock: Clock, seconds: float) -> None:
        self._database = database
        self._clock = clock
        self._heartbeat = Heartbeat(self._keep, seconds * _BEAT)
        self._give_up_retrying: set[Lease] = set()  # and not written to the journal yet
        self._closed = False
        self.seconds = seconds

    def acquire(self, txn: str) -> Lease | str:
        """Acquire the lease, or return its holder. The transaction must exist."""
        with self._database.unit(durable=False) as unit:
            row = unit.execute(
                "SELECT holder, generation, lease_until FROM transactions WHERE txn = ?", (txn,)
            ).fetchone()
            if row["holder"] is not None and self.holds(row["holder"], row["lease_until"]):
                return str(row["holder"])
            # A new generation for every owner: writes of all earlier owners fail from here on.
            lease = Lease(txn, new_holder(), row["generation"] + 1)
            # Before the write: another thread of this process may read the row right after it.
            _OWN_HOLDERS[lease.holder] = lease
            self._database.after_unit(
                lambda: self._heartbeat.begin(lease), lambda: _OWN_HOLDERS.pop(lease.holder, None)
            )
            unit.execute(
                "UPDATE transactions SET holder = ?, generation = ?, lease_until = ? WHERE txn = ?",
                (lease.holder, lease.generation, self._clock.wall() + self.seconds, txn),
            )
            return lease

    def holds(self, holder: str, until: float) -> bool:
        """Whether the holder still owns the lease. A process known to be alive keeps it past its expiry (its body
        may run for an hour); a dead one loses it. So does this process if none of its code holds the lease: it was
        dropped, or the answer to acquiring it was lost.
        """
        if is_of_this_process(holder):
            return holder in _OWN_HOLDERS
        fate = is_alive(holder)
        return fate == "alive" or (fate == "unknown" and until > self._clock.wall())

    def release(self, lease: Lease) -> None:
        """Release the lease. Another owner's lease is left alone.

        Raises:
            JournalError: the journal does not know it yet. Nothing is renewed any more, this process may acquire it
                again, and others may once the heartbeat has written it.
        """
        self._heartbeat.end(lease)
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
                self._heartbeat.begin(lease)
            raise
        self._give_up_retrying.discard(lease)

    def close(self) -> None:
        """Stop renewing leases in the background."""
        self._closed = True
        self._heartbeat.stop()

    def _keep(self, lease: Lease) -> None:
        """One beat."""
        if lease in self._give_up_retrying:
            self.release(lease)
        else:
            self.renew(lease)

    def renew(self, lease: Lease, *, at_least: float = 0.0) -> None:
        """Extend the lease, by at least `at_least` seconds.

        Raises:
            LeaseLost: another process owns it now.
        """
        with self._database.unit(durable=False) as unit:
            self.require(unit, lease, at_least=at_least)

    def require(self, unit: Unit, lease: Lease, *, at_least: float = 0.0) -> None:
        """Inside a unit: continue only as the current owner. This also renews the lease.

        Raises:
            LeaseLost: another process owns it now; nothing of the unit is written.
        """
        # The generation is a fencing token: an owner that was paused past its lease and wakes up updates no row. The
        # row count is the check, in the same statement as the renewal: no takeover fits between the two.
        now = self._clock.wall()
        until = now + max(self.seconds, at_least)
        updated = unit.execute(
            "UPDATE transactions "
            "SET lease_until = CASE WHEN lease_until > ? THEN lease_until ELSE ? END, updated_at = ? "
            "WHERE txn = ? AND generation = ? AND holder = ?",
            (until, until, now, lease.txn, lease.generation, lease.holder),
        )
        if updated.rowcount != 1:
            raise LeaseLost(
                f"transaction {lease.txn[:12]} no longer belongs to this run: another process took it over, or "
                "the journal's server lost its last write in a restart or restore. This run fires "
                "nothing more. Run it again under its key"
            )

    @contextmanager
    def unit(self, lease: Lease, kind: str, *, durable: bool, at_least: float = 0.0) -> Iterator[Change]:
        """A unit of the journal. The owner's changes in it become one line of the transaction's chain.

        Raises:
            LeaseLost: another process owns it now; nothing of the unit is written.
        """
        with self._database.unit(durable=durable) as unit:
            self.require(unit, lease, at_least=at_least)
            change = Change(unit, lease.txn, kind, self._clock.wall())
            yield change
            change.write()


def new_holder() -> str:
    """A name for this owner from which others can tell whether it is alive."""
    return f"{_process_id(os.getpid())}/{secrets.token_hex(4)}"


def is_of_this_process(holder: str) -> bool:
    """Whether this very process took that name."""
    return holder.rpartition("/")[0] == _process_id(os.getpid())


@cache
def _process_id(pid: int) -> str:
    """The identity of this process, constant for its lifetime."""
    return "/".join((socket.gethostname(), _boot_id(), str(pid), _start_ticks(pid)))


# PIDs are reused: a child must not use the cached identity of an ancestor.
os.register_at_fork(after_in_child=_process_id.cache_clear)


def is_alive(holder: str) -> Literal["alive", "dead", "unknown"]:
    """Whether that owner is alive. Unknown for another machine or boot: its lease expires by time."""
    host, _, rest = holder.rpartition("/")[0].partition("/")
    boot, _, process = rest.partition("/")
    pid, _, started = process.partition("/")
    if host != socket.gethostname() or not boot or boot != _boot_id() or not started or not pid.isdigit():
        return "unknown"
    return "alive" if _start_ticks(int(pid)) == started else "dead"


@cache
def _boot_id() -> str:
    """The boot id of this machine and its PID namespace. Empty if the system does not provide them."""
    try:
        return f"{_BOOT.read_text('ascii').strip()}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """The start time of that process in ticks, which differs for a reused PID."""
    try:
        after_command = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return "" if after_command[0] in _GONE else after_command[_START_FIELD]
    except (OSError, IndexError):
        return ""
