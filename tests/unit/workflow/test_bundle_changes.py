"""One bundle from facts to decision, and the times a client may ask to wait."""

from __future__ import annotations

from typing import Any, cast

import pytest
from fastapi import Request

from policy_service.channels.http.transactions import wanted_wait
from policy_service.errors import StorageUnavailableError
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.workflow.effects.evaluation import (
    BundleChangedError,
    require_current_bundle,
    with_stable_bundle,
)


class Swapping:
    """What a context is to these functions: something whose active bundle changes a number of times."""

    def __init__(self, swaps: int) -> None:
        self.swaps = swaps
        self.active: Any = self
        self.current = object()

    async def work(self, bundle: Bundle) -> str:
        """A request during which another bundle may become active."""
        if self.swaps:
            self.swaps -= 1
            self.current = object()
        require_current_bundle(cast(Context, self), bundle)
        return "decided"


@pytest.mark.anyio
async def test_a_request_is_decided_anew_under_the_bundle_that_came_meanwhile_but_not_for_ever() -> None:
    for swaps in (0, 1, 4):
        ctx = Swapping(swaps)
        assert await with_stable_bundle(cast(Context, ctx), ctx.work) == "decided"
    ctx = Swapping(1_000)
    with pytest.raises(StorageUnavailableError, match="repeat it"):
        await with_stable_bundle(cast(Context, ctx), ctx.work)
    with pytest.raises(BundleChangedError):
        require_current_bundle(cast(Context, ctx), cast(Bundle, object()))


PREFER = {
    "": 0, "wait=5": 5, "wait=30": 30, "wait=31": 30, "wait=999999": 30, "respond-async, wait=7": 7,
    "wait=7; foo=bar": 7, "WAIT=5": 5, "wait=": 0, "wait=-1": 0, "wait=1e3": 0, "await=5": 0, "wait=5x": 0,
    "wait=99999999": 0,
}  # fmt: skip


@pytest.mark.parametrize(("prefer", "seconds"), PREFER.items(), ids=PREFER)
def test_a_preference_is_a_wish_and_has_a_limit(prefer: str, seconds: int) -> None:
    for more in ([], [(b"prefer", b"respond-async")]):  # a list may be several fields
        request = Request({"type": "http", "headers": [*more, (b"prefer", prefer.encode())]})
        assert wanted_wait(request, 30) == seconds
