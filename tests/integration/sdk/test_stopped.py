"""A program that is stopped while the real service answers it: what it was told has not happened does not happen later,
and what it does again happens once.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from countersign import AlreadyRedeemed, resume, transaction
from countersign.contract import EffectState
from countersign.journal import LocalTxn
from tests.integration.sdk.conftest import until
from tests.integration.sdk.test_network import DONE, Post, line, post, step

__all__ = ["line", "post"]

SUBMISSION = "/v1/transactions"


def when_held(post: Post, stop: Callable[[], None]) -> None:
    """Do this once the submission is on its way; where the line forwards, the service has answered it by then."""
    until(lambda: [one for one in post.proxy.broken if one.startswith("POST")])
    stop()


def pressed(post: Post, key: str) -> None:
    """The step, in which somebody presses Ctrl-C."""
    main = threading.main_thread().ident or 0
    stop = partial(signal.pthread_kill, main, signal.SIGINT)
    presses = threading.Thread(target=when_held, args=(post, stop))
    presses.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            step(post, key)
    finally:
        presses.join()


def timed_out(post: Post, key: str) -> None:
    """The step, whose time is up."""

    async def body() -> None:
        async with asyncio.timeout(None) as scope:
            loop = asyncio.get_running_loop()
            stop = partial(loop.call_soon_threadsafe, scope.reschedule, loop.time())
            threading.Thread(target=when_held, args=(post, stop)).start()
            async with transaction(key, runtime=post.runtime):
                post.tools.refund("o-1", 100)

    with pytest.raises(TimeoutError):
        asyncio.run(body())


@pytest.fixture(params=[pressed, timed_out])
def stopped(request: pytest.FixtureRequest) -> Callable[[Post, str], None]:
    stops: Callable[[Post, str], None] = request.param
    return stops


@pytest.fixture(params=[False, True], ids=["before it arrived", "redeemed"])
def redeemed(request: pytest.FixtureRequest, post: Post) -> bool:
    post.proxy.broken.clear()
    post.proxy.breaks(SUBMISSION, "half-open", forwards=request.param)
    return bool(request.param)


def test_done_again_under_another_key_it_happens_once(
    post: Post, key: str, stopped: Callable[[Post, str], None], redeemed: bool
) -> None:
    stopped(post, key)
    post.proxy.lift()
    step(post, f"{key}-again")
    (found,) = resume(post.runtime)
    assert (found.run_key, found.before, found.after) == (key, LocalTxn.STOPPED, LocalTxn.ENDED)
    assert (resume(post.runtime), post.tools.done) == ([], DONE)
    if redeemed:
        view = post.runtime.client().view(found.txn)
        assert [one.state for one in view.effects] == [EffectState.UNUSED]
        with pytest.raises(AlreadyRedeemed, match="refund#1 unused"):
            step(post, key)
    assert len(post.tools.done) == 1
