"""A desk whose agent has budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from countersign import Budget
from tests.fakes.desk import Desk, make_desk
from tests.unit.sdk.llm.asking import PRICES, Make


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """A desk whose agent has these budgets, and a price file."""

    def made(*budgets: Budget, **changes: Any) -> Desk:
        prices = tmp_path / "prices.toml"
        prices.write_text(PRICES)
        desk = make_desk(tmp_path, **{"budgets": budgets, "prices_path": prices} | changes)
        request.addfinalizer(desk.runtime.close)
        return desk

    return made
