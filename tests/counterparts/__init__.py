"""What the tests need from outside the repository: who it is, whether it is here, and the way to get it.

    path = require("chromium", shutil.which("chromium"), "apt-get install chromium")

answers the found thing; when nothing was found the test is skipped and the run ends with the way to get it.
With REQUIRE_ALL=1 in the environment it fails instead: that is how `.ci/run` runs the suite.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

REQUIRE_ALL = os.environ.get("REQUIRE_ALL", "") not in {"", "0"}
WAY_TO_GET = "to get it: "

Found = TypeVar("Found")


def require(name: str, found: Found | None, way_to_get: str) -> Found:
    """Answer `found`, or skip the test loudly; under REQUIRE_ALL=1 fail it. Empty counts as missing."""
    if found:
        return found
    message = f"{name} is missing; {WAY_TO_GET}{way_to_get}"
    if REQUIRE_ALL:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
