"""A tool nobody has reviewed, in front of the real service in `dev`: people are asked, what they agreed to fires."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from countersign import ReviewPending, tool, transaction
from countersign.contract import EffectState
from tests.integration.sdk.near import Near
from tests.integration.sdk.near import near as running_near


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Near]:
    with running_near(tmp_path, environment="dev") as one:
        yield one


def test_what_its_code_would_take_back_with_is_no_reason_to_refuse_it(near: Near) -> None:
    """The code names a compensation and no reviewer has: people were shown none, so none is promised."""

    @tool("close_account", resource=("Account", "customer"), registry=near.registry)
    def close_account(customer: str) -> None:
        """Close an account."""
        near.act("close", customer)

    @tool(
        "open_account",
        resource=("Account", "customer"),
        compensate="close_account",
        compensation_map={"customer": "args:/customer"},
        registry=near.registry,
    )
    def open_account(customer: str) -> str:
        """Open an account."""
        near.act("open", customer)
        return "opened"

    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=near.runtime):
        open_account("mia")
    near.vote(pending.value, by="ingrid")
    with transaction("t-1", runtime=near.runtime) as txn:
        opened = open_account("mia")
    assert (opened.result, near.done) == ("opened", [("open", "mia")])
    assert near.states(txn.txn) == [EffectState.FIRED]
