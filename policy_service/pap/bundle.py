"""A bundle: policies, manifests, groups, meters and facts of one folder, validated as a whole.

All problems are reported at once, with file and line. Nothing of a bundle with a problem can be used. What looks wrong
but is not proved wrong is a warning. Building a bundle blocks, for about a millisecond a policy, and belongs in a
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Final

from countersign.contract import JSON, ContractError, ToolManifest
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import Facts
from policy_service.domain.quorum import GroupDirectory
from policy_service.facts.allowlist import Allowlist
from policy_service.facts.meters import Meter
from policy_service.facts.sources import FactSources
from policy_service.pap.check import CheckedBundle, check_files
from policy_service.pap.compile import compile_rules
from policy_service.pap.parts import ToolVersion, allowlist_problems
from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.source import BundleFiles, FolderSource
from policy_service.pdp.rules import UNKNOWN_TOOL, UNKNOWN_TOOL_GATE, UNSEEN, UNSEEN_GATE, PolicySource, Rules


@dataclass(frozen=True)
class Bundle:
    """One loaded and validated bundle. Immutable; use one object from reading the facts to the decision.

    ``manifests`` are the current ones by the tool's name; ``tools`` are all versions in force.
    """

    source: BundleFiles
    rules: Rules
    manifests: Mapping[str, ToolManifest]
    tools: tuple[ToolVersion, ...]
    policies: Mapping[str, PolicySource]
    directory: GroupDirectory
    facts: FactSources
    meters: Mapping[str, tuple[Meter, ...]]  # by the tool they count
    warnings: tuple[Problem, ...] = ()

    @property
    def digest(self) -> str:
        """The digest of its bytes: its identity."""
        return self.source.digest

    @property
    def commit(self) -> str:
        return self.source.commit

    def version(self, tool: str, tool_digest: str) -> ToolVersion | None:
        """This version of a tool, or None when the bundle does not hold it."""
        return self._versions.get((tool, tool_digest))

    @cached_property
    def _versions(self) -> Mapping[tuple[str, str], ToolVersion]:
        return {(one.manifest.tool, one.manifest.digest): one for one in reversed(self.tools)}

    async def facts_for(
        self,
        tool: str,
        args: JSON,
        args_bytes: bytes,
        *,
        agent: str,
        now: datetime,
        tool_digest: str | None = None,
    ) -> Facts:
        """Read the facts a decision about this call needs. Never raises for a fault of the call or of a source.

        A tool or args that are denied anyway need no facts. Without ``tool_digest`` the tool's current version counts.
        """
        manifest = self.manifests.get(tool)
        if tool_digest is not None:
            version = self.version(tool, tool_digest)
            manifest = None if version is None else version.manifest
        if manifest is None:
            return Facts(self.digest)
        try:
            resource = manifest.resource_of(args)
        except ContractError:
            return Facts(self.digest)
        return await self.facts.gather(tool, args_bytes, resource, agent=agent, now=now)

    def describe(self, policy_id: str) -> PolicySource | None:
        """A policy as written, built-in gates included; None for one this bundle does not hold."""
        return _BUILT_IN.get(policy_id) or self.policies.get(policy_id)

    def with_groups(self, said: Mapping[str, frozenset[str]], fresh: Callable[[], bool]) -> Bundle:
        """A copy with the directory's current groups. A new object, so that one decision never mixes two states."""
        directory = self.directory.with_directory(said, fresh)
        rules = replace(self.rules, groups_of=directory.groups_of)
        return replace(self, directory=directory, rules=rules)

    def grouped(self, outside: Allowlist | None) -> Bundle:
        """A copy with the groups of the directory's last read; the same object when it has no such groups."""
        directory = None if outside is None else outside.directory
        if directory is None or not self.directory.elsewhere:
            return self
        return self.with_groups(directory.members, directory.fresh)

    def close(self) -> None:
        """Close the connections and threads of the fact sources."""
        self.facts.close()


class NoActiveBundleError(Exception):
    """No valid bundle was loaded yet, so nothing can be decided."""


class BundleInForce:
    """Holds the bundle that decides; `active_bundle.py` puts another in its place."""

    def __init__(self, origin: str, source: str | None) -> None:
        """``origin``: where its bundles come from, for people. ``source``: the identity of that place, equal on all
        replicas; None for a local folder.
        """
        self.origin, self.source = origin, source
        self._current: Bundle | None = None

    @property
    def current(self) -> Bundle:
        """The bundle to decide with. Read it once and keep it for one decision.

        Raises:
            NoActiveBundleError: no valid bundle was loaded yet.
        """
        if self._current is None:
            raise NoActiveBundleError(
                f"no valid bundle was loaded from {self.origin}; see its problems with reload"
            )
        return self._current

    def manifests(self) -> Mapping[str, ToolManifest]:
        """The manifests of that bundle, by the tool's name."""
        return self.current.manifests


def _built_in(gate: Gate, doc: str) -> PolicySource:
    return PolicySource(
        id=gate.policy_id,
        effect="forbid",
        file="built-in",
        line=0,
        text="",
        annotations={"title": gate.title, "doc": doc},
        gate=gate,
    )


_BUILT_IN: Final = {
    UNSEEN: _built_in(
        UNSEEN_GATE,
        "Policy cannot evaluate some arguments (lists, maps, nulls, fractions), so a person reviews them.",
    ),
    UNKNOWN_TOOL: _built_in(
        UNKNOWN_TOOL_GATE,
        "The bundle holds no manifest of this tool. In dev a person may approve it anyway; everywhere else it is "
        "denied. Draft its manifest with `countersign tools export --tools MODULE` and review it.",
    ),
}


def load_bundle(folder: Path) -> Bundle:
    """Read and build a bundle folder.

    Raises:
        BundleError: all problems of it.
    """
    return build_bundle(FolderSource(folder).read())


def build_bundle(source: BundleFiles, outside: Allowlist | None = None) -> Bundle:
    """Check bytes that were read, and compile them for decisions.

    ``outside`` is the service's allowlist. Without it, external sources and groups load but are never queried.

    Raises:
        BundleError: all problems of them.
    """
    return assemble_bundle(source, check_files(source.files, outside), outside)


def assemble_bundle(
    source: BundleFiles,
    checked: CheckedBundle,
    outside: Allowlist | None,
    pause: Callable[[], None] = lambda: None,
) -> Bundle:
    """The bundle of checked bytes. ``pause`` is called between pieces of work, so that other threads can run.

    Raises:
        BundleError: it needs a source that this service's allowlist does not contain.
    """
    parts = checked.parts
    if outside is not None and (problems := list(allowlist_problems(parts.directory, parts.config, outside))):
        raise BundleError(problems)
    rules = compile_rules(
        digest=source.digest,
        commit=source.commit,
        parts=parts,
        policies=checked.policies,
        tools=checked.tools,
        people=checked.people,
        pause=pause,
    )
    return Bundle(
        source=source,
        rules=rules,
        manifests=parts.manifests,
        tools=parts.tools,
        policies=rules.policies,
        directory=parts.directory,
        facts=FactSources(
            parts.config,
            parts.open_readers(source.folder, outside),
            source.digest,
            None if outside is None else outside.health,
        ),
        meters=parts.meters,
        warnings=checked.warnings,
    )
