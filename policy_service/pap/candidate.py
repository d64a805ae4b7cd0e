"""The candidate: a bundle in shadow, evaluated on live traffic next to the active one and never deciding.

A candidate that does not load shadows nothing and is reported. Nothing that decides reads this module.
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
        self._preparer = BundleLoader(outside)
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
