"""The service's API for programs: `AsyncClient` on an event loop, `Client` on the calling thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from countersign.async_executor import AsyncExecutor
from countersign.concurrency import run_sync
from countersign.service.client import Service
from countersign.service.transport import Transport


class AsyncClient(Service):
    """The API for async programs; use it as `async with runtime.async_client() as client`."""

    def __init__(self, transport: Transport, executor: AsyncExecutor, *, max_jwks_bytes: int) -> None:
        super().__init__(transport, max_jwks_bytes=max_jwks_bytes)
        self._opened = executor.opened()

    async def __aenter__(self) -> Self:
        await self._opened.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.__aexit__(None, None, None)


def _blocking(
    call: Callable[Concatenate[Service, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], R]:
    @functools.wraps(call)
    def blocking(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_sync(call(client._service, *args, **kwargs))

    return blocking


class Client:
    """The API for blocking programs: the calls of `Service` on this thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    submit = _blocking(Service.submit)
    view = _blocking(Service.view)
    transactions = _blocking(Service.transactions)
    withdraw = _blocking(Service.withdraw)
    answer = _blocking(Service.answer)
    release = _blocking(Service.release)
    compensate = _blocking(Service.compensate)
    accept_proposal = _blocking(Service.accept_proposal)
    decline_proposal = _blocking(Service.decline_proposal)
    redeem = _blocking(Service.redeem)
    renew = _blocking(Service.renew)
    report = _blocking(Service.report)
    epoch = _blocking(Service.epoch)
    evaluate = _blocking(Service.evaluate)
    manifest = _blocking(Service.manifest)
    jwks = _blocking(Service.jwks)


P = ParamSpec("P")
R = TypeVar("R")
