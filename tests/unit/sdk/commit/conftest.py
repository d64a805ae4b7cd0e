"""A refund and a charge of the test's desk, and timeouts that are over soon for tests that say so."""

import pytest

from tests.fakes.desk import Desk, charge_tools, refund_tool
from tests.fakes.running import hurried

__all__ = ["hurried"]


@pytest.fixture
def refund(desk: Desk):
    return refund_tool(desk)


@pytest.fixture
def charge(desk: Desk):
    return charge_tools(desk)
