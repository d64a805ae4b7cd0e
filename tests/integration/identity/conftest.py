"""A third-party issuer of tokens, one for all tests of the folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.counterparts import node


@pytest.fixture(scope="session")
def factory() -> Iterator[node.TokenFactory]:
    with node.token_factory() as running_factory:
        yield running_factory
