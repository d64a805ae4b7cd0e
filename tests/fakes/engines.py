"""Which engines a journal is on, where the short suite is content with one of them."""

import pytest

SQLITE_IN_SHORT = [
    "sqlite",
    pytest.param("postgresql", marks=[pytest.mark.long, pytest.mark.xdist_group("journals")]),
]
"""For `@pytest.mark.parametrize("engine", ...)`: PostgreSQL is left to the long suite."""
