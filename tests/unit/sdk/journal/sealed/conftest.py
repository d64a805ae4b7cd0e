"""A journal on each engine with a key of its own; what a test leaves in it verifies without any."""

from pathlib import Path

import pytest

from countersign.journal.sealing_keys import add_key
from countersign.journal.verification import verify
from tests.fakes.desk import make_desk
from tests.unit.sdk.journals import both_engines

__all__ = ["both_engines"]


@pytest.fixture
def keys(tmp_path) -> Path:
    path = tmp_path / "keys"
    add_key(path)
    return path


@pytest.fixture
def desk(tmp_path, place, keys: Path, request):
    made = make_desk(tmp_path, journal_path=place, journal_key_path=keys)
    yield made
    there = made.runtime.journal.database.exists()
    made.runtime.close()
    if there:
        # Without any key.
        assert verify(place).sound is (request.node.get_closest_marker("tampers") is None)
