"""The active bundle is always a validated one (I-13); an invalid folder changes only the health page."""

from pathlib import Path

import pytest

from policy_service.pap.active_bundle import ActiveBundle
from policy_service.pap.bundle import NoActiveBundleError
from policy_service.pap.source import FolderSource
from tests.fakes.bundles import NOW, PERMIT_ALL, BundleFolder


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(PERMIT_ALL)


def active_of(folder: BundleFolder) -> ActiveBundle:
    return ActiveBundle(FolderSource(folder.path), clock=lambda: NOW)


async def test_no_decision_before_a_valid_bundle(folder: BundleFolder) -> None:
    active = active_of(folder.policies("nonsense;"))
    with pytest.raises(NoActiveBundleError):
        _ = active.current
    reloaded = await active.reload()
    assert (reloaded.active, reloaded.changed) == (None, False)
    assert reloaded.error is not None
    with pytest.raises(NoActiveBundleError):
        _ = active.current
    assert active.status().failed_at == NOW


async def test_valid_folder_becomes_active_and_is_loaded_once(folder: BundleFolder) -> None:
    active = active_of(folder)
    reloaded = await active.reload()
    good = active.current
    assert (reloaded.active, reloaded.changed, reloaded.error) == (good, True, None)
    status = active.status()
    assert status.active_digest == status.head_digest == good.digest
    assert (status.loaded_at, status.error) == (NOW, None)
    assert not (await active.reload()).changed
    assert active.current is good


async def test_invalid_folder_keeps_the_last_valid_bundle(folder: BundleFolder, tmp_path: Path) -> None:
    """Fixing it clears the error, and loads another bundle if the bytes differ. A missing folder behaves alike."""
    active = active_of(folder)
    await active.reload()
    good = active.current
    folder.policies('@id("x") permit (principal, action == Action::"gone", resource);')
    reloaded = await active.reload()
    assert active.current is good
    assert (reloaded.active, reloaded.changed) == (good, False)
    status = active.status()
    assert status.active_digest == good.digest
    assert status.head_digest not in (None, good.digest)
    assert "rules.cedar:1: unrecognized action" in str(status.error)
    folder.policies(PERMIT_ALL)
    assert (await active.reload()).error is None
    assert active.current is good
    assert active.status().error is None
    folder.policies(PERMIT_ALL + "// another\n")
    assert (await active.reload()).changed
    assert active.current is not good
    newest = active.current
    folder.path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    assert (await active.reload()).error is not None
    assert active.status().head_digest is None
    assert active.current is newest
