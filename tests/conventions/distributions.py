"""The two distributions as their pyproject files and the lock describe them."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conventions.repository import ROOT

OURS = frozenset({"countersign-sdk", "countersign-service"})
PYPROJECTS = {"service": ROOT / "pyproject.toml", "sdk": ROOT / "sdk/python/pyproject.toml"}


@cache
def pyproject(which: str) -> dict[str, Any]:
    return tomllib.loads(PYPROJECTS[which].read_text())


def declared(which: str) -> dict[str, Requirement]:
    """The third-party requirements of one distribution, by normalised name."""
    found = [Requirement(line) for line in pyproject(which)["project"]["dependencies"]]
    return {canonicalize_name(one.name): one for one in found if canonicalize_name(one.name) not in OURS}


def extras(which: str) -> dict[str, Requirement]:
    """The third-party requirements of one distribution's extras, by normalised name."""
    lists = pyproject(which)["project"].get("optional-dependencies", {}).values()
    return {canonicalize_name(one.name): one for lines in lists for one in map(Requirement, lines)}


def locked(name: str) -> dict[str, str]:
    """name -> version of requirements/NAME.txt, without markers."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    pinned = (re.match(r"([\w.-]+)(?:\[[^\]]*\])?==(\S+)", line) for line in lines)
    return {canonicalize_name(one[1]): one[2] for one in pinned if one}


@cache
def distributions_of(module: str) -> frozenset[str]:
    """The distributions that provide a top-level module, by normalised name."""
    return frozenset(canonicalize_name(name) for name in packages_distributions().get(module, []))
