"""Loads the catalogue: `manifests/` as in any bundle, `entries.json` with further information on them, and
`no_compensation.json` with the acts that have no compensation, why, and what to do instead.

Every manifest has a compensation in this catalogue, or is undone by its adapter (`lane: live`), or is among the acts
without one. A manifest is taken together with its compensations, because a bundle without them does not load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, Literal

from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.errors import MisuseError

Instead = Literal["backup", "delay", "narrow", "preview", "review"]
"""Back up what it destroys; delay it; limit its reach; show a preview; require a review."""

_FOLDER: Final = files("countersign") / "catalogue"


@dataclass(frozen=True, slots=True)
class Uncompensated:
    """One act without a compensation."""

    act: str
    why: str
    instead: tuple[Instead, ...]
    do: str
    tool: str | None = None  # the catalogue's manifest of it, if there is one


@dataclass(frozen=True, slots=True)
class Entry:
    """One manifest of the catalogue, with further information for reviewers."""

    manifest: ToolManifest
    like: tuple[str, ...]
    idempotent_because: str | None = None
    compensation_leaves: str | None = None
    sources: tuple[str, ...] = ()
    uncompensated: Uncompensated | None = None

    @property
    def tool(self) -> str:
        return self.manifest.tool

    @property
    def compensated_by(self) -> str:
        """Its compensation, in a word or two."""
        if self.manifest.compensation is not None:
            return self.manifest.compensation.tool
        return "nothing" if self.uncompensated is not None else "its adapter"

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "tool": self.tool,
            "manifest": self.manifest.to_json(),
            "like": list(self.like),
            "idempotent_because": self.idempotent_because,
            "taken_back_by": self.compensated_by,
            "compensation_leaves": self.compensation_leaves,
            "sources": list(self.sources),
        }


def uncompensated_acts() -> tuple[Uncompensated, ...]:
    """Every act without a compensation, those of the catalogue's manifests first."""
    return tuple(
        Uncompensated(one["act"], one["why"], tuple(one["instead"]), one["do"], one.get("tool"))
        for one in _json("no_compensation.json")
    )


@cache
def catalogue() -> Mapping[str, Entry]:
    """Every entry by its tool's name, in order."""
    acts = {one.tool: one for one in uncompensated_acts() if one.tool is not None}
    found = {one.tool: one for one in _manifests()}
    return MappingProxyType(
        {
            one["tool"]: Entry(
                found[one["tool"]],
                tuple(one["like"]),
                one.get("idempotent_because"),
                one.get("compensation_leaves"),
                tuple(one.get("sources", ())),
                acts.get(one["tool"]),
            )
            for one in _json("entries.json")
        }
    )


def search_entries(word: str) -> list[Entry]:
    """The entries with this word in name, title, groups or examples."""
    wanted = word.casefold()
    return [
        one
        for one in catalogue().values()
        if wanted in " ".join([one.tool, one.manifest.title, *one.manifest.groups, *one.like]).casefold()
    ]


def with_compensations(names: Iterable[str]) -> list[ToolManifest]:
    """The manifests with these names, and all their compensations.

    Raises:
        MisuseError: the catalogue has no such manifest.
    """
    waiting, chosen = list(names), dict[str, ToolManifest]()
    while waiting:
        name = waiting.pop(0)
        if name in chosen:
            continue
        manifest = chosen[name] = entry(name).manifest
        if manifest.compensation is not None:
            waiting.append(manifest.compensation.tool)
    return list(chosen.values())


def entry(name: str) -> Entry:
    """One entry.

    Raises:
        MisuseError: there is none with that name; similar names are listed.
    """
    found = catalogue().get(name)
    if found is None:
        near = [one.tool for one in search_entries(name.rpartition(".")[2])] or sorted(catalogue())
        raise MisuseError(f"the catalogue has no {name!r}; it has {', '.join(near)}")
    return found


def _manifests() -> Iterable[ToolManifest]:
    for file in (_FOLDER / "manifests").iterdir():
        if file.name.endswith(".json"):
            yield load_manifest(file.read_bytes())


def _json(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((_FOLDER / name).read_text("utf-8"))
    return rows
