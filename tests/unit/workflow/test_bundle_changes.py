"""Deciding under one bundle, and the time a client may ask to wait."""

from typing import Any, cast

import pytest
from fastapi import Request

from policy_service.channels.http.transactions import wanted_wait
from policy_service.errors import StorageUnavailableError
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.workflow.effects import evaluation


class ChangingContext:
    """A context whose active bundle changes a number of times."""

    def __init__(self, changes: int) -> None:
        self.changes = changes
        self.active: Any = self
        self.current = object()

    async def work(self, bundle: Bundle) -> str:
        """A request during which another bundle becomes active."""
        if self.changes:
            self.changes -= 1
            self.current = object()
        evaluation.require_current_bundle(cast(Context, self), bundle)
        return "decided"


async def test_a_request_is_repeated_under_a_new_bundle_a_limited_number_of_times() -> None:
    for changes in (0, 1, 4):
        ctx = ChangingContext(changes)
        assert await evaluation.with_stable_bundle(cast(Context, ctx), ctx.work) == "decided"
    ctx = ChangingContext(1_000)
    with pytest.raises(StorageUnavailableError, match="repeat it"):
        await evaluation.with_stable_bundle(cast(Context, ctx), ctx.work)
    with pytest.raises(evaluation.BundleChangedError):
        evaluation.require_current_bundle(cast(Context, ctx), cast(Bundle, object()))


PREFER = {
    "": 0, "wait=5": 5, "wait=30": 30, "wait=31": 30, "wait=999999": 30, "respond-async, wait=7": 7,
    "wait=7; foo=bar": 7, "WAIT=5": 5, "wait=": 0, "wait=-1": 0, "wait=1e3": 0, "await=5": 0, "wait=5x": 0,
    "wait=99999999": 0,
}  # fmt: skip


@pytest.mark.parametrize(("prefer", "seconds"), PREFER.items(), ids=PREFER)
def test_the_wait_preference_has_a_limit(prefer: str, seconds: int) -> None:
    for more in ([], [(b"prefer", b"respond-async")]):  # a list may be several fields
        request = Request({"type": "http", "headers": [*more, (b"prefer", prefer.encode())]})
        assert wanted_wait(request, 30) == seconds
