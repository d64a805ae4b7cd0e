"""The files of a bundle other than policies: tool manifests, groups, meters, facts and their sources.

`tools/NAME.json` is the current manifest of a tool, which agents are given. `tools/NAME@LABEL.json` is another version
that agents may still submit under during a rollout. A version without a current manifest is refused, and so is the same
version twice: it would be unclear which file to remove to end the rollout.

JSON is read by the contract's strict loader, TOML by the standard library. A tool and its groups are Cedar actions, so
their names must differ. A compensation names a tool of the same bundle and arguments that it has. A meter counts tools
of the same bundle.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from countersign.contract import ContractError, Lane, Limits, ToolManifest, load, load_manifest, manifest_file
from policy_service.domain.quorum import GroupDirectory
from policy_service.facts.allowlist import Allowlist
from policy_service.facts.config import FactsConfig, SourceSpec, parse_facts_config, row_problems
from policy_service.facts.groups import parse_groups
from policy_service.facts.manifests import InputCodec
from policy_service.facts.meters import Meter, by_tool, parse_meters
from policy_service.facts.readers import HttpReader, SourceFailedError, SqlReader
from policy_service.facts.sources import FactReader, FailedReader, FileReader
from policy_service.pap.folder_reader import MAX_FILE_BYTES
from policy_service.pap.problems import Problem, parse_problem

_FACTS_LIMITS: Final = Limits(max_bytes=MAX_FILE_BYTES, max_depth=8, max_nodes=200_000)
MAX_VERSIONS: Final = 8
"""Versions of one tool in one bundle: every rule is validated against each of them."""

MAX_SCHEMA_DEPTH: Final = 16
"""Nested references and objects that are followed in a manifest's JSON Schema."""

_FOLDER: Final = "tools/"
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


@dataclass(frozen=True)
class ToolVersion:
    """One reviewed manifest and its file. ``label`` is None for the tool's current version."""

    file: str
    label: str | None
    manifest: ToolManifest
    codec: InputCodec

    @property
    def tool(self) -> str:
        return self.manifest.tool

    @property
    def unseen(self) -> tuple[str, ...]:
        """Fields that policy cannot evaluate: a call that carries one asks people, unless a permit names it."""
        return tuple(sorted(self.codec.possible_unseen))


def read_tools(files: Mapping[str, bytes], problems: list[Problem]) -> tuple[ToolVersion, ...]:
    """Every manifest of the bundle in file order; problems are appended to the list."""
    read: list[ToolVersion] = []
    for file, raw in files.items():
        if not file.startswith(_FOLDER):
            continue
        try:
            manifest = load_manifest(raw)
            codec = InputCodec(manifest)
            read.append(ToolVersion(file, _label(file, manifest.tool), manifest, codec))
        except (ContractError, ValueError, RecursionError) as error:
            problems.append(parse_problem(file, error))
    problems += _version_problems(read)
    return tuple(read)


def _label(file: str, tool: str) -> str | None:
    expected = manifest_file(tool)
    name, at, label = file.removeprefix(_FOLDER).removesuffix(".json").partition("@")
    if f"{name}.json" != expected:
        raise ValueError(f"describes the tool {tool!r}; name the file after it: {expected}")
    if at and not _LABEL.match(label):
        raise ValueError(f"{label!r} names no version; write letters, digits, '.', '_' or '-' after the @")
    return label if at else None


def _version_problems(versions: Sequence[ToolVersion]) -> Iterator[Problem]:
    current = {version.tool for version in versions if version.label is None}
    seen: dict[tuple[str, str], str] = {}
    for version in versions:
        twin = seen.setdefault((version.tool, version.manifest.digest), version.file)
        if twin != version.file:
            yield Problem(version.file, None, f"is the same manifest as {twin}; keep one of them")
        if version.label is not None and version.tool not in current:
            file = manifest_file(version.tool)
            yield Problem(version.file, None, f"this tool has no current manifest; call this file {file!r}")
    for tool, count in Counter(version.tool for version in versions).items():
        if count > MAX_VERSIONS:
            message = f"{count} versions of this tool; {MAX_VERSIONS} is the limit"
            yield Problem(f"{_FOLDER}{manifest_file(tool)}", None, message)


