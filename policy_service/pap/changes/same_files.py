"""Whether two files whose bytes differ mean the same: only when what is read from them is equal.

Rules kept here: a file is never called the same for its name or kind; one that nobody reads here means nothing we know,
so it must be equal as JSON; whatever cannot be read is not the same.
"""

from __future__ import annotations

from typing import Any

from countersign.contract import ContractError, load
from policy_service.facts.groups import Directory
from policy_service.pap.bundle import Bundle
from policy_service.pap.changes.cases_of_both import same_cases
from policy_service.pap.changes.slices_of_both import meaning
from policy_service.pap.changes.structure import meters_of
from policy_service.pap.parts import Parts


def means_the_same(name: str, bundles: tuple[Bundle, Bundle], parts: tuple[Parts, Parts]) -> bool:
    """Whether both bundles read the same from this file."""
    before, after = bundles
    mine, theirs = parts
    if name == "groups.toml":
        return bool(_people(mine.directory) == _people(theirs.directory))
    if name == "facts.toml":
        return bool(mine.config == theirs.config)
    if name == "meters.toml":
        return meters_of(mine) == meters_of(theirs)
    if name.endswith(".cedar"):
        return _same_policies(name, before, after)
    if name.startswith("tools/"):
        return bool(_manifest(name, before) == _manifest(name, after))
    if name.startswith("facts/"):
        return name in before.source.files and name in after.source.files and _same_json(name, bundles)
    return name.startswith("cases/") and same_cases(name, before.source.files, after.source.files)


def _people(directory: Directory) -> Any:
    groups = {group: (directory.members(group), directory.title_of(group)) for group in directory.groups}
    return groups, directory.people, directory.elsewhere


def _manifest(name: str, bundle: Bundle) -> Any:
    return next((each.manifest.digest for each in bundle.tools if each.file == name), None)


def _same_policies(name: str, before: Bundle, after: Bundle) -> bool:
    """Also where a rule moved to another file: what counts is that both bundles hold it."""
    held = {each.id for bundle in (before, after) for each in bundle.policies.values() if each.file == name}
    for policy_id in held:
        old, new = before.policies.get(policy_id), after.policies.get(policy_id)
        if old is None or new is None or meaning(old) != meaning(new) or old.annotations != new.annotations:
            return False
    return True


def _same_json(name: str, bundles: tuple[Bundle, Bundle]) -> bool:
    try:
        before, after = (_typed(load(bundle.source.files[name])) for bundle in bundles)
    except (ContractError, ValueError):
        return False
    return bool(before == after)


def _typed(value: Any) -> Any:
    """A number or truth with its type beside it: Python calls `1` and `true` equal, and policy does not."""
    if isinstance(value, dict):
        return {key: _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    return (type(value), value)
