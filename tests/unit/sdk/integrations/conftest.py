"""The ways to talk with a model: one of each vendor, one of them async. `test_loops.py` takes all four."""

import pytest

from tests.fakes.desk import Desk
from tests.fakes.talking import Talk
from tests.unit.sdk.integrations.talks import BOTH


@pytest.fixture(params=BOTH)
def talk(request, desk: Desk) -> Talk:
    return Talk(request.param, runtime=desk.runtime)
