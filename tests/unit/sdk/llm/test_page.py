"""The examples of docs/how-to/model-costs.md work unchanged."""

from types import SimpleNamespace
from typing import Any

from countersign import use_runtime
from tests.conventions.documents import all_blocks
from tests.fakes.desk import make_desk
from tests.fakes.llm_answers import OPENAI_CHAT, as_object

PRICES, BUDGETS = (one.text for one in all_blocks("toml") if one.document == "docs/how-to/model-costs.md")
(PROGRAM,) = (one.text for one in all_blocks("text") if one.document == "docs/how-to/model-costs.md")


def test_the_program_of_the_page_is_counted_by_the_files_of_the_page(tmp_path: Any) -> None:
    prices, budgets = tmp_path / "prices.toml", tmp_path / "budgets.toml"
    prices.write_text(PRICES)
    budgets.write_text(BUDGETS.replace('per = "run"', 'per = "day"'))
    desk, sent = make_desk(tmp_path, prices_path=prices, budgets_path=budgets), list[dict[str, Any]]()

    def create(**given: Any) -> Any:
        sent.append(given)
        return as_object(OPENAI_CHAT)

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    with desk.runtime, use_runtime(desk.runtime):
        exec(PROGRAM, {"client": client, "messages": [{"role": "user", "content": "Hello"}]})
        assert [one["max_tokens"] for one in sent] == [500]
        spent = {
            row["name"]: desk.runtime.journal.spending.periods(row["name"], 1)[0]["spent"]
            for row in desk.runtime.journal.spending.budgets()
        }
    assert spent == {"a-day": 283_200_000, "a-ticket": 1500}
