"""The databases of the identity tests, on one engine."""

import pytest

from tests.unit.storage.databases import *  # noqa: F403


@pytest.fixture
def engine() -> str:
    """Plain statements need one engine; where several write at once a test asks for both."""
    return "sqlite"