def schema_node(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node of a manifest's JSON Schema with references resolved; empty if it is not an object."""
    for _ in range(MAX_SCHEMA_DEPTH):
        if not isinstance(node, Mapping):
            break
        if "$ref" not in node:
            return node
        found: Any = root
        for token in str(node["$ref"]).removeprefix("#").split("/")[1:]:
            step = token.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        node = found
    return {}


@dataclass(frozen=True)
class BundleParts:
    """The contents of a bundle except its policies."""

    tools: tuple[ToolVersion, ...]
    directory: GroupDirectory
    config: FactsConfig
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]]
    meters: Mapping[str, tuple[Meter, ...]]  # by the tool they count

    @property
    def current(self) -> dict[str, ToolVersion]:
        """The current version of each tool, by name."""
        return {version.tool: version for version in self.tools if version.label is None}

    @property
    def manifests(self) -> dict[str, ToolManifest]:
        return {name: version.manifest for name, version in self.current.items()}

    def open_readers(self, folder: Path | None, outside: Allowlist | None) -> dict[str, FactReader]:
        """A reader for each source. A source that cannot be opened gets a reader that fails with the reason.

        ``folder`` holds the databases that facts.toml names by path; ``outside`` is the allowlist of hosts.
        """
        return {source.name: self._open(source, folder, outside) for source in self.config.source}

    def _open(self, source: SourceSpec, folder: Path | None, outside: Allowlist | None) -> FactReader:
        if source.url is not None:
            allowed = None if outside is None else outside.host_for(source.url)
            if allowed is None:
                why = "only a service with an allowlist does that"
                return FailedReader(f"external sources are not queried here: {why}")
            return HttpReader(source, *allowed)
        if source.file is not None:
            by = "agent" if source.entity == "Agent" else "resource_id"
            return FileReader(self.rows[source.file], by=by)
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
    """All parts and their problems; a part with a problem is empty.

    External sources are checked against the allowlist ``outside``; without one they are not queried.
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


def allowlist_problems(
    directory: GroupDirectory, config: FactsConfig, outside: Allowlist
) -> Iterator[Problem]:
    """External sources and groups that this service's allowlist does not contain."""
    for source in config.source:
        if source.url is not None and outside.host_for(source.url) is None:
            message = (
                f"source {source.name!r} asks {source.url!r}, which is not on the allowlist of this service"
            )
            yield Problem("facts.toml", None, f"{message}; its operator adds it to [[facts_http]]")
    if directory.elsewhere and outside.directory is None:
        message = f"group {min(directory.elsewhere)!r} is in a directory, and this service reads none"
        yield Problem("groups.toml", None, f"{message}; its operator sets [directory]")


def _tool_problems(tools: Sequence[ToolVersion], config: FactsConfig) -> Iterator[Problem]:
    groups = {group for version in tools for group in version.manifest.groups}
    manifests = {version.tool: version.manifest for version in tools if version.label is None}
    for version in tools:
        messages = (
            [f"{version.tool!r} is a tool and an action group; rename one"] if version.tool in groups else []
        )
        messages += _compensation_problems(version.manifest, manifests)
        messages += _probe_problems(version.manifest, manifests)
        yield from (Problem(version.file, None, message) for message in messages)
    for source in config.source:
        if unknown := sorted(set(source.tools) - manifests.keys()):
            message = f"source {source.name!r}: there is no tool {unknown[0]!r}"
            yield Problem("facts.toml", None, message)


def _compensation_problems(manifest: ToolManifest, manifests: Mapping[str, ToolManifest]) -> Iterator[str]:
    if manifest.compensation is None:
        return
    name, mapped = manifest.compensation.tool, set(manifest.compensation.map)
    compensator = manifests.get(name)
    if compensator is None:
        yield f"compensation {name!r} is not a tool of this bundle; add its manifest"
    elif strange := sorted(mapped - compensator.properties):
        yield f"compensation {name!r} has no argument {strange[0]!r}"
    elif missing := sorted(set(_required(compensator)) - mapped):
        yield f"compensation {name!r} needs the argument {missing[0]!r}; map it"


def _probe_problems(manifest: ToolManifest, manifests: Mapping[str, ToolManifest]) -> Iterator[str]:
    """A probe is code of the agent that only reads. Only the SDK calls it, so it has a name and no manifest."""
    if manifest.probe in manifests:
        message = f"probe {manifest.probe!r} is a tool of this bundle"
        yield f"{message}; a probe only reads and has no manifest, name another"
    elif manifest.probe is not None and manifest.lane is Lane.LIVE:
        yield f"{manifest.tool!r} is a live tool, and its adapter knows what happened; leave the probe out"


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
    missing = sorted(named - files.keys())
    problems += [Problem(name, None, "named by a source, but missing") for name in missing]
    rows: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    for file in (name for name in files if name.startswith("facts/")):
        if file not in named:
            message = "no source in facts.toml names this file; add one or remove it"
            problems.append(Problem(file, None, message))
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
    # A non-current version spends from the same budget, so it must declare what is counted too.
    for version in tools:
        for meter in counted.get(version.tool, ()):
            if version.label is not None and (fault := meter.incompatibility(version.manifest)) is not None:
                problems.append(Problem(version.file, None, f"the meter {meter.name!r} counts it: {fault}"))
    return counted
