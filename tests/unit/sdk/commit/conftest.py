"""A charge of the test's desk, and timeouts that are over soon for tests that request them."""

import pytest

from tests.fakes.desk import Desk, charge_tools
from tests.fakes.running import hurried

__all__ = ["hurried"]


@pytest.fixture
def charge(desk: Desk):
    return charge_tools(desk)
