"""Every setting is documented, and the documentation says what the code does."""

from __future__ import annotations

from countersign import settings as sdk_settings
from policy_service.settings import Settings
from policy_service.settings_parsing import ENV_PREFIX
from tests.conventions.repository import ROOT
from tests.conventions.settings_page import PAGE, page


def test_the_page_is_the_one_the_settings_make() -> None:
    assert PAGE.read_text() == page(), "run: make pages"


def test_every_setting_is_on_the_page_with_a_meaning() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{ENV_PREFIX}")]
    rows = [line.split(" | ") for line in lines]
    documented = {row[0].strip("| `"): row[-1].strip("| ") for row in rows}
    assert set(documented) == {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert [name for name, meaning in documented.items() if len(meaning) < 10] == []


def test_every_variable_of_the_sdk_is_documented() -> None:
    settings_page = (ROOT / "docs/reference/sdk-settings.md").read_text()
    variables = [value for name, value in vars(sdk_settings).items() if name.endswith("_VARIABLE")]
    assert len(variables) >= 5
    assert [name for name in variables if f"`{name}`" not in settings_page] == []
