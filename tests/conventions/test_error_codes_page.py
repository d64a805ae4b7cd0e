"""docs/reference/error-codes.md lists every error code with its HTTP status, and every code of a denial."""

from __future__ import annotations

import re

from countersign.contract.codes import DenyCode
from policy_service.errors import HTTP_STATUS
from tests.conventions.repository import ROOT

PAGE = (ROOT / "docs/reference/error-codes.md").read_text()


def test_the_page_has_every_error_code_with_its_status() -> None:
    listed = {code: int(status) for code, status in re.findall(r"^\| `(\w+)` \| (\d{3}) \|", PAGE, re.M)}
    assert listed == {code.value: status for code, status in HTTP_STATUS.items()}


def test_the_page_has_every_code_of_a_denial() -> None:
    table = PAGE.partition("\n## Denials\n")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == {code.value for code in DenyCode}
