"""The active bundle and the candidate in shadow, and how they are reloaded.

The active bundle is one reference, swapped only after new bytes are read, checked and compiled (I-13). An invalid
source leaves the last valid bundle active and reports its problems. Reloads do not overlap. A candidate is evaluated on
live traffic next to the active bundle and never decides. One that does not load shadows nothing and is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from policy_service.facts.allowlist import Allowlist, DirectoryReader
from policy_service.health import Signal
from policy_service.pap.bundle import Bundle, BundleInForce
from policy_service.pap.policy_tests.activation_check import CaseCheck
from policy_service.pap.problems import BundleError, Problem, RejectionReason
from policy_service.pap.source import AcceptedCommits, BundleFiles, BundleSource, CommitInfo
from policy_service.pap.subprocess_loader import BundleLoader, LoaderFailedError, RequiredCases

AcceptBundle = Callable[[Bundle], Awaitable[bool]]
"""Called before a bundle becomes active. Records it for all replicas; False when another replica was first."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The bundle that is active after a reload, whether it changed, and why the newest bytes were rejected."""

    active: Bundle | None
    changed: bool
    error: BundleError | None = None


@dataclass(frozen=True, slots=True)
class BundleStatus:
    """Active bundle and head, for health pages. They differ while the newest bytes are not active."""

    active_digest: str | None
    active_commit: str | None
    head_digest: str | None
    head_commit: str | None
    loaded_at: datetime | None
    error: BundleError | None
    failed_at: datetime | None
    guarded: CaseCheck | None = None
    """Cases the active bundle passed before its activation; None when none were required."""


class ActiveBundle(BundleInForce):
    """Reloads the bundle that decides."""

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
        """Create it without a bundle.

        ``signal`` reports a source that does not load, ``activation`` open effects not yet reevaluated. ``outside``
        is the allowlist for fact sources and groups. With ``require_cases`` a new bundle is activated only if it
        passes its own cases and those of the active bundle.
        """
        super().__init__(source.origin, source.identity)
        self._source, self._clock, self._outside = source, clock, outside
        self._signal, self._activation = signal or Signal(), activation or Signal()
        self._loader = BundleLoader(outside)
        self._require_cases = require_cases
        self._lock = asyncio.Lock()
        self._head: str | None = None
        self._error: BundleError | None = None
        self._refused: tuple[_Asked, BundleError] | None = None
        self._guarded: CaseCheck | None = None
        self._loaded_at: datetime | None = None
        self._failed_at: datetime | None = None
        self.activations = 0
        """How often another bundle became active. One that returns counts again: others decided effects meanwhile."""
        self.reevaluated = 0
        """The activation after which every open effect was reevaluated; the workflow sets it."""
        self.asking = asyncio.Lock()  # one reevaluation at a time
        self.asked = self.unasked = 0
        """Open effects that the newest reevaluation covered, and those that failed; the workflow sets both."""

    async def reload(
        self, commits: AcceptedCommits | None = None, accept: AcceptBundle | None = None
    ) -> ReloadResult:
        """Read the source again and activate its newest bytes if they are valid. Reading and parsing run in a thread.

        If they are invalid, or may not follow the accepted commit, the accepted commit is activated instead.
        """
        async with self._lock:
            self._source.accepted_commits = commits or AcceptedCommits()
            try:
                bundle = await asyncio.to_thread(self._load)
            except BundleError as error:
                return await self._keep(error)
            if bundle is not self._current and accept is not None and not await accept(bundle):
                bundle.close()
                return ReloadResult(self._current, changed=False)
            try:
                changed = await self._swap(bundle)
            except BundleError as error:
                return await self._keep(error)
            self._error = self._failed_at = None
            self._signal.good()
            return ReloadResult(self._current, changed)

    def mark_displaced(self) -> None:
        """Another replica follows another repository, branch or folder, so this bundle cannot be activated."""
        self._signal.bad(
            "another replica has other policies in force (its policies_repository, policies_ref or policies_subfolder "
            "differ): nothing is redeemed here; restart this one with the same settings"
        )

    async def follow(self, commits: AcceptedCommits) -> bool:
        """Activate the commit another replica accepted, if its bytes are here. Returns whether it is active now."""
        async with self._lock:
            self._source.accepted_commits = commits
            if self._current is None or self._current.commit != commits.accepted:
                try:
                    bundle = await asyncio.to_thread(self._load_accepted)
                    if bundle is not None:
                        await self._swap(bundle)
                except BundleError:
                    return False  # it has to be fetched first; the next reload reports the error
            return self._current is not None and self._current.commit == commits.accepted

    async def _keep(self, error: BundleError) -> ReloadResult:
        """Keep the accepted bundle, or load it again after a start."""
        changed = False
        accepted, current = self._source.accepted_commits.accepted, self._current
        if accepted is not None and (current is None or current.commit != accepted):
            try:
                bundle = await asyncio.to_thread(self._load_accepted)
                changed = bundle is not None and await self._swap(bundle)
            except BundleError as second:
                error = BundleError([*error.problems, *second.problems], error.why)
        self._failed_at = self._failed_at or self._clock()  # the first failure in a row
        self._error = error
        self._signal.bad(self._wrong(error))
        return ReloadResult(self._current, changed, error)

    def status(self) -> BundleStatus:
        """The active bundle, the source's newest bytes, and their problems."""
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
        """Author, message and time of these commits, for those that the source can still read."""
        try:
            return await asyncio.to_thread(self._source.written, commits)
        except BundleError:  # the source cannot be read; the next reload reports that
            return {}

    def report_progress(self) -> None:
        """Report how many open effects were reevaluated, or that all were."""
        digest = self.current.digest
        if self.reevaluated == self.activations:
            self._activation.good()
            return
        failed = f", {self.unasked} could not be" if self.unasked else ""
        self._activation.bad(
            f"open effects are being reevaluated under {digest}: {self.asked} so far{failed}"
        )

    def _wrong(self, error: BundleError) -> str:
        """One sentence for the public health page: the place of the first problem, not its text."""
        first, current, source = error.problems[0], self._current, self._source
        stays = f"; {current.digest} at {current.commit} stays in force" if current else ""
        if error.why == "unreachable" and source.identity is None:
            return f"the folder cannot be read: {first.message}{stays}"
        if error.why != "invalid" and source.identity is not None:
            return f"the head {source.head or '(unknown)'} is not in force: {_IN_WORDS[error.why]}{stays}"
        what = "the folder" if source.identity is None else f"the head {source.head}"
        fails = "pass its cases" if error.why == "cases" else "load"
        place = f"{first.file}:{first.line or 1}"
        return f"{what} ({self._head or 'unreadable'}) does not {fails}: {place}{stays}"

    def close(self) -> None:
        """Close the active bundle's fact sources, and end a load that is running."""
        self._loader.close()
        if self._current is not None:
            self._current.close()

    def _load(self) -> Bundle:
        """The source's newest bundle; the active object itself when bytes and commit are the same."""
        self._head = None
        found = self._source.read()
        self._head = found.digest
        current = self._current
        if current is not None and (current.digest, current.commit) == (found.digest, found.commit):
            return current
        return self._prepared(found, self._cases_for(found))

    def _cases_for(self, found: BundleFiles) -> RequiredCases | None:
        """The cases these bytes must pass; None when cases are not required or an operator accepted this commit."""
        commits = self._source.accepted_commits
        if not self._require_cases or found.commit in (commits.accepted, commits.allowed):
            return None
        if self._current is not None:
            return RequiredCases(self._current.source)
        return RequiredCases(self._source.read_accepted())

    async def read_directory(self) -> None:
        """Read the directory's groups again. A changed membership yields a new bundle object for later decisions."""
        async with self._lock:
            directory = self._directory
            if self._current is None or directory is None:
                return
            before = directory.members
            await self._ask_directory(self._current)
            if directory.members is not before:
                self._current = self._current.grouped(self._outside)

    @property
    def _directory(self) -> DirectoryReader | None:
        return None if self._outside is None else self._outside.directory

    async def _grouped(self, bundle: Bundle) -> Bundle:
        """The bundle with the directory's groups, read before it decides so that no member is missing."""
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
        """Load it. A refused commit is refused again without loading, until other cases are required. This does not
        hold for a folder, whose fact databases may have changed while its bytes did not.
        """
        against = None if cases is None or cases.active is None else cases.active.digest
        asked = (found.commit, cases is not None, against)
        if self._refused is not None and found.folder is None and self._refused[0] == asked:
            raise self._refused[1]
        try:
            bundle, self._guarded = self._loader.prepare(found, cases)
        except LoaderFailedError:
            raise  # not cached: the next load may succeed
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
        changed = before is None or before.digest != bundle.digest
        if before is not None:
            before.close()
        if changed:
            self.activations += 1
        self.report_progress()
        return changed


