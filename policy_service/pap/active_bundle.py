"""The active bundle: one reference, swapped when new bytes have been read, checked and prepared, never before. What
keeps the source's newest bytes out is noted when it is found.

Rules kept here (I-13): what is active was validated; a folder that is not valid leaves the last good bundle
in place and says what is wrong; reloads do not overlap. What is active and what lies in the folder are both
shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from policy_service.facts.allowlist import Allowlist, DirectoryReader
from policy_service.health import Signal
from policy_service.pap.bundle import Bundle
from policy_service.pap.policy_tests.activation_check import CaseCheck
from policy_service.pap.problems import BundleError, Problem, RejectionReason
from policy_service.pap.source import AcceptedCommits, BundleFiles, BundleSource, CommitInfo
from policy_service.pap.subprocess_loader import BundleLoader, LoaderFailedError, RequiredCases

AcceptBundle = Callable[[Bundle], Awaitable[bool]]
"""Asked before a bundle comes into force: records that for all replicas, or says that another was first."""


class NoActiveBundleError(Exception):
    """No valid bundle was ever loaded, so nothing can be decided."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What a reload did: the bundle that is active now, whether it is another one, and what kept the folder
    out.
    """

    active: Bundle | None
    changed: bool
    error: BundleError | None = None


@dataclass(frozen=True, slots=True)
class BundleStatus:
    """Active and head, for health pages. They differ while the newest bytes are not in force."""

    active_digest: str | None
    active_commit: str | None
    head_digest: str | None
    head_commit: str | None
    loaded_at: datetime | None
    error: BundleError | None
    failed_at: datetime | None
    guarded: CaseCheck | None = None
    """Cases the active bundle passed before it came into force; None where none were asked for."""


class ActiveBundle:
    """Holds the bundle that decides."""

    def __init__(
        self,
        source: BundleSource,
        clock: Callable[[], datetime],
        signal: Signal | None = None,
        activation: Signal | None = None,
        outside: Allowlist | None = None,
        *,
        require_cases: bool = False,
    ) -> None:
        """``signal`` is told of a folder that does not load, ``activation`` of open effects not asked about yet.

        ``outside`` is what its sources and groups may be read from. With ``require_cases`` another bundle comes into
        force only where it passes its own cases and those of the one that is.
        """
        self._outside = outside
        self._preparer = BundleLoader(outside)
        self._require_cases = require_cases
        self._source = source
        self._clock = clock
        self._signal = signal or Signal()
        self._activation = activation or Signal()
        self._lock = asyncio.Lock()
        self._current: Bundle | None = None
        self._head: str | None = None
        self._error: BundleError | None = None
        self._refused: tuple[_Asked, BundleError] | None = None
        self._guarded: CaseCheck | None = None
        self._loaded_at: datetime | None = None
        self._failed_at: datetime | None = None
        self.fully_reevaluated: str | None = None
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

    @property
    def origin(self) -> str:
        """Where its bundles come from, in words for people."""
        return self._source.origin

    @property
    def source(self) -> str | None:
        """Which source it follows, as all replicas name it; None for a folder of its own."""
        return self._source.identity

    async def reload(
        self, standing: AcceptedCommits | None = None, accept: AcceptBundle | None = None
    ) -> ReloadResult:
        """Look at the source again and swap to its newest bytes if they are valid. Reading and parsing happen in a
        thread.

        Where they are not, or may not follow what stands, what stands comes into force if it is not there already.
        """
        async with self._lock:
            self._source.standing = standing or AcceptedCommits()
            try:
                bundle = await asyncio.to_thread(self._load)
            except BundleError as error:
                return await self._keep(error)
            if bundle is not self._current and accept is not None and not await accept(bundle):
                bundle.close()
                return ReloadResult(self._current, changed=False)
            self._error = self._failed_at = None
            self._signal.good()
            changed = await self._swap(bundle)
            return ReloadResult(self._current, changed)

    def mark_displaced(self) -> None:
        """Another replica follows another repository, branch or folder: what this one has cannot come into force."""
        self._signal.bad(
            "another replica has other policies in force (its policies_repository, policies_ref or policies_subfolder "
            "differ): nothing is redeemed here; restart this one with the same settings"
        )

    async def follow(self, standing: AcceptedCommits) -> bool:
        """Put in force what another replica has, where this one holds its bytes; whether it is in force now."""
        async with self._lock:
            self._source.standing = standing
            if self._current is None or self._current.commit != standing.accepted:
                try:
                    bundle = await asyncio.to_thread(self._load_accepted)
                except BundleError:
                    return False  # it has to be fetched first; the look that does says what is wrong
                if bundle is not None:
                    await self._swap(bundle)
            return self._current is not None and self._current.commit == standing.accepted

    async def _keep(self, error: BundleError) -> ReloadResult:
        """What stands stays, or comes back after a start."""
        changed = False
        accepted, current = self._source.standing.accepted, self._current
        if accepted is not None and (current is None or current.commit != accepted):
            try:
                bundle = await asyncio.to_thread(self._load_accepted)
                changed = bundle is not None and await self._swap(bundle)
            except BundleError as second:
                error = BundleError([*error.problems, *second.problems], error.why)
        self._failed_at = self._failed_at or self._clock()  # since when it does not load
        self._error = error
        self._signal.bad(self._wrong(error))
        return ReloadResult(self._current, changed, error)

    def status(self) -> BundleStatus:
        """What is active, what lies in the folder, and what is wrong with it."""
        current = self._current
        return BundleStatus(
            active_digest=current.digest if current else None,
            active_commit=current.commit if current else None,
            head_digest=self._head,
            head_commit=self._source.head,
            loaded_at=self._loaded_at,
            error=self._error,
            failed_at=self._failed_at,
            guarded=self._guarded,
        )

    async def written(self, commits: Collection[str]) -> Mapping[str, CommitInfo]:
        """What commits say of themselves, those of them that the source can still read."""
        try:
            return await asyncio.to_thread(self._source.written, commits)
        except BundleError:  # it cannot be read at all, which whoever looks for its newest bytes says
            return {}

    def report_progress(self) -> None:
        """Say how many open effects were asked about, or that all of them were."""
        digest = self.current.digest
        if self.fully_reevaluated == digest:
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
        if error.why == "cases" and self._source.identity is None:
            return f"the folder ({self._head}) does not pass its cases: {first.file}:{first.line or 1}{stays}"
        if error.why == "unreachable" and self._source.identity is None:
            return f"the folder cannot be read: {first.message}{stays}"
        if error.why != "invalid":
            return (
                f"the head {self._source.head or '(unknown)'} is not in force: {_IN_WORDS[error.why]}{stays}"
            )
        head = self._head or "unreadable"
        what = "the folder" if self._source.identity is None else f"the head {self._source.head}"
        return f"{what} ({head}) does not load: {first.file}:{first.line or 1}{stays}"

    def close(self) -> None:
        """Let go of the active bundle's fact sources, and of whatever still reads another."""
        self._preparer.close()
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
        return self._prepared(found, self._cases_for(found))

    def _cases_for(self, found: BundleFiles) -> RequiredCases | None:
        """What these bytes have to pass; nothing where nobody asks for cases, or an operator let this commit follow."""
        standing = self._source.standing
        if not self._require_cases or found.commit in (standing.accepted, standing.allowed):
            return None
        if self._current is not None:
            return RequiredCases(self._current.source)
        return RequiredCases(self._source.read_accepted())

    async def read_directory(self) -> None:
        """Look again who is in the directory's groups. Where somebody came or went, decisions begin anew with it."""
        async with self._lock:
            if self._current is None:
                return
            before = None if self._directory is None else self._directory.members
            await self._ask_directory(self._current)
            if self._directory is not None and self._directory.members is not before:
                self._current = self._current.grouped(self._outside)

    @property
    def _directory(self) -> DirectoryReader | None:
        return None if self._outside is None else self._outside.directory

    async def _grouped(self, bundle: Bundle) -> Bundle:
        """With its groups as the directory has them, read before it decides so that nobody is missing from them."""
        names = frozenset(bundle.directory.elsewhere.values())
        if not (names and self._directory is not None and self._directory.knows(names)):
            await self._ask_directory(bundle)
        return bundle.grouped(self._outside)

    async def _ask_directory(self, bundle: Bundle) -> None:
        if self._directory is None:
            return
        if names := frozenset(bundle.directory.elsewhere.values()):
            await self._directory.read(names)
        else:
            self._directory.not_asked()

    def _load_accepted(self) -> Bundle | None:
        found = self._source.read_accepted()
        return None if found is None else self._prepared(found, None)

    def _prepared(self, found: BundleFiles, cases: RequiredCases | None) -> Bundle:
        """A commit that was refused is refused again unread, until it has to pass something else; a folder's facts may
        have changed beside its bytes.
        """
        against = None if cases is None or cases.active is None else cases.active.digest
        asked = (found.commit, cases is not None, against)
        if self._refused is not None and found.folder is None and self._refused[0] == asked:
            raise self._refused[1]
        try:
            bundle, self._guarded = self._preparer.prepare(found, cases)
        except LoaderFailedError:
            raise  # it may do better at the next look
        except BundleError as error:
            error = _with_advice(error, found)
            self._refused = (asked, error)
            raise error from None
        return bundle

    async def _swap(self, bundle: Bundle) -> bool:
        before = self._current
        if before is bundle:
            return False
        bundle = await self._grouped(bundle)
        await asyncio.to_thread(self._source.keep, bundle.commit)
        self._current, self._loaded_at = bundle, self._clock()
        if before is not None:
            before.close()
        self.report_progress()
        return before is None or before.digest != bundle.digest


_Asked = tuple[str, bool, str | None]
"""A commit, whether it had to pass cases, and the digest of the bundle whose cases they were beside its own."""


def _with_advice(error: BundleError, found: BundleFiles) -> BundleError:
    """Who means to loosen rules says so, as for a rewritten history."""
    if error.why != "cases" or found.folder is not None:
        return error
    advice = f'if that is meant: policy-service policies accept {found.commit} --reason "..."'
    return BundleError([*error.problems, Problem("cases", None, advice, "cases")], error.why)


_IN_WORDS: Final[dict[RejectionReason, str]] = {
    "invalid": "it does not load",
    "unreachable": "the repository cannot be reached or read",
    "gone": "the branch or tag is not there",
    "force_push": "it does not descend from the commit in force",
    "unsigned": "it is not signed by one of policies_allowed_signers",
    "cases": "it does not pass the cases it has to",
}
