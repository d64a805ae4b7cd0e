"""The named parts of `make test-long`: every long test is in exactly one."""

from __future__ import annotations

import pytest

# The first row that fits decides: what the test's id begins with, and the part.
_BY_PLACE = (
    ("tests/crash/test_service_dies.py", "crash-service"),
    ("tests/crash/test_disk.py", "crash-service"),
    ("tests/crash/", "crash-sdk"),
    ("tests/model/", "model"),
    ("tests/e2e/", "browser"),
    ("tests/integration/slack/", "slack"),
    ("tests/integration/frameworks/", "frameworks"),
    ("tests/integration/sdk/", "sdk"),
    ("tests/integration/dev/", "sdk"),
    ("tests/integration/examples/", "sdk"),
    ("tests/unit/sdk/", "sdk"),
    ("", "service"),
)
# What dies on PostgreSQL is a part of its own: each part ends within twenty minutes of two quiet cores.
# `examples` draws inputs by the thousand in tests that `make test` runs with a hundred.
PARTS = (*dict.fromkeys(part for _, part in _BY_PLACE), "crash-postgresql", "postgresql", "examples")


def part_of(item: pytest.Item) -> str | None:
    """The part that runs this test, or None for a test that `make test` runs whole."""
    if item.get_closest_marker("long") is None:
        drawn = item.get_closest_marker("deep") or item.get_closest_marker("hypothesis")
        return "examples" if drawn else None
    part = next(part for place, part in _BY_PLACE if item.nodeid.startswith(place))
    if "postgresql" not in item.name or part in {"crash-sdk", "model"}:
        return part
    return "crash-postgresql" if part == "crash-service" else "postgresql"
