"""The other files of a bundle: tool manifests, groups, meters, facts and their sources.

Rules kept here: JSON is read by the contract's strict loader, TOML by the standard library's; a tool and its
groups are Cedar actions, so their names may not meet; a compensation names a tool of the same bundle and
arguments it has; a meter counts tools of the same bundle.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from countersign.contract import Lane, Limits, ToolManifest, load
from policy_service.facts.allowlist import Allowlist
from policy_service.facts.config import FactsConfig, SourceSpec, parse_facts_config, row_problems
from policy_service.facts.groups import GroupDirectory, parse_groups
from policy_service.facts.manifests import InputCodec
from policy_service.facts.meters import Meter, by_tool, parse_meters
from policy_service.facts.readers import HttpReader, SourceFailedError, SqlReader
from policy_service.facts.sources import FactReader, FailedReader, FileReader
from policy_service.pap.folder_reader import MAX_FILE_BYTES
from policy_service.pap.problems import Problem, parse_problem
from policy_service.pap.tools import ToolVersion, read_tools

_FACTS_LIMITS: Final = Limits(max_bytes=MAX_FILE_BYTES, max_depth=8, max_nodes=200_000)


@dataclass(frozen=True)
class BundleParts:
    """Everything in a bundle but its policies."""

    tools: tuple[ToolVersion, ...]
    directory: GroupDirectory
    config: FactsConfig
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]]
    meters: Mapping[str, tuple[Meter, ...]]  # by the tool they count

    @property
    def current(self) -> dict[str, ToolVersion]:
        """The current version of each tool, by its name."""
        return {version.tool: version for version in self.tools if version.label is None}

    @property
    def manifests(self) -> dict[str, ToolManifest]:
        """The current manifest of each tool, by its name."""
        return {name: version.manifest for name, version in self.current.items()}

    @property
    def codecs(self) -> dict[str, InputCodec]:
        """The codec of each tool's current manifest, by its name."""
        return {name: version.codec for name, version in self.current.items()}

    def open_readers(self, folder: Path | None, outside: Allowlist | None) -> dict[str, FactReader]:
        """A reader for each source. One that cannot be opened now fails when it is asked, and says why.

        ``folder`` is where the databases lie that facts.toml names by path, ``outside`` which hosts may be asked.
        """
        return {source.name: self._open(source, folder, outside) for source in self.config.source}

    def _open(self, source: SourceSpec, folder: Path | None, outside: Allowlist | None) -> FactReader:
        if source.url is not None:
            allowed = None if outside is None else outside.host_for(source.url)
            if allowed is None:
                return FailedReader(
                    "nothing outside may be asked here: only a service with an allowlist asks"
                )
            return HttpReader(source, *allowed)
        if source.file is not None:
            return FileReader(
                self.rows[source.file], by="agent" if source.entity == "Agent" else "resource_id"
            )
        try:
            return SqlReader(_database_url(source, folder), source.query or "", source.timeout)
        except SourceFailedError as error:
            return FailedReader(str(error))


def _database_url(source: SourceSpec, folder: Path | None) -> str:
    if source.path is not None:
        if folder is None:
            raise SourceFailedError(
                f"path = {source.path!r} needs a bundle in a folder: databases are not in git; use url_env"
            )
        return f"sqlite:///{(folder / source.path).absolute()}"
    if url := os.environ.get(source.url_env or ""):
        return url
    raise SourceFailedError(
        f"the environment variable {source.url_env} is not set; give it the database's URL"
    )


def read_parts(
    files: Mapping[str, bytes], outside: Allowlist | None = None
) -> tuple[BundleParts, list[Problem]]:
    """All parts, and every problem in them; parts with a problem are empty.

    What is asked outside is held against what this service may ask; without ``outside`` nobody is asked.
    """
    problems: list[Problem] = []
    tools = read_tools(files, problems)
    directory = _toml(files, "groups.toml", parse_groups, problems) or GroupDirectory({}, {}, {})
    config = _toml(files, "facts.toml", parse_facts_config, problems) or FactsConfig()
    rows = _fact_files(files, config, problems)
    meters = _meters(files, tools, problems)
    problems += _tool_problems(tools, config)
    if outside is not None:
        problems += allowlist_problems(directory, config, outside)
    return BundleParts(tools, directory, config, rows, meters), problems


def allowlist_problems(directory: GroupDirectory, config: FactsConfig, outside: Allowlist) -> list[Problem]:
    """What of the world outside this service may not ask for them."""
    problems = [
        Problem(
            "facts.toml",
            None,
            f"source {source.name!r} asks {source.url!r}, which is not on the allowlist of this service; its operator "
            f"adds it to [[facts_http]]",
        )
        for source in config.source
        if source.url is not None and outside.host_for(source.url) is None
    ]
    if directory.elsewhere and outside.directory is None:
        first = sorted(directory.elsewhere)[0]
        message = (
            f"group {first!r} is in a directory, and this service reads none; its operator sets [directory]"
        )
        problems.append(Problem("groups.toml", None, message))
    return problems


