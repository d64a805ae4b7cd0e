"""The memory adapter: live effects on values in this process, isolated until the commit.

A live tool uses the adapter like a dict: it reads and writes copies and sees its own writes; others see them after the
commit. Versions are commit counters per key: a commit is refused (`IsolationConflict`) if a counter has grown since it
was read. The values die with the process: after a crash no attempt has landed.
"""

from __future__ import annotations

import copy
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any, Final

from countersign.adapters.protocol import (
    BufferedSession,
    Change,
    EffectContext,
    LiveAdapter,
    ObservedVersion,
)
from countersign.errors import IsolationConflict, MisuseError, NotStageable
from countersign.texts import text_of

_NAMES: Final = "/"  # the key of the set of all keys
_GONE: Final = object()
_NOT_FINAL: Final = "may still be undone"


class MemoryAdapter(LiveAdapter):
    """Values under text keys, used like a dict. Outside live tools, `snapshot()` is a copy of everything committed."""

    commits_last = True

    def __init__(self, values: dict[str, Any] | None = None, *, name: str = "memory") -> None:
        self._name = name
        self.lock = threading.Lock()
        self.values_now: dict[str, Any] = copy.deepcopy(values or {})
        self.numbers: dict[str, int] = {}
        self.prepared: list[MemorySession] = []
        # weak references, so that a session that can no longer be ended blocks no other
        self.committed: weakref.WeakSet[MemorySession] = weakref.WeakSet()
        self.marks: set[str] = set()
        self._inside: EffectContext[MemorySession] = EffectContext(name)

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        return self._name

    def snapshot(self) -> dict[str, Any]:
        """A copy of all committed values."""
        with self.lock:
            return copy.deepcopy(self.values_now)

    # ---------------------------------------------------------------------------- called by live tools

    def get(self, key: str, default: Any = None) -> Any:
        """A copy of the value, as this transaction sees it; its absence counts as read."""
        with self._session() as session:
            found = session.get(key)
        return default if found is _GONE else copy.deepcopy(found)

    def keys(self) -> tuple[str, ...]:
        """The keys, as this transaction sees them."""
        with self._session() as session:
            return session.names()

    def __contains__(self, key: str) -> bool:
        with self._session() as session:
            return session.get(key) is not _GONE

    def __getitem__(self, key: str) -> Any:
        found = self.get(key, _GONE)
        if found is _GONE:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        _require_key(key, self.name)
        try:
            kept = copy.deepcopy(value)
        except (TypeError, copy.Error, RecursionError) as error:
            raise NotStageable(
                f"the value of {key!r} cannot be copied, so it could not be undone: {text_of(error)}"
            ) from error
        with self._session() as session:
            session.put(key, kept)

    def __delitem__(self, key: str) -> None:
        with self._session() as session:
            if session.get(key) is _GONE:
                raise NotStageable(f"there is no {key!r} in {self.name!r} to remove")
            session.put(key, _GONE)

    def _session(self) -> AbstractContextManager[MemorySession]:
        return self._inside.use(
            f"{self.name} was used outside a live tool; there `snapshot()` reads what is committed"
        )

    # --------------------------------------------------------------------------- called by the SDK

    def begin(self, txn: str) -> MemorySession:
        """Open a session; it takes no lock."""
        return MemorySession(self, txn, self._inside)

    def landed(self, attempt_id: str) -> bool | None:
        """Whether this process has committed it; values of other processes are gone."""
        return attempt_id in self.marks


