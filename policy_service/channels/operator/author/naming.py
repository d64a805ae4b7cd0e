"""Which bundle an author means: a folder, or the one of the settings."""

from __future__ import annotations

from pathlib import Path

from policy_service.pap.source import BundleFiles, FolderSource
from policy_service.settings import load_settings


def bundle_named(name: str | None) -> BundleFiles:
    """The bytes of the bundle at ``name``; without one those of the folder the settings name.

    Raises:
        BundleError: there is no such bundle, or it holds what does not belong.
        StartError: the settings are wrong.
    """
    return FolderSource(load_settings().bundle_dir if name is None else Path(name)).read()