def _tool_problems(tools: Sequence[ToolVersion], config: FactsConfig) -> list[Problem]:
    groups = {group for version in tools for group in version.manifest.groups}
    manifests = {version.tool: version.manifest for version in tools if version.label is None}
    problems: list[Problem] = []
    for version in tools:
        name, manifest = version.tool, version.manifest
        messages: list[str] = []
        if name in groups:
            messages.append(f"{name!r} is a tool and an action group; rename one")
        messages += [*_compensation_problems(manifest, manifests), *_probe_problems(manifest, manifests)]
        problems += [Problem(version.file, None, message) for message in messages]
    for source in config.source:
        if unknown := sorted(set(source.tools) - manifests.keys()):
            problems.append(
                Problem("facts.toml", None, f"source {source.name!r}: there is no tool {unknown[0]!r}")
            )
    return problems


def _compensation_problems(manifest: ToolManifest, manifests: Mapping[str, ToolManifest]) -> list[str]:
    if manifest.compensation is None:
        return []
    compensator = manifests.get(manifest.compensation.tool)
    if compensator is None:
        return [f"compensation {manifest.compensation.tool!r} is not a tool of this bundle; add its manifest"]
    mapped = set(manifest.compensation.map)
    if strange := sorted(mapped - compensator.properties):
        return [f"compensation {compensator.tool!r} has no argument {strange[0]!r}"]
    if missing := sorted(set(_required(compensator)) - mapped):
        return [f"compensation {compensator.tool!r} needs the argument {missing[0]!r}; map it"]
    return []


def _probe_problems(manifest: ToolManifest, manifests: Mapping[str, ToolManifest]) -> list[str]:
    """A probe is code beside the tool that only asks. Its name is reviewed here; it has no manifest, for nobody calls
    it but the SDK, and what has one is called to act."""
    if manifest.probe is None:
        return []
    if manifest.probe in manifests:
        return [
            f"probe {manifest.probe!r} is a tool of this bundle; a probe only asks and has no manifest, name another"
        ]
    if manifest.lane is Lane.LIVE:
        return [
            f"{manifest.tool!r} is a live tool, and its adapter, which knows what landed, is asked; leave the probe out"
        ]
    return []


def _required(manifest: ToolManifest) -> list[str]:
    required = manifest.args.get("required")
    return [str(name) for name in required] if isinstance(required, list) else []


def _toml(files: Mapping[str, bytes], name: str, read: Any, problems: list[Problem]) -> Any:
    if name not in files:
        return None
    try:
        return read(tomllib.loads(files[name].decode("utf-8")))
    except (ValueError, RecursionError) as error:
        problems.append(parse_problem(name, error))
        return None


def _fact_files(
    files: Mapping[str, bytes], config: FactsConfig, problems: list[Problem]
) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    named = {source.file for source in config.source if source.file is not None}
    problems += [
        Problem(name, None, "named by a source, but missing") for name in sorted(named - files.keys())
    ]
    rows: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    for file in (name for name in files if name.startswith("facts/")):
        if file not in named:
            problems.append(
                Problem(file, None, "no source in facts.toml names this file; add one or remove it")
            )
            continue
        try:
            rows[file] = _rows(load(files[file], _FACTS_LIMITS))
        except ValueError as error:
            problems.append(parse_problem(file, error))
            continue
        for spec in (source for source in config.source if source.file == file):
            problems += [Problem(file, None, said) for said in row_problems(config, spec, rows[file])]
    return rows


def _rows(value: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(row, dict) for row in value.values()):
        raise ValueError('write one object of attributes for each id: {"acct_1": {"account_state": "open"}}')
    return value


def _meters(
    files: Mapping[str, bytes], tools: Sequence[ToolVersion], problems: list[Problem]
) -> dict[str, tuple[Meter, ...]]:
    current = {version.tool: version.manifest for version in tools if version.label is None}
    meters, wrong = parse_meters(_toml(files, "meters.toml", dict, problems) or {}, current)
    problems += [Problem("meters.toml", None, message) for message in wrong]
    counted = by_tool(meters.values())
    # A version beside the current one spends from the same budget, so it must say as well what is counted.
    for version in tools:
        for meter in counted.get(version.tool, ()):
            if version.label is not None and (fault := meter.incompatibility(version.manifest)) is not None:
                problems.append(Problem(version.file, None, f"the meter {meter.name!r} counts it: {fault}"))
    return counted