class MemorySession(BufferedSession[str, Any]):
    """The changes of one transaction."""

    def __init__(self, memory: MemoryAdapter, txn: str, inside: EffectContext[MemorySession]) -> None:
        super().__init__(memory.name, inside)
        self._memory, self._txn = memory, txn
        self._before: dict[str, Any] | None = None  # set when it is committed
        self._attempt_id: str | None = None

    def get(self, key: str) -> Any:
        """The value as this transaction sees it."""
        if key in self._writes:
            return self._writes[key]
        with self._memory.lock:
            self._note(key, self._version(key), read=True)
            return self._memory.values_now.get(key, _GONE)

    def put(self, key: str, value: Any) -> None:
        """Set or remove a value when it commits."""
        with self._memory.lock:
            self._note(key, self._version(key), written=True)
        self._writes[key] = value

    def names(self) -> tuple[str, ...]:
        """The keys as this transaction sees them."""
        with self._memory.lock:
            self._note(_NAMES, self._version(_NAMES), read=True)
            found = dict.fromkeys(self._memory.values_now)
        return tuple(key for key in found | self._writes if self._writes.get(key) is not _GONE)

    # ---------------------------------------------------------------------------- called by the SDK

    def changes(self) -> tuple[Change, ...]:
        """Every value that the commit would change."""
        with self._memory.lock:
            now = copy.deepcopy(self._memory.values_now)
        found = (Change(key, now.get(key), _none(value)) for key, value in sorted(self._writes.items()))
        return tuple(one for one in found if one.before != one.after)

    def verify_isolation(self) -> None:
        """Compare every version with the current one."""
        with self._memory.lock:
            super().verify_isolation()

    def prepare(self, attempt_id: str) -> None:
        """From here on no other transaction may prepare the same keys."""
        with self._memory.lock:
            if self in self._memory.prepared:
                return
            super().verify_isolation()
            for other in (*self._memory.prepared, *self._memory.committed):
                self._require_no_conflict(other)
            self._memory.prepared.append(self)
            self._attempt_id = attempt_id

    def commit(self, attempt_id: str) -> None:
        """Make the writes visible, all at once."""
        with self._memory.lock:
            if self._attempt_id != attempt_id or self not in self._memory.prepared:
                raise MisuseError(f"{self._memory.name!r} was not prepared for this attempt")
            now = self._memory.values_now
            self._before = {key: now.get(key, _GONE) for key in self._writes}
            self._memory.prepared.remove(self)
            self._memory.committed.add(self)  # may be undone until `close`, so others must not build on it
            self._put(self._writes)
            self._memory.marks.add(attempt_id)

    def undo(self) -> None:
        """Undo a commit, and unlock the keys."""
        with self._memory.lock:
            self._unlock()
            if self._before is not None:
                self._put(self._before)
                self._memory.marks.discard(self._attempt_id or "")
            self._before, self._writes = None, {}

    def close(self) -> None:
        """Drop the before-values, and unlock the keys."""
        with self._memory.lock:
            self._unlock()
            self._before = None

    # ----------------------------------------------------------------------------- internal; the lock is held

    def _unlock(self) -> None:
        if self in self._memory.prepared:
            self._memory.prepared.remove(self)
        self._memory.committed.discard(self)

    def _version(self, key: str) -> str | None:
        there = key in self._memory.values_now or key == _NAMES
        return str(self._memory.numbers.get(key, 0)) if there else None

    def _require_no_conflict(self, other: MemorySession) -> None:
        mine, theirs = self._written(), other._written()
        both = {key for key in mine & theirs if key != _NAMES}
        disputed = both | mine & other._read() | self._read() & theirs
        if disputed:
            key, before = min(disputed), other._before
            seen = self._seen.get(key) or ObservedVersion(key, self._version(key))
            raise IsolationConflict(
                self._memory.name,
                key,
                read=seen.read,
                expected=seen.version,
                now=self._version(key),
                holder=f"transaction {other._txn[:12]}, which {'is prepared' if before is None else _NOT_FINAL}",
            )

    def _read(self) -> set[str]:
        return {key for key, seen in self._seen.items() if seen.read}

    def _written(self) -> set[str]:
        """The written keys, with the set of all keys if it gains or loses one."""
        there = self._memory.values_now if self._before is None else self._before
        changed = any(
            (value is _GONE) == (there.get(key, _GONE) is not _GONE) for key, value in self._writes.items()
        )
        return {*self._writes, *([_NAMES] if changed else [])}

    def _put(self, values: dict[str, Any]) -> None:
        now = self._memory.values_now
        for key, value in values.items():
            if (value is _GONE) != (key not in now):
                self._count(_NAMES)
            if value is _GONE:
                now.pop(key, None)
            else:
                now[key] = value
            self._count(key)

    def _count(self, key: str) -> None:
        self._memory.numbers[key] = self._memory.numbers.get(key, 0) + 1


def _none(value: Any) -> Any:
    return None if value is _GONE else copy.deepcopy(value)


def _require_key(key: object, name: str) -> None:
    if not isinstance(key, str) or key == _NAMES:
        raise NotStageable(f"{key!r} is not a key of {name!r}: keys are text, and '/' means all of them")
