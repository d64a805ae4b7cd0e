"""The active bundle: one reference, swapped when new bytes have been read, checked and prepared, never before. What
keeps the source's newest bytes out is noted when it is found.

Rules kept here (I-13): what is active was validated; a folder that is not valid leaves the last good bundle
in place and says what is wrong; reloads do not overlap. What is active and what lies in the folder are both
shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from policy_service.facts.outside import DirectoryReader, Outside
from policy_service.health import Signal
from policy_service.pap.bundle import Bundle, prepare_bundle
from policy_service.pap.problems import BundleError
from policy_service.pap.source import BundleSource


class NoActiveBundleError(Exception):
    """No valid bundle was ever loaded, so nothing can be decided."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload did: the bundle that is active now, whether it is another one, and what kept the folder
    out.
    """

    active: Bundle | None
    changed: bool
    error: BundleError | None = None


@dataclass(frozen=True, slots=True)
class BundleStatus:
    """Active and head, for health pages. They differ while the folder is not valid."""

    active_digest: str | None
    active_commit: str | None
    head_digest: str | None
    loaded_at: datetime | None
    error: BundleError | None
    failed_at: datetime | None


class ActiveBundle:
    """Holds the bundle that decides."""

    def __init__(
        self,
        source: BundleSource,
        clock: Callable[[], datetime],
        signal: Signal | None = None,
        activation: Signal | None = None,
        outside: Outside | None = None,
    ) -> None:
        """``signal`` is told of a folder that does not load, ``activation`` of open effects not asked about yet.

        ``outside`` is what its sources and groups may be read from.
        """
        self._outside = outside
        self._source = source
        self._clock = clock
        self._signal = signal or Signal()
        self._activation = activation or Signal()
        self._lock = asyncio.Lock()
        self._current: Bundle | None = None
        self._head: str | None = None
        self._error: BundleError | None = None
        self._loaded_at: datetime | None = None
        self._failed_at: datetime | None = None
        self.asked_in_full: str | None = None
        """Digest of the last bundle that was asked about every open effect; kept by whoever asks."""
        self.asking = asyncio.Lock()  # of whoever asks: one at a time
        self.asked = self.unasked = 0
        """Open effects that the newest round asked about, and that it could not ask about; kept by whoever asks."""

    @property
    def current(self) -> Bundle:
        """The bundle to decide with; take it once and keep it through one decision.

        Raises:
            NoActiveBundleError: none was ever valid.
        """
        if self._current is None:
            raise NoActiveBundleError(
                f"no valid bundle was loaded from {self._source.origin}; see its problems with reload"
            )
        return self._current

    async def reload(self) -> Reloaded:
        """Read the folder again and swap to it if it is valid. Parsing happens in a thread."""
        async with self._lock:
            try:
                bundle = await asyncio.to_thread(self._load)
            except BundleError as error:
                self._failed_at = self._failed_at or self._clock()  # since when it does not load
                self._error = error
                self._signal.bad(self._wrong(error))
                return Reloaded(self._current, changed=False, error=error)
            if bundle is not self._current:
                if not self._knows_groups_of(bundle):
                    # before it decides, so that nobody is missing from its groups
                    await self._read_directory(bundle)
                bundle = self._with_groups(bundle)
            self._error = self._failed_at = None
            self._signal.good()
            return Reloaded(bundle, changed=self._swap(bundle))

    def status(self) -> BundleStatus:
        """What is active, what lies in the folder, and what is wrong with it."""
        current = self._current
        return BundleStatus(
            active_digest=current.digest if current else None,
            active_commit=current.commit if current else None,
            head_digest=self._head,
            loaded_at=self._loaded_at,
            error=self._error,
            failed_at=self._failed_at,
        )

    def tell_how_far(self) -> None:
        """Say how many open effects were asked about, or that all of them were."""
        digest = self.current.digest
        if self.asked_in_full == digest:
            self._activation.good()
            return
        failed = f", {self.unasked} could not be" if self.unasked else ""
        self._activation.bad(
            f"open effects are being asked about under {digest}: {self.asked} so far{failed}"
        )

    def _wrong(self, error: BundleError) -> str:
        """Anybody may read this: the place of the first problem, not its text."""
        first, current = error.problems[0], self._current
        stays = f"; {current.digest} at {current.commit} stays in force" if current else ""
        return (
            f"the folder ({self._head or 'unreadable'}) does not load: {first.file}:{first.line or 1}{stays}"
        )

    def close(self) -> None:
        """Let go of the active bundle's fact sources."""
        if self._current is not None:
            self._current.close()

    def _load(self) -> Bundle:
        """What the source holds, as a bundle; the active one itself when it is the same bytes at the same commit."""
        self._head = None
        found = self._source.read()
        self._head = found.digest
        current = self._current
        if current is not None and (current.digest, current.commit) == (found.digest, found.commit):
            return current
        return prepare_bundle(found, self._outside)

    async def read_directory(self) -> None:
        """Look again who is in the directory's groups. Where somebody came or went, decisions begin anew with that."""
        async with self._lock:
            if self._current is None:
                return
            before = None if self._directory is None else self._directory.members
            await self._read_directory(self._current)
            if self._directory is not None and self._directory.members is not before:
                self._current = self._with_groups(self._current)

    @property
    def _directory(self) -> DirectoryReader | None:
        return None if self._outside is None else self._outside.directory

    def _knows_groups_of(self, bundle: Bundle) -> bool:
        names = frozenset(bundle.directory.elsewhere.values())
        return self._directory is not None and bool(names) and self._directory.knows(names)

    async def _read_directory(self, bundle: Bundle) -> None:
        if self._directory is None:
            return
        if names := frozenset(bundle.directory.elsewhere.values()):
            await self._directory.read(names)
        else:
            self._directory.not_asked()

    def _with_groups(self, bundle: Bundle) -> Bundle:
        directory = self._directory
        if directory is None or not bundle.directory.elsewhere:
            return bundle
        return bundle.with_groups(directory.members, directory.fresh)

    def _swap(self, bundle: Bundle) -> bool:
        before = self._current
        if before is bundle:
            return False
        self._current, self._head, self._loaded_at = bundle, bundle.digest, self._clock()
        if before is not None:
            before.close()
        self.tell_how_far()
        return before is None or before.digest != bundle.digest
