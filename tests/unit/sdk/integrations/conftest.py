"""The four ways to talk with a model."""

from __future__ import annotations

import pytest

from tests.fakes.talking import ALL, Talk


@pytest.fixture(params=ALL)
def talk(request: pytest.FixtureRequest) -> Talk:
    return Talk(request.param)
