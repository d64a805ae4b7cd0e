"""A desk whose agent has budgets."""

from typing import Any

import pytest

from tests.fakes.desk import Desk, make_desk
from tests.unit.sdk.llm.asking import PRICES, Make


@pytest.fixture
def make(tmp_path: Any, request: pytest.FixtureRequest) -> Make:
    """A desk whose agent has these budgets, and a price file."""

    def made(*budgets: Any, **changes: Any) -> Desk:
        prices = tmp_path / "prices.toml"
        prices.write_text(PRICES)
        desk = make_desk(tmp_path, **{"budgets": budgets, "prices_path": prices} | changes)
        request.addfinalizer(desk.runtime.close)
        return desk

    return made
