"""Databases: the fixtures of the storage tests, and which engine they run on."""

import pytest

from tests.unit.storage.databases import *  # noqa: F403


@pytest.fixture
def engine() -> str:
    """Plain statements need one engine; where several write at once a test asks for both."""
    return "sqlite"