_Asked = tuple[str, bool, str | None]
"""A commit, whether cases were required, and the digest of the active bundle whose cases were required too."""


def _with_advice(error: BundleError, found: BundleFiles) -> BundleError:
    """Name the command with which an operator accepts a commit that loosens rules."""
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


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """Which bundle is in shadow, and why the source's newest bytes are not."""

    origin: str
    digest: str | None
    commit: str | None
    error: BundleError | None


class Candidate:
    """Holds the bundle in shadow, and reloads it."""

    def __init__(
        self, source: BundleSource, signal: Signal | None = None, outside: Allowlist | None = None
    ) -> None:
        self._source = source
        self._outside = outside
        self._loader = BundleLoader(outside)
        self._signal = signal or Signal()
        self._bundle: Bundle | None = None
        self._error: BundleError | None = None

    @property
    def bundle(self) -> Bundle | None:
        """The candidate, or None while it does not load."""
        return self._bundle

    async def reload(self) -> Bundle | None:
        """Read the source again and return the candidate. Parsing runs in a thread."""
        try:
            found = await asyncio.to_thread(self._load)
        except BundleError as error:
            self._error = error
            first = error.problems[0]
            self._signal.bad(f"the candidate does not load: {first.file}:{first.line or 1}")
            self._put(None)
            return None
        self._error = None
        self._signal.good()
        self._put(found)
        # With the groups last read for the active bundle: the directory is not queried for a candidate.
        return found.grouped(self._outside)

    def status(self) -> CandidateStatus:
        bundle = self._bundle
        return CandidateStatus(
            self._source.origin,
            None if bundle is None else bundle.digest,
            None if bundle is None else bundle.commit,
            self._error,
        )

    def close(self) -> None:
        """Close the candidate's fact sources, and end a load that is running."""
        self._loader.close()
        self._put(None)

    def _load(self) -> Bundle:
        files = self._source.read()
        current = self._bundle
        if current is not None and (current.digest, current.commit) == (files.digest, files.commit):
            return current
        return self._loader.prepare(files)[0]

    def _put(self, bundle: Bundle | None) -> None:
        before, self._bundle = self._bundle, bundle
        if before is not None and before is not bundle:
            before.close()
