"""The candidate: a bundle that may become the active one, watched beside it on live traffic and never deciding.

Rules kept here: a candidate that does not load shadows nothing and is told of; one whose bytes are the active bundle's
has nothing to differ in. Nothing that decides reads this module.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from policy_service.facts.allowlist import Allowlist
from policy_service.health import Signal
from policy_service.pap.bundle import Bundle
from policy_service.pap.problems import BundleError
from policy_service.pap.source import BundleSource
from policy_service.pap.subprocess_loader import BundleLoader


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """Which bundle is in shadow, and what keeps the source's newest bytes from being it."""

    origin: str
    digest: str | None
    commit: str | None
    error: BundleError | None


class Candidate:
    """Holds the bundle in shadow."""

    def __init__(
        self, source: BundleSource, signal: Signal | None = None, outside: Allowlist | None = None
    ) -> None:
        """``signal`` is told of a candidate that does not load; ``outside`` is what its sources may ask."""
        self._source = source
        self._outside = outside
        self._preparer = BundleLoader(outside)
        self._signal = signal or Signal()
        self._bundle: Bundle | None = None
        self._error: BundleError | None = None

    @property
    def bundle(self) -> Bundle | None:
        """The candidate, or None while none loads."""
        return self._bundle

    async def reload(self) -> Bundle | None:
        """Read the source again; the candidate as it is now. Parsing happens in a thread."""
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
        # As the active bundle's groups were last read: nobody is asked for a candidate.
        return found.grouped(self._outside)

    def status(self) -> CandidateStatus:
        """What is in shadow, and what is wrong with it."""
        bundle = self._bundle
        return CandidateStatus(
            self._source.origin,
            None if bundle is None else bundle.digest,
            None if bundle is None else bundle.commit,
            self._error,
        )

    def close(self) -> None:
        """Let go of the candidate's fact sources, and of whatever still reads another."""
        self._preparer.close()
        self._put(None)

    def _load(self) -> Bundle:
        files = self._source.read()
        current = self._bundle
        if current is not None and (current.digest, current.commit) == (files.digest, files.commit):
            return current
        return self._preparer.prepare(files)[0]

    def _put(self, bundle: Bundle | None) -> None:
        before, self._bundle = self._bundle, bundle
        if before is not None and before is not bundle:
            before.close()
