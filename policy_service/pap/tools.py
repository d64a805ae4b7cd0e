"""The tools of a bundle: every reviewed manifest, one of each tool current and others still in force beside it.

Rules kept here: `tools/NAME.json` is the current one, which agents are given; `tools/NAME@LABEL.json` is another
version that agents may still submit under, while a rollout lasts. A version of a tool that has no current manifest is
refused, and so is the same version twice: nobody could say which file to take away to end it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract import ContractError, ToolManifest, load_manifest, manifest_file
from policy_service.facts.manifests import InputCodec
from policy_service.pap.problems import Problem, parse_problem

MAX_VERSIONS: Final = 8
"""Manifests of one tool in force at once: every rule is validated against each, and each must be kept in mind."""

MAX_SCHEMA_DEPTH: Final = 16
"""References, and objects within each other, that are followed in a manifest's JSON Schema."""

_FOLDER: Final = "tools/"
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


@dataclass(frozen=True)
class ToolVersion:
    """One reviewed manifest, and the file it lies in. ``label`` is None on the tool's current one."""

    file: str
    label: str | None
    manifest: ToolManifest
    codec: InputCodec

    @property
    def tool(self) -> str:
        """The tool's name."""
        return self.manifest.tool

    @property
    def unseen(self) -> tuple[str, ...]:
        """The fields that policy cannot see: a call that carries one asks people, unless a permit names it."""
        return tuple(sorted(self.codec.possible_unseen))


def read_tools(files: Mapping[str, bytes], problems: list[Problem]) -> tuple[ToolVersion, ...]:
    """Every manifest of the bundle in the order of its files, and every problem on the way."""
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


def _version_problems(read: Iterable[ToolVersion]) -> list[Problem]:
    versions = tuple(read)
    current = {version.tool for version in versions if version.label is None}
    counted = Counter(version.tool for version in versions)
    problems: list[Problem] = []
    seen: dict[tuple[str, str], str] = {}
    for version in versions:
        twin = seen.setdefault((version.tool, version.manifest.digest), version.file)
        if twin != version.file:
            problems.append(Problem(version.file, None, f"is the same manifest as {twin}; keep one of them"))
        if version.label is not None and version.tool not in current:
            message = (
                f"there is no current manifest beside it; call this file {manifest_file(version.tool)!r}"
            )
            problems.append(Problem(version.file, None, message))
    problems += [
        Problem(
            f"{_FOLDER}{manifest_file(tool)}",
            None,
            f"{count} versions of this tool; {MAX_VERSIONS} is the limit",
        )
        for tool, count in counted.items()
        if count > MAX_VERSIONS
    ]
    return problems


def schema_node(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node of a manifest's JSON Schema, or what it refers to within the document; empty for what is no object."""
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
