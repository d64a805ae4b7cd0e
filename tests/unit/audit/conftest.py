"""Databases: the fixtures of the storage tests, and which engine they run on."""

import pytest

from tests.unit.storage.databases import *  # noqa: F403
from tests.unit.storage.databases import SHORT_ON_SQLITE


@pytest.fixture(params=SHORT_ON_SQLITE)
def engine(request: pytest.FixtureRequest) -> str:
    """Where the engines could differ in the short suite a test asks for both."""
    chosen: str = request.param
    return chosen
