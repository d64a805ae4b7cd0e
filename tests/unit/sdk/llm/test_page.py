"""The examples of docs/how-to/model-costs.md work unchanged."""

from types import SimpleNamespace
from typing import Any

import pytest

from countersign import use_runtime
from countersign.llm.budgets import load_budgets
from countersign.llm.prices import load_prices
from tests.conventions.documents import all_blocks
from tests.fakes.desk import make_desk
from tests.fakes.llm_answers import OPENAI_CHAT, as_object

PRICES, BUDGETS = (one.text for one in all_blocks("toml") if one.document == "docs/how-to/model-costs.md")
(PROGRAM,) = (one.text for one in all_blocks("text") if one.document == "docs/how-to/model-costs.md")


def a_desk(folder: Any, budgets: str) -> Any:
    (folder / "prices.toml").write_text(PRICES)
    (folder / "budgets.toml").write_text(budgets)
    assert load_prices(folder / "prices.toml") and load_budgets(folder / "budgets.toml")
    return make_desk(folder, prices_path=folder / "prices.toml", budgets_path=folder / "budgets.toml")


def run(create: Any) -> None:
    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    exec(PROGRAM, {"client": client, "messages": [{"role": "user", "content": "Hello"}]})


def test_the_program_of_the_page_is_counted_by_the_files_of_the_page(tmp_path: Any) -> None:
    desk = a_desk(tmp_path, BUDGETS.replace('per = "run"', 'per = "day"'))
    sent: list[dict[str, Any]] = []

    def create(**given: Any) -> Any:
        sent.append(given)
        return as_object(OPENAI_CHAT)

    with desk.runtime, use_runtime(desk.runtime):
        run(create)
        assert [one["max_tokens"] for one in sent] == [500]
        spent = {
            row["name"]: desk.runtime.journal.spending.periods(row["name"], 1)[0]["spent"]
            for row in desk.runtime.journal.spending.budgets()
        }
    assert spent == {"a-day": 283_200_000, "a-ticket": 1500}


@pytest.mark.parametrize(("per", "refused"), [("run", "belongs to none"), ("day", "0.0001")])
def test_the_program_of_the_page_respects_its_budget(tmp_path: Any, per: str, refused: str) -> None:
    budgets = BUDGETS.replace('limit = "20.00"', 'limit = "0.0001"').replace('"run"', f'"{per}"')
    desk = a_desk(tmp_path, budgets)
    with desk.runtime, use_runtime(desk.runtime), pytest.raises(Exception, match=refused):
        run(lambda **_: pytest.fail("the model was called"))
